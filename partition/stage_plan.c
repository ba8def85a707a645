/* The stages of a plan: those of one packing under an upload limit, and the cheapest of all. */
#include "partition/stage_plan_internal.h"

#include "core/minmax.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Advice: the keys that make a micro-batch smaller. */
static const char *advice(const struct rh_stage_plan_request *request)
{
	return request->trains       ? "lower max_length or per_device_train_batch_size"
	       : request->cache_rows ? "give a shorter prompt or lower max_new_tokens"
	                             : "lower max_length or per_device_eval_batch_size";
}

static int does_not_fit(struct stage_planner *at, const struct rh_stage_plan *plan, enum pass pass, int lo, int hi)
{
	static const char *const pass_name[PASSES] = {"forward", "backward", "forward, loss and backward", "backward"};
	const struct rh_stage_plan_request *request = at->request;
	const struct rh_model *model = request->model;
	struct rh_stage_plan wider = plan_widened(at, plan, pass, lo, hi);
	const char *what = model->block[model->layer[hi - 1].block[0]].name, *key = request->cap_key;
	char deferred[48] = "";
	if (wider.deferred_bytes)
		snprintf(deferred, sizeof deferred, ", deferred gradients %.1f", (double)wider.deferred_bytes / 1048576);
	return rh_fail(RH_DOES_NOT_FIT,
	               "the device's %.1f MiB cannot hold the %s of %s%s, which needs at least %.1f MiB (weights %.1f, gradients %.1f, "
	               "activations %.1f, boundaries %.1f%s); %s%s%s%s",
	               (double)request->device_cap_bytes / 1048576, request->trains ? pass_name[pass] : "forward",
	               hi - lo > 1 ? "the stage that ends with " : "", what, (double)wider.device_bytes / 1048576,
	               (double)(wider.weight_bytes + wider.plain_bytes) / 1048576,
	               (double)(wider.gradient_bytes + wider.rounded_bytes) / 1048576, (double)wider.arena_bytes / 1048576,
	               (double)rh_bytes_times(wider.boundary_bytes, wider.boundary_buffers) / 1048576, deferred, key ? "raise " : "",
	               key ? key : "", key ? ", or " : "", advice(request));
}

/* Forward cuts, where given without backward cuts, bound the fused stage, and a boundary that another box gets. */
static int fused_floor(const struct rh_stage_plan_request *request)
{
	int64_t count = request->backward_cut_count < 0 ? request->forward_cut_count : 0;
	int floor = count > 0 ? (int)request->forward_cuts[count - 1] : 0;
	return floor > request->model->tap ? floor : request->model->tap;
}

int plan_is_alone(const struct rh_stage_plan_request *request)
{
	return request->devices == 1 && !rh_model_is_part(request->model);
}

/* One device has no use for few stages: the embedding's backward, apart, neither uploads the table nor sums both kinds of gradients. */
static int alone(const struct stage_planner *at, enum pass pass)
{
	return pass == PASS_BACKWARD && plan_is_alone(at->request);
}

/* How far down from hi a stage may grow for what it holds, and how far up from lo. Between the ends more layers never fit where fewer do
 * not. `like`: layers of the stage before, which most others have too: looked at first. */
static int grow_down(struct stage_planner *at, const struct rh_stage_plan *plan, enum pass pass, int floor, int hi, int like)
{
	int lo = hi - 1, below = (floor > 1 ? floor : 1) - 1, first = hi - like;
	while (lo - below > 1) {
		int middle = first > below && first < lo ? first : below + (lo - below) / 2;
		int good = plan_fits(at, plan, pass, middle, hi);
		*(good ? &lo : &below) = middle;
		first = good && middle == first ? lo - 1 : hi;
	}
	while (lo > floor && !(lo == 1 && alone(at, pass)) && plan_fits(at, plan, pass, lo - 1, hi))
		lo--;
	return lo;
}

