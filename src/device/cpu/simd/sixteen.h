/* Sixteen values of a quantised row at a time: bytes to floats, and codes to what they are worth. */
#ifndef RH_DEVICE_CPU_SIMD_SIXTEEN_H
#define RH_DEVICE_CPU_SIMD_SIXTEEN_H

#include "device/cpu/simd/vector.h"

enum { SIXTEEN = 16, SIXTEEN_PARTS = SIXTEEN / VF };

typedef uint8_t vb __attribute__((vector_size(SIXTEEN)));

struct sixteen {
	vf part[SIXTEEN_PARTS];
};

SIMD_INLINE vb vb_load(const uint8_t *from)
{
	vb v;
	memcpy(&v, from, sizeof v);
	return v;
}

/* The bits of `mask` from bit `shift` on. */
SIMD_INLINE vb vb_bits(vb v, int shift, uint8_t mask)
{
	return (vb)((__m128i)_mm_srli_epi16((__m128i)v, shift)) & (mask - (vb){0});
}

/* The 16 half bytes of 8 bytes, one behind the other, the first of two being the low one or the high one. */
SIMD_INLINE vb vb_halves(const uint8_t *from, const int low_first)
{
	vb v = (vb)_mm_loadl_epi64((const __m128i *)(const void *)from), low = vb_bits(v, 0, 15), high = vb_bits(v, 4, 15);
	return (vb)_mm_unpacklo_epi8((__m128i)(low_first ? low : high), (__m128i)(low_first ? high : low));
}

/* 8 low half bytes, then the 8 high ones. */
SIMD_INLINE vb vb_halves_apart(const uint8_t *from)
{
	vb v = (vb)_mm_loadl_epi64((const __m128i *)(const void *)from);
	return (vb)_mm_unpacklo_epi64((__m128i)vb_bits(v, 0, 15), (__m128i)vb_bits(v, 4, 15));
}

/* `value` where bit i of `bits` is set, else 0. */
SIMD_INLINE vb vb_spread(uint32_t bits, uint8_t value)
{
	const vb each = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
	const uint64_t eight = 0x0101010101010101u;
	vb from = (vb)_mm_set_epi64x((int64_t)((bits >> 8 & 255) * eight), (int64_t)((bits & 255) * eight));
	return (vb)((from & each) != 0) & (value - (vb){0});
}

/* The bytes as numbers from 0 on. */
SIMD_INLINE void vb_widen(vb v, vi out[SIXTEEN_PARTS])
{
#if defined __AVX512F__
	out[0] = (vi)_mm512_cvtepu8_epi32((__m128i)v);
#elif defined __AVX2__
	out[0] = (vi)_mm256_cvtepu8_epi32((__m128i)v);
	out[1] = (vi)_mm256_cvtepu8_epi32(_mm_srli_si128((__m128i)v, 8));
#else
	__m128i none = _mm_setzero_si128(), low = _mm_unpacklo_epi8((__m128i)v, none), high = _mm_unpackhi_epi8((__m128i)v, none);
	out[0] = (vi)_mm_unpacklo_epi16(low, none);
	out[1] = (vi)_mm_unpackhi_epi16(low, none);
	out[2] = (vi)_mm_unpacklo_epi16(high, none);
	out[3] = (vi)_mm_unpackhi_epi16(high, none);
#endif
}

/* Numbers from 0 on, less `by`. */
SIMD_INLINE struct sixteen sixteen_less(vb v, int by)
{
	struct sixteen out;
	vi wide[SIXTEEN_PARTS];
	vb_widen(v, wide);
	for (int p = 0; p < SIXTEEN_PARTS; p++)
		out.part[p] = __builtin_convertvector(wide[p] - by, vf);
	return out;
}

SIMD_INLINE struct sixteen sixteen_signed(vb v)
{
	return sixteen_less(v ^ (0x80 - (vb){0}), 128);
}

SIMD_INLINE struct sixteen sixteen_scaled(struct sixteen v, float by)
{
	for (int p = 0; p < SIXTEEN_PARTS; p++)
		v.part[p] *= vf_set(by);
	return v;
}

SIMD_INLINE struct sixteen sixteen_plus(struct sixteen v, float more)
{
	for (int p = 0; p < SIXTEEN_PARTS; p++)
		v.part[p] += vf_set(more);
	return v;
}

SIMD_INLINE struct sixteen sixteen_load(const float *from)
{
	struct sixteen out;
	for (int p = 0; p < SIXTEEN_PARTS; p++)
		out.part[p] = vf_load(from + p * VF);
	return out;
}

SIMD_INLINE void sixteen_store(float *to, struct sixteen v)
{
	for (int p = 0; p < SIXTEEN_PARTS; p++)
		vf_store(to + p * VF, v.part[p]);
}

/* What each of 16 codes stands for in a table of 16. */
SIMD_INLINE struct sixteen sixteen_look_up(struct sixteen table, vb code)
{
	struct sixteen out;
#if defined __AVX512F__
	out.part[0] = (vf)_mm512_permutexvar_ps(_mm512_cvtepu8_epi32((__m128i)code), (__m512)table.part[0]);
#elif defined __AVX2__
	vi wide[SIXTEEN_PARTS];
	vb_widen(code, wide);
	for (int p = 0; p < SIXTEEN_PARTS; p++) {
		__m256 low = _mm256_permutevar8x32_ps((__m256)table.part[0], (__m256i)wide[p]),
		       high = _mm256_permutevar8x32_ps((__m256)table.part[1], (__m256i)wide[p]);
		out.part[p] = (vf)_mm256_blendv_ps(low, high, (__m256)(wide[p] << 28));
	}
#else
	float from[SIXTEEN], to[SIXTEEN];
	sixteen_store(from, table);
	for (int i = 0; i < SIXTEEN; i++)
		to[i] = from[code[i]];
	out = sixteen_load(to);
#endif
	return out;
}

/* E4M3: its exponent and fraction, moved to a float's, are 2^120 times too small; that holds of subnormal ones, too. */
SIMD_INLINE struct sixteen sixteen_e4m3(vb v)
{
	struct sixteen out;
	vi wide[SIXTEEN_PARTS];
	vb_widen(v, wide);
	for (int p = 0; p < SIXTEEN_PARTS; p++) {
		vi size = wide[p] & 0x7f, sign = (wide[p] & 0x80) << 24;
		vf value = (vf)(size << 20) * vf_set(0x1p120f);
		out.part[p] = vf_select(size == 0x7f, (vf)(0x7fc00000 - (vi){0}), (vf)((vi)value | sign));
	}
	return out;
}

#endif
