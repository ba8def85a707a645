/* Streams through memory: 28 bytes an element moved in fp32 (16 read, 12 written), 26 in the split layout (14 and 12). Judged by what an
 * in-place pass over the same arrays reaches (bench/adamw.c). */
#include "offload/simd/kernels.h"

#include "core/float16.h"
#include "offload/split.h"

#include <math.h>

#define JOIN_(a, b) a##_##b
#define JOIN(a, b)  JOIN_(a, b)

/* torch.optim.AdamW (single tensor). The sums are written as fma so that no compiler decides whether to contract them. */
static inline float adamw(const struct adamw_terms *t, float weight, float gradient, float *first, float *second)
{
	float g = gradient * t->scale;
	float toward = fmaf(gradient, t->scale, -*first);
	float m = fmaf(t->lerp, toward, t->lerp_from_end ? g : *first);
	float v = fmaf(t->one_minus_beta2 * g, g, *second * t->beta2);
	*first = m;
	*second = v;
	return fmaf(weight, t->keep, t->minus_step * m / fmaf(sqrtf(v), t->inverse_root, t->epsilon));
}

static inline uint32_t not_finite(uint32_t bits)
{
	return (bits & 0x7f800000u) == 0x7f800000u;
}

/* One piece of a pass; inlined where the count is a constant, so that only tails run element by element. */
static inline __attribute__((always_inline)) uint32_t piece_f32(const struct adamw_terms *t, float *restrict weight,
                                                                const float *restrict gradient, float *restrict first,
                                                                float *restrict second, int64_t count)
{
	uint32_t bad = 0;
	for (int64_t i = 0; i < count; i++) {
		weight[i] = adamw(t, weight[i], gradient[i], &first[i], &second[i]);
		bad |= not_finite(rh_f32_bits(weight[i]));
	}
	return bad;
}

static inline __attribute__((always_inline)) uint32_t piece_split(const struct adamw_terms *t, uint16_t *restrict upper,
                                                                  uint16_t *restrict lower, const uint16_t *restrict gradient,
                                                                  float *restrict first, float *restrict second, int64_t count)
{
	uint32_t bad = 0;
	for (int64_t i = 0; i < count; i++) {
		float master = rh_bits_f32(split_join(upper[i], lower[i]));
		uint32_t bits = rh_f32_bits(adamw(t, master, rh_bf16_to_f32(gradient[i]), &first[i], &second[i]));
		upper[i] = split_upper(bits);
		lower[i] = split_lower(bits);
		bad |= not_finite(bits);
	}
	return bad;
}

/* Hardware prefetchers stop at each page, and five arrays make many pages. Bytes ahead as measured: 1024 to 4096 are alike, without it a
 * fifth is lost. */
enum { PIECE = 64, AHEAD = 2048 };

/* Asks for the lines AHEAD of an array's piece. Beyond the array's end it does no harm. */
static inline __attribute__((always_inline)) void ask(const void *piece, int bytes)
{
	for (int line = 0; line < bytes; line += 64)
		__builtin_prefetch((const char *)piece + AHEAD + line);
}

static int update_f32(const struct adamw_terms *terms, float *weight, const float *gradient, float *first, float *second, int64_t count)
{
	const struct adamw_terms t = *terms;
	uint32_t bad = 0;
	int64_t i = 0;
	for (; i + PIECE <= count; i += PIECE) {
		ask(weight + i, PIECE * 4);
		ask(gradient + i, PIECE * 4);
		ask(first + i, PIECE * 4);
		ask(second + i, PIECE * 4);
		bad |= piece_f32(&t, weight + i, gradient + i, first + i, second + i, PIECE);
	}
	return (int)(bad | piece_f32(&t, weight + i, gradient + i, first + i, second + i, count - i));
}

static int update_split(const struct adamw_terms *terms, uint16_t *upper, uint16_t *lower, const uint16_t *gradient, float *first,
                        float *second, int64_t count)
{
	const struct adamw_terms t = *terms;
	uint32_t bad = 0;
	int64_t i = 0;
	for (; i + PIECE <= count; i += PIECE) {
		ask(upper + i, PIECE * 2);
		ask(lower + i, PIECE * 2);
		ask(gradient + i, PIECE * 2);
		ask(first + i, PIECE * 4);
		ask(second + i, PIECE * 4);
		bad |= piece_split(&t, upper + i, lower + i, gradient + i, first + i, second + i, PIECE);
	}
	return (int)(bad | piece_split(&t, upper + i, lower + i, gradient + i, first + i, second + i, count - i));
}

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

static double squares_f32(const float *values, int64_t count)
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
static double squares_bf16(const uint16_t *values, int64_t count)
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

static void add_f32(float *out, const float *a, const float *b, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		out[i] = a[i] + b[i];
}

static void add_bf16(uint16_t *restrict out, const float *restrict a, const float *restrict b, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		out[i] = rh_f32_to_bf16(a[i] + b[i]);
}

#define STRING_(a) #a
#define STRING(a)  STRING_(a)

const struct optimizer_kernels JOIN(optimizer_kernels, RH_ISA) = {
        .name = STRING(RH_ISA),
        .update_f32 = update_f32,
        .update_split = update_split,
        .squares_f32 = squares_f32,
        .squares_bf16 = squares_bf16,
        .add_f32 = add_f32,
        .add_bf16 = add_bf16,
};