static int grow_up(struct stage_planner *at, const struct rh_stage_plan *plan, int lo, int top, int like)
{
	int hi = lo + 1, above = top + 1, first = lo + like;
	while (above - hi > 1) {
		int middle = first > hi && first < above ? first : hi + (above - hi) / 2;
		int good = plan_fits(at, plan, PASS_FORWARD, lo, middle);
		*(good ? &hi : &above) = middle;
		first = good && middle == first ? hi + 1 : lo;
	}
	while (hi < top && plan_fits(at, plan, PASS_FORWARD, lo, hi + 1))
		hi++;
	return hi;
}

/* The highest cut between floor and hi, and the lowest between lo and top; where there is none, that end. */
static int cut_below(const int64_t *cuts, int64_t count, int floor, int hi)
{
	for (int64_t i = 0; i < count; i++)
		if (cuts[i] < hi && cuts[i] > floor)
			floor = (int)cuts[i];
	return floor;
}

static int cut_above(const int64_t *cuts, int64_t count, int lo, int top)
{
	for (int64_t i = 0; i < count; i++)
		if (cuts[i] > lo && cuts[i] < top)
			top = (int)cuts[i];
	return top;
}

/* 1: the stage contains neither end of the model, and its layers are alike. Then it needs the same bytes as any other stage of as many
 * layers, or fewer where nothing below it is trained. */
static int is_inner_stage(const struct stage_planner *at, int lo, int hi)
{
	return at->alike && lo > 0 && hi < at->layers;
}

/* The lowest layer of a backward stage: without training only the top stage is run from the backward list. */
static int lowest_backward(const struct stage_planner *at)
{
	return at->request->trains ? (int)rh_max(at->request->model->first_trained, 0) : at->layers - 1;
}

/* Packs [bottom, top) top down into *stages, or takes the given cuts. */
static int pack_down(struct stage_planner *at, struct rh_stage_plan *plan, enum pass first_pass, int bottom, const int64_t *cuts,
                     int64_t count)
{
	int hi = at->layers, like = 0, tap = at->request->model->tap;
	enum pass pass = first_pass;
	plan->backward_stages = 0;
	while (hi > bottom) {
		int floor = pass == PASS_FUSED ? fused_floor(at->request) : hi > tap && tap > bottom ? tap : bottom;
		int lo = count >= 0 ? cut_below(cuts, count, floor, hi) : grow_down(at, plan, pass, floor, hi, like);
		if (!plan_fits(at, plan, pass, lo, hi))
			return does_not_fit(at, plan, pass, lo, hi);
		plan_widen(at, plan, pass, lo, hi);
		plan->backward[plan->backward_stages++] = (struct rh_stage){lo, hi};
		like = hi - lo;
		/* one layer more did not fit, and nothing has been widened by what fits */
		int again = count < 0 && pass == PASS_BACKWARD && is_inner_stage(at, lo, hi) && lo != tap;
		for (hi = lo; again && hi - like > rh_max(floor, 1); hi -= like)
			plan->backward[plan->backward_stages++] = (struct rh_stage){hi - like, hi};
		pass = PASS_BACKWARD;
	}
	return 0;
}

/* Packs [lo, top) as forward stages behind those that are there. */
static int pack_up(struct stage_planner *at, struct rh_stage_plan *plan, int lo, int top)
{
	const int64_t *cuts = at->request->forward_cuts, count = at->request->forward_cut_count;
	int like = 0;
	while (lo < top) {
		int hi = count >= 0 ? cut_above(cuts, count, lo, top) : grow_up(at, plan, lo, top, like);
		if (!plan_fits(at, plan, PASS_FORWARD, lo, hi))
			return does_not_fit(at, plan, PASS_FORWARD, lo, hi);
		plan_widen(at, plan, PASS_FORWARD, lo, hi);
		plan->forward[plan->forward_stages++] = (struct rh_stage){lo, hi};
		like = hi - lo;
		lo = hi;
	}
	return 0;
}

