/* The task's loss and a divergence from a teacher's logits, of one row of logits of a classification. */
#ifndef RH_DEVICE_CPU_DISTIL_H
#define RH_DEVICE_CPU_DISTIL_H

#include "device/cpu/softmax.h"

/* Row `row` of a HEAD_LOSS with a teacher, whose mix[1] is not 0; `logit` are its logits, which become the gradient as softmax_row's do. */
void distil_row(const struct rh_op *op, int64_t row, float *logit, int64_t target, enum softmax_gradient gradient, float *loss,
                int32_t *hit);

#endif
