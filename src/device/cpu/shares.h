/* Passes over a row of logits for distillation with a teacher's top shares (simd/shares.c). */
#ifndef RH_DEVICE_CPU_SHARES_H
#define RH_DEVICE_CPU_SHARES_H

#include "device/cpu/softmax.h"

/* factor * e^((x - center) * per_degree) */
struct share_term {
	float factor, center, per_degree;
};
enum { SHARE_TERMS = 3 };

/* The largest of logit[cols], -infinity of none; NaN where one is not finite. */
RH_CPU_DECLARE(float, shares_largest, (const float *logit, int64_t cols));
/* The sum of e^((logit - center) * per_degree). */
RH_CPU_DECLARE(float, shares_sum, (const float *logit, int64_t cols, float center, float per_degree));
/* Logits [from, to) of a row become the sum of their terms; as BF16, which `gradient` says, in the first half of the row, whose logits
 * below `from` are no longer needed. */
RH_CPU_DECLARE(void, shares_slopes,
               (float *row, int64_t from, int64_t to, const struct share_term term[SHARE_TERMS], enum softmax_gradient gradient));

#endif
