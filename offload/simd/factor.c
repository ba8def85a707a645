/* Adafactor's passes over one row of a tensor. Three passes read the gradient (6 or 12 bytes an element), the last also changes the
 * weights; the factors of a row stay in the cache. */
#include "offload/simd/simd.h"

SIMD_INLINE void columns(const int wide, const void *gradient, float scale, float *sum, int64_t count)
{
#pragma GCC ivdep
	for (int64_t i = 0; i < count; i++) {
		float g = gradient_at(wide, gradient, i) * scale;
		sum[i] = fmaf(g, g, sum[i]);
	}
}

void SIMD(factor_columns)(const void *gradient, int wide, float scale, float *sum, int64_t count)
{
	if (wide)
		columns(1, gradient, scale, sum, count);
	else
		columns(0, gradient, scale, sum, count);
}

/* In pieces of one stretch of the stack, so that the sums are those of the norm. */
SIMD_INLINE double weighted(const int wide, const void *gradient, const float *factor, int64_t count)
{
	float piece[512];
	double total = 0;
	for (int64_t at = 0; at < count; at += 512) {
		int64_t n = count - at < 512 ? count - at : 512;
		for (int64_t i = 0; i < n; i++)
			piece[i] = gradient_at(wide, gradient, at + i) * factor[at + i];
		total += SIMD(squares_f32)(piece, n);
	}
	return total;
}

double SIMD(factor_weighted)(const void *gradient, int wide, const float *factor, int64_t count)
{
	return wide ? weighted(1, gradient, factor, count) : weighted(0, gradient, factor, count);
}

SIMD_INLINE int apply(const int form, const struct optimizer_span *s, const float *factor, float step, float keep, int64_t count)
{
	uint32_t bad = 0;
#pragma GCC ivdep
	for (int64_t i = 0; i < count; i++) {
		float update = factor[i] * gradient_at(form == FORM_WIDE, s->gradient, i);
		uint32_t bits = rh_f32_bits(fmaf(weight_at(form, s, i), keep, -step * update));
		weight_to(form, s, i, bits);
		bad |= not_finite(bits);
	}
	return (int)bad;
}

#define APPLY(name, form)                                                                                                                  \
	int SIMD(name)(const struct optimizer_span *span, const float *factor, float step, float keep, int64_t count)                      \
	{                                                                                                                                  \
		const struct optimizer_span s = *span;                                                                                     \
		return apply(form, &s, factor, step, keep, count);                                                                         \
	}

APPLY(factor_apply_wide, FORM_WIDE)
APPLY(factor_apply_split, FORM_SPLIT)
APPLY(factor_apply_plain, FORM_PLAIN)
