/* AdamW with both moments in 8 bits: for each 256 elements a largest magnitude in fp32, and for each element the nearest of 256 values in
 * [-1, 1] (first moment) or [0, 1] (second). The values are those of Dettmers et al., "8-bit optimizers via block-wise quantization"
 * (dynamic tree quantization, as bitsandbytes' create_dynamic_map has it): seven decades [0.1, 1) * 10^(c-7), c = 1..7, each cut evenly
 * into n = 2^(c-1) (signed, on both sides of 0) or 2^c cells whose middles are the values; 0 and 1 besides. Codes are numbered in ascending
 * order.
 *
 * No table of 256 is looked up: the decade of a code is the exponent of its number; that of a value is the third of its exponent, or one
 * more. What depends on the decade comes from tables of eight, which are a register. 14 bytes an element are moved (8 read, 6 written). */
#include "offload/simd/simd.h"

#define TEN(c)      ((c) == 7 ? 1.0 : (c) == 6 ? 1e-1 : (c) == 5 ? 1e-2 : (c) == 4 ? 1e-3 : (c) == 3 ? 1e-4 : (c) == 2 ? 1e-5 : 1e-6)
#define N(u, c)     ((double)(1 << ((c)-1 + (u))))
#define LEAST(u, c) (TEN(c) * (0.1 + 0.45 / N(u, c))) /* the decade's first value and its last */
#define MOST(u, c)  (TEN(c) * (1 - 0.45 / N(u, c)))
/* Where decade c begins: half way to what lies below. */
#define BORDER(u, c) (float)((c) == 1 ? LEAST(u, 1) / 2 : (MOST(u, (c)-1) + LEAST(u, c)) / 2)
/* From here on the value 1 is nearer. */
#define ONE(u) (float)((1 + MOST(u, 7)) / 2)
/* value = number * SLOPE + BASE, the number being the code's (+1 where unsigned), which lies in [n, 2n). */
#define SLOPE(u, c) (float)(TEN(c) * 0.9 / N(u, c))
#define BASE(u, c)  (float)(TEN(c) * (0.45 / N(u, c) - 0.8))
/* code = floor(value * STEEP + FOOT), at most 2n - 1 (- 1 where unsigned) */
#define STEEP(u, c) (float)(N(u, c) / (0.9 * TEN(c)))
#define FOOT(u, c)  (float)(N(u, c) - (u)-N(u, c) / 9)
#define TOP(u, c)   (float)(2 * N(u, c) - 1 - (u))
#define LAST(u)     ((u) ? 255.0f : 128.0f) /* of the value 1 */

#define SEVEN(what, u) what(u, 1), what(u, 2), what(u, 3), what(u, 4), what(u, 5), what(u, 6), what(u, 7)

/* Four times a number is in the decade of its exponent modulo 8, less 1 where unsigned; twice a value above 2^-23 in that of a third of its
 * exponent modulo 8, less 3, or in the next one. What is 0 shares a place with what is 1, and a line that goes through both. Tables are
 * there twice, as a register of sixteen wants them: putting halves together in the loop costs more than all else. */
#define TWICE(...)                                                                                                                         \
	{                                                                                                                                  \
		__VA_ARGS__, __VA_ARGS__                                                                                                   \
	}
#define FROM_THREE(what, u) TWICE(what(u, 5), what(u, 6), what(u, 7), what(u, 0), what(u, 1), what(u, 2), what(u, 3), what(u, 4))
#define QUARTER(u, c)       (SLOPE(u, c) / 4)
#define NEXT(u, c)          (2 * ((c) == 7 ? ONE(u) : BORDER(u, (c) == 7 ? 1 : (c) + 1)))
#define HALF(u, c)          ((c) ? STEEP(u, (c) ? (c) : 1) / 2 : (LAST(u) + 0.5f) / 2)
#define LINE_FOOT(u, c)     ((c) ? FOOT(u, (c) ? (c) : 1) : 0)
#define LINE_TOP(u, c)      ((c) ? TOP(u, (c) ? (c) : 1) : LAST(u))

