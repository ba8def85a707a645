/* Inner kernels of matrix products on vectors of the compiler (gcc's vector extension), so that one text serves three instruction sets.
 *
 * tile: panel_rows x panel_cols accumulators stay in registers (14x32 of AVX-512's 32 registers, 6x16 of AVX2's 16); a step of k loads two
 * vectors of b and broadcasts 14 (6) numbers of a for 28 (12) multiply-adds. Judged by two multiply-adds a cycle. */
#include "core/float16.h"
#include "device/cpu/gemm_kernels.h"
#include "device/cpu/kernels.h"
#include "device/cpu/simd/vector.h"

#if defined __AVX512F__
enum { ROWS = 14, DOT_COLS = 8, OUTER_COLS = 8 };
#elif defined __AVX2__
enum { ROWS = 6, DOT_COLS = 4, OUTER_COLS = 4 };
#else
enum { ROWS = 6, DOT_COLS = 4, OUTER_COLS = 4 };
#endif
enum { AHEAD = 12 }; /* steps of k: from the second-level cache */
enum { VECS = 2, COLS = VECS * VF, OUTER_VECS = 3 };

typedef float vec4 __attribute__((vector_size(16)));
typedef float vec4_unaligned __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t index4 __attribute__((vector_size(16)));

SIMD_INLINE float element(const void *data, enum rh_dtype dtype, int64_t at)
{
	return dtype == RH_F32 ? ((const float *)data)[at] : rh_bf16_to_f32(((const uint16_t *)data)[at]);
}

/* A vector of elements from `at` on, widened. */
SIMD_INLINE vf load_as(const void *data, enum rh_dtype dtype, int64_t at)
{
	return dtype == RH_F32 ? vf_load((const float *)data + at) : vf_load_bf16((const uint16_t *)data + at);
}

SIMD_INLINE vec4 load4_as(const void *data, enum rh_dtype dtype, int64_t at)
{
	vec4 value;
	if (dtype == RH_F32) {
		memcpy(&value, (const float *)data + at, sizeof value);
		return value;
	}
	typedef uint16_t half4 __attribute__((vector_size(8)));
	typedef uint32_t word4 __attribute__((vector_size(16)));
	half4 half;
	memcpy(&half, (const uint16_t *)data + at, sizeof half);
	word4 word = __builtin_convertvector(half, word4) << 16;
	memcpy(&value, &word, sizeof value);
	return value;
}

/* out[k][width] = four rows that run along k, turned; kc a multiple of 4. */
SIMD_INLINE void turn4(const void *data, enum rh_dtype dtype, int64_t row, int64_t step, int width, int64_t kc, float *out)
{
	for (int64_t k = 0; k < kc; k += 4, out += 4 * width) {
		vec4 r0 = load4_as(data, dtype, row + k), r1 = load4_as(data, dtype, row + step + k);
		vec4 r2 = load4_as(data, dtype, row + 2 * step + k), r3 = load4_as(data, dtype, row + 3 * step + k);
		vec4 low01 = __builtin_shuffle(r0, r1, (index4){0, 4, 1, 5}), high01 = __builtin_shuffle(r0, r1, (index4){2, 6, 3, 7});
		vec4 low23 = __builtin_shuffle(r2, r3, (index4){0, 4, 1, 5}), high23 = __builtin_shuffle(r2, r3, (index4){2, 6, 3, 7});
		vec4 c0 = __builtin_shuffle(low01, low23, (index4){0, 1, 4, 5}), c1 = __builtin_shuffle(low01, low23, (index4){2, 3, 6, 7});
		vec4 c2 = __builtin_shuffle(high01, high23, (index4){0, 1, 4, 5});
		vec4 c3 = __builtin_shuffle(high01, high23, (index4){2, 3, 6, 7});
		memcpy(out, &c0, sizeof c0);
		memcpy(out + width, &c1, sizeof c1);
		memcpy(out + 2 * width, &c2, sizeof c2);
		memcpy(out + 3 * width, &c3, sizeof c3);
	}
}

/* out[k][width] from lanes that run along k. A cache line of each lane at a time, so that both sides stay in the first-level cache. */
SIMD_INLINE void pack_turned(const struct gemm_side *side, enum rh_dtype dtype, int64_t lanes, int width, int64_t kc, float *out)
{
	enum { LINE = 16 };
	int64_t step = side->lane_stride, k = 0;
	for (int64_t count; lanes >= 4 && (count = kc - k < LINE ? (kc - k) / 4 * 4 : LINE) > 0; k += count) {
		int64_t lane = 0;
		for (; lane + 4 <= lanes; lane += 4)
			turn4(side->data, dtype, lane * step + k, step, width, count, out + k * width + lane);
		if (lane < lanes) /* the last four once more: some are written twice */
			turn4(side->data, dtype, (lanes - 4) * step + k, step, width, count, out + k * width + lanes - 4);
	}
	for (; k < kc; k++) {
		for (int64_t lane = 0; lane < lanes; lane++)
			out[k * width + lane] = element(side->data, dtype, lane * step + k * side->k_stride);
	}
}

