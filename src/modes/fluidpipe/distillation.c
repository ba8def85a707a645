#include "modes/fluidpipe/distillation.h"

#include <math.h>

/* log of the sum of exp(logit / temperature). */
static double log_sum(const float *logit, int64_t count, double temperature)
{
	double most = (double)logit[0] / temperature, sum = 0;
	for (int64_t i = 1; i < count; i++)
		most = fmax(most, (double)logit[i] / temperature);
	for (int64_t i = 0; i < count; i++)
		sum += exp((double)logit[i] / temperature - most);
	return most + log(sum);
}

/* KL(left || right). */
static double divergence(const float *left, const float *right, int64_t count, double temperature)
{
	double left_sum = log_sum(left, count, temperature), right_sum = log_sum(right, count, temperature), out = 0;
	for (int64_t i = 0; i < count; i++) {
		double a = (double)left[i] / temperature - left_sum, b = (double)right[i] / temperature - right_sum;
		out += exp(a) * (a - b);
	}
	return out;
}

void rh_distillation_losses(const struct rh_distillation *how, int64_t outputs, const float *student, const float *teacher, int64_t target,
                            double out[2])
{
	double temperature = (double)how->temperature;
	const float *left = how->divergence == RH_DIVERGENCE_REVERSE ? student : teacher, *right = left == student ? teacher : student;
	out[0] = log_sum(student, outputs, 1) - (double)student[target];
	out[1] = teacher ? temperature * temperature * divergence(left, right, outputs, temperature) : 0;
}
