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
	return fmaf(weight, t->keep, t->minus_step * m / (sqrtf(v) / t->root + t->epsilon));
}

static inline uint32_t not_finite(uint32_t bits)
{
	return (bits & 0x7f800000u) == 0x7f800000u;
}

static int update_f32(const struct adamw_terms *terms, float *restrict weight, const float *restrict gradient, float *restrict first,
                      float *restrict second, int64_t count)
{
	const struct adamw_terms t = *terms;
	uint32_t bad = 0;
	for (int64_t i = 0; i < count; i++) {
		weight[i] = adamw(&t, weight[i], gradient[i], &first[i], &second[i]);
		bad |= not_finite(rh_f32_bits(weight[i]));
	}
	return (int)bad;
}

static int update_split(const struct adamw_terms *terms, uint16_t *restrict upper, uint16_t *restrict lower,
                        const uint16_t *restrict gradient, float *restrict first, float *restrict second, int64_t count)
{
	const struct adamw_terms t = *terms;
	uint32_t bad = 0;
	for (int64_t i = 0; i < count; i++) {
		float master = rh_bits_f32(split_join(upper[i], lower[i]));
		uint32_t bits = rh_f32_bits(adamw(&t, master, rh_bf16_to_f32(gradient[i]), &first[i], &second[i]));
		upper[i] = split_upper(bits);
		lower[i] = split_lower(bits);
		bad |= not_finite(bits);
	}
	return (int)bad;
}

/* 16 sums in two vectors; squares of fp32 are exact in fp64, so contraction changes nothing. */
typedef float floats __attribute__((vector_size(32)));
typedef double doubles __attribute__((vector_size(64)));
typedef uint16_t halves __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(32)));

static double gather(const doubles sum[2], const float *tail, int64_t count)
{
	double lane[16], total = 0;
	memcpy(lane, sum, sizeof lane);
	for (int64_t i = 0; i < count; i++)
		lane[i] += (double)tail[i] * tail[i];
	for (int i = 0; i < 16; i++)
		total += lane[i];
	return total;
}

static double squares_f32(const float *values, int64_t count)
{
	doubles sum[2] = {{0}};
	int64_t whole = count & ~INT64_C(15);
	for (int64_t i = 0; i < whole; i += 16) {
		floats x[2];
		memcpy(x, values + i, sizeof x);
		for (int k = 0; k < 2; k++) {
			doubles wide = __builtin_convertvector(x[k], doubles);
			sum[k] += wide * wide;
		}
	}
	return gather(sum, values + whole, count - whole);
}

static double squares_bf16(const uint16_t *values, int64_t count)
{
	doubles sum[2] = {{0}};
	int64_t whole = count & ~INT64_C(15);
	for (int64_t i = 0; i < whole; i += 16) {
		halves x[2];
		memcpy(x, values + i, sizeof x);
		for (int k = 0; k < 2; k++) {
			doubles wide = __builtin_convertvector((floats)(__builtin_convertvector(x[k], words) << 16), doubles);
			sum[k] += wide * wide;
		}
	}
	float tail[16];
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