/* Each split stage's places on its device, one stage's behind another's; the fullest device's bytes are all devices'. */
static void place_deferred(struct stage_planner *at, struct rh_stage_plan *plan)
{
	const struct rh_deferral *deferral = at->request->deferral;
	plan->deferred_bytes = 0;
	for (int i = 0; i < plan->backward_stages; i++) {
		struct rh_stage stage = plan->backward[i];
		plan->deferred[i] = (struct rh_deferred_place){0};
		if (!deferral)
			continue;
		plan->deferred[i].bytes =
		        rh_align_up(plan_stage_bytes(at, i ? PASS_BACKWARD : plan_top_pass(at), stage.lo, stage.hi).deferred, RH_ALIGN);
		plan->deferred[i].places = deferral[i].micro_batches;
		for (int k = 0; k < i; k++)
			if (deferral[k].device == deferral[i].device)
				plan->deferred[i].offset += rh_bytes_times(plan->deferred[k].bytes, plan->deferred[k].places);
		int64_t bytes = rh_bytes_times(plan->deferred[i].bytes, plan->deferred[i].places);
		plan->deferred_bytes = rh_max(plan->deferred_bytes, rh_min(plan->deferred[i].offset + bytes, RH_BYTES_MOST));
	}
}

static int deferred_does_not_fit(const struct stage_planner *at, const struct rh_stage_plan *plan)
{
	const char *key = at->request->cap_key;
	return rh_fail(RH_DOES_NOT_FIT,
	               "the device's %.1f MiB cannot hold what deferred weight gradients are made of, %.1f MiB beside %.1f; %s%s%slower "
	               "per_device_train_batch_size, or choose a schedule that defers less (zb-1p) or nothing (1f1b)",
	               (double)at->request->device_cap_bytes / 1048576, (double)plan->deferred_bytes / 1048576,
	               (double)(plan->device_bytes - plan->deferred_bytes) / 1048576, key ? "raise " : "", key ? key : "", key ? ", " : "");
}

/* An estimate of the bytes that stages not cut yet will defer, if devices share them evenly: packing leaves room for them. */
static int64_t expected_deferred(struct stage_planner *at)
{
	const struct rh_stage_plan_request *request = at->request;
	int lowest = lowest_backward(at);
	if (!request->deferral || request->backward_cut_count >= 0 || lowest == at->layers)
		return 0;
	int64_t bytes = plan_stage_bytes(at, plan_top_pass(at), lowest, at->layers).deferred;
	return rh_bytes_times(bytes, request->deferral[0].micro_batches) / request->devices;
}

static int kept_does_not_fit(const struct stage_planner *at, const struct rh_stage_plan *plan)
{
	const char *key = at->request->cap_key;
	return rh_fail(RH_DOES_NOT_FIT,
	               "the device's %.1f MiB cannot hold the activations of %lld micro-batches that paci_backward: stored keeps, %.1f MiB "
	               "beside %.1f; %s%s%slower per_device_train_batch_size or admission_limits, or write paci_backward: recompute",
	               (double)at->request->device_cap_bytes / 1048576, (long long)at->request->kept_micro_batches,
	               (double)plan->kept_bytes / 1048576, (double)(plan->device_bytes - plan->kept_bytes) / 1048576, key ? "raise " : "",
	               key ? key : "", key ? ", " : "");
}

/* A stage's kept activations lie behind those of the stages above it on its device. Of several devices each has one stage that keeps; the
 * fullest device's bytes are all devices'. The host's memory is one for all. */
static void place_activations(const struct rh_stage_plan_request *request, struct rh_stage_plan *plan, int stage,
                              const struct plan_stage_bytes *bytes)
{
	int64_t each = request->kept_micro_batches ? request->kept_micro_batches : request->train_round,
	        first = request->devices > 1 ? 0 : plan->kept_bytes;
	plan->places[stage] = (struct rh_stage_places){{first, bytes->kept}, {plan->saved_bytes, bytes->saved}, bytes->recomputes};
	plan->kept_bytes = rh_max(plan->kept_bytes, rh_min(first + rh_bytes_times(bytes->kept, each), RH_BYTES_MOST));
	plan->saving_bytes = rh_max(plan->saving_bytes, bytes->saved);
	plan->saved_bytes = rh_min(plan->saved_bytes + rh_bytes_times(bytes->saved, each), RH_BYTES_MOST);
}

