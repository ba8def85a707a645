/* Cuts RoundPipe's stages for several devices by time. The partitioner cuts them from the cost of each layer on this kind of device; its
 * cuts are used where the recurrence predicts a shorter step than with stages packed as full as memory allows. */
#ifndef RH_PLAN_BALANCE_H
#define RH_PLAN_BALANCE_H

#include "config/hardware.h"
#include "partition/roundpipe.h"
#include "plan/run_plan.h"

struct rh_balance {
	const struct rh_stage_plan_request *request; /* without cuts */
	const struct rh_hardware *hardware;
	const struct rh_costs *costs; /* of its devices */
	int64_t micro_batches;        /* of a step */
	int64_t steps;                /* that follow each other without a flush; 1: each step is flushed */
	/* Of a device's link. 0: unknown, or the device has no link: copies are free. */
	double up_bytes_per_s, down_bytes_per_s;
	double *sum_s;   /* (layers) seconds that a layer's gradient sum takes over the link, one way; the caller owns it */
	int long_rounds; /* cut by the partitioner for long rounds (roundpipe_long.h) */
	int stages_most; /* limit for that partitioner; 0: any number */
};

/* The cost of each layer on one of the request's devices. The caller frees it (rh_costs_free). */
int rh_balance_costs(const struct rh_stage_plan_request *request, const struct rh_hardware *hardware, struct rh_costs *out) RH_MUST;

/* Replaces *plan, which was packed, by a faster one that fits the same cap, if there is one. *out: the step of the resulting *plan. */
int rh_balance_plan(const struct rh_balance *balance, struct rh_stage_plan *plan, struct rh_balanced *out) RH_MUST;

/* The time of a step of a plan that was made for this request, with weights and gradient sums on the link. Sets step_s and idle. */
int rh_balance_step(const struct rh_balance *balance, const struct rh_stage_plan_request *request, int joined,
                    const struct rh_stage_plan *plan, struct rh_balanced *out) RH_MUST;

#endif
