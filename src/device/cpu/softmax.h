/* Softmax, cross-entropy and its gradient of one row of logits (simd/softmax.c). */
#ifndef RH_DEVICE_CPU_SOFTMAX_H
#define RH_DEVICE_CPU_SOFTMAX_H

#include "device/cpu/kernels.h"

/* logit[cols] becomes scale * (softmax - one at target) when `gradient` says so: as F32, or rounded to BF16 in the row's first half.
 * *loss = -log softmax at target; *hit = 1 if target is the first of the largest. */
enum softmax_gradient { SOFTMAX_LOSS_ONLY, SOFTMAX_F32, SOFTMAX_BF16 };
RH_CPU_DECLARE(void, softmax_row,
               (float *logit, int64_t cols, int64_t target, float scale, enum softmax_gradient gradient, float *loss, int32_t *hit));
/* The same of cap tanh(logit / cap). */
RH_CPU_DECLARE(void, softmax_capped_row,
               (float *logit, int64_t cols, int64_t target, float scale, float cap, enum softmax_gradient gradient, float *loss,
                int32_t *hit));

#endif
