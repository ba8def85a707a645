/* In fp64 without vectors: a classification has few outputs and one row a sample, so this takes next to nothing of a step. */
#include "device/cpu/distil.h"

#include "core/float16.h"

#include <math.h>

/* Of a row of logits: the largest, and log of the sum of e^((x - largest) / temperature). */
struct share {
	const float *logit;
	double largest, log_sum, temperature;
};

static struct share share_of(const float *logit, int64_t cols, double temperature)
{
	struct share share = {.logit = logit, .largest = (double)logit[0], .temperature = temperature};
	double sum = 0;
	for (int64_t v = 1; v < cols; v++)
		share.largest = fmax(share.largest, (double)logit[v]);
	for (int64_t v = 0; v < cols; v++)
		sum += exp(((double)logit[v] - share.largest) / temperature);
	share.log_sum = log(sum);
	return share;
}

static double log_share(const struct share *share, int64_t v)
{
	return ((double)share->logit[v] - share->largest) / share->temperature - share->log_sum;
}

static int is_first_largest(const float *logit, int64_t target, double largest)
{
	for (int64_t v = 0; v < target; v++)
		if ((double)logit[v] == largest)
			return 0;
	return (double)logit[target] == largest;
}

/* Ascending: the bf16 numbers lie in the first half of the row, where the logits were read before. */
static void put_gradient(float *row, int64_t v, double value, enum softmax_gradient gradient)
{
	if (gradient == SOFTMAX_F32)
		row[v] = (float)value;
	else
		((uint16_t *)(void *)row)[v] = rh_f32_to_bf16((float)value);
}

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