/* The first backward stage whose activations may outlive its forward: a fused one has none. */
static int first_kept(const struct stage_planner *at)
{
	return at->request->kept_micro_batches && plan_top_pass(at) != PASS_FUSED ? 0 : 1;
}

/* 1: stages whose activations outlive their forward are the same forward and backward. */
static int are_stages_same(const struct rh_stage_plan_request *request)
{
	return plan_is_alone(request) || request->kept_micro_batches;
}

/* What no slot may save where forward stages are others than backward stages: the tables of a stage, and its input, which is a boundary. */
static void clear_ends(struct rh_fates *fates, int is_lowest)
{
	fates->saved &= ~(RH_ROW_RUN(RH_ROW_ROPE, RH_ROPES) | (is_lowest ? RH_ROW_SET(RH_ROW_X) : 0));
}

/* The fates of a stage's layers: those given; or all is kept, or recomputed. What several devices or boxes keep would have to be where the
 * backward runs; where the weights change between forward and backward nothing may be recomputed. Returns the stage's bytes, but of a
 * stage that recomputes all. */
static struct plan_stage_bytes choose_fates(struct stage_planner *at, struct rh_stage_plan *plan, struct rh_stage stage, int is_kept)
{
	const struct rh_stage_plan_request *request = at->request;
	int recomputes = !request->kept_micro_batches;
	for (int l = stage.lo; l < stage.hi; l++) {
		struct rh_fates all = {is_kept ? ~(rh_row_set)0 : 0, 0}, *fates = &plan->fates[l];
		*fates = is_kept && request->fates ? request->fates[l] : all;
		if (!recomputes)
			fates->kept = is_kept ? ~fates->saved : 0;
		else if (!plan_is_alone(request))
			fates->kept = 0;
		if (!are_stages_same(request))
			clear_ends(fates, l == stage.lo);
	}
	if (!is_kept)
		return (struct plan_stage_bytes){.recomputes = 1};
	return request->fates ? plan_fated_bytes(at, plan->fates, stage.lo, stage.hi) : plan_stage_bytes(at, PASS_KEPT, stage.lo, stage.hi);
}

/* Layers between stages that are the same forward and backward are packed. */
static int pack_forward(struct stage_planner *at, struct rh_stage_plan *plan)
{
	int lo = 0, rc = 0;
	for (int i = plan->backward_stages - 1; !rc && are_stages_same(at->request) && i >= first_kept(at); i--) {
		struct rh_stage stage = plan->backward[i];
		if (!plan->places[i].kept.bytes && !plan->places[i].saved.bytes)
			continue;
		rc = pack_up(at, plan, lo, stage.lo);
		plan_widen_transfers(at, plan, PASS_FORWARD, stage.lo, stage.hi); /* it works in what PASS_KEPT measured */
		plan->forward[plan->forward_stages++] = stage;
		lo = stage.hi;
	}
	return rc ? rc : pack_up(at, plan, lo, plan_forward_top(at, plan));
}

/* Raises the arena to what a stage with given fates needs. */
static void widen_fated(struct stage_planner *at, struct rh_stage_plan *plan, struct rh_stage stage, const struct plan_stage_bytes *bytes)
{
	plan_widen_but_arena(at, plan, PASS_KEPT, stage.lo, stage.hi);
	plan->arena_bytes = rh_max(plan->arena_bytes, bytes->arena);
}