/* Panels from lanes that lie side by side: whole rows of all panels, so that memory is read in long runs. */
SIMD_INLINE void pack_straight(const struct gemm_side *side, enum rh_dtype dtype, int64_t lanes, int width, int64_t kc, float *out)
{
	for (int64_t k = 0; k < kc; k++) {
		int64_t at = k * side->k_stride;
		float *to = out + k * width;
		for (int64_t first = 0; first < lanes; first += width, at += width, to += kc * width) {
			int64_t here = lanes - first < width ? lanes - first : width, lane = 0;
			for (; lane + VF <= here; lane += VF)
				vf_store(to + lane, load_as(side->data, dtype, at + lane));
#if defined __AVX512F__
			if (dtype == RH_F32 && lane < here) {
				__mmask16 mask = (__mmask16)((1u << (here - lane)) - 1);
				_mm512_mask_storeu_ps(to + lane, mask, _mm512_maskz_loadu_ps(mask, (const float *)side->data + at + lane));
				continue;
			}
#endif
			for (; lane + 4 <= here; lane += 4)
				*(vec4_unaligned *)(to + lane) = load4_as(side->data, dtype, at + lane);
			for (; lane < here; lane++)
				to[lane] = element(side->data, dtype, at + lane);
		}
	}
}

SIMD_INLINE void pack_as(const struct gemm_side *side, enum rh_dtype dtype, int64_t lanes, int width, int64_t kc, float *out)
{
	int64_t whole = lanes / width * width;
	if (whole < lanes)
		memset(out + whole * kc, 0, (size_t)(kc * width) * sizeof *out);
	if (side->lane_stride == 1) {
		pack_straight(side, dtype, lanes, width, kc, out);
		return;
	}
	struct gemm_side panel = *side;
	size_t panel_bytes = (size_t)rh_dtype_bytes(dtype, width * side->lane_stride);
	for (int64_t first = 0; first < lanes; first += width, out += kc * width) {
		pack_turned(&panel, dtype, lanes - first < width ? lanes - first : width, width, kc, out);
		panel.data = (const char *)panel.data + panel_bytes;
	}
}

static void pack(const struct gemm_side *side, int64_t lanes, int width, int64_t kc, float *out)
{
	if (side->dtype == RH_F32)
		pack_as(side, RH_F32, lanes, width, kc, out);
	else
		pack_as(side, RH_BF16, lanes, width, kc, out);
}

SIMD_INLINE void tile_rows(const int rows, int64_t kc, const float *a, const float *b, int64_t b_step, const struct gemm_target *target)
{
	vf sum[ROWS][VECS];
#pragma GCC unroll 16
	for (int i = 0; i < rows; i++)
		sum[i][0] = sum[i][1] = (vf){0};
	for (int i = 0; i < rows && i < target->rows; i++) { /* wanted at the end: on its way meanwhile */
		__builtin_prefetch(gemm_offset(target->dst, target->dst_dtype, i * target->dst_stride));
		__builtin_prefetch(gemm_offset(target->dst, target->dst_dtype, i * target->dst_stride + COLS - 1));
	}
	for (int64_t k = 0; k < kc; k++, a += ROWS, b += b_step) {
		vf b0 = vf_load(b), b1 = vf_load(b + VF);
		__builtin_prefetch(b + AHEAD * b_step);
		__builtin_prefetch(b + AHEAD * b_step + VF);
#pragma GCC unroll 16
		for (int i = 0; i < rows; i++) {
			vf x = vf_set(a[i]);
			sum[i][0] += x * b0;
			sum[i][1] += x * b1;
		}
	}
	if (target->rows < rows || target->cols < COLS || target->dst_dtype != RH_F32 || target->add_dtype != RH_F32) {
		float product[ROWS * COLS];
#pragma GCC unroll 16
		for (int i = 0; i < rows; i++) {
			vf_store(product + i * COLS, sum[i][0]);
			vf_store(product + i * COLS + VF, sum[i][1]);
		}
		SIMD(gemm_finish)(product, COLS, target);
		return;
	}
	vf alpha = vf_set(target->alpha), bias0 = {0}, bias1 = {0};
	if (target->bias)
		bias0 = vf_load(target->bias), bias1 = vf_load(target->bias + VF);
	const float *add = target->add;
	float *dst = target->dst;
#pragma GCC unroll 16
	for (int i = 0; i < rows; i++) {
		vf base0 = bias0, base1 = bias1;
		if (add) {
			base0 = vf_load(add + i * target->add_stride) + bias0;
			base1 = vf_load(add + i * target->add_stride + VF) + bias1;
		}
		vf_store(dst + i * target->dst_stride, alpha * sum[i][0] + base0);
		vf_store(dst + i * target->dst_stride + VF, alpha * sum[i][1] + base1);
	}
}

