/* Matrix products of BF16 by VDPBF16PS, for processors that have it and no AMX: each lane adds two products to its fp32 sum, so a step
 * takes twice the multiply-adds of an fp32 one, and nothing is widened. 8 rows by 32 columns of sums stay in registers. One core of a
 * Sapphire Rapids, which begins half as many of these as of fp32's: 99 to 112 GFLOP/s, where widening does 57 to 103.
 *
 * Panels of both sides are [pair of k][lane]. */
#include "device/cpu/simd/pairs.h"

enum { ROWS = 8 };

static void pack(const struct gemm_side *side, int64_t lanes, int64_t kc, void *out)
{
	pack_panels(side, lanes, kc, 1, out);
}

SIMD_INLINE __m512bh pairs_at(const uint32_t *from)
{
	return (__m512bh)_mm512_loadu_si512(from);
}

/* product[ROWS][PANEL] of ROWS lanes of a and PANEL of b. */
SIMD_INLINE void multiply(int64_t kc, const uint32_t *a, const uint32_t *b, float *product)
{
	__m512 sum[ROWS][2];
	for (int i = 0; i < ROWS; i++)
		sum[i][0] = sum[i][1] = _mm512_setzero_ps();
	for (int64_t k = 0; k < kc; k += DEPTH, a += 2 * TILE, b += 2 * TILE) {
		for (int pair = 0; pair < DEPTH / 2; pair++) {
			__m512bh left = pairs_at(b + pair * SIDE), right = pairs_at(b + TILE + pair * SIDE);
#pragma GCC unroll 8
			for (int i = 0; i < ROWS; i++) {
				__m512bh row = (__m512bh)_mm512_set1_epi32((int)a[pair * SIDE + i]);
				sum[i][0] = _mm512_dpbf16_ps(sum[i][0], row, left);
				sum[i][1] = _mm512_dpbf16_ps(sum[i][1], row, right);
			}
		}
	}
	for (int i = 0; i < ROWS; i++) {
		_mm512_storeu_ps(product + i * PANEL, sum[i][0]);
		_mm512_storeu_ps(product + i * PANEL + SIDE, sum[i][1]);
	}
}

static void tiles(int64_t kc, const void *a, const void *b, int64_t b_step, int64_t b_panel, const struct gemm_target *target)
{
	(void)b_step;
	float product[PANEL * PANEL] __attribute__((aligned(64)));
	for (int64_t j = 0; j < target->cols; j += PANEL) {
		const uint32_t *from_b = (const uint32_t *)b + j / PANEL * b_panel / 2;
		for (int64_t i = 0; i < target->rows; i += ROWS)
			multiply(kc, (const uint32_t *)a + i / SIDE * TILE + i % SIDE, from_b, product + i * PANEL);
		struct gemm_target part = gemm_target_columns(target, j, PANEL);
		gemm_finish_avx512(product, PANEL, &part);
	}
}

const struct gemm_tiles SIMD(gemm_tiles) = {PAIRS_PANELS, .pack_a = pack, .pack_b = pack, .tiles = tiles};
