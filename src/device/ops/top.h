/* Inside src/device/ops: the divergence of k + 1 buckets, and the largest shares, of HEAD_LOSS's oracle. */
#ifndef RH_DEVICE_OPS_TOP_H
#define RH_DEVICE_OPS_TOP_H

#include "device/ops/def.h"

/* Of one row: its logits, which are being replaced from the first on, and what the slope by each needs. */
struct buckets {
	const struct rh_op *op;
	int64_t row;
	double student_sum, divergence;           /* log of the student's sum of exponentials; KL, without the temperature's square */
	double rest, teacher_rest, teacher_total; /* the residuals, and the sum of the teacher's buckets */
};

/* Writes row `row` of op's shares, of the logits in row 0. */
void top_put_shares(const struct rh_op *op, int64_t row);
/* Of teacher row `row` and the logits in row 0: the temperature's square times KL. */
double top_divergence(const struct rh_op *op, int64_t row, struct buckets *out);
/* Its derivative by logit v, which is still in row 0. */
double top_slope(const struct buckets *at, int64_t v);

#endif
