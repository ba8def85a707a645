#include "partition/calibrate.h"

#include <math.h>

double rh_costs_drift(const struct rh_cost_sums *sums, const struct rh_cost_sample *sample, int samples)
{
	double predicted = 0, most = 0;
	for (int i = 0; i < samples; i++) {
		double now = rh_cost_stage(sums, sample[i].pass, sample[i].lo, sample[i].hi);
		predicted += now;
		most = fmax(most, fabs(sample[i].seconds - now));
	}
	if (most <= 0)
		return 0;
	return predicted > 0 ? most * samples / predicted : INFINITY;
}

static void scale(struct rh_layer_cost *layer, enum rh_pass pass, double by)
{
	if (pass != RH_PASS_BACKWARD)
		layer->forward_s *= by;
	if (pass == RH_PASS_FORWARD)
		return;
	layer->recompute_s *= by;
	layer->recompute_spared_s *= by;
	layer->backward_s *= by;
	layer->weight_gradient_s *= by;
}

int rh_costs_calibrate(struct rh_costs *costs, const struct rh_cost_sample *sample, int samples)
{
	struct rh_cost_sums sums;
	int rc = rh_costs_sum(costs, &sums);
	for (int i = 0; !rc && i < samples; i++) {
		double predicted = rh_cost_stage(&sums, sample[i].pass, sample[i].lo, sample[i].hi), measured = sample[i].seconds;
		if (!(measured >= 0) || measured == INFINITY || (predicted > 0 && measured <= 0))
			rc = rh_fail(-EINVAL, "calibration: layers %d to %d measured at %g s, predicted %g s", sample[i].lo,
			             sample[i].hi - 1, measured, predicted);
	}
	for (int i = 0; !rc && i < samples; i++) {
		double predicted = rh_cost_stage(&sums, sample[i].pass, sample[i].lo, sample[i].hi);
		for (int l = sample[i].lo; l < sample[i].hi; l++) {
			struct rh_layer_cost *layer = &costs->layer[l];
			if (predicted > 0)
				scale(layer, sample[i].pass, sample[i].seconds / predicted);
			else if (sample[i].pass == RH_PASS_FORWARD)
				layer->forward_s = sample[i].seconds / (sample[i].hi - sample[i].lo);
			else
				layer->backward_s = sample[i].seconds / (sample[i].hi - sample[i].lo);
		}
	}
	rh_cost_sums_free(&sums);
	return rc;
}
