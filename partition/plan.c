#include "partition/plan.h"

#include "core/alloc.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum pass { PASS_FORWARD, PASS_BACKWARD, PASS_FUSED, PASSES };

/* A request while it is being worked on. */
struct planner {
	const struct rh_plan_request *request;
	int layers;
	int64_t *arena[PASSES]; /* (layers, layers + 1) memo of arena peaks, -1 unknown */
	int64_t *offset;        /* scratch: 2 per block */
	int64_t *below;         /* (layers + 1) bytes of weights that the layers below upload, each for itself */
	struct rh_stage_state state;
	int64_t upload_limit; /* of one stage, in this try */
};

int64_t rh_plan_upload_layout(const struct rh_model *model, int lo, int hi, int64_t *offset)
{
	int64_t bytes = 0;
	for (int b = 0; b < model->blocks; b++)
		offset[b] = -1;
	for (int l = lo; l < hi; l++)
		for (int which = 0; which < 2; which++) {
			int b = model->layer[l].block[which];
			if (b < 0 || offset[b] >= 0)
				continue;
			offset[b] = bytes;
			bytes += rh_align_up(rh_dtype_bytes(model->dtype, model->block[b].elements), RH_ALIGN);
		}
	return bytes;
}

int64_t rh_plan_gradient_layout(const struct rh_model *model, int lo, int hi, int64_t *offset)
{
	int64_t elements = 0;
	for (int i = 0; i < 2 * model->blocks; i++)
		offset[i] = -1;
	for (int l = lo; l < hi; l++)
		for (int which = 0; which < 2; which++) {
			int b = model->layer[l].block[which];
			if (b < 0 || !model->block[b].trainable)
				continue;
			offset[2 * b + model->layer[l].use[which]] = elements;
			elements += rh_align_up(model->block[b].elements, RH_ALIGN / 2);
		}
	return elements;
}

struct rh_result_layout rh_plan_result_layout(const struct rh_micro_shape *shape, int64_t score_cols)
{
	struct rh_result_layout at = {0};
	at.hit = rh_align_up(shape->head_rows * 4, RH_ALIGN);
	at.scores = 2 * at.hit;
	at.bytes = at.scores + rh_align_up(shape->head_rows * score_cols * 4, RH_ALIGN);
	return at;
}

/* Bytes that layers [lo, hi) upload, each block once: a tied table is shared when both ends are in. */
static int64_t upload_bytes(const struct planner *at, int lo, int hi)
{
	if (lo == 0 && hi == at->layers)
		return rh_plan_upload_layout(at->request->model, lo, hi, at->offset);
	return at->below[hi] - at->below[lo];
}

static int64_t larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* Emits one stage into an arena that measures. */
static int64_t measure(struct planner *at, enum pass pass, int lo, int hi, const struct rh_micro_shape *shape, int infer)
{
	const struct rh_model *model = at->request->model;
	struct rh_arena arena = rh_arena_measuring();
	struct rh_emit emit = {.model = model,
	                       .arena = &arena,
	                       .shape = *shape,
	                       .dropout = infer ? 0 : model->dropout,
	                       .loss_scale = 1,
	                       .cache_rows = at->request->cache_rows};
	struct rh_view any = rh_view_of((char *)(uintptr_t)RH_ALIGN, model->dtype, shape->tokens, model->config->hidden_size);
	struct rh_head_out head = {.loss = any, .hit = any};
	int rc;
	if (infer && at->request->infer_logits)
		head = (struct rh_head_out){.logits = any};
	else if (infer && shape->choices)
		head.choice = any;
	if (pass == PASS_FORWARD || infer) {
		rc = rh_stage_forward(&emit, lo, hi, any, NULL, &head);
	} else {
		rc = rh_stage_recompute(&emit, lo, hi, any, &at->state, &head);
		if (!rc)
			rc = rh_stage_backward(&emit, lo, hi, &at->state, any, any);
	}
	RH_ASSERT(rc == 0); /* nothing is launched, so nothing can fail */
	return arena.peak;
}

static int64_t arena_peak(struct planner *at, enum pass pass, int lo, int hi)
{
	int64_t *memo = &at->arena[pass][lo * (at->layers + 1) + hi];
	if (*memo >= 0)
		return *memo;
	const struct rh_plan_request *request = at->request;
	int64_t peak = 0;
	if (request->trains)
		peak = measure(at, pass, lo, hi, &request->train, 0);
	if (request->infer.tokens && pass != PASS_BACKWARD)
		peak = larger(peak, measure(at, pass, lo, hi, &request->infer, 1));
	return *memo = peak;
}

