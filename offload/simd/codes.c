/* AdamW with both moments in 8 bits: for each 256 elements a largest magnitude in fp32, and for each element the nearest of 256 values in
 * [-1, 1] (first moment) or [0, 1] (second). The values are those of Dettmers et al., "8-bit optimizers via block-wise quantization"
 * (dynamic tree quantization, as bitsandbytes' create_dynamic_map has it): seven decades [0.1, 1) * 10^(c-7), c = 1..7, each cut evenly
 * into n = 2^(c-1) (signed, on both sides of 0) or 2^c cells whose middles are the values; 0 and 1 besides. Codes are numbered in ascending
 * order.
 *
 * No table of 256 is looked up: the decade of a code is the exponent of its number, that of a value is found by three comparisons, and what
 * depends on the decade comes from tables of eight, which are a register. 14 bytes an element are moved (8 read, 6 written). */
#include "offload/simd/simd.h"

#include <immintrin.h>

#if defined __AVX512F__
enum { LANES = 16 };
#elif defined __AVX2__
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t words __attribute__((vector_size(4 * LANES)));

#define TEN(c)      ((c) == 7 ? 1.0 : (c) == 6 ? 1e-1 : (c) == 5 ? 1e-2 : (c) == 4 ? 1e-3 : (c) == 3 ? 1e-4 : (c) == 2 ? 1e-5 : 1e-6)
#define N(u, c)     ((double)(1 << ((c)-1 + (u))))
#define LEAST(u, c) (TEN(c) * (0.1 + 0.45 / N(u, c))) /* the decade's first value and its last */
#define MOST(u, c)  (TEN(c) * (1 - 0.45 / N(u, c)))
/* Where decade c begins: half way to what lies below. */
#define BORDER(u, c) (float)((c) == 1 ? LEAST(u, 1) / 2 : (MOST(u, (c)-1) + LEAST(u, c)) / 2)
/* value = number * SLOPE + BASE, the number being the code's (+1 where unsigned), which lies in [n, 2n). */
#define SLOPE(u, c) (float)(TEN(c) * 0.9 / N(u, c))
#define BASE(u, c)  (float)(TEN(c) * (0.45 / N(u, c) - 0.8))
/* code = floor(value * STEEP + FOOT), at most 2n - 1 (- 1 where unsigned) */
#define STEEP(u, c) (float)(N(u, c) / (0.9 * TEN(c)))
#define FOOT(u, c)  (float)(N(u, c) - (u)-N(u, c) / 9)
#define TOP(u, c)   (float)(2 * N(u, c) - 1 - (u))

#define SEVEN(what, u) what(u, 1), what(u, 2), what(u, 3), what(u, 4), what(u, 5), what(u, 6), what(u, 7)

/* Twice, as a register of sixteen wants them: putting halves together in the loop costs more than all else. */
#define TWICE(...)                                                                                                                         \
	{                                                                                                                                  \
		__VA_ARGS__, __VA_ARGS__                                                                                                   \
	}
#define BEHIND(what, u) TWICE(0, SEVEN(what, u))

struct map {
	float slope[16], base[16];                      /* by the number's exponent */
	float border[16], steep[16], foot[16], top[16]; /* by decade; [0]: zero */
	float one;                                      /* from here on the value 1 is nearer */
};
static const struct map maps[2] = {
        {TWICE(SEVEN(SLOPE, 0), 0), TWICE(SEVEN(BASE, 0), 1), BEHIND(BORDER, 0), BEHIND(STEEP, 0), BEHIND(FOOT, 0), BEHIND(TOP, 0),
         (float)((1 + MOST(0, 7)) / 2)},
        {BEHIND(SLOPE, 1), BEHIND(BASE, 1), BEHIND(BORDER, 1), BEHIND(STEEP, 1), BEHIND(FOOT, 1), BEHIND(TOP, 1),
         (float)((1 + MOST(1, 7)) / 2)},
};

/* table[index], each index in 0..7. */
SIMD_INLINE floats pick(const float table[16], words index)
{
	floats out;
#if defined __AVX2__
	memcpy(&out, table, sizeof out);
	out = __builtin_shuffle(out, index);
#else
	for (int k = 0; k < LANES; k++)
		out[k] = table[index[k]];
#endif
	return out;
}

/* a * b + c, rounded once. */
SIMD_INLINE floats fuse(floats a, floats b, floats c)
{
#if defined __AVX512F__
	return (floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined __AVX2__
	return (floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
	for (int k = 0; k < LANES; k++)
		c[k] = fmaf(a[k], b[k], c[k]);
	return c;
#endif
}

/* GCC takes conversions of bytes apart, lane by lane. */
SIMD_INLINE words widen(const uint8_t *codes)
{
#if defined __AVX512F__
	return (words)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)codes));
