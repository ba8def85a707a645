/* Finds the best upload limit: of all that are worth trying, the one whose packing costs least. */
#include "core/alloc.h"
#include "core/minmax.h"
#include "partition/stage_plan_internal.h"

#include <stdlib.h>

struct candidate {
	int64_t limit;
	struct plan_cost lower_bound; /* what its packing costs at least */
};

/* While it goes on. */
struct search {
	struct stage_planner *planner;
	struct rh_stage_plan trial, *best;
	struct plan_cost cost; /* of the best; stages -1: there is none */
	int64_t limit;         /* its */
};

static int ascending(const void *left, const void *right)
{
	int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
	return (a > b) - (a < b);
}

/* The uploads of all runs of layers, ascending; returns how many are different. Of alike layers all runs of a length are one. */
static size_t list_limits(const struct stage_planner *at, int64_t *limit)
{
	size_t count = 0, different = 0;
	for (int lo = 0; lo < at->layers; lo++)
		for (int hi = at->alike && lo > 1 ? at->layers : lo + 1; hi <= at->layers; hi++)
			limit[count++] = plan_upload_bytes(at, PASS_FORWARD, lo, hi);
	qsort(limit, count, sizeof *limit, ascending);
	for (size_t i = 0; i < count; i++)
		if (!different || limit[i] != limit[different - 1])
			limit[different++] = limit[i];
	return different;
}

static struct plan_cost cost_of(const struct stage_planner *at, const struct rh_stage_plan *plan)
{
	struct plan_cost cost = {.not_prefetched = rh_max(plan_two_in_turn(at, plan) - plan->weight_bytes, 0),
	                         .stages = plan->forward_stages + plan->backward_stages};
	for (int i = 1; plan_is_alone(at->request) && i < plan->backward_stages; i++)
		if (plan->places[i].recomputes)
			cost.recomputed += plan_upload_bytes(at, PASS_BACKWARD, plan->backward[i].lo, plan->backward[i].hi);
	return cost;
}

static int cheaper(struct plan_cost a, struct plan_cost b)
{
	if (a.not_prefetched != b.not_prefetched)
		return a.not_prefetched < b.not_prefetched;
	return a.recomputed != b.recomputed ? a.recomputed < b.recomputed : a.stages < b.stages;
}

/* Lower bound on the cost under this limit or a smaller one. Forward and fused stages hold all layers between the two ends, backward
 * stages the trained ones among them; only a single layer may upload more than the limit; kept activations have room. */
static struct plan_cost cost_lower_bound(struct stage_planner *at, int64_t limit)
{
	const struct rh_stage_plan_request *request = at->request;
	int top = at->layers - 1, trained = request->trains ? (int)rh_max(request->model->first_trained, 1) : top;
	int64_t most = rh_max(limit, at->largest_between), all = at->weight_bytes_below[top] - at->weight_bytes_below[1],
	        backward = at->weight_bytes_below[top] - at->weight_bytes_below[trained];
	int64_t least_kept = plan_least_kept(at), kept = backward;
	if (least_kept && request->train_round)
		kept = rh_bytes_times(at->largest_between, request->device_cap_bytes / rh_bytes_times(least_kept, request->train_round));
	return (struct plan_cost){.recomputed = plan_is_alone(request) ? rh_max(backward - most - kept, 0) : 0,
	                          .stages = (int)((all + most - 1) / most - 1 + (backward + most - 1) / most)};
}

static int are_too_many(const struct stage_planner *at, const struct rh_stage_plan *plan)
{
	return at->request->stages_most && plan->forward_stages + plan->backward_stages > at->request->stages_most;
}

/* Packs under a limit, and keeps what costs less than the best, or as much under a smaller limit. */
static void try_limit(struct search *search, int64_t limit)
{
	struct rh_stage_plan *now = &search->trial;
	if (plan_pack(search->planner, limit, now))
		return;
	struct plan_cost cost = cost_of(search->planner, now);
	if (are_too_many(search->planner, now))
		return;
	if (search->cost.stages >= 0 && !cheaper(cost, search->cost) && (cheaper(search->cost, cost) || limit > search->limit))
		return;
	search->cost = cost;
	search->limit = limit;
	plan_assign(search->best, now);
}

