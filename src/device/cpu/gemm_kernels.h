/* The inner parts of matrix products, one set for each instruction set (simd/gemm.c). All sums are fp32; each element of a product is
 * summed over ascending k within one accumulator (or one a lane), so no result depends on how rows and columns are cut into tiles. */
#ifndef RH_DEVICE_CPU_GEMM_KERNELS_H
#define RH_DEVICE_CPU_GEMM_KERNELS_H

#include "core/dtype.h"

#include <stddef.h>

/* One operand: element (lane, k) is at data + lane * lane_stride + k * k_stride, in elements; one of the strides is 1. F32 or BF16. */
struct gemm_side {
	const void *data;
	enum rh_dtype dtype;
	int64_t lane_stride, k_stride;
};

enum { GEMM_SKINNY_COLS = 8, GEMM_MAX_LANES = 64, GEMM_DOT_ROWS = 24 };

/* Where a tile goes: dst = alpha * product + add + bias; rows and cols that exist. */
struct gemm_target {
	float *dst;
	const float *add;  /* may be dst; NULL: none */
	const float *bias; /* a float a column, padded to the panel's width; NULL: none */
	int64_t dst_stride, add_stride;
	int64_t rows, cols;
	float alpha;
};

struct gemm_kernels {
	int panel_rows, panel_cols; /* of a tile, in registers */
	int outer_lanes;            /* most lanes of `outer` */

	/* Panels of `width` lanes, one after another: panel[k][width], k in [0, kc), widened to F32; zeros fill the last. */
	void (*pack)(const struct gemm_side *side, int64_t lanes, int width, int64_t kc, float *out);

	/* a (kc, panel_rows) is a panel; so is b (kc, panel_cols), or an F32 side with lane_stride 1: b_step floats from one k to the next.
	 */
	void (*tile)(int64_t kc, const float *a, const float *b, int64_t b_step, const struct gemm_target *target);

	/* For products with at most GEMM_SKINNY_COLS columns, whose wide side is not worth packing.
	 * dot: k_stride of `a` is 1; b[cols][b_stride] holds each column's k side by side; out[rows][cols] = products of `rows` lanes.
	 * outer: lane_stride of `a` is 1, lanes <= outer_lanes; b[kc][cols]; out[cols][GEMM_MAX_LANES] += products. */
	void (*dot)(const struct gemm_side *a, int64_t rows, int64_t k, const float *b, int64_t b_stride, int cols, float *out);
	void (*outer)(const struct gemm_side *a, int64_t lanes, int64_t kc, const float *b, int cols, float *out);
};

extern const struct gemm_kernels gemm_kernels_avx512, gemm_kernels_avx2, gemm_kernels_base;

#endif
