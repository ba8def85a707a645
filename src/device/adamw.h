/* torch.optim.AdamW (single tensor) of one element: what the host's optimizer, the oracle and the kernels of all devices compute, and the
 * same bits wherever fp32 is IEEE's. Nothing is added but by an explicit fma, so that no compiler decides whether to contract; roots and
 * quotients are rounded once. (nvcc's defaults do so, and keep subnormal numbers; --use_fast_math would not.) */
#ifndef RH_DEVICE_ADAMW_H
#define RH_DEVICE_ADAMW_H

#include "core/float16.h"
#include "core/split.h"

#include <math.h>

/* A step's constants, rounded to fp32 from doubles as torch rounds its scalars. */
struct rh_adamw_terms {
	float scale;      /* of the gradient */
	float keep;       /* of the weight: 1 - lr * weight_decay, or 1 */
	float minus_step; /* -lr / first bias correction */
	float lerp;       /* moment 1 += lerp * (g - moment 1); if lerp_from_end, moment 1 = g + lerp * (g - moment 1) */
	int lerp_from_end;
	float beta2, one_minus_beta2;
	float inverse_root; /* 1 / sqrt of the second bias correction */
	float epsilon;
};

RH_PORTABLE void rh_adamw_moments(const struct rh_adamw_terms *t, float gradient, float *first, float *second)
{
	float g = gradient * t->scale;
	float toward = fmaf(gradient, t->scale, -*first);
	*first = fmaf(t->lerp, toward, t->lerp_from_end ? g : *first);
	*second = fmaf(t->one_minus_beta2 * g, g, *second * t->beta2);
}

/* The new weight; the moments become the new ones. */
RH_PORTABLE float rh_adamw(const struct rh_adamw_terms *t, float weight, float gradient, float *first, float *second)
{
	rh_adamw_moments(t, gradient, first, second);
	return fmaf(weight, t->keep, t->minus_step * *first / fmaf(sqrtf(*second), t->inverse_root, t->epsilon));
}

/* Of a split master and a bf16 gradient: the new weight's bits, from moments that are made and not kept. */
RH_PORTABLE uint32_t rh_adamw_split(const struct rh_adamw_terms *t, uint16_t gradient, uint16_t upper, uint16_t lower, float first,
                                    float second)
{
	float weight = rh_bits_f32(rh_split_join(upper, lower));
	return rh_f32_bits(rh_adamw(t, weight, rh_bf16_to_f32(gradient), &first, &second));
}

#endif