/* Where a forward stage ends inside a backward stage, the input of the layer above is a boundary between two slots and is not saved. */
static void clear_forward_cuts(struct stage_planner *at, struct rh_stage_plan *plan)
{
	int cleared = 0;
	for (int i = 1; i < plan->forward_stages; i++) {
		struct rh_fates *fates = &plan->fates[plan->forward[i].lo], before = *fates;
		clear_ends(fates, 1);
		cleared |= fates->saved != before.saved;
	}
	if (!cleared)
		return;
	plan->saving_bytes = plan->saved_bytes = 0;
	for (int i = 1; i < plan->backward_stages; i++) {
		struct rh_stage stage = plan->backward[i];
		struct plan_stage_bytes bytes = plan_fated_bytes(at, plan->fates, stage.lo, stage.hi);
		widen_fated(at, plan, stage, &bytes);
		place_activations(at->request, plan, i, &bytes);
	}
}

/* The plan whose backward stages are there, of which those from the first that may keep activations to number `keeping` do: its forward
 * stages and all its bytes. */
static int finish(struct stage_planner *at, struct rh_stage_plan *plan, int keeping)
{
	const struct rh_stage_plan_request *request = at->request;
	struct rh_stage *backward = plan->backward;
	int stages = plan->backward_stages, first = first_kept(at);
	*plan = plan_lists(plan);
	plan->backward_stages = stages;
	plan->kept_micro_batches = request->kept_micro_batches;
	memset(plan->fates, 0, (size_t)at->layers * sizeof *plan->fates);
	plan_fixed_sizes(request, plan);
	plan->deferred_bytes = expected_deferred(at);
	for (int i = 0, like = 0; i < stages; i++) {
		enum pass pass = i >= first && i <= keeping ? PASS_KEPT : i == 0 ? plan_top_pass(at) : PASS_BACKWARD;
		struct rh_stage stage = backward[i];
		struct plan_stage_bytes bytes = choose_fates(at, plan, stage, pass == PASS_KEPT);
		if (request->fates && pass == PASS_KEPT) {
			widen_fated(at, plan, stage, &bytes);
		} else if (stage.hi - stage.lo != like || i == keeping + 1 || !is_inner_stage(at, stage.lo, stage.hi)) {
			plan_widen(at, plan, pass, stage.lo, stage.hi); /* otherwise it needs what the stage before did */
		}
		like = is_inner_stage(at, stage.lo, stage.hi) ? stage.hi - stage.lo : 0;
		place_activations(request, plan, i, &bytes);
	}
	int rc = pack_forward(at, plan);
	if (rc)
		return rc;
	if (request->fates && !are_stages_same(request))
		clear_forward_cuts(at, plan);
	place_deferred(at, plan);
	int64_t room = plan_two_in_turn(at, plan);
	plan->weight_bytes = rh_max(plan->weight_bytes, room < at->weight_room ? room : at->weight_room);
	plan->device_bytes = plan_total_bytes(plan);
	if (plan->device_bytes > request->device_cap_bytes && plan->deferred_bytes)
		return deferred_does_not_fit(at, plan);
	if (plan->device_bytes > request->device_cap_bytes && request->kept_micro_batches)
		return kept_does_not_fit(at, plan);
	return plan->device_bytes <= request->device_cap_bytes ? 0 : RH_DOES_NOT_FIT;
}

/* As many stages keep all their activations as the cap allows. */
static int choose_keeping(struct stage_planner *at, struct rh_stage_plan *plan)
{
	int low = 0, high = plan->backward_stages; /* low is possible, high is not */
	while (low + 1 < high) {
		int middle = (low + high) / 2;
		if (finish(at, plan, middle))
			high = middle;
		else
			low = middle;
	}
	return finish(at, plan, low);
}

/* Forward-only runs have one "fused" stage too: the last, which makes loss or logits. */
static int pack_backward(struct stage_planner *at, int64_t limit, struct rh_stage_plan *plan)
{
	const struct rh_stage_plan_request *request = at->request;
	*plan = plan_lists(plan);
	plan_fixed_sizes(request, plan);
	plan->deferred_bytes = expected_deferred(at);
	at->upload_limit = limit;
	at->weight_room = rh_max(limit, at->largest) + limit;
	if (at->given_room)
		at->weight_room = rh_min(at->weight_room, at->given_room);
	int bottom = lowest_backward(at);
	return pack_down(at, plan, plan_top_pass(at), bottom, request->backward_cuts, request->backward_cut_count);
}

