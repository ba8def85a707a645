/* Bytes: what a stage uploads, sums and carries, and what a plan that has it reserves on a device. */
#include "partition/stage_plan_internal.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <string.h>

int64_t plan_upload_bytes(const struct stage_planner *at, enum pass pass, int lo, int hi)
{
	if (lo == 0 && (hi == at->layers || hi == 1)) /* the table once; of the embedding's backward nothing */
		return rh_stage_plan_upload_layout(at->request->model, lo, hi, pass != PASS_FORWARD, at->offset);
	return at->weight_bytes_below[hi] - at->weight_bytes_below[lo];
}

/* Bytes of the room in which the stage's packed weights become plain. */
static int64_t plain_bytes(const struct stage_planner *at, int lo, int hi)
{
	return at->plain == PLAIN_IN_ROOM ? at->plain_bytes_below[hi] - at->plain_bytes_below[lo] : 0;
}

enum pass plan_top_pass(const struct stage_planner *at)
{
	return rh_model_has_head(at->request->model) ? PASS_FUSED : PASS_BACKWARD;
}

int plan_forward_top(const struct stage_planner *at, const struct rh_stage_plan *plan)
{
	return plan_top_pass(at) == PASS_FUSED ? plan->backward[0].lo : at->layers;
}

static int64_t gradient_elements(const struct stage_planner *at, enum pass pass, int lo, int hi)
{
	if (pass == PASS_FORWARD || !at->request->trains)
		return 0;
	return at->gradients_below[hi] - at->gradients_below[lo];
}

/* Slots for inputs and outputs of two micro-batches. `cuts` counts the boundaries inside and at the end of a forward stage that are kept.
 */
static int boundary_buffers(const struct rh_model *model, enum pass pass, int lo, int cuts)
{
	int inputs = model->layer[lo].kind != RH_LAYER_EMBEDDING;
	if (pass == PASS_FORWARD)
		return 2 * (inputs + cuts);
	return 2 * (inputs + (pass != PASS_FUSED) + inputs);
}

/* Kept boundaries in (lo, hi]: the backward stages' inputs and the stage's own end, which may have a copy in 8 bits beside it. */
static int kept_cuts(const struct stage_planner *at, int lo, int hi)
{
	int copies_end = at->request->model->saves_narrow && hi < at->layers && at->cuts_below[hi + 1] > at->cuts_below[hi];
	return 1 + copies_end + at->cuts_below[hi] - at->cuts_below[lo + 1];
}

void plan_count_cuts(struct stage_planner *at, const struct rh_stage_plan *plan)
{
	memset(at->cuts_below, 0, ((size_t)at->layers + 1) * sizeof *at->cuts_below);
	for (int i = 0; i < plan->backward_stages; i++)
		at->cuts_below[plan->backward[i].lo + 1] = 1;
	if (at->request->model->tap)
		at->cuts_below[at->request->model->tap + 1] = 1;
	for (int l = 0; l < at->layers; l++)
		at->cuts_below[l + 1] += at->cuts_below[l];
}

/* Bytes of what a slot of the stage carries of a text in chunks. */
static int64_t carried_bytes(const struct stage_planner *at, enum pass pass, int lo, int hi)
{
	const struct rh_stage_plan_request *request = at->request;
	int64_t first;
	if (!request->train.chunks)
		return 0;
	return rh_model_cache_range(request->model, lo, hi, request->cache_rows, &first) +
	       (pass == PASS_FORWARD ? 0 : rh_model_carried_back_bytes(request->model, lo, hi, request->cache_rows, request->train.chunks));
}

void plan_widen_transfers(const struct stage_planner *at, struct rh_stage_plan *plan, enum pass pass, int lo, int hi)
{
	int buffers = boundary_buffers(at->request->model, pass, lo, pass == PASS_FORWARD ? kept_cuts(at, lo, hi) : 0);
	plan->weight_bytes = rh_max(plan->weight_bytes, plan_upload_bytes(at, pass, lo, hi));
	plan->plain_bytes = rh_max(plan->plain_bytes, plain_bytes(at, lo, hi));
	plan->boundary_buffers = buffers > plan->boundary_buffers ? buffers : plan->boundary_buffers;
	plan->cache_bytes = rh_max(plan->cache_bytes, carried_bytes(at, pass, lo, hi));
}

