/* The optimizer's loops, compiled once for each instruction set. Every one computes the same bits: products that are added go through
 * explicit fma, all else is IEEE arithmetic, element by element. */
#ifndef RH_OFFLOAD_SIMD_KERNELS_H
#define RH_OFFLOAD_SIMD_KERNELS_H

#include <stdint.h>

/* One step's constants, rounded to fp32 from doubles as torch rounds its scalars. */
struct adamw_terms {
	float scale; /* of the gradient */
	float keep;  /* of the weight: 1 - lr * weight_decay, or 1 */
	float lerp;  /* moment 1 += lerp * (g - moment 1); if lerp_from_end, moment 1 = g + lerp * (g - moment 1) */
	int lerp_from_end;
	float beta2, one_minus_beta2;
	float inverse_root; /* 1 / sqrt of the second bias correction */
	float epsilon;
	float minus_step; /* -lr / first bias correction */
};

/* Arrays do not overlap; updates return nonzero if a weight became non-finite. */
struct optimizer_kernels {
	const char *name;
	int (*update_f32)(const struct adamw_terms *terms, float *weight, const float *gradient, float *first, float *second,
	                  int64_t count);
	int (*update_split)(const struct adamw_terms *terms, uint16_t *upper, uint16_t *lower, const uint16_t *gradient, float *first,
	                    float *second, int64_t count);
	/* Sum of squares in fp64: 16 interleaved sums, added in ascending order. */
	double (*squares_f32)(const float *values, int64_t count);
	double (*squares_bf16)(const uint16_t *values, int64_t count);
	/* out = a + b, rounded once; out may be b in the fp32 form. */
	void (*add_f32)(float *out, const float *a, const float *b, int64_t count);
	void (*add_bf16)(uint16_t *out, const float *a, const float *b, int64_t count);
};

extern const struct optimizer_kernels optimizer_kernels_avx512, optimizer_kernels_avx2, optimizer_kernels_base;

#endif
