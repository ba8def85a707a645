/* The task's loss and a divergence from a teacher, of one row of logits. */
#ifndef RH_DEVICE_CPU_DISTIL_H
#define RH_DEVICE_CPU_DISTIL_H

#include "device/cpu/softmax.h"

/* Row `row` of a HEAD_LOSS with a teacher, whose mix[1] is not 0; `logit` are its logits, which become the gradient as softmax_row's do. */
void distil_row(const struct rh_op *op, int64_t row, float *logit, int64_t target, enum softmax_gradient gradient, float *loss,
                int32_t *hit);
/* The same with a teacher of op's top k shares. */
struct top_row {
	const struct rh_op *op;
	enum rh_cpu_isa isa;
	enum softmax_gradient gradient;
	const float *teacher, *mix; /* of the row */
	int64_t target;
};
void distil_top_row(const struct top_row *row, float *logit, float *loss, int32_t *hit);
/* out (2k): the row's k largest shares, as HEAD_LOSS says. */
void top_shares_row(enum rh_cpu_isa isa, const float *logit, int64_t cols, int64_t k, double temperature, float *out);

#endif