void plan_widen_but_arena(const struct stage_planner *at, struct rh_stage_plan *plan, enum pass pass, int lo, int hi)
{
	int64_t gradients = gradient_elements(at, pass, lo, hi);
	int bf16 = at->request->model->dtype != RH_F32;
	plan_widen_transfers(at, plan, pass, lo, hi);
	plan->gradient_bytes = rh_max(plan->gradient_bytes, gradients * 4);
	plan->rounded_bytes = rh_max(plan->rounded_bytes, bf16 ? gradients * 2 : 0);
}

void plan_widen(struct stage_planner *at, struct rh_stage_plan *plan, enum pass pass, int lo, int hi)
{
	plan_widen_but_arena(at, plan, pass, lo, hi);
	plan->arena_bytes = rh_max(plan->arena_bytes, plan_stage_bytes(at, pass, lo, hi).arena);
}

void plan_fixed_sizes(const struct rh_stage_plan_request *request, struct rh_stage_plan *plan)
{
	const struct rh_model *model = request->model;
	const struct rh_model_config *config = model->config;
	int64_t tokens = rh_max(request->train.tokens, request->infer.tokens), first;
	int64_t scores = request->infer_logits ? rh_model_outputs(config) : rh_micro_shape_scores(&request->infer);
	plan->narrow_bytes =
	        model->saves_narrow && request->trains ? rh_align_up(rh_narrow_most_bytes(model, request->train.tokens), RH_ALIGN) : 0;
	plan->boundary_bytes = rh_max(rh_align_up(rh_boundary_most_bytes(model, tokens), RH_ALIGN), plan->narrow_bytes);
	const struct rh_micro_shape train = rh_micro_shape_of(model, &request->train), infer = rh_micro_shape_of(model, &request->infer);
	plan->micro_bytes = rh_max(rh_micro_layout(&train).bytes, rh_micro_layout(&infer).bytes);
	plan->result_bytes = rh_max(rh_result_layout(model, &request->train, rh_micro_shape_scores(&request->train)).bytes,
	                            rh_result_layout(model, &request->infer, scores).bytes);
	if (!request->train.chunks)
		plan->cache_bytes = rh_model_cache_range(model, 0, model->layers, request->cache_rows, &first);
}

int64_t plan_total_bytes(const struct rh_stage_plan *plan)
{
	return plan->weight_bytes + plan->plain_bytes + plan->gradient_bytes + plan->rounded_bytes + plan->arena_bytes + plan->kept_bytes +
	       plan->deferred_bytes + rh_bytes_times(plan->boundary_bytes, plan->boundary_buffers) +
	       RH_PLAN_MICRO_BUFFERS * plan->micro_bytes + RH_PLAN_SAVING_BUFFERS * plan->saving_bytes +
	       RH_PLAN_RESULT_BUFFERS * plan->result_bytes + plan->cache_bytes;
}

struct rh_stage_plan plan_widened(struct stage_planner *at, const struct rh_stage_plan *plan, enum pass pass, int lo, int hi)
{
	struct rh_stage_plan wider = *plan;
	plan_widen(at, &wider, pass, lo, hi);
	wider.weight_bytes = rh_max(wider.weight_bytes, at->weight_room);
	wider.device_bytes = plan_total_bytes(&wider);
	return wider;
}

int plan_fits(struct stage_planner *at, const struct rh_stage_plan *plan, enum pass pass, int lo, int hi)
{
	struct rh_stage_plan wider = *plan;
	if (hi - lo > 1 && plan_upload_bytes(at, pass, lo, hi) > at->upload_limit)
		return 0;
	plan_widen_but_arena(at, &wider, pass, lo, hi);
	wider.weight_bytes = rh_max(wider.weight_bytes, at->weight_room);
	return plan_total_bytes(&wider) <= at->request->device_cap_bytes &&
	       plan_widened(at, plan, pass, lo, hi).device_bytes <= at->request->device_cap_bytes;
}