static void tile(int64_t kc, const float *a, const float *b, int64_t b_step, const struct gemm_target *target)
{
	switch (target->rows) {
	case 1:
	case 2:
		tile_rows(2, kc, a, b, b_step, target);
		return;
	case 3:
	case 4:
		tile_rows(4, kc, a, b, b_step, target);
		return;
#if defined __AVX512F__
	case 5:
	case 6:
		tile_rows(6, kc, a, b, b_step, target);
		return;
	case 7:
	case 8:
		tile_rows(8, kc, a, b, b_step, target);
		return;
	case 9:
	case 10:
		tile_rows(10, kc, a, b, b_step, target);
		return;
	case 11:
	case 12:
		tile_rows(12, kc, a, b, b_step, target);
		return;
#endif
	default:
		tile_rows(ROWS, kc, a, b, b_step, target);
	}
}

static void tiles(int64_t kc, const void *a, const void *b, int64_t b_step, int64_t b_panel, const struct gemm_target *target)
{
	for (int64_t j = 0; j < target->cols; j += COLS) {
		struct gemm_target part = gemm_target_columns(target, j, COLS);
		tile(kc, a, (const float *)b + j / COLS * b_panel, b_step, &part);
	}
}

static void pack_a(const struct gemm_side *side, int64_t lanes, int64_t kc, void *out)
{
	pack(side, lanes, ROWS, kc, out);
}

static void pack_b(const struct gemm_side *side, int64_t lanes, int64_t kc, void *out)
{
	pack(side, lanes, COLS, kc, out);
}

/* A narrow product: `a` is read where it lies, each of its rows (dot: lanes, along k; outer: steps of k, along lanes) a_stride elements
 * after the one before. */
struct narrow {
	const char *a;
	int64_t a_stride, k;
	const float *b;
	int64_t b_stride;
	float *out;
	int64_t out_stride;
};

/* What is left from step `at` of k on. Out of line: unrolled in each dot_block it took most of this file's compilation. */
static __attribute__((noinline)) void dot_tail(int rows, int cols, enum rh_dtype dtype, struct narrow p, int64_t at)
{
	for (int i = 0; i < rows; i++) {
		for (int j = 0; j < cols; j++) {
			float total = p.out[i * p.out_stride + j];
			for (int64_t tail = at; tail < p.k; tail++)
				total += element(p.a, dtype, i * p.a_stride + tail) * p.b[j * p.b_stride + tail];
			p.out[i * p.out_stride + j] = total;
		}
	}
}

/* `rows` rows of a by `cols` columns of b, both along k. */
SIMD_INLINE void dot_block(const int rows, const int cols, enum rh_dtype dtype, struct narrow p)
{
	vf sum[8][8];
#pragma GCC unroll 8
	for (int i = 0; i < rows; i++) {
#pragma GCC unroll 8
		for (int j = 0; j < cols; j++)
			sum[i][j] = (vf){0};
	}
	int64_t at = 0;
	for (; at + VF <= p.k; at += VF) {
		vf x[8];
#pragma GCC unroll 8
		for (int i = 0; i < rows; i++)
			x[i] = load_as(p.a, dtype, i * p.a_stride + at);
#pragma GCC unroll 8
		for (int j = 0; j < cols; j++) {
			vf y = vf_load(p.b + j * p.b_stride + at);
#pragma GCC unroll 8
			for (int i = 0; i < rows; i++)
				sum[i][j] += x[i] * y;
		}
	}
#pragma GCC unroll 8
	for (int i = 0; i < rows; i++) {
#pragma GCC unroll 8
		for (int j = 0; j < cols; j++)
			p.out[i * p.out_stride + j] = vf_sum(sum[i][j]);
	}
	if (at < p.k)
		dot_tail(rows, cols, dtype, p, at);
}

/* All rows by `cols` columns, `block` rows at a time. */
SIMD_INLINE void dot_cols(const int block, const int cols, enum rh_dtype dtype, int64_t rows, struct narrow p)
{
	int64_t row_bytes = rh_dtype_bytes(dtype, p.a_stride);
	for (; rows >= block; rows -= block, p.a += block * row_bytes, p.out += block * p.out_stride)
		dot_block(block, cols, dtype, p);
	for (; rows > 0; rows--, p.a += row_bytes, p.out += p.out_stride)
		dot_block(1, cols, dtype, p);
}