struct map {
	float slope[16], base[16];
	float next[16], half[16], foot[16], top[16]; /* next: where the next decade begins */
};
static const struct map maps[2] = {
        {TWICE(1 / 512.0f, SEVEN(QUARTER, 0)), TWICE(0, SEVEN(BASE, 0)), FROM_THREE(NEXT, 0), FROM_THREE(HALF, 0), FROM_THREE(LINE_FOOT, 0),
         FROM_THREE(LINE_TOP, 0)},
        {TWICE(QUARTER(1, 7), 1 / 1020.0f, QUARTER(1, 1), QUARTER(1, 2), QUARTER(1, 3), QUARTER(1, 4), QUARTER(1, 5), QUARTER(1, 6)),
         TWICE(BASE(1, 7), -1 / 255.0f, BASE(1, 1), BASE(1, 2), BASE(1, 3), BASE(1, 4), BASE(1, 5), BASE(1, 6)), FROM_THREE(NEXT, 1),
         FROM_THREE(HALF, 1), FROM_THREE(LINE_FOOT, 1), FROM_THREE(LINE_TOP, 1)},
};

/* table[index modulo 8] */
SIMD_INLINE vf pick(const float table[16], vi index)
{
	vf out;
#if defined __AVX2__
	out = __builtin_shuffle(vf_load(table), index);
#else
	for (int k = 0; k < VF; k++)
		out[k] = table[index[k] & 7];
#endif
	return out;
}

/* a * b + c, rounded once. */
SIMD_INLINE vf fuse(vf a, vf b, vf c)
{
#if defined __AVX512F__
	return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined __AVX2__
	return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
	for (int k = 0; k < VF; k++)
		c[k] = fmaf(a[k], b[k], c[k]);
	return c;
#endif
}

/* Of numbers from 0 to 255. */
SIMD_INLINE vi third(vi number)
{
#if defined __AVX2__ && !defined __AVX512F__
	return (vi)_mm256_mulhi_epu16((__m256i)number, _mm256_set1_epi32(21846));
#else
	return number * 21846 >> 16;
#endif
}

/* GCC takes conversions of bytes apart, lane by lane. */
SIMD_INLINE vi widen(const uint8_t *codes)
{
#if defined __AVX512F__
	return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)codes));
#elif defined __AVX2__
	return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)codes));
#else
	vi out;
	for (int k = 0; k < VF; k++)
		out[k] = codes[k];
	return out;
#endif
}

/* Numbers from -1 (which becomes 0) to 255, four vectors of them. */
SIMD_INLINE void narrow(const vi number[4], uint8_t *codes)
{
#if defined __AVX2__ && !defined __AVX512F__
	__m256i low = _mm256_packs_epi32((__m256i)number[0], (__m256i)number[1]);
	__m256i high = _mm256_packs_epi32((__m256i)number[2], (__m256i)number[3]);
	__m256i all = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
	_mm256_storeu_si256((__m256i *)(void *)codes, all);
#else
	for (int v = 0; v < 4; v++)
		for (int k = 0; k < VF; k++)
			codes[v * VF + k] = (uint8_t)(number[v][k] < 0 ? 0 : number[v][k]);
#endif
}

/* A code becomes a float by lying in the mantissa of 2^25, whose last bit is worth 4. */
SIMD_INLINE void decode(const int is_signed, const uint8_t *codes, float largest, float *to)
{
	const struct map *map = &maps[!is_signed];
	const vf whole = vf_set(0x1p25f);
	for (int i = 0; i < OPTIMIZER_CODES; i += VF) {
		vf number = (vf)(widen(codes + i) | (vi)whole) - (0x1p25f + (is_signed ? 4 * 127 : -4));
		vi exponent = (vi)number >> 23;
		vf base = pick(map->base, exponent);
		if (is_signed)
			base = (vf)((vi)base ^ ((vi)number & INT32_MIN));
		vf_store(to + i, fuse(number, pick(map->slope, exponent), base) * largest);
	}
}

/* Of what is smaller than 2^-124, nothing is kept. */
SIMD_INLINE float inverse_of(float largest)
{
	return largest >= 0x1p-124f ? 1 / largest : 0;
}

SIMD_INLINE vi encode_vector(const int is_signed, vf value, float twice)
{
	const struct map *map = &maps[!is_signed];
	vf x = vf_max((vf)((vi)value & INT32_MAX) * twice, vf_set(0x1p-22f));
	vi decade = third((vi)x >> 23);
	decade -= x >= pick(map->next, decade);
	vf line = fuse(x, pick(map->half, decade), pick(map->foot, decade));
	vi number = __builtin_convertvector(vf_min(line, pick(map->top, decade)), vi), sign = (vi)value >> 31;
	return is_signed ? ((number ^ sign) - sign) + 127 : number; /* -1: there is no -1 */
}

