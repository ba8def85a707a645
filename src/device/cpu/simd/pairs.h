/* Packed BF16 operands of AMX's tiles and of AVX-512's products of pairs. A panel of 32 lanes is [k / 32][2][16][16] words of two BF16 that
 * are neighbours along k: [lane][pair of k], or with `pairs_first` [pair of k][lane]. */
#ifndef RH_DEVICE_CPU_SIMD_PAIRS_H
#define RH_DEVICE_CPU_SIMD_PAIRS_H

#include "device/cpu/gemm_kernels.h"
#include "device/cpu/simd/vector.h"

enum { SIDE = 16, PANEL = 2 * SIDE, DEPTH = 32, TILE = SIDE * SIDE /* words */ };
/* Of both: a panel of k_block is 48 KiB. */
#define PAIRS_PANELS                                                                                                                       \
	.panel_rows = PANEL, .panel_cols = PANEL, .element_bytes = 2, .k_unit = DEPTH, .k_block = 768, .a_panels = 4, .b_panels = 12,      \
	.narrow = 2

SIMD_INLINE __mmask32 first_of_32(int64_t n)
{
	return n >= 32 ? ~(__mmask32)0 : (__mmask32)((1u << n) - 1);
}

/* to[16][16] words = the transpose of 16 rows of 16 words, `step` bytes apart. Four rows that are 4 apart share a vector, so that turning
 * 4x4 within its quarters puts 16 words in order. */
SIMD_INLINE void turn(const void *from, int64_t step, uint32_t *to)
{
	for (int c = 0; c < SIDE / 4; c++) {
		__m512i row[4];
		for (int r = 0; r < 4; r++) {
			const char *at = (const char *)from + r * step + c * 16;
			__m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)at));
			v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)(at + 4 * step)), 1);
			v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)(at + 8 * step)), 2);
			row[r] = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)(at + 12 * step)), 3);
		}
		__m512i low01 = _mm512_unpacklo_epi32(row[0], row[1]), high01 = _mm512_unpackhi_epi32(row[0], row[1]);
		__m512i low23 = _mm512_unpacklo_epi32(row[2], row[3]), high23 = _mm512_unpackhi_epi32(row[2], row[3]);
		_mm512_storeu_si512(to + (4 * c + 0) * SIDE, _mm512_unpacklo_epi64(low01, low23));
		_mm512_storeu_si512(to + (4 * c + 1) * SIDE, _mm512_unpackhi_epi64(low01, low23));
		_mm512_storeu_si512(to + (4 * c + 2) * SIDE, _mm512_unpacklo_epi64(high01, high23));
		_mm512_storeu_si512(to + (4 * c + 3) * SIDE, _mm512_unpackhi_epi64(high01, high23));
	}
}

/* to[lane][pair]: `lanes` lanes that run along k, the first kc of each, zeros beyond. */
SIMD_INLINE void copy_rows(const uint16_t *from, int64_t step, int64_t lanes, int64_t kc, uint32_t *to)
{
	__mmask32 wanted = first_of_32(kc);
	for (int64_t lane = 0; lane < SIDE; lane++) {
		__mmask32 mask = lane < lanes ? wanted : 0;
		_mm512_storeu_si512(to + lane * SIDE, _mm512_maskz_loadu_epi16(mask, mask ? from + lane * step : from));
	}
}

/* to[pair][lane]: the same of lanes that lie side by side. */
SIMD_INLINE void join_rows(const uint16_t *from, int64_t step, int64_t lanes, int64_t kc, uint32_t *to)
{
	__mmask16 mask = (__mmask16)first_of_32(lanes < SIDE ? lanes : SIDE);
	for (int64_t k = 0; k < DEPTH; k += 2) {
		__mmask16 even = k < kc ? mask : 0, odd = k + 1 < kc ? mask : 0;
		__m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(even, even ? from + k * step : from));
		__m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(odd, odd ? from + (k + 1) * step : from));
		_mm512_storeu_si512(to + k / 2 * SIDE, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
	}
}

/* One tile. */
SIMD_INLINE void pack_tile(const struct gemm_side *side, const uint16_t *from, int64_t lanes, int64_t kc, int pairs_first, uint32_t *to)
{
	uint32_t other[TILE];
	if (side->k_stride == 1) {
		if (!pairs_first)
			copy_rows(from, side->lane_stride, lanes, kc, to);
		else if (lanes >= SIDE && kc >= DEPTH)
			turn(from, side->lane_stride * 2, to);
		else {
			copy_rows(from, side->lane_stride, lanes, kc, other);
			turn(other, SIDE * 4, to);
		}
	} else if (pairs_first)
		join_rows(from, side->k_stride, lanes, kc, to);
	else {
		join_rows(from, side->k_stride, lanes, kc, other);
		turn(other, SIDE * 4, to);
	}
}

SIMD_INLINE void pack_panels(const struct gemm_side *side, int64_t lanes, int64_t kc, int pairs_first, void *out)
{
	uint32_t *to = out;
	for (int64_t first = 0; first < lanes; first += PANEL) {
		for (int64_t k = 0; k < kc; k += DEPTH) {
			for (int64_t lane = first; lane < first + PANEL; lane += SIDE, to += TILE) {
				const uint16_t *from = side->data;
				int64_t here = lane < lanes ? lanes - lane : 0;
				if (here)
					from += lane * side->lane_stride + k * side->k_stride;
				pack_tile(side, from, here, kc - k, pairs_first, to);
			}
		}
	}
}

#endif