static int by_least_cost(const void *left, const void *right)
{
	const struct candidate *a = left, *b = right;
	if (cheaper(a->lower_bound, b->lower_bound) || cheaper(b->lower_bound, a->lower_bound))
		return cheaper(a->lower_bound, b->lower_bound) ? -1 : 1;
	return (a->limit > b->limit) - (a->limit < b->limit);
}

/* Of limits ascending, the packings that may be the cheapest: one is made where the first fits, and again where others may have half as
 * many stages, so that it is seen where smaller limits only cost more. Then those that promise most come first. */
static void try_limits(struct search *search, const int64_t *limit, size_t limits, int64_t given, struct candidate *candidate)
{
	struct stage_planner *at = search->planner;
	size_t count = 0;
	for (size_t i = limits; i-- > 0 && limit[i] >= given;) {
		struct candidate now = {.limit = limit[i]};
		if (limit[i] + rh_max(limit[i], at->largest) > at->request->device_cap_bytes) /* the room for weights alone */
			continue;
		if (search->cost.stages >= 0 && cheaper(search->cost, cost_lower_bound(at, limit[i])))
			break;
		if (plan_least_cost(at, limit[i], &search->trial, &now.lower_bound))
			continue;
		candidate[count++] = now;
		if (search->cost.stages < 0 || 2 * now.lower_bound.stages <= search->cost.stages)
			try_limit(search, limit[i]);
	}
	qsort(candidate, count, sizeof *candidate, by_least_cost);
	for (size_t i = 0; i < count; i++) {
		if (search->cost.stages >= 0 && cheaper(search->cost, candidate[i].lower_bound))
			break;
		if (candidate[i].limit != search->limit)
			try_limit(search, candidate[i].limit);
	}
}

/* The smallest of these limits under which stages are not too many and fit. */
static void take_first(struct search *search, const int64_t *limit, size_t limits)
{
	struct plan_cost least;
	size_t low = 0, high = search->planner->request->stages_most ? limits : 0;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int are_more = !plan_least_cost(search->planner, limit[middle], &search->trial, &least) &&
		               least.stages > search->planner->request->stages_most;
		if (are_more)
			low = middle + 1;
		else
			high = middle;
	}
	for (size_t i = low; i < limits && search->cost.stages < 0; i++)
		try_limit(search, limit[i]);
}

/* Uploads of all runs of layers are the limits worth trying; of equally cheap plans the smallest limit's. Where none fits, layers that are
 * not cut into stages go one by one, each loaded when the one before is done. */
int plan_search(struct stage_planner *at, struct rh_stage_plan *out)
{
	size_t layers = (size_t)at->layers, most = at->alike ? 3 * layers : layers * (layers + 1) / 2;
	struct search search = {.planner = at, .best = out, .cost = {.stages = -1}};
	struct rh_stage_plan *now = &search.trial;
	int64_t *limit = rh_alloc(most, sizeof *limit);
	struct candidate *candidate = rh_alloc(most, sizeof *candidate);
	int rc = plan_reserve(layers, now);
	if (!rc && !(limit && candidate))
		rc = -ENOMEM;
	int64_t given = rc ? 0 : plan_given_limit(at, now);
	size_t limits = rc || at->given_room ? 0 : list_limits(at, limit);
	if (!rc && at->request->small_stages)
		take_first(&search, limit, limits);
	else if (!rc)
		try_limits(&search, limit, limits, given, candidate);
	if (!rc && search.cost.stages < 0) {
		rc = plan_pack(at, given, now);
		if (!rc && are_too_many(at, now))
			rc = rh_fail(RH_DOES_NOT_FIT, "the model needs more than %d stages", at->request->stages_most);
		else if (!rc)
			plan_assign(out, now);
		else if (rc == RH_DOES_NOT_FIT && at->request->forward_cut_count < 0 && at->request->backward_cut_count < 0)
			rc = plan_refuse(at);
	}
	if (!rc)
		rh_error_clear(); /* of limits that did not fit */
	rh_stage_plan_free(now);
	rh_free(limit);
	rh_free(candidate);
	return rc;
}