int64_t plan_stage_device_bytes(struct stage_planner *at, struct rh_stage stage, int64_t deferred)
{
	const struct rh_stage_plan_request *request = at->request;
	enum pass pass = stage.hi == at->layers ? plan_top_pass(at) : PASS_BACKWARD;
	struct rh_stage_plan plan = {0};
	int keeps = request->kept_micro_batches && pass != PASS_FUSED;
	at->plain = request->plain == RH_PLAIN_BY_PRODUCT ? PLAIN_IN_ARENA : PLAIN_IN_ROOM;
	plan_fixed_sizes(request, &plan);
	if (pass != PASS_FUSED)
		plan_widen(at, &plan, PASS_FORWARD, stage.lo, stage.hi);
	if (stage.hi <= request->model->first_trained)
		return plan_total_bytes(&plan);
	pass = keeps ? PASS_KEPT : pass;
	plan_widen(at, &plan, pass, stage.lo, stage.hi);
	struct plan_stage_bytes bytes = plan_stage_bytes(at, pass, stage.lo, stage.hi);
	plan.kept_bytes = keeps ? rh_bytes_times(bytes.kept, request->kept_micro_batches) : 0;
	plan.deferred_bytes = rh_bytes_times(rh_align_up(bytes.deferred, RH_ALIGN), deferred);
	return plan_total_bytes(&plan);
}

/* Where the weights of the slot after next begin to travel, those of the next are being read: the most that a device holds of two slots
 * that follow one another on it. A device that always runs the same stage holds that alone. */
int64_t plan_two_in_turn(const struct stage_planner *at, const struct rh_stage_plan *plan)
{
	int stages = plan->forward_stages + plan->backward_stages, devices = at->request->devices;
	int64_t most = 0;
	for (int i = 0; i < stages; i++) {
		int64_t bytes[2] = {0, 0};
		int ahead = i + devices;
		for (int k = 0; k < 2; k++) {
			int s = k ? ahead % stages : i;
			if (k && (s == i || (ahead >= stages && !at->request->crosses_rounds && at->request->trains)))
				break; /* the next step's weights are not there before this one is over */
			struct rh_stage stage = s < plan->forward_stages ? plan->forward[s] : plan->backward[s - plan->forward_stages];
			enum pass pass = s < plan->forward_stages    ? PASS_FORWARD
			                 : s == plan->forward_stages ? plan_top_pass(at)
			                                             : PASS_BACKWARD;
			bytes[k] = plan_upload_bytes(at, pass, stage.lo, stage.hi);
		}
		most = rh_max(most, bytes[0] + bytes[1]);
	}
	return most;
}

static void sum_layers(struct stage_planner *at)
{
	const struct rh_model *model = at->request->model;
	for (int l = 0; l < at->layers; l++) {
		int64_t bytes = rh_stage_plan_layer_upload(model, l);
		at->weight_bytes_below[l + 1] = at->weight_bytes_below[l] + bytes;
		at->plain_bytes_below[l + 1] = at->plain_bytes_below[l] + rh_stage_plan_layer_plain(model, l);
		at->gradients_below[l + 1] = at->gradients_below[l] + rh_stage_plan_layer_gradients(model, l);
		at->largest = rh_max(at->largest, bytes);
		if (l && l + 1 < at->layers)
			at->largest_between = rh_max(at->largest_between, bytes);
	}
}

int plan_open(struct stage_planner *at)
{
	size_t layers = (size_t)at->layers;
	int rc = plan_measure_open(at);
	at->offset = rh_alloc((size_t)at->request->model->blocks * 2, sizeof *at->offset);
	at->weight_bytes_below = rh_alloc(layers + 1, sizeof *at->weight_bytes_below);
	at->plain_bytes_below = rh_alloc(layers + 1, sizeof *at->plain_bytes_below);
	at->gradients_below = rh_alloc(layers + 1, sizeof *at->gradients_below);
	at->cuts_below = rh_alloc(layers + 1, sizeof *at->cuts_below);
	if (!rc && !(at->offset && at->weight_bytes_below && at->plain_bytes_below && at->gradients_below && at->cuts_below))
		rc = -ENOMEM;
	if (!rc)
		sum_layers(at);
	return rc;
}

void plan_close(struct stage_planner *at)
{
	plan_measure_close(at);
	rh_free(at->offset);
	rh_free(at->weight_bytes_below);
	rh_free(at->plain_bytes_below);
	rh_free(at->gradients_below);
	rh_free(at->cuts_below);
}
