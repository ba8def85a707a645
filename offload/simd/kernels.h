/* The optimizer's loops, compiled once for each instruction set. Every one computes the same bits: products that are added go through
 * explicit fma, all else is IEEE arithmetic, element by element. */
#ifndef RH_OFFLOAD_SIMD_KERNELS_H
#define RH_OFFLOAD_SIMD_KERNELS_H

#include "offload/simd/adamw.h"

#include <stdint.h>

/* How a block holds its weights. */
enum optimizer_form {
	FORM_WIDE,  /* fp32: master and upload form are one; gradient fp32 */
	FORM_SPLIT, /* bf16 upload form, the master's lower half beside it; gradient bf16 */
	FORM_PLAIN, /* bf16 upload form, fp32 master; gradient bf16 */
	OPTIMIZER_FORMS
};

/* Kernels of one element at a time. */
enum optimizer_step { STEP_ADAMW, STEP_ADAMW8, STEP_LION, STEP_SGD, STEP_MOMENTUM, OPTIMIZER_STEPS };

/* Elements that share one scale of an 8-bit moment; counted from each tensor's start. */
enum { OPTIMIZER_CODES = 256 };

/* A step's constants, rounded to fp32 from doubles as torch rounds its scalars. */
struct optimizer_terms {
	struct adamw_terms adamw;  /* Lion and SGD have those of it that they need; their minus_step is -lr */
	float beta1, one_minus_beta1; /* Lion */
	float decay, momentum;        /* SGD: g += decay * weight */
};

/* A run of elements of one tensor; NULL where form or step have no such array. */
struct optimizer_span {
	void *weights;        /* upload form */
	uint16_t *lower;      /* FORM_SPLIT */
	float *master;        /* FORM_PLAIN */
	const void *gradient; /* fp32 or bf16 */
	float *moment[2];
	uint8_t *code[2];  /* STEP_ADAMW8: the moments; signed, unsigned */
	float *largest[2]; /* and their largest magnitude for each OPTIMIZER_CODES */
};

typedef int optimizer_kernel(const struct optimizer_terms *terms, const struct optimizer_span *span, int64_t count);

struct optimizer_kernels {
	const char *name;
	/* Nonzero if a weight became non-finite. STEP_ADAMW8: FORM_SPLIT only, and the span starts where codes share a scale. */
	optimizer_kernel *update[OPTIMIZER_STEPS][OPTIMIZER_FORMS];
	/* STEP_ADAMW in two passes over the same gradient: the weights alone, and then the moments alone. */
	optimizer_kernel *weights[OPTIMIZER_FORMS], *moments[OPTIMIZER_FORMS];

	/* Adafactor. A gradient is fp32 where `wide`, else bf16.
	 * columns: sum[i] += (gradient[i] * scale)^2 in fp32. */
	void (*columns)(const void *gradient, int wide, float scale, float *sum, int64_t count);
	/* Sum of (gradient[i] * factor[i])^2 in fp64, 16 interleaved sums. */
	double (*weighted)(const void *gradient, int wide, const float *factor, int64_t count);
	/* weight = weight * keep - step * (factor[i] * gradient[i]); nonzero if one became non-finite. */
	int (*apply[OPTIMIZER_FORMS])(const struct optimizer_span *span, const float *factor, float step, float keep, int64_t count);

	/* Sum of squares in fp64: 16 interleaved sums, added in ascending order. */
	double (*squares_f32)(const float *values, int64_t count);
	double (*squares_bf16)(const uint16_t *values, int64_t count);
	/* out = a + b, rounded once; out may be b in the fp32 form. */
	void (*add_f32)(float *out, const float *a, const float *b, int64_t count);
	void (*add_bf16)(uint16_t *out, const float *a, const float *b, int64_t count);

	/* 8-bit codes, codes.c: values of codes times `largest`; codes nearest to from[i] / largest, which is in [-1, 1] or [0, 1]. At most
	 * OPTIMIZER_CODES of them. */
	void (*decode)(int is_signed, const uint8_t *codes, float largest, float *to, int64_t count);
	void (*encode)(int is_signed, const float *from, float largest, uint8_t *codes, int64_t count);

	uint64_t (*checksum)(const void *bytes, int64_t length); /* checksum.h */
};

extern const struct optimizer_kernels optimizer_kernels_avx512, optimizer_kernels_avx2, optimizer_kernels_base;

#endif