SIMD_INLINE void encode(const int is_signed, const float *from, float largest, uint8_t *codes)
{
	float twice = 2 * inverse_of(largest);
	for (int i = 0; i < OPTIMIZER_CODES; i += 4 * VF) {
		vi number[4];
		for (int v = 0; v < 4; v++)
			number[v] = encode_vector(is_signed, vf_load(from + i + v * VF), twice);
		narrow(number, codes + i);
	}
}

/* Whole stretches only: what is behind `count` is left alone. */
void SIMD(codes_decode)(int is_signed, const uint8_t *codes, float largest, float *to, int64_t count)
{
	uint8_t code[OPTIMIZER_CODES] = {0};
	float value[OPTIMIZER_CODES];
	memcpy(code, codes, (size_t)count);
	if (is_signed)
		decode(1, code, largest, value);
	else
		decode(0, code, largest, value);
	memcpy(to, value, (size_t)count * sizeof *to);
}

void SIMD(codes_encode)(int is_signed, const float *from, float largest, uint8_t *codes, int64_t count)
{
	uint8_t code[OPTIMIZER_CODES];
	float value[OPTIMIZER_CODES] = {0};
	memcpy(value, from, (size_t)count * sizeof *from);
	if (is_signed)
		encode(1, value, largest, code);
	else
		encode(0, value, largest, code);
	memcpy(codes, code, (size_t)count);
}

static float largest_of(const float *values)
{
	vf most = {0};
	for (int i = 0; i < OPTIMIZER_CODES; i += VF)
		most = vf_max((vf)((vi)vf_load(values + i) & INT32_MAX), most);
	return vf_largest(most);
}

SIMD_INLINE uint32_t update(const struct optimizer_terms *t, const struct optimizer_span *s, int64_t at, int64_t count, float *first,
                            float *second)
{
	uint32_t bad = 0;
#pragma GCC ivdep
	for (int64_t i = 0; i < count; i++) {
		float weight = weight_at(FORM_SPLIT, s, at + i), gradient = gradient_at(0, s->gradient, at + i);
		uint32_t bits = rh_f32_bits(adamw(&t->adamw, weight, gradient, &first[i], &second[i]));
		weight_to(FORM_SPLIT, s, at + i, bits);
		bad |= not_finite(bits);
	}
	return bad;
}

#if defined __AVX512F__
#include "offload/simd/codes_avx512.h"
#endif

int SIMD(adamw8)(const struct optimizer_terms *terms, const struct optimizer_span *span, int64_t count)
{
	const struct optimizer_terms t = *terms;
	const struct optimizer_span s = *span;
	uint32_t bad = 0;
	for (int64_t at = 0, block = 0; at < count; at += OPTIMIZER_CODES, block++) {
		float first[OPTIMIZER_CODES], second[OPTIMIZER_CODES];
		uint8_t tail[2][OPTIMIZER_CODES] = {{0}}, *code[2] = {s.code[0] + at, s.code[1] + at};
		int64_t n = count - at < OPTIMIZER_CODES ? count - at : OPTIMIZER_CODES;
		for (int k = 0; n < OPTIMIZER_CODES && k < 2; k++)
			code[k] = memcpy(tail[k], code[k], (size_t)n);
		ask_weights(FORM_SPLIT, &s, at, OPTIMIZER_CODES);
		ask(s.code[0] + at, OPTIMIZER_CODES);
		ask(s.code[1] + at, OPTIMIZER_CODES);
#if defined __AVX512F__
		if (n == OPTIMIZER_CODES) {
			bad |= adamw8_stretch(&t, &s, at, block);
			continue;
		}
#endif
		decode(1, code[0], s.largest[0][block], first);
		decode(0, code[1], s.largest[1][block], second);
		if (n == OPTIMIZER_CODES) {
			bad |= update(&t, &s, at, OPTIMIZER_CODES, first, second);
		} else {
			memset(first + n, 0, sizeof first - (size_t)n * sizeof *first);
			memset(second + n, 0, sizeof second - (size_t)n * sizeof *second);
			bad |= update(&t, &s, at, n, first, second);
		}
		s.largest[0][block] = largest_of(first);
		s.largest[1][block] = largest_of(second);
		encode(1, first, s.largest[0][block], code[0]);
		encode(0, second, s.largest[1][block], code[1]);
		for (int k = 0; n < OPTIMIZER_CODES && k < 2; k++)
			memcpy(s.code[k] + at, tail[k], (size_t)n);
	}
	return (int)bad;
}