/* May a stage keep activations? Of several devices none does, as others run its forward; nor in a box among others, where rounds overlap,
 * or whose backwards are split. */
static int may_keep(const struct rh_stage_plan_request *request)
{
	return request->trains && !request->model->saves_narrow && plan_is_alone(request) && !request->deferral &&
	       !request->kept_micro_batches && request->backward_cut_count < 0 && request->forward_cut_count < 0;
}

int plan_refuse(struct stage_planner *at)
{
	struct rh_stage_plan all = {.deferred_bytes = expected_deferred(at)}, none;
	int worst = -1, top = at->layers - 1, trained = lowest_backward(at);
	enum pass worst_pass = PASS_FORWARD;
	int64_t most = 0;
	plan_fixed_sizes(at->request, &all);
	none = all;
	for (int l = 0; l <= top; l++) {
		enum pass pass = l == top ? plan_top_pass(at) : at->request->trains && l >= trained ? PASS_BACKWARD : PASS_FORWARD;
		int64_t bytes = plan_widened(at, &none, pass, l, l + 1).device_bytes;
		plan_widen(at, &all, pass, l, l + 1);
		if (bytes <= most)
			continue;
		most = bytes;
		worst = l;
		worst_pass = pass;
	}
	if (plan_widened(at, &all, worst_pass, worst, worst + 1).device_bytes <= at->request->device_cap_bytes)
		return RH_DOES_NOT_FIT;
	return does_not_fit(at, &all, worst_pass, worst, worst + 1);
}

int plan_pack(struct stage_planner *at, int64_t limit, struct rh_stage_plan *plan)
{
	int rc = pack_backward(at, limit, plan);
	if (rc)
		return rc;
	plan_count_cuts(at, plan);
	if (at->request->kept_micro_batches || at->request->fates)
		return finish(at, plan, plan->backward_stages - 1);
	return may_keep(at->request) ? choose_keeping(at, plan) : finish(at, plan, 0);
}

/* Bytes of weights that one device recomputes at least: those of all stages but of the topmost ones whose activations fit beside what all
 * plans with this fused stage hold. */
static int64_t least_recomputed(struct stage_planner *at, const struct rh_stage_plan *plan)
{
	const struct rh_stage_plan_request *request = at->request;
	struct rh_stage_plan held = *plan;
	int64_t bytes = 0;
	held.weight_bytes = held.plain_bytes = held.gradient_bytes = held.rounded_bytes = held.arena_bytes = held.boundary_buffers = 0;
	plan_widen(at, &held, plan_top_pass(at), plan->backward[0].lo, plan->backward[0].hi);
	held.kept_bytes = 0;
	for (int i = 1, full = !may_keep(request); i < plan->backward_stages; i++) {
		struct rh_stage stage = plan->backward[i];
		int64_t kept = full ? 0 : plan_stage_bytes(at, PASS_KEPT, stage.lo, stage.hi).kept;
		held.kept_bytes = rh_min(held.kept_bytes + rh_bytes_times(kept, request->train_round), RH_BYTES_MOST);
		full = full || plan_total_bytes(&held) > request->device_cap_bytes;
		bytes += full || !kept ? plan_upload_bytes(at, PASS_BACKWARD, stage.lo, stage.hi) : 0;
	}
	return bytes;
}

/* The fewest forward stages of layers [0, top), beside backward stages as the plan has them: each as large as none can be that has a
 * boundary inside, too. */
static int least_forward(struct stage_planner *at, const struct rh_stage_plan *plan, int top)
{
	if (!at->alike || at->request->forward_cut_count >= 0 || !top)
		return top > 0;
	memset(at->cuts_below, 0, ((size_t)at->layers + 1) * sizeof *at->cuts_below);
	int lowest = grow_up(at, plan, 0, top, 0), most = lowest < top ? grow_up(at, plan, lowest, top, 0) - lowest : 1;
	return 1 + (top - lowest + most - 1) / most;
}

