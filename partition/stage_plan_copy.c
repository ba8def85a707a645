#include "partition/stage_plan_internal.h"

#include "core/alloc.h"

#include <string.h>

int plan_reserve(size_t layers, struct rh_stage_plan *out)
{
	*out = (struct rh_stage_plan){.forward = rh_alloc(layers, sizeof *out->forward),
	                              .backward = rh_alloc(layers, sizeof *out->backward),
	                              .saved = rh_alloc(layers, sizeof *out->saved),
	                              .deferred = rh_alloc(layers, sizeof *out->deferred)};
	return out->forward && out->backward && out->saved && out->deferred ? 0 : -ENOMEM;
}

int rh_stage_plan_copy(const struct rh_stage_plan *plan, struct rh_stage_plan *out)
{
	size_t forward = (size_t)plan->forward_stages, backward = (size_t)plan->backward_stages;
	struct rh_stage_plan copy = *plan;
	int rc = plan_reserve(forward + backward, out);
	if (rc)
		return rc;
	copy.forward = out->forward;
	copy.backward = out->backward;
	copy.saved = out->saved;
	copy.deferred = out->deferred;
	memcpy(copy.forward, plan->forward, forward * sizeof *copy.forward);
	memcpy(copy.backward, plan->backward, backward * sizeof *copy.backward);
	memcpy(copy.saved, plan->saved, backward * sizeof *copy.saved);
	memcpy(copy.deferred, plan->deferred, backward * sizeof *copy.deferred);
	*out = copy;
	return 0;
}

void rh_stage_plan_free(struct rh_stage_plan *plan)
{
	rh_free(plan->forward);
	rh_free(plan->backward);
	rh_free(plan->saved);
	rh_free(plan->deferred);
	*plan = (struct rh_stage_plan){0};
}