SIMD_INLINE void dot_as(enum rh_dtype dtype, int64_t rows, int cols, struct narrow p)
{
#define DOT(block, cols)                                                                                                                   \
	case cols:                                                                                                                         \
		dot_cols(block, cols, dtype, rows, p);                                                                                     \
		break;
	for (; cols > 0; cols -= DOT_COLS, p.b += DOT_COLS * p.b_stride, p.out += DOT_COLS) {
		switch (cols) {
			DOT(8, 1)
			DOT(4, 2)
			DOT(3, 3)
#if defined __AVX512F__
			DOT(6, 4)
			DOT(4, 5)
			DOT(4, 6)
			DOT(3, 7)
#endif
		default:
			dot_cols(3, DOT_COLS, dtype, rows, p);
		}
	}
#undef DOT
}

static void dot(const struct gemm_side *a, int64_t rows, int64_t k, const float *b, int64_t b_stride, int cols, float *out)
{
	const struct narrow p = {a->data, a->lane_stride, k, b, b_stride, out, cols};
	if (a->dtype == RH_F32)
		dot_as(RH_F32, rows, cols, p);
	else
		dot_as(RH_BF16, rows, cols, p);
}

/* `vecs` vectors of lanes by `cols` columns. */
SIMD_INLINE void outer_block(const int vecs, const int cols, enum rh_dtype dtype, struct narrow p)
{
	vf sum[8][OUTER_VECS];
#pragma GCC unroll 8
	for (int j = 0; j < cols; j++) {
#pragma GCC unroll 4
		for (int v = 0; v < vecs; v++)
			sum[j][v] = vf_load(p.out + j * p.out_stride + v * VF);
	}
	for (int64_t k = 0; k < p.k; k++) {
		vf x[OUTER_VECS];
#pragma GCC unroll 4
		for (int v = 0; v < vecs; v++)
			x[v] = load_as(p.a, dtype, k * p.a_stride + v * VF);
#pragma GCC unroll 8
		for (int j = 0; j < cols; j++) {
			vf y = vf_set(p.b[k * p.b_stride + j]);
#pragma GCC unroll 4
			for (int v = 0; v < vecs; v++)
				sum[j][v] += x[v] * y;
		}
	}
#pragma GCC unroll 8
	for (int j = 0; j < cols; j++) {
#pragma GCC unroll 4
		for (int v = 0; v < vecs; v++)
			vf_store(p.out + j * p.out_stride + v * VF, sum[j][v]);
	}
}

SIMD_INLINE void outer_vecs(const int vecs, enum rh_dtype dtype, int cols, struct narrow p)
{
	for (; cols >= OUTER_COLS; cols -= OUTER_COLS, p.b += OUTER_COLS, p.out += OUTER_COLS * p.out_stride)
		outer_block(vecs, OUTER_COLS, dtype, p);
#if defined __AVX512F__
	for (; cols >= 4; cols -= 4, p.b += 4, p.out += 4 * p.out_stride)
		outer_block(vecs, 4, dtype, p);
#endif
	for (; cols > 0; cols--, p.b++, p.out += p.out_stride)
		outer_block(vecs, 1, dtype, p);
}

SIMD_INLINE void outer_as(enum rh_dtype dtype, int64_t lanes, int cols, struct narrow p)
{
	int64_t vec_bytes = rh_dtype_bytes(dtype, VF), lane = 0;
	if (lanes == OUTER_VECS * VF) {
		outer_vecs(OUTER_VECS, dtype, cols, p);
		return;
	}
	for (; lane + VF <= lanes; lane += VF, p.a += vec_bytes, p.out += VF)
		outer_vecs(1, dtype, cols, p);
	for (int64_t i = 0; i < lanes - lane; i++) {
		for (int64_t k = 0; k < p.k; k++) {
			float x = element(p.a, dtype, k * p.a_stride + i);
			for (int j = 0; j < cols; j++)
				p.out[j * p.out_stride + i] += x * p.b[k * p.b_stride + j];
		}
	}
}

static void outer(const struct gemm_side *a, int64_t lanes, int64_t kc, const float *b, int cols, float *out)
{
	const struct narrow p = {a->data, a->k_stride, kc, b, cols, out, GEMM_MAX_LANES};
	if (a->dtype == RH_F32)
		outer_as(RH_F32, lanes, cols, p);
	else
		outer_as(RH_BF16, lanes, cols, p);
}

const struct gemm_kernels SIMD(gemm_kernels) = {
        .tiles = {.panel_rows = ROWS,
                  .panel_cols = COLS,
                  .element_bytes = 4,
                  .k_unit = 1,
                  .k_block = 384, /* a panel of a is 21 KiB, one of b 48 KiB (AVX-512) */
                  .a_panels = 8,
                  .b_panels = 20,
                  .narrow = 16,
                  .pack_a = pack_a,
                  .pack_b = pack_b,
                  .tiles = tiles},
        .outer_lanes = OUTER_VECS * VF,
        .pack = pack,
        .dot = dot,
        .outer = outer,
};
