/* Costs corrected by what a run measures, and how far it has drifted from them: when to plan again. Pure. */
#ifndef RH_PARTITION_CALIBRATE_H
#define RH_PARTITION_CALIBRATE_H

#include "partition/costs.h"

/* A stage's time for one micro-batch, as measured. */
struct rh_cost_sample {
	enum rh_pass pass;
	int lo, hi;
	double seconds;
};

/* The largest |measured - predicted| of all samples, as a share of the mean predicted time of a sample: a stage that hardly counts does not
 * raise an alarm however far it is off. 0 where there are no samples. */
double rh_costs_drift(const struct rh_cost_sums *sums, const struct rh_cost_sample *sample, int samples);

/* Scales the layers' times so that each sampled stage is predicted as measured: forward_s by forward samples, the others by backward
 * samples, all by fused ones. No layer may be in two samples of a kind. A stage predicted to take no time gets its seconds in even shares.
 * -EINVAL for times that are no numbers, or not above zero where work is predicted. */
int rh_costs_calibrate(struct rh_costs *costs, const struct rh_cost_sample *sample, int samples) RH_MUST;

#endif
