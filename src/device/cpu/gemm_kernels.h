/* The inner parts of matrix products, one set for each instruction set (simd/gemm.c). All sums are fp32; each element of a product is
 * summed over ascending k within one accumulator (or one a lane), so no result depends on how rows and columns are cut into tiles. */
#ifndef RH_DEVICE_CPU_GEMM_KERNELS_H
#define RH_DEVICE_CPU_GEMM_KERNELS_H

#include "device/cpu/kernels.h"

#include <stddef.h>

/* One operand: element (lane, k) is at data + lane * lane_stride + k * k_stride, in elements; one of the strides is 1. F32 or BF16. */
struct gemm_side {
	const void *data;
	enum rh_dtype dtype;
	int64_t lane_stride, k_stride;
};

enum { GEMM_SKINNY_COLS = 8, GEMM_MAX_LANES = 64, GEMM_DOT_ROWS = 24 };

/* Where a product goes: dst = alpha * product + add + bias, rounded when dst is BF16; rows and cols that exist. */
struct gemm_target {
	void *dst;
	const void *add;                    /* may be dst; NULL: none */
	const float *bias;                  /* a float a column; NULL: none */
	enum rh_dtype dst_dtype, add_dtype; /* F32 or BF16 */
	int64_t dst_stride, add_stride;
	int64_t rows, cols;
	float alpha;
};

/* product[rows][stride] to where it goes (simd/gemm_finish.c). */
RH_CPU_DECLARE(void, gemm_finish, (const float *product, int64_t stride, const struct gemm_target *target));

static inline void *gemm_offset(const void *data, enum rh_dtype dtype, int64_t elements)
{
	return (char *)(uintptr_t)data + rh_dtype_bytes(dtype, elements);
}

/* Columns [first, first + at most `most`) of a target. */
static inline struct gemm_target gemm_target_columns(const struct gemm_target *target, int64_t first, int64_t most)
{
	struct gemm_target part = *target;
	part.cols = target->cols - first < most ? target->cols - first : most;
	part.dst = gemm_offset(target->dst, target->dst_dtype, first);
	part.add = target->add ? gemm_offset(target->add, target->add_dtype, first) : NULL;
	part.bias = target->bias ? target->bias + first : NULL;
	return part;
}

/* Wide products: both sides are packed in panels of panel_rows or panel_cols lanes, zeros filling the last, one after another: of
 * gemm_panel_bytes each. */
struct gemm_tiles {
	int panel_rows, panel_cols; /* of a tile, in registers */
	int element_bytes, k_unit;  /* in a panel: the depth is rounded up to k_unit, with zeros */
	int k_block;                /* at most, a multiple of k_unit */
	int a_panels, b_panels;     /* packed at a time, at most */
	int narrow;                 /* with so few rows or columns, products that are not packed are faster */

	void (*pack_a)(const struct gemm_side *side, int64_t lanes, int64_t kc, void *out);
	void (*pack_b)(const struct gemm_side *side, int64_t lanes, int64_t kc, void *out);

	/* A panel of a with all of b's that target's columns ask for. They are packed, or, if k_unit is 1, an F32 side with lane_stride 1
	 * whose lanes are whole panels: b_step elements from one k to the next, b_panel from one panel to the next. */
	void (*tiles)(int64_t kc, const void *a, const void *b, int64_t b_step, int64_t b_panel, const struct gemm_target *target);
};

static inline int64_t gemm_panel_depth(const struct gemm_tiles *tiles, int64_t kc)
{
	return (kc + tiles->k_unit - 1) / tiles->k_unit * tiles->k_unit;
}

struct gemm_kernels {
	struct gemm_tiles tiles; /* in F32, to which BF16 is widened */
	int outer_lanes;         /* most lanes of `outer` */

	/* Panels of `width` lanes, one after another: panel[k][width], k in [0, kc), widened to F32; zeros fill the last. */
	void (*pack)(const struct gemm_side *side, int64_t lanes, int width, int64_t kc, float *out);

	/* For products with at most GEMM_SKINNY_COLS columns, whose wide side is not worth packing.
	 * dot: k_stride of `a` is 1; b[cols][b_stride] holds each column's k side by side; out[rows][cols] = products of `rows` lanes.
	 * outer: lane_stride of `a` is 1, lanes <= outer_lanes; b[kc][cols]; out[cols][GEMM_MAX_LANES] += products. */
	void (*dot)(const struct gemm_side *a, int64_t rows, int64_t k, const float *b, int64_t b_stride, int cols, float *out);
	void (*outer)(const struct gemm_side *a, int64_t lanes, int64_t kc, const float *b, int cols, float *out);
};

extern const struct gemm_kernels gemm_kernels_avx512, gemm_kernels_avx2, gemm_kernels_base;

/* For BF16 operands, on AMX's tile registers or by AVX-512's products of pairs. Products are exact; each step adds those of two
 * neighbouring k to an fp32 sum, in ascending k. It takes subnormal operands for zero, makes subnormal sums zero and rounds to nearest:
 * unlike the widening path, which keeps subnormal numbers. */
extern const struct gemm_tiles gemm_tiles_amx, gemm_tiles_bf16;

#endif
