/* ZB-1p and ZB-2p: the shortest of the orders that some rules make under N and 2N activations a device, for the stages' own times. The
 * paper searches over warm-up, and over whether a forward may delay a backward; here the rules are the handmade orders, where they stay
 * under the limit, and listings that prefer backwards or forwards. */
#include "schedule/evaluate.h"
#include "schedule/listing.h"

#include "core/alloc.h"

#include <math.h>

static int admits(const struct listing_rule *rule, const struct rh_schedule_request *request, int stage, const int64_t *forwards,
                  const int64_t *released)
{
	(void)request;
	return forwards[stage] - released[stage] < rule->limit;
}

/* The span of the program's first step: the longest from a device's first forward to its last weight gradient. */
static int span_of(const struct rh_schedule_request *request, const struct rh_program *program, double *out)
{
	struct rh_layer_cost *layer = rh_alloc((size_t)request->stages, sizeof *layer);
	struct rh_costs costs = {.layer = layer, .layers = request->stages, .hop_s = request->hop_s};
	struct rh_cost_sums sums = {0};
	struct rh_timeline timeline = {0};
	int rc = layer ? 0 : -ENOMEM;
	if (rc)
		goto out;
	for (int s = 0; s < request->stages; s++) {
		struct stage_times times = stage_times(request, s);
		layer[s] = (struct rh_layer_cost){
		        .forward_s = times.forward, .backward_s = times.input + times.weight, .weight_gradient_s = times.weight};
	}
	rc = rh_costs_sum(&costs, &sums);
	if (rc)
		goto out;
	/* one layer a stage, as only their times count */
	for (size_t i = 0; i < program->slots; i++) {
		program->slot[i].lo = program->slot[i].stage;
		program->slot[i].hi = program->slot[i].stage + 1;
	}
	const struct rh_program_timing how = {.schedule = rh_schedule_find("zb-1p"), .sums = &sums, .devices = request->devices};
	rc = rh_program_evaluate(program, &how, &timeline);
	*out = timeline.longest_span_s;
out:
	rh_timeline_free(&timeline);
	rh_cost_sums_free(&sums);
	rh_free(layer);
	return rc;
}

struct search {
	const struct rh_schedule_request *request; /* of one step */
	struct rh_program best, trial;
	double best_s;
	int64_t limit;
};

/* Keeps the program just made if it is the shortest and within the memory. */
static int judge(struct search *search, int rc)
{
	int64_t most = 0;
	double span = 0;
	if (rc == -EDEADLK)
		return 0;
	int64_t *peak = rc ? NULL : rh_alloc((size_t)search->request->devices, sizeof *peak);
	if (!peak)
		return rc ? rc : -ENOMEM;
	rh_program_in_flight(&search->trial, search->request->devices, peak);
	for (int d = 0; d < search->request->devices; d++)
		most = peak[d] > most ? peak[d] : most;
	rh_free(peak);
	if (most > search->limit)
		return 0;
	rc = span_of(search->request, &search->trial, &span);
	if (!rc && span < search->best_s) {
		struct rh_program kept = search->best;
		search->best = search->trial;
		search->trial = kept;
		search->best_s = span;
	}
	return rc;
}

static int try_listings(struct search *search)
{
	static const enum rh_slot_kind backward_first[] = {RH_SLOT_INPUT_GRADIENT, RH_SLOT_FORWARD, RH_SLOT_WEIGHT_GRADIENT};
	static const enum rh_slot_kind forward_first[] = {RH_SLOT_FORWARD, RH_SLOT_INPUT_GRADIENT, RH_SLOT_WEIGHT_GRADIENT};
	struct listing_rule rule = {.orders = 3, .admits = admits, .limit = search->limit};
	int rc = 0;
	for (int f = 0; !rc && f < 2; f++) {
		for (int i = 0; i < 3; i++)
			rule.order[i] = f ? forward_first[i] : backward_first[i];
		search->trial.slots = 0;
		rc = judge(search, listing_make(search->request, &rule, 0, search->request->micro_batches, &search->trial));
	}
	return rc;
}

static int find(const struct rh_schedule_request *request, int64_t limit, struct rh_program *out)
{
	struct rh_schedule_request one = *request;
	struct search search = {.request = &one, .best_s = INFINITY, .limit = limit};
	one.steps = 1;
	int rc = judge(&search, schedule_zb_h1(&one, &search.trial));
	if (rc)
		goto out;
	search.trial.slots = 0;
	rc = judge(&search, schedule_zb_h2(&one, &search.trial));
	if (rc)
		goto out;
	rc = try_listings(&search);
	if (rc)
		goto out;
	size_t slots = search.best.slots;
	rc = rh_grow(&out->slot, &out->capacity, slots * (size_t)request->steps, sizeof *out->slot);
	if (rc)
		goto out;
	for (int64_t step = 0; step < request->steps; step++)
		for (size_t i = 0; i < slots; i++) {
			struct rh_slot *slot = &out->slot[out->slots++];
			*slot = search.best.slot[i];
			slot->lo = request->stage[slot->stage].lo;
			slot->hi = request->stage[slot->stage].hi;
			slot->step = step;
		}
out:
	rh_program_free(&search.best);
	rh_program_free(&search.trial);
	return rc;
}

int schedule_zb_1p(const struct rh_schedule_request *request, struct rh_program *out)
{
	return find(request, request->devices, out);
}

int schedule_zb_2p(const struct rh_schedule_request *request, struct rh_program *out)
{
	return find(request, 2 * request->devices, out);
}
