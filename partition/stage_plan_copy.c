#include "partition/stage_plan_internal.h"

#include "core/alloc.h"

#include <string.h>

int plan_reserve(size_t layers, struct rh_stage_plan *out)
{
	*out = (struct rh_stage_plan){.forward = rh_alloc(layers, sizeof *out->forward),
	                              .backward = rh_alloc(layers, sizeof *out->backward),
	                              .places = rh_alloc(layers, sizeof *out->places),
	                              .deferred = rh_alloc(layers, sizeof *out->deferred),
	                              .fates = rh_alloc(layers, sizeof *out->fates)};
	return out->forward && out->backward && out->places && out->deferred && out->fates ? 0 : -ENOMEM;
}

struct rh_stage_plan plan_lists(const struct rh_stage_plan *plan)
{
	return (struct rh_stage_plan){.forward = plan->forward,
	                              .backward = plan->backward,
	                              .places = plan->places,
	                              .deferred = plan->deferred,
	                              .fates = plan->fates};
}

void plan_assign(struct rh_stage_plan *to, const struct rh_stage_plan *from)
{
	size_t forward = (size_t)from->forward_stages, backward = (size_t)from->backward_stages;
	struct rh_stage_plan lists = plan_lists(to);
	*to = *from;
	to->forward = lists.forward;
	to->backward = lists.backward;
	to->places = lists.places;
	to->deferred = lists.deferred;
	to->fates = lists.fates;
	memcpy(to->forward, from->forward, forward * sizeof *to->forward);
	memcpy(to->backward, from->backward, backward * sizeof *to->backward);
	memcpy(to->places, from->places, backward * sizeof *to->places);
	memcpy(to->deferred, from->deferred, backward * sizeof *to->deferred);
	memcpy(to->fates, from->fates, (size_t)rh_stage_plan_top(from) * sizeof *to->fates);
}

int rh_stage_plan_copy(const struct rh_stage_plan *plan, struct rh_stage_plan *out)
{
	int rc = plan_reserve((size_t)rh_stage_plan_top(plan), out);
	if (!rc)
		plan_assign(out, plan);
	return rc;
}

void rh_stage_plan_free(struct rh_stage_plan *plan)
{
	rh_free(plan->forward);
	rh_free(plan->backward);
	rh_free(plan->places);
	rh_free(plan->deferred);
	rh_free(plan->fates);
	*plan = (struct rh_stage_plan){0};
}
