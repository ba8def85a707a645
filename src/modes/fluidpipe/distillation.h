/* The two losses of distillation, each by itself, for reports: training needs only their sum, and devices compute no more. Pure. */
#ifndef RH_MODES_FLUIDPIPE_DISTILLATION_H
#define RH_MODES_FLUIDPIPE_DISTILLATION_H

#include "model/model.h"

/* Of one target: out[0]: -log softmax(student) at `target`; out[1]: temperature^2 * KL, 0 without a teacher (NULL). student, teacher:
 * (outputs) logits. */
void rh_distillation_losses(const struct rh_distillation *how, int64_t outputs, const float *student, const float *teacher, int64_t target,
                            double out[2]);

#endif
