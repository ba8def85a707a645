/* Stages of a RoundPipe run on several devices: chosen by the partitioner from what each layer takes on this kind of device, where that is
 * predicted to end a step sooner than stages packed as full as memory allows. */
#ifndef RH_PLAN_BALANCE_H
#define RH_PLAN_BALANCE_H

#include "config/hardware.h"
#include "partition/roundpipe.h"
#include "plan/run_plan.h"

struct rh_balance {
	const struct rh_plan_request *request; /* no cuts */
	const struct rh_costs *costs;
	int64_t micro_batches, steps; /* of a step; that join without a flush */
	/* of a device's link; 0: not known, or there is none: copies take no time */
	double up_bytes_per_s, down_bytes_per_s;
	double *sum_s;   /* (layers) what a layer's gradient sum takes over it, one way; the caller's */
	int long_rounds; /* by the partitioner for those (roundpipe_long.h) */
	int stages_most; /* of it; 0: any number */
};

/* What each layer takes on one of so many devices of the profile. The caller's (rh_costs_free). */
int rh_balance_costs(const struct rh_plan_request *request, const struct rh_hardware *hardware, struct rh_costs *out) RH_MUST;

/* Replaces a plan that was packed by the request, if there is a better one that fits the same cap. *out: of what *plan then is, by the slot
 * recurrence. */
int rh_balance_plan(const struct rh_balance *balance, struct rh_plan *plan, struct rh_balanced *out) RH_MUST;

/* What a step takes with a plan made for this request, weights and sums over the link included and the update not. Sets step_s and idle. */
int rh_balance_step(const struct rh_balance *balance, const struct rh_plan_request *request, int joined, const struct rh_plan *plan,
                    struct rh_balanced *out) RH_MUST;

#endif
