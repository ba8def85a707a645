/* Stages as the cuts that make them again. */
#ifndef RH_PARTITION_CUTS_H
#define RH_PARTITION_CUTS_H

#include "partition/plan.h"

/* As struct rh_plan_request wants them: the first layer of each stage but the lowest, ascending. */
struct rh_cuts {
	int64_t *forward, *backward; /* one allocation */
	int64_t forward_count, backward_count;
};

/* Of forward stages ascending and backward stages top down, the fused one first, as a plan has them. The caller's (rh_cuts_free). */
int rh_cuts_make(const struct rh_stage *forward, int forward_stages, const struct rh_stage *backward, int backward_stages,
                 struct rh_cuts *out) RH_MUST;
void rh_cuts_free(struct rh_cuts *cuts);

#endif
