/* Inside src/device/cpu: what both ways to distil a row of logits (distil.c, distil_top.c) are made of. */
#ifndef RH_DEVICE_CPU_DISTIL_ROW_H
#define RH_DEVICE_CPU_DISTIL_ROW_H

#include "core/float16.h"
#include "device/cpu/distil.h"

#include <math.h>

/* Of a row of logits: the largest, and log of the sum of e^((x - largest) / temperature). */
struct share {
	const float *logit;
	double largest, log_sum, temperature;
};

static inline struct share share_of(const float *logit, int64_t cols, double temperature)
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

static inline double log_share(const struct share *share, int64_t v)
{
	return ((double)share->logit[v] - share->largest) / share->temperature - share->log_sum;
}

static inline int is_first_largest(const float *logit, int64_t target, double largest)
{
	for (int64_t v = 0; v < target; v++)
		if ((double)logit[v] == largest)
			return 0;
	return (double)logit[target] == largest;
}

/* Ascending: the bf16 numbers lie in the first half of the row, where the logits were read before. */
static inline void put_gradient(float *row, int64_t v, double value, enum softmax_gradient gradient)
{
	if (gradient == SOFTMAX_F32)
		row[v] = (float)value;
	else
		((uint16_t *)(void *)row)[v] = rh_f32_to_bf16((float)value);
}

#endif
