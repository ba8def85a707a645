/* From stages back to the cuts that produce them. */
#ifndef RH_PARTITION_CUTS_H
#define RH_PARTITION_CUTS_H

#include "partition/stage_plan.h"

/* In the form that struct rh_stage_plan_request takes: the first layer of each stage but the lowest, ascending. */
struct rh_cuts {
	int64_t *forward, *backward; /* one allocation */
	int64_t forward_count, backward_count;
};

/* The stages are in a plan's order: forward ascending; backward top down, the fused one first. The caller frees *out (rh_cuts_free). */
int rh_cuts_make(const struct rh_stage *forward, int forward_stages, const struct rh_stage *backward, int backward_stages,
                 struct rh_cuts *out) RH_MUST;
void rh_cuts_free(struct rh_cuts *cuts);

#endif