int plan_least_cost(struct stage_planner *at, int64_t limit, struct rh_stage_plan *scratch, struct plan_cost *out)
{
	int rc = pack_backward(at, limit, scratch);
	if (rc)
		return rc;
	int several = !plan_is_alone(at->request), stages = scratch->backward_stages;
	out->not_prefetched = 0;
	out->recomputed = several ? 0 : least_recomputed(at, scratch);
	/* of one device stages that keep activations stand in both lists */
	out->stages = stages + (several ? least_forward(at, scratch, plan_forward_top(at, scratch)) : 0);
	return 0;
}

static void size(struct stage_planner *at, struct rh_stage_plan *plan)
{
	struct rh_stage_plan stages = *plan;
	*plan = (struct rh_stage_plan){.forward = stages.forward,
	                               .backward = stages.backward,
	                               .forward_stages = stages.forward_stages,
	                               .backward_stages = stages.backward_stages};
	plan_fixed_sizes(at->request, plan);
	plan_count_cuts(at, plan);
	for (int i = 0; i < plan->backward_stages; i++)
		plan_widen(at, plan, i ? PASS_BACKWARD : plan_top_pass(at), plan->backward[i].lo, plan->backward[i].hi);
	for (int i = 0; i < plan->forward_stages; i++)
		plan_widen(at, plan, PASS_FORWARD, plan->forward[i].lo, plan->forward[i].hi);
	plan->weight_bytes = rh_max(plan->weight_bytes, plan_two_in_turn(at, plan));
	plan->device_bytes = plan_total_bytes(plan);
}

/* Is this one of the places that the request allows? */
static int may_be(const struct stage_planner *at, enum plain plain)
{
	enum rh_plain asked = at->request->plain;
	if (!at->makes_plain)
		return plain == PLAIN_IN_ROOM;
	return asked == RH_PLAIN_ANYWHERE || (asked == RH_PLAIN_IN_ROOM) == (plain == PLAIN_IN_ROOM);
}

void plan_size(struct stage_planner *at, struct rh_stage_plan *plan)
{
	for (int p = 0, fits = 0; p < PLAINS && !fits; p++) {
		if (!may_be(at, (enum plain)p))
			continue;
		at->plain = (enum plain)p;
		size(at, plan);
		fits = plan->device_bytes <= at->request->device_cap_bytes;
	}
}

static int check_cuts(const struct rh_stage_plan_request *request)
{
	const int64_t *const list[] = {request->forward_cuts, request->backward_cuts};
	const int64_t count[] = {request->forward_cut_count, request->backward_cut_count};
	const char *const key[] = {"forward_cuts", "backward_cuts"};
	for (int k = 0; k < 2; k++)
		for (int64_t i = 0; i < count[k]; i++)
			if (list[k][i] < 1 || list[k][i] >= request->model->layers || (i && list[k][i] <= list[k][i - 1]))
				return rh_fail(-EINVAL,
				               "%s: %" PRId64
				               " is not a layer's number above the one before it; layers are 0 (embedding) to %d (head)",
				               key[k], list[k][i], request->model->layers - 1);
	if (request->forward_cut_count > 0 && request->backward_cut_count >= 0) {
		int64_t top = request->backward_cut_count ? request->backward_cuts[request->backward_cut_count - 1] : 0;
		int64_t last = request->forward_cuts[request->forward_cut_count - 1];
		if (last >= top)
			return rh_fail(-EINVAL,
			               "forward_cuts: %" PRId64 " lies in the fused stage, which begins at layer %" PRId64
			               " (the last of backward_cuts)",
			               last, top);
	}
	return 0;
}