static int64_t gradient_elements(struct planner *at, enum pass pass, int lo, int hi)
{
	if (pass == PASS_FORWARD || !at->request->trains)
		return 0;
	return rh_plan_gradient_layout(at->request->model, lo, hi, at->offset);
}

/* Slots for inputs and outputs of two micro-batches. `cuts` counts the boundaries inside and at the end of a forward stage that are kept.
 */
static int boundary_slots(enum pass pass, int lo, int cuts)
{
	int inputs = lo > 0 ? 1 : 0;
	if (pass == PASS_FORWARD)
		return 2 * (inputs + cuts);
	return 2 * (inputs + (pass == PASS_BACKWARD) + (lo > 0));
}

/* Kept boundaries in (lo, hi]: the backward stages' inputs and the stage's own end. */
static int kept_cuts(const struct rh_plan *plan, int lo, int hi)
{
	int cuts = 1;
	for (int i = 0; i < plan->backward_stages; i++)
		cuts += plan->backward[i].lo > lo && plan->backward[i].lo < hi;
	return cuts;
}

/* Raises the plan's sizes to what this stage needs. */
static void widen(struct planner *at, struct rh_plan *plan, enum pass pass, int lo, int hi)
{
	int64_t gradients = gradient_elements(at, pass, lo, hi);
	int bf16 = at->request->model->dtype != RH_F32;
	int slots = boundary_slots(pass, lo, pass == PASS_FORWARD ? kept_cuts(plan, lo, hi) : 0);
	plan->weight_bytes = larger(plan->weight_bytes, upload_bytes(at, lo, hi));
	plan->gradient_bytes = larger(plan->gradient_bytes, gradients * 4);
	plan->rounded_bytes = larger(plan->rounded_bytes, bf16 ? gradients * 2 : 0);
	plan->arena_bytes = larger(plan->arena_bytes, arena_peak(at, pass, lo, hi));
	plan->boundary_slots = slots > plan->boundary_slots ? slots : plan->boundary_slots;
}

static void fixed_sizes(const struct rh_plan_request *request, struct rh_plan *plan)
{
	const struct rh_model *model = request->model;
	const struct rh_model_config *config = model->config;
	int64_t tokens = larger(request->train.tokens, request->infer.tokens);
	int64_t scores = request->infer_logits ? config->vocab_size : request->infer.choices;
	plan->boundary_bytes = rh_align_up(rh_dtype_bytes(model->dtype, tokens * config->hidden_size), RH_ALIGN);
	plan->micro_bytes = larger(rh_micro_layout(&request->train).bytes, rh_micro_layout(&request->infer).bytes);
	plan->result_bytes = larger(rh_plan_result_layout(&request->train, 0).bytes, rh_plan_result_layout(&request->infer, scores).bytes);
	plan->cache_bytes = (model->layers - 2) * 2 *
	                    rh_dtype_bytes(model->dtype, request->cache_rows * config->num_key_value_heads * config->head_dim);
	plan->cache_bytes = rh_align_up(plan->cache_bytes, RH_ALIGN);
}

static int64_t total_bytes(const struct rh_plan *plan, int weight_buffers)
{
	return weight_buffers * plan->weight_bytes + plan->gradient_bytes + plan->rounded_bytes + plan->arena_bytes +
	       plan->boundary_slots * plan->boundary_bytes + RH_PLAN_MICRO_SLOTS * plan->micro_bytes +
	       RH_PLAN_RESULT_SLOTS * plan->result_bytes + plan->cache_bytes;
}

/* Would the plan, widened by this stage, stay under the cap and the stage under the try's upload limit? */
static int fits(struct planner *at, const struct rh_plan *plan, enum pass pass, int lo, int hi, int weight_buffers)
{
	struct rh_plan wider = *plan;
	widen(at, &wider, pass, lo, hi);
	wider.weight_bytes = weight_buffers == 1 ? wider.weight_bytes : at->upload_limit;
	return upload_bytes(at, lo, hi) <= at->upload_limit && total_bytes(&wider, weight_buffers) <= at->request->device_cap_bytes;
}

