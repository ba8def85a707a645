/* Vectors of the widest float registers of the instruction set that a file is being compiled for, and the exponential.
 *
 * Files in this folder are compiled once for each of avx512, avx2 and base, with RH_ISA naming it: everything that such a file exports
 * goes through SIMD(), and nothing else may be non-static. */
#ifndef RH_DEVICE_CPU_SIMD_VECTOR_H
#define RH_DEVICE_CPU_SIMD_VECTOR_H

#include "core/float16.h"

#if defined __AVX2__
#include <immintrin.h>
#else
#include <emmintrin.h>
#endif
#include <stdint.h>
#include <string.h>

#define SIMD_JOIN2(name, isa) name##_##isa
#define SIMD_JOIN(name, isa)  SIMD_JOIN2(name, isa)
#define SIMD(name)            SIMD_JOIN(name, RH_ISA)
#define SIMD_INLINE           static inline __attribute__((always_inline))

#if defined __AVX512F__
enum { VF = 16 }; /* floats in a vector */
#elif defined __AVX2__
enum { VF = 8 };
#else
enum { VF = 4 };
#endif

typedef float vf __attribute__((vector_size(VF * 4)));
typedef int32_t vi __attribute__((vector_size(VF * 4)));
typedef uint32_t vu __attribute__((vector_size(VF * 4)));
typedef uint16_t vh __attribute__((vector_size(VF * 2)));

SIMD_INLINE vf vf_set(float value)
{
	return value - (vf){0};
}

SIMD_INLINE vf vf_load(const float *from)
{
	vf v;
	memcpy(&v, from, sizeof v);
	return v;
}

SIMD_INLINE void vf_store(float *to, vf v)
{
	memcpy(to, &v, sizeof v);
}

SIMD_INLINE vf vf_from_bf16(vh h)
{
#if defined __AVX512F__
	return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif defined __AVX2__
	return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#else
	return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

/* Nearest, ties to even; NaN stays NaN. */
SIMD_INLINE vh vf_to_bf16(vf v)
{
	vu bits = (vu)v, rounded = bits + 0x7fffu + (bits >> 16 & 1u);
#if defined __AVX512F__
	__mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
	__m512i kept = _mm512_mask_or_epi32((__m512i)rounded, nan, (__m512i)bits, _mm512_set1_epi32(0x400000));
	return (vh)_mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
#else
	vu nan = (vu)(v != v);
	return __builtin_convertvector(((rounded & ~nan) | ((bits | 0x400000u) & nan)) >> 16, vh);
#endif
}

SIMD_INLINE vf vf_load_bf16(const uint16_t *from)
{
	vh h;
	memcpy(&h, from, sizeof h);
	return vf_from_bf16(h);
}

SIMD_INLINE void vf_store_bf16(uint16_t *to, vf v)
{
	vh h = vf_to_bf16(v);
	memcpy(to, &h, sizeof h);
}

/* The first n < VF elements, the rest zero. */
SIMD_INLINE vf vf_load_part(const float *from, int64_t n)
{
#if defined __AVX512F__
	return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), from);
#else
	float part[VF] = {0};
	for (int64_t i = 0; i < n; i++)
		part[i] = from[i];
	return vf_load(part);
#endif
}

SIMD_INLINE void vf_store_part(float *to, vf v, int64_t n)
{
#if defined __AVX512F__
	_mm512_mask_storeu_ps(to, (__mmask16)((1u << n) - 1), (__m512)v);
#else
	float part[VF];
	vf_store(part, v);
	for (int64_t i = 0; i < n; i++)
		to[i] = part[i];
#endif
}

SIMD_INLINE vf vf_load_bf16_part(const uint16_t *from, int64_t n)
{
#if defined __AVX512F__
	return vf_from_bf16((vh)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), from));
#else
	uint16_t part[VF] = {0};
	for (int64_t i = 0; i < n; i++)
		part[i] = from[i];
	return vf_load_bf16(part);
