/* Whole stretches of codes.c's adamw8 in AVX-512, the same bits in fewer instructions. Elements go 32 at a time, those at even places in
 * one register and those at odd ones in another, as 16-bit arrays have them in their words: halves are masked and shifted apart, not
 * widened.
 *
 * Decoding: a code becomes a float by lying in the mantissa of a power of two whose last bit but seven (even places) or fifteen (odd) is
 * worth 4; four times its number's exponent then selects slope and base.
 * Encoding: the binade of a magnitude selects what, added to its bits, carries into the next binade from the decade's border on; the
 * exponent that comes out selects the decade's line. Binades go from 2^-31, below which all is 0, to 2^0. */
#ifndef RH_OFFLOAD_SIMD_CODES_AVX512_H
#define RH_OFFLOAD_SIMD_CODES_AVX512_H

enum { PAIRS = OPTIMIZER_CODES / 32 };

struct pair {
	__m512 even, odd;
};

/* table[(exponent of 4 * number) & 15]; by [0]: signed, [1]: unsigned */
static const float slopes[2][16] = {{0, SEVEN(QUARTER, 0)}, {0, 0, SEVEN(QUARTER, 1)}};
static const float bases[2][16] = {{0, SEVEN(BASE, 0), 1}, {0, 0, SEVEN(BASE, 1), 1}};

/* table[31 + exponent]: of the decade in which the binade begins, 0 below all, 8 above all; and where it ends in this one */
#define THRICE(x) x, x, x
#define BY_BINADE(what)                                                                                                                    \
	{                                                                                                                                  \
		{THRICE(what(0, 0)), THRICE(what(0, 0)), THRICE(what(0, 0)), what(0, 0), what(0, 1),                                       \
		 what(0, 1),         THRICE(what(0, 2)), THRICE(what(0, 3)), what(0, 3), THRICE(what(0, 4)),                               \
		 THRICE(what(0, 5)), THRICE(what(0, 6)), THRICE(what(0, 7)), what(0, 8)},                                                  \
		{                                                                                                                          \
			THRICE(what(1, 0)), THRICE(what(1, 0)), THRICE(what(1, 0)), THRICE(what(1, 1)), THRICE(what(1, 2)),                \
			        THRICE(what(1, 3)), THRICE(what(1, 4)), what(1, 4), THRICE(what(1, 5)), THRICE(what(1, 6)),                \
			        THRICE(what(1, 7)), what(1, 8)                                                                             \
		}                                                                                                                          \
	}
#define BINADE_STEEP(u, c) (2 * HALF(u, (c) % 8))
#define BINADE_FOOT(u, c)  LINE_FOOT(u, (c) % 8)
#define BINADE_TOP(u, c)   LINE_TOP(u, (c) % 8)
#define CARRY(border, two) ((1 << 23) - (int)(((double)(border) * (two)-1) * (1 << 23)))
static const float steeps[2][32] = BY_BINADE(BINADE_STEEP), feet[2][32] = BY_BINADE(BINADE_FOOT), tops[2][32] = BY_BINADE(BINADE_TOP);
/* c-th: the exponent, without its sign, of the binade in which decade c begins. */
#define CARRIES(u, e1, e2, e3, e4, e5, e6, e7)                                                                                             \
	{                                                                                                                                  \
		[31 - e1] = CARRY(BORDER(u, 1), 0x1p##e1), [31 - e2] = CARRY(BORDER(u, 2), 0x1p##e2),                                      \
		      [31 - e3] = CARRY(BORDER(u, 3), 0x1p##e3), [31 - e4] = CARRY(BORDER(u, 4), 0x1p##e4),                                \
		      [31 - e5] = CARRY(BORDER(u, 5), 0x1p##e5), [31 - e6] = CARRY(BORDER(u, 6), 0x1p##e6),                                \
		      [31 - e7] = CARRY(BORDER(u, 7), 0x1p##e7), [31 - 1] = CARRY(ONE(u), 0x1p1)                                           \
	}
static const int carries[2][32] = {CARRIES(0, 22, 20, 17, 13, 10, 7, 4), CARRIES(1, 23, 20, 17, 14, 10, 7, 4)};

#define SIGN _mm512_set1_epi32(INT32_MIN)

/* mask ? a : b, bit by bit. */
SIMD_INLINE __m512i select_bits(uint32_t mask, __m512i a, __m512i b)
{
	return _mm512_ternarylogic_epi32(b, _mm512_set1_epi32((int)mask), a, 0xB8); /* b's register becomes the result's */
}

SIMD_INLINE __m512 value_of(const int is_signed, __m512 number, __m512 largest)
{
	__m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(number), 23);
	__m512 slope = _mm512_permutexvar_ps(exponent, _mm512_loadu_ps(slopes[!is_signed]));
	__m512 base = _mm512_permutexvar_ps(exponent, _mm512_loadu_ps(bases[!is_signed]));
	if (is_signed) /* the sign of the number is the base's too */
		base = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(base), _mm512_castps_si512(number), SIGN, 0x78));
	return _mm512_mul_ps(_mm512_fmadd_ps(number, slope, base), largest);
}

SIMD_INLINE struct pair decode_pair(const int is_signed, const uint8_t *codes, __m512 largest)
{
	__m512i word = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)codes));
	__m512i whole[2] = {_mm512_castps_si512(_mm512_set1_ps(0x1p25f)), _mm512_castps_si512(_mm512_set1_ps(0x1p17f))};
	__m512 even = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(word, _mm512_set1_epi32(0xff), whole[0], 0xEA));
	__m512 odd = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(word, _mm512_set1_epi32(0xff00), whole[1], 0xEA));
	float zero = is_signed ? 4 * 127 : -4;
	even = _mm512_sub_ps(even, _mm512_set1_ps(0x1p25f + zero));
	odd = _mm512_sub_ps(odd, _mm512_set1_ps(0x1p17f + zero));
	return (struct pair){value_of(is_signed, even, largest), value_of(is_signed, odd, largest)};
}