static int does_not_fit(struct planner *at, const struct rh_plan *plan, enum pass pass, int lo, int hi, int weight_buffers)
{
	static const char *const pass_name[PASSES] = {"forward", "backward", "forward, loss and backward"};
	const struct rh_model *model = at->request->model;
	struct rh_plan wider = *plan;
	widen(at, &wider, pass, lo, hi);
	const char *what = model->block[model->layer[hi - 1].block[0]].name;
	return rh_fail(-ENOMEM,
	               "max_vram: the device's %.1f MiB cannot hold the %s of %s%s, which needs %.1f MiB (weights %d x %.1f, gradients "
	               "%.1f, activations %.1f, "
	               "boundaries %.1f); raise max_vram, or lower max_length or per_device_train_batch_size",
	               (double)at->request->device_cap_bytes / 1048576, pass_name[pass], hi - lo > 1 ? "the stage that ends with " : "",
	               what, (double)total_bytes(&wider, weight_buffers) / 1048576, weight_buffers, (double)wider.weight_bytes / 1048576,
	               (double)(wider.gradient_bytes + wider.rounded_bytes) / 1048576, (double)wider.arena_bytes / 1048576,
	               (double)(wider.boundary_slots * wider.boundary_bytes) / 1048576);
}

/* Forward cuts, where given without backward cuts, bound the fused stage. */
static int fused_floor(const struct rh_plan_request *request)
{
	int64_t count = request->backward_cut_count < 0 ? request->forward_cut_count : 0;
	return count > 0 ? (int)request->forward_cuts[count - 1] : 0;
}

/* Packs [bottom, top) top down into *stages, or takes the given cuts. */
static int pack_down(struct planner *at, struct rh_plan *plan, enum pass first_pass, int bottom, const int64_t *cuts, int64_t count)
{
	int hi = at->layers;
	enum pass pass = first_pass;
	plan->backward_stages = 0;
	while (hi > bottom) {
		int floor = pass == PASS_FUSED ? fused_floor(at->request) : bottom, lo = hi - 1;
		if (count >= 0) {
			lo = floor;
			for (int64_t i = 0; i < count; i++)
				if (cuts[i] < hi && cuts[i] > lo)
					lo = (int)cuts[i];
		} else {
			while (lo > floor && fits(at, plan, pass, lo - 1, hi, 2))
				lo--;
		}
		if (!fits(at, plan, pass, lo, hi, 2))
			return does_not_fit(at, plan, pass, lo, hi, 2);
		widen(at, plan, pass, lo, hi);
		plan->backward[plan->backward_stages++] = (struct rh_stage){lo, hi};
		hi = lo;
		pass = PASS_BACKWARD;
	}
	return 0;
}

static int pack_up(struct planner *at, struct rh_plan *plan, int top, const int64_t *cuts, int64_t count)
{
	int lo = 0;
	plan->forward_stages = 0;
	while (lo < top) {
		int hi = lo + 1;
		if (count >= 0) {
			hi = top;
			for (int64_t i = 0; i < count; i++)
				if (cuts[i] > lo && cuts[i] < hi)
					hi = (int)cuts[i];
		} else {
			while (hi < top && fits(at, plan, PASS_FORWARD, lo, hi + 1, 2))
				hi++;
		}
		if (!fits(at, plan, PASS_FORWARD, lo, hi, 2))
			return does_not_fit(at, plan, PASS_FORWARD, lo, hi, 2);
		widen(at, plan, PASS_FORWARD, lo, hi);
		plan->forward[plan->forward_stages++] = (struct rh_stage){lo, hi};
		lo = hi;
	}
	return 0;
}

/* One packing under the present upload limit. Forward-only runs have one "fused" stage too: the last, which makes loss or logits. */
static int pack(struct planner *at, struct rh_plan *plan)
{
	const struct rh_plan_request *request = at->request;
	struct rh_stage *forward = plan->forward, *backward = plan->backward;
	*plan = (struct rh_plan){.forward = forward, .backward = backward};
	fixed_sizes(request, plan);
	/* without training only the top stage is run from the backward list */
	int bottom = request->trains ? request->model->first_trained : at->layers - 1;
	int rc = pack_down(at, plan, PASS_FUSED, bottom, request->backward_cuts, request->backward_cut_count);
	if (!rc)
		rc = pack_up(at, plan, plan->backward[0].lo, request->forward_cuts, request->forward_cut_count);
	plan->weight_buffers = 2;
	plan->device_bytes = total_bytes(plan, 2);
	return rc;
}

static int check_cuts(const struct rh_plan_request *request)
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
static int whole(struct planner *at, struct rh_plan *plan)
{
	const struct rh_plan_request *request = at->request;
	if (request->backward_cut_count > 0 || request->forward_cut_count > 0)
		return 0;
	fixed_sizes(request, plan);
	at->upload_limit = INT64_MAX / 4;
	if (!fits(at, plan, PASS_FUSED, 0, at->layers, 1))
		return 0;
	widen(at, plan, PASS_FUSED, 0, at->layers);
	plan->backward[0] = (struct rh_stage){0, at->layers};
	plan->backward_stages = 1;
	plan->weight_buffers = 1;
	plan->device_bytes = total_bytes(plan, 1);
	return 1;
}