/* Everything in one stage: the weights stay where they are, one buffer. */
static int plan_as_one_stage(struct stage_planner *at, struct rh_stage_plan *plan)
{
	const struct rh_stage_plan_request *request = at->request;
	if (request->small_stages || request->backward_cut_count > 0 || request->forward_cut_count > 0 || plan_top_pass(at) != PASS_FUSED ||
	    request->model->tap)
		return 0;
	*plan = plan_lists(plan);
	plan_fixed_sizes(request, plan);
	at->upload_limit = INT64_MAX / 4;
	at->weight_room = 0;
	if (!plan_fits(at, plan, PASS_FUSED, 0, at->layers))
		return 0;
	plan_widen(at, plan, PASS_FUSED, 0, at->layers);
	plan->backward[0] = (struct rh_stage){0, at->layers};
	plan->backward_stages = 1;
	place_deferred(at, plan);
	plan->places[0] = (struct rh_stage_places){.recomputes = 1};
	memset(plan->fates, 0, (size_t)at->layers * sizeof *plan->fates);
	plan->device_bytes = plan_total_bytes(plan);
	return plan->device_bytes <= request->device_cap_bytes;
}

int64_t plan_given_limit(struct stage_planner *at, struct rh_stage_plan *scratch)
{
	const struct rh_stage_plan_request *request = at->request;
	int64_t backward = request->backward_cut_count, forward = request->forward_cut_count, most = 0;
	int bottom = lowest_backward(at), top = plan_top_pass(at) == PASS_FUSED ? fused_floor(request) : at->layers;
	scratch->backward_stages = scratch->forward_stages = 0;
	for (int hi = at->layers, lo; backward >= 0 && hi > bottom; hi = lo) {
		int first = hi == at->layers && plan_top_pass(at) == PASS_FUSED;
		lo = cut_below(request->backward_cuts, backward, first ? 0 : bottom, hi);
		top = first ? lo : top;
		scratch->backward[scratch->backward_stages++] = (struct rh_stage){lo, hi};
		most = rh_max(most, hi - lo > 1 ? plan_upload_bytes(at, first ? PASS_FUSED : PASS_BACKWARD, lo, hi) : 0);
	}
	for (int lo = 0, hi; forward >= 0 && lo < top; lo = hi) {
		hi = cut_above(request->forward_cuts, forward, lo, top);
		scratch->forward[scratch->forward_stages++] = (struct rh_stage){lo, hi};
		most = rh_max(most, hi - lo > 1 ? plan_upload_bytes(at, PASS_FORWARD, lo, hi) : 0);
	}
	at->given_room = most && backward >= 0 && forward >= 0 ? plan_two_in_turn(at, scratch) : 0;
	return most;
}

/* A model that is one stage stays on its device, which is worth more than a room for plain matrices; stages that come and go have one
 * where they fit. */
static int choose_stages(struct stage_planner *at, struct rh_stage_plan *out)
{
	int rc = RH_DOES_NOT_FIT;
	for (int p = 0; p < PLAINS; p++) {
		at->plain = (enum plain)p;
		if (may_be(at, at->plain) && plan_as_one_stage(at, out))
			return 0;
	}
	for (int p = 0; rc == RH_DOES_NOT_FIT && p < PLAINS; p++) {
		at->plain = (enum plain)p;
		rc = may_be(at, at->plain) ? plan_search(at, out) : rc;
	}
	return rc;
}

int rh_stage_plan_make(const struct rh_stage_plan_request *request, struct rh_stage_plan *out)
{
	size_t layers = (size_t)request->model->layers;
	struct stage_planner at = {.request = request, .layers = request->model->layers};
	*out = (struct rh_stage_plan){0};
	int rc = check_cuts(request);
	if (rc)
		return rc;
	rc = plan_open(&at);
	if (!rc)
		rc = plan_reserve(layers, out);
	if (!rc)
		rc = choose_stages(&at, out);
	plan_close(&at);
	out->is_fed = !rh_model_has_embedding(request->model);
	out->owes_gradient = out->is_fed && request->model->first_trained < 0;
	out->feeds = !rh_model_has_head(request->model);
	out->tap = request->model->tap;
	out->crosses_rounds = request->crosses_rounds;
	if (rc)
		rh_stage_plan_free(out);
	return rc;
}