/* The code's number as a float that is still to be cut off. */
SIMD_INLINE __m512 line_of(const int is_signed, __m512 value, __m512 inverse)
{
	const int u = !is_signed;
	__m512 t = _mm512_mul_ps(value, inverse), least = _mm512_set1_ps(0x1p-31f), x;
	if (is_signed) {
		t = _mm512_max_ps(t, _mm512_set1_ps(-(float)MOST(0, 7))); /* there is no -1 */
		x = _mm512_range_ps(t, least, 11);                        /* the larger magnitude */
	} else {
		x = _mm512_max_ps(t, least);
	}
	__m512i bits = _mm512_castps_si512(x), binade = _mm512_srli_epi32(bits, 23);
	bits = _mm512_add_epi32(bits,
	                        _mm512_permutex2var_epi32(_mm512_loadu_si512(carries[u]), binade, _mm512_loadu_si512(carries[u] + 16)));
	binade = _mm512_srli_epi32(bits, 23);
	__m512 steep = _mm512_permutex2var_ps(_mm512_loadu_ps(steeps[u]), binade, _mm512_loadu_ps(steeps[u] + 16));
	__m512 foot = _mm512_permutex2var_ps(_mm512_loadu_ps(feet[u]), binade, _mm512_loadu_ps(feet[u] + 16));
	__m512 top = _mm512_permutex2var_ps(_mm512_loadu_ps(tops[u]), binade, _mm512_loadu_ps(tops[u] + 16));
	__m512 code = _mm512_min_ps(_mm512_fmadd_ps(x, steep, foot), top);
	if (!is_signed)
		return code;
	return _mm512_castsi512_ps(select_bits(0x80000000, _mm512_castps_si512(t), _mm512_castps_si512(code)));
}