static int ascending(const void *left, const void *right)
{
	int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
	return (a > b) - (a < b);
}

/* The uploads of all runs of layers, ascending; returns how many are different. */
static size_t list_limits(const struct planner *at, int64_t *limit)
{
	size_t count = 0, different = 0;
	for (int lo = 0; lo < at->layers; lo++)
		for (int hi = lo + 1; hi <= at->layers; hi++)
			limit[count++] = upload_bytes(at, lo, hi);
	qsort(limit, count, sizeof *limit, ascending);
	for (size_t i = 0; i < count; i++)
		if (!different || limit[i] != limit[different - 1])
			limit[different++] = limit[i];
	return different;
}

static void keep(struct rh_plan *best, const struct rh_plan *now)
{
	struct rh_plan sizes = *now;
	sizes.forward = best->forward;
	sizes.backward = best->backward;
	memcpy(best->forward, now->forward, (size_t)now->forward_stages * sizeof *now->forward);
	memcpy(best->backward, now->backward, (size_t)now->backward_stages * sizeof *now->backward);
	*best = sizes;
}

/* Uploads of all runs of layers are the limits worth trying; the fewest stages win, then the smallest limit. */
static int search(struct planner *at, struct rh_plan *out)
{
	size_t layers = (size_t)at->layers;
	struct rh_plan now = {.forward = rh_alloc(layers, sizeof *now.forward), .backward = rh_alloc(layers, sizeof *now.backward)};
	int64_t *limit = rh_alloc(layers * (layers + 1) / 2, sizeof *limit);
	int best = -1, rc = now.forward && now.backward && limit ? 0 : -ENOMEM;
	size_t limits = rc ? 0 : list_limits(at, limit);
	for (size_t i = 0; i < limits && limit[i] <= at->request->device_cap_bytes / 2; i++) {
		at->upload_limit = limit[i];
		if (pack(at, &now))
			continue;
		int stages = now.forward_stages + now.backward_stages;
		if (best < 0 || stages < best) {
			best = stages;
			keep(out, &now);
		}
	}
	if (!rc && best < 0) { /* say so with the cap alone in the way */
		at->upload_limit = 0;
		for (int l = 0; l < at->layers; l++)
			at->upload_limit = larger(at->upload_limit, upload_bytes(at, l, l + 1));
		rc = pack(at, &now);
		RH_ASSERT(rc < 0);
	}
	if (!rc)
		rh_error_clear(); /* of limits that did not fit */
	rh_free(now.forward);
	rh_free(now.backward);
	rh_free(limit);
	return rc;
}

static void sum_uploads(struct planner *at)
{
	for (int l = 0; l < at->layers; l++)
		at->below[l + 1] = at->below[l] + rh_plan_upload_layout(at->request->model, l, l + 1, at->offset);
}

int rh_plan_make(const struct rh_plan_request *request, struct rh_plan *out)
{
	int layers = request->model->layers;
	struct planner at = {.request = request, .layers = layers};
	*out = (struct rh_plan){0};
	int rc = check_cuts(request);
	if (rc)
		return rc;
	size_t memo = (size_t)layers * (size_t)(layers + 1);
	rc = rh_stage_state_create(request->model, &at.state);
	at.offset = rh_alloc((size_t)request->model->blocks * 2, sizeof *at.offset);
	for (int p = 0; p < PASSES; p++)
		if ((at.arena[p] = rh_alloc(memo, sizeof *at.arena[p])))
			memset(at.arena[p], -1, memo * sizeof *at.arena[p]);
	at.below = rh_alloc((size_t)layers + 1, sizeof *at.below);
	out->forward = rh_alloc((size_t)layers, sizeof *out->forward);
	out->backward = rh_alloc((size_t)layers, sizeof *out->backward);
	if (!rc && !(at.offset && at.below && at.arena[0] && at.arena[1] && at.arena[2] && out->forward && out->backward))
		rc = -ENOMEM;
	if (!rc)
		sum_uploads(&at);
	if (!rc && !whole(&at, out))
		rc = search(&at, out);
	rh_stage_state_free(&at.state);
	rh_free(at.offset);
	rh_free(at.below);
	for (int p = 0; p < PASSES; p++)
		rh_free(at.arena[p]);
	if (rc)
		rh_plan_free(out);
	return rc;
}

void rh_plan_free(struct rh_plan *plan)
{
	rh_free(plan->forward);
	rh_free(plan->backward);
	*plan = (struct rh_plan){0};
}
