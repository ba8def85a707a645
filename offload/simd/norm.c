/* The global norm: sums of squares, and sums of two uses made into the stored gradient. */
#include "offload/simd/simd.h"

/* 16 sums in as many vectors as the instruction set needs; squares of fp32 are exact in fp64, so contraction changes nothing. */
#if defined __AVX512F__
enum { WIDTH = 8 };
#elif defined __AVX2__
enum { WIDTH = 4 };
#else
enum { WIDTH = 2 };
#endif
enum { SUMS = 16, VECTORS = SUMS / WIDTH };
typedef double doubles __attribute__((vector_size(8 * WIDTH)));
typedef float floats __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t words __attribute__((vector_size(4 * WIDTH)));

static double gather(const doubles sum[VECTORS], const float *tail, int64_t count)
{
	double lane[SUMS], total = 0;
	memcpy(lane, sum, sizeof lane);
	for (int64_t i = 0; i < count; i++)
		lane[i] += (double)tail[i] * tail[i];
	for (int i = 0; i < SUMS; i++)
		total += lane[i];
	return total;
}

double SIMD(squares_f32)(const float *values, int64_t count)
{
	doubles sum[VECTORS] = {{0}};
	int64_t whole = count & ~INT64_C(15);
	for (int64_t i = 0; i < whole; i += SUMS) {
		floats x[VECTORS];
		ask(values + i, SUMS * 4);
		memcpy(x, values + i, sizeof x);
		for (int k = 0; k < VECTORS; k++) {
			doubles wide = __builtin_convertvector(x[k], doubles);
			sum[k] += wide * wide;
		}
	}
	return gather(sum, values + whole, count - whole);
}

/* A word holds two values, each a shift away from fp32: even ones go to the first eight sums, odd ones to the others. */
double SIMD(squares_bf16)(const uint16_t *values, int64_t count)
{
	doubles sum[VECTORS] = {{0}};
	int64_t whole = count & ~INT64_C(15);
	for (int64_t i = 0; i < whole; i += SUMS) {
		words pair[VECTORS / 2];
		ask(values + i, SUMS * 2);
		memcpy(pair, values + i, sizeof pair);
		for (int k = 0; k < VECTORS / 2; k++) {
			doubles even = __builtin_convertvector((floats)(pair[k] << 16), doubles);
			doubles odd = __builtin_convertvector((floats)(pair[k] & 0xffff0000u), doubles);
			sum[k] += even * even;
			sum[VECTORS / 2 + k] += odd * odd;
		}
	}
	float tail[SUMS];
	for (int64_t i = whole; i < count; i++)
		tail[i - whole] = rh_bf16_to_f32(values[i]);
	return gather(sum, tail, count - whole);
}

void SIMD(add_f32)(float *out, const float *a, const float *b, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		out[i] = a[i] + b[i];
}

void SIMD(add_bf16)(uint16_t *restrict out, const float *restrict a, const float *restrict b, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		out[i] = rh_f32_to_bf16(a[i] + b[i]);
}