SIMD_INLINE void encode_pair(const int is_signed, struct pair value, __m512 inverse, uint8_t *codes)
{
	__m512 even = line_of(is_signed, value.even, inverse), odd = line_of(is_signed, value.odd, inverse);
	__m256i packed;
	if (is_signed) {
		__m512i high = _mm512_slli_epi32(_mm512_cvttps_epi32(odd), 8);
		packed = _mm512_cvtepi32_epi16(select_bits(0xff, _mm512_cvttps_epi32(even), high));
		packed = _mm256_add_epi8(packed, _mm256_set1_epi8(127));
	} else { /* rounded down where the last bit is worth 1, or 1/256 */
		even = _mm512_add_round_ps(even, _mm512_set1_ps(0x1p23f), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
		odd = _mm512_add_round_ps(odd, _mm512_set1_ps(0x1p15f), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
		packed = _mm512_cvtepi32_epi16(select_bits(0xff, _mm512_castps_si512(even), _mm512_castps_si512(odd)));
	}
	_mm256_storeu_si256((__m256i *)(void *)codes, packed);
}

/* rh_adamw, word by word. */
SIMD_INLINE __m512 adamw_wide(const struct adamw_terms *t, __m512 weight, __m512 gradient, __m512 *first, __m512 *second)
{
	__m512 g = _mm512_mul_ps(gradient, _mm512_set1_ps(t->scale));
	__m512 toward = _mm512_fmsub_ps(gradient, _mm512_set1_ps(t->scale), *first);
	__m512 m = _mm512_fmadd_ps(_mm512_set1_ps(t->lerp), toward, t->lerp_from_end ? g : *first);
	__m512 v =
	        _mm512_fmadd_ps(_mm512_mul_ps(_mm512_set1_ps(t->one_minus_beta2), g), g, _mm512_mul_ps(*second, _mm512_set1_ps(t->beta2)));
	*first = m;
	*second = v;
	__m512 under = _mm512_fmadd_ps(_mm512_sqrt_ps(v), _mm512_set1_ps(t->inverse_root), _mm512_set1_ps(t->epsilon));
	__m512 step = _mm512_div_ps(_mm512_mul_ps(_mm512_set1_ps(t->minus_step), m), under);
	return _mm512_fmadd_ps(weight, _mm512_set1_ps(t->keep), step);
}

/* 32 weights and gradients from `at` on; *bad becomes NaN where a weight is not finite. */
SIMD_INLINE void update_pair(const struct optimizer_terms *t, const struct optimizer_span *s, int64_t at, struct pair *first,
                             struct pair *second, __m512 *bad)
{
	uint16_t *weights = (uint16_t *)s->weights + at;
	__m512i upper = _mm512_loadu_si512(weights), lower = _mm512_loadu_si512(s->lower + at);
	__m512i gradient = _mm512_loadu_si512((const uint16_t *)s->gradient + at);
	upper = _mm512_sub_epi16(upper, _mm512_srli_epi16(lower, 15)); /* rh_split_join */
	__m512 even = _mm512_castsi512_ps(select_bits(0xffff, lower, _mm512_slli_epi32(upper, 16)));
	__m512 odd = _mm512_castsi512_ps(select_bits(0xffff, _mm512_srli_epi32(lower, 16), upper));
	even = adamw_wide(&t->adamw, even, _mm512_castsi512_ps(_mm512_slli_epi32(gradient, 16)), &first->even, &second->even);
	odd = adamw_wide(&t->adamw, odd, _mm512_castsi512_ps(_mm512_and_si512(gradient, _mm512_set1_epi32((int)0xffff0000))), &first->odd,
	                 &second->odd);
	*bad = _mm512_fmadd_ps(even, _mm512_setzero_ps(), *bad);
	*bad = _mm512_fmadd_ps(odd, _mm512_setzero_ps(), *bad);
	__m512i low = _mm512_castps_si512(even), high = _mm512_castps_si512(odd);
	lower = select_bits(0xffff, low, _mm512_slli_epi32(high, 16)); /* rh_split_upper, rh_split_lower */
	upper = _mm512_add_epi16(select_bits(0xffff, _mm512_srli_epi32(low, 16), high), _mm512_srli_epi16(lower, 15));
	_mm512_storeu_si512(weights, upper);
	_mm512_storeu_si512(s->lower + at, lower);
}

/* One whole stretch, of OPTIMIZER_CODES elements from `at` on; `block` numbers its scales. */
SIMD_INLINE uint32_t adamw8_stretch(const struct optimizer_terms *t, const struct optimizer_span *s, int64_t at, int64_t block)
{
	struct pair first[PAIRS], second[PAIRS];
	__m512 largest[2] = {_mm512_set1_ps(s->largest[0][block]), _mm512_set1_ps(s->largest[1][block])};
	__m512 most[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, bad = _mm512_setzero_ps();
	for (int i = 0; i < PAIRS; i++) {
		first[i] = decode_pair(1, s->code[0] + at + 32 * i, largest[0]);
		second[i] = decode_pair(0, s->code[1] + at + 32 * i, largest[1]);
		update_pair(t, s, at + 32 * i, &first[i], &second[i], &bad);
		most[0] = _mm512_range_ps(most[0], _mm512_range_ps(first[i].even, first[i].odd, 11), 11);
		most[1] = _mm512_max_ps(_mm512_max_ps(second[i].even, second[i].odd), most[1]);
	}
	s->largest[0][block] = _mm512_reduce_max_ps(most[0]);
	s->largest[1][block] = _mm512_reduce_max_ps(most[1]);
	__m512 inverse = _mm512_set1_ps(inverse_of(s->largest[0][block]));
	for (int i = 0; i < PAIRS; i++)
		encode_pair(1, first[i], inverse, s->code[0] + at + 32 * i);
	inverse = _mm512_set1_ps(inverse_of(s->largest[1][block]));
	for (int i = 0; i < PAIRS; i++)
		encode_pair(0, second[i], inverse, s->code[1] + at + 32 * i);
	return _mm512_cmp_ps_mask(bad, bad, _CMP_UNORD_Q);
}

#endif