#endif
}

SIMD_INLINE void vf_store_bf16_part(uint16_t *to, vf v, int64_t n)
{
#if defined __AVX512F__
	_mm256_mask_storeu_epi16(to, (__mmask16)((1u << n) - 1), (__m256i)vf_to_bf16(v));
#else
	uint16_t part[VF];
	vf_store_bf16(part, v);
	for (int64_t i = 0; i < n; i++)
		to[i] = part[i];
#endif
}

/* a where the mask (all ones or zero in each lane, as comparisons give) is set, else b. */
SIMD_INLINE vf vf_select(vi mask, vf a, vf b)
{
	return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

/* The larger and the smaller; b where either is NaN. */
SIMD_INLINE vf vf_max(vf a, vf b)
{
#if defined __AVX512F__
	return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined __AVX2__
	return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
	return (vf)_mm_max_ps((__m128)a, (__m128)b);
#endif
}

SIMD_INLINE vf vf_min(vf a, vf b)
{
#if defined __AVX512F__
	return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined __AVX2__
	return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
	return (vf)_mm_min_ps((__m128)a, (__m128)b);
#endif
}

/* Across the lanes, halves first: the order is fixed. */
SIMD_INLINE float vf_sum(vf v)
{
#if defined __AVX512F__
	__m256 eight = _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
#elif defined __AVX2__
	__m256 eight = (__m256)v;
#endif
#if defined __AVX2__
	__m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#else
	__m128 four = (__m128)v;
#endif
	__m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
	return two[0] + two[1];
}

SIMD_INLINE float vf_largest(vf v)
{
	float lane[VF], largest;
	vf_store(lane, v);
	largest = lane[0];
	for (int i = 1; i < VF; i++)
		largest = lane[i] > largest ? lane[i] : largest;
	return largest;
}

/* e^x within 1.5 units in the last place, subnormal results included; 0 for -infinity, infinity above the range, NaN for NaN.
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q a minimax polynomial (relative error of the whole 5e-9). */
SIMD_INLINE vf vf_exp(vf x)
{
	const float magic = 0x1.8p23f; /* adding it rounds to an integer */
	x = vf_min(vf_set(89.0f), vf_max(vf_set(-104.0f), x));
	vf n = x * 0x1.715476p+0f + magic - magic;
	vf r = x - n * 0x1.63p-1f; /* ln 2 in two parts: n times the first is exact */
	r = r - n * -0x1.bd0106p-13f;
	vf q = 0x1.6a2356p-10f * r + 0x1.123a6ap-7f;
	q = q * r + 0x1.5558f4p-5f;
	q = q * r + 0x1.55549p-3f;
	q = q * r + 0x1.fffffcp-2f;
	vf e = q * (r * r) + r + 1.0f;
#if defined __AVX512F__
	return (vf)_mm512_scalef_ps((__m512)e, (__m512)n);
#else
	vi whole = __builtin_convertvector(n, vi), half = whole >> 1; /* in two factors: 2^n alone may leave the range */
	return e * (vf)((half + 127) << 23) * (vf)((whole - half + 127) << 23);
#endif
}

/* As fractions of 2 / (1 + e^2x): tanh is 1 less that. Near 0 what is left of 1 has lost bits: there the series. */
SIMD_INLINE vf vf_tanh(vf x)
{
	vf size = vf_min(vf_max(x, -x), vf_set(10.0f)), far = 1.0f - 2.0f / (1.0f + vf_exp(2.0f * size)), square = x * x;
	vf near = size *
	          (1.0f + square * (-0x1.555556p-2f + square * (0x1.111112p-3f + square * (-0x1.ba1ba2p-5f + square * 0x1.664f48p-6f))));
	vf value = vf_select(size < vf_set(0.25f), near, far);
	return vf_select(x < (vf){0}, -value, value);
}

#endif
