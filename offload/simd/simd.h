/* Inside offload/simd: loading and storing of the forms, prefetching, and what each file exports. */
#ifndef RH_OFFLOAD_SIMD_H
#define RH_OFFLOAD_SIMD_H

#include "core/float16.h"
#include "core/split.h"
#include "device/cpu/simd/vector.h"
#include "offload/simd/kernels.h"

#include <math.h>

/* A master weight in its form. */
SIMD_INLINE float weight_at(const int form, const struct optimizer_span *s, int64_t i)
{
	if (form == FORM_WIDE)
		return ((const float *)s->weights)[i];
	if (form == FORM_PLAIN)
		return s->master[i];
	return rh_bits_f32(rh_split_join(((const uint16_t *)s->weights)[i], s->lower[i]));
}

SIMD_INLINE void weight_to(const int form, const struct optimizer_span *s, int64_t i, uint32_t bits)
{
	if (form == FORM_WIDE) {
		((float *)s->weights)[i] = rh_bits_f32(bits);
		return;
	}
	((uint16_t *)s->weights)[i] = rh_split_upper(bits);
	if (form == FORM_PLAIN)
		s->master[i] = rh_bits_f32(bits);
	else
		s->lower[i] = rh_split_lower(bits);
}

SIMD_INLINE float gradient_at(const int wide, const void *gradient, int64_t i)
{
	return wide ? ((const float *)gradient)[i] : rh_bf16_to_f32(((const uint16_t *)gradient)[i]);
}

SIMD_INLINE uint32_t not_finite(uint32_t bits)
{
	return (bits & 0x7f800000u) == 0x7f800000u;
}

/* Hardware prefetchers stop at each page, and several arrays make many pages. Bytes ahead as measured: 1024 to 4096 are alike, without it
 * a fifth is lost. */
enum { PIECE = 64, AHEAD = 2048 };

/* Asks for the lines AHEAD of an array's piece. Beyond the array's end it does no harm. */
SIMD_INLINE void ask(const void *piece, int64_t bytes)
{
	for (int64_t line = 0; line < bytes; line += 64)
		__builtin_prefetch((const char *)piece + AHEAD + line);
}

SIMD_INLINE void ask_weights(const int form, const struct optimizer_span *s, int64_t i, int64_t count)
{
	int64_t wide = form == FORM_WIDE ? 4 : 2;
	ask((const char *)s->weights + i * wide, count * wide);
	ask((const char *)s->gradient + i * wide, count * wide);
	if (form == FORM_SPLIT)
		ask(s->lower + i, count * 2);
	if (form == FORM_PLAIN)
		ask(s->master + i, count * 4);
}

int SIMD(adamw8)(const struct optimizer_terms *terms, const struct optimizer_span *span, int64_t count);
void SIMD(codes_decode)(int is_signed, const uint8_t *codes, float largest, float *to, int64_t count);
void SIMD(codes_encode)(int is_signed, const float *from, float largest, uint8_t *codes, int64_t count);

void SIMD(factor_columns)(const void *gradient, int wide, float scale, float *sum, int64_t count);
double SIMD(factor_weighted)(const void *gradient, int wide, const float *factor, int64_t count);
int SIMD(factor_apply_wide)(const struct optimizer_span *span, const float *factor, float step, float keep, int64_t count);
int SIMD(factor_apply_split)(const struct optimizer_span *span, const float *factor, float step, float keep, int64_t count);
int SIMD(factor_apply_plain)(const struct optimizer_span *span, const float *factor, float step, float keep, int64_t count);

double SIMD(squares_f32)(const float *values, int64_t count);
double SIMD(squares_bf16)(const uint16_t *values, int64_t count);
void SIMD(add_f32)(float *out, const float *a, const float *b, int64_t count);
void SIMD(add_bf16)(uint16_t *out, const float *a, const float *b, int64_t count);

#endif
