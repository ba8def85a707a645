/* torch.optim.AdamW (single tensor) of one element: the same bits from every instruction set. Nothing is added but by an explicit fma, so
 * that no compiler decides whether to contract; roots and quotients are rounded once. */
#ifndef RH_OFFLOAD_SIMD_ADAMW_H
#define RH_OFFLOAD_SIMD_ADAMW_H

#include "core/portable.h"

#include <math.h>

/* A step's constants, rounded to fp32 from doubles as torch rounds its scalars. */
struct adamw_terms {
	float scale;      /* of the gradient */
	float keep;       /* of the weight: 1 - lr * weight_decay, or 1 */
	float minus_step; /* -lr / first bias correction */
	float lerp;       /* moment 1 += lerp * (g - moment 1); if lerp_from_end, moment 1 = g + lerp * (g - moment 1) */
	int lerp_from_end;
	float beta2, one_minus_beta2;
	float inverse_root; /* 1 / sqrt of the second bias correction */
	float epsilon;
};

RH_PORTABLE void adamw_moments(const struct adamw_terms *t, float gradient, float *first, float *second)
{
	float g = gradient * t->scale;
	float toward = fmaf(gradient, t->scale, -*first);
	*first = fmaf(t->lerp, toward, t->lerp_from_end ? g : *first);
	*second = fmaf(t->one_minus_beta2 * g, g, *second * t->beta2);
}

/* The new weight; the moments become the new ones. */
RH_PORTABLE float adamw(const struct adamw_terms *t, float weight, float gradient, float *first, float *second)
{
	adamw_moments(t, gradient, first, second);
	return fmaf(weight, t->keep, t->minus_step * *first / fmaf(sqrtf(*second), t->inverse_root, t->epsilon));
}

#endif