#elif defined __AVX2__
	return (words)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)codes));
#else
	words out;
	for (int k = 0; k < LANES; k++)
		out[k] = codes[k];
	return out;
#endif
}

/* Numbers from 0 to 255. */
SIMD_INLINE void narrow(words numbers, uint8_t *codes)
{
#if defined __AVX512F__
	_mm_storeu_si128((__m128i *)(void *)codes, _mm512_cvtepi32_epi8((__m512i)numbers));
#elif defined __AVX2__
	__m128i low = _mm256_castsi256_si128((__m256i)numbers), high = _mm256_extracti128_si256((__m256i)numbers, 1);
	__m128i half = _mm_packus_epi32(low, high);
	_mm_storel_epi64((__m128i *)(void *)codes, _mm_packus_epi16(half, half));
#else
	for (int k = 0; k < LANES; k++)
		codes[k] = (uint8_t)numbers[k];
#endif
}

SIMD_INLINE floats choose(words mask, floats yes, floats no)
{
	return (floats)(((words)yes & mask) | ((words)no & ~mask));
}

SIMD_INLINE void decode(const int is_signed, const uint8_t *codes, float largest, float *to)
{
	const struct map *map = &maps[!is_signed];
	for (int i = 0; i < OPTIMIZER_CODES; i += LANES) {
		words number = widen(codes + i) - (is_signed ? 127 : -1), sign = number & INT32_MIN;
		if (is_signed)
			number = (number ^ (number >> 31)) - (number >> 31);
		floats n = __builtin_convertvector(number, floats);
		words exponent = (((words)n >> 23) - 127) & 7;
		floats value = fuse(n, pick(map->slope, exponent), pick(map->base, exponent));
		if (is_signed)
			value = (floats)(((words)value & (number != 0)) | sign);
		else
			value = choose(number == 256, (floats){0} + 1, value);
		value *= largest;
		memcpy(to + i, &value, sizeof value);
	}
}

SIMD_INLINE void encode(const int is_signed, const float *from, float largest, uint8_t *codes)
{
	const struct map *map = &maps[!is_signed];
	float inverse = largest >= 0x1p-124f ? 1 / largest : 0; /* of what is smaller, nothing is kept */
	for (int i = 0; i < OPTIMIZER_CODES; i += LANES) {
		floats value;
		memcpy(&value, from + i, sizeof value);
		words sign = (words)value >> 31;
		floats x = (floats)((words)value & INT32_MAX) * inverse;
		words decade = (x >= map->border[4]) & 4;
		decade += (x >= pick(map->border, decade + 2)) & 2;
		decade += (x >= pick(map->border, decade + 1)) & 1;
		floats code = fuse(x, pick(map->steep, decade), pick(map->foot, decade)), top = pick(map->top, decade);
		code = choose(code < top, code, top);
		words number = __builtin_convertvector(code, words), one = x >= map->one;
		if (is_signed) {
			number = (number & ~one) | ((sign + 128) & one); /* there is no -1 */
			number = ((number ^ sign) - sign) + 127;
		} else {
			number = (number & ~one) | (255 & one);
		}
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
	floats most = {0};
	for (int i = 0; i < OPTIMIZER_CODES; i += LANES) {
		floats x;
		memcpy(&x, values + i, sizeof x);
		x = (floats)((words)x & INT32_MAX);
		most = choose(x > most, x, most);
	}
	float lane[LANES];
	memcpy(lane, &most, sizeof lane);
	for (int half = LANES / 2; half > 0; half /= 2)
		for (int k = 0; k < half; k++)
			lane[k] = lane[k + half] > lane[k] ? lane[k + half] : lane[k];
	return lane[0];
}

SIMD_INLINE uint32_t update(const struct optimizer_terms *t, const struct optimizer_span *s, int64_t at, int64_t count, float *first,
                            float *second)
{
	uint32_t bad = 0;
#pragma GCC ivdep
	for (int64_t i = 0; i < count; i++) {
		float weight = weight_at(FORM_SPLIT, s, at + i), gradient = gradient_at(0, s->gradient, at + i);
		uint32_t bits = rh_f32_bits(adamw(t, weight, gradient, &first[i], &second[i]));
		weight_to(FORM_SPLIT, s, at + i, bits);
		bad |= not_finite(bits);
	}
	return bad;
}

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
