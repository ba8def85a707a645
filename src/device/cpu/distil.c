/* In fp64 without vectors: a classification has few outputs and one row a sample, so this takes next to nothing of a step. */
#include "device/cpu/distil_row.h"

void distil_row(const struct rh_op *op, int64_t row, float *logit, int64_t target, enum softmax_gradient gradient, float *loss,
                int32_t *hit)
{
	const struct rh_view *mix = &op->operand[RH_HEAD_LOSS_MIX], *teachers = &op->operand[RH_HEAD_LOSS_TEACHER];
	const float *weight = (const float *)mix->data + row * mix->stride;
	double temperature = (double)op->head_loss.temperature, divergence = 0;
	int64_t cols = teachers->cols;
	int is_forward = op->head_loss.divergence == RH_DIVERGENCE_FORWARD;
	const struct share task = share_of(logit, cols, 1), student = share_of(logit, cols, temperature),
	                   teacher = share_of((const float *)teachers->data + row * teachers->stride, cols, temperature);
	for (int64_t v = 0; v < cols; v++) {
		double apart = log_share(&teacher, v) - log_share(&student, v);
		divergence += is_forward ? exp(log_share(&teacher, v)) * apart : -exp(log_share(&student, v)) * apart;
	}
	*hit = is_first_largest(logit, target, task.largest);
	*loss = (float)((double)weight[0] * -log_share(&task, target) + (double)weight[1] * temperature * temperature * divergence);
	for (int64_t v = 0; gradient != SOFTMAX_LOSS_ONLY && v < cols; v++) {
		double own = log_share(&student, v), other = log_share(&teacher, v);
		double slope = is_forward ? exp(own) - exp(other) : exp(own) * (own - other - divergence);
		double sum = (double)weight[0] * (exp(log_share(&task, v)) - (v == target)) + (double)weight[1] * temperature * slope;
		put_gradient(logit, v, (double)op->head_loss.scale * sum, gradient);
	}
}
