/* Weaves devices' own orders into one program: a slot follows the slots that it reads. */
#include "schedule/schedule_internal.h"

#include "core/alloc.h"

int weaving_open(const struct rh_schedule_request *request, int64_t micro_batches, struct weaving *out)
{
	*out = (struct weaving){.request = request, .micro_batches = micro_batches};
	out->begin = rh_alloc((size_t)request->devices + 1, sizeof *out->begin);
	return out->begin ? 0 : -ENOMEM;
}

void weaving_add(struct weaving *weaving, enum rh_slot_kind kind, int stage, int64_t first, int64_t count)
{
	if (!weaving->rc)
		weaving->rc = rh_grow(&weaving->slot, &weaving->capacity, weaving->slots + 1, sizeof *weaving->slot);
	if (weaving->rc)
		return;
	struct rh_stage layers = weaving->request->stage[stage];
	int64_t step = first / weaving->request->micro_batches, at = first % weaving->request->micro_batches;
	weaving->slot[weaving->slots++] = (struct rh_slot){.kind = kind,
	                                                   .lo = layers.lo,
	                                                   .hi = layers.hi,
	                                                   .device = weaving->device,
	                                                   .first = at,
	                                                   .count = count,
	                                                   .stage = stage,
	                                                   .step = step};
}

void weaving_next_device(struct weaving *weaving)
{
	weaving->begin[++weaving->device] = weaving->slots;
}

/* The slots that have been emitted, by stage and micro-batch. */
struct done {
	unsigned char *forward, *input; /* (stages, micro_batches) */
	int stages;
	int64_t micro_batches;
};

static int64_t global_of(const struct weaving *weaving, const struct rh_slot *slot)
{
	return slot->step * weaving->request->micro_batches + slot->first;
}

static int is_ready(const struct weaving *weaving, const struct done *done, const struct rh_slot *slot)
{
	int64_t first = global_of(weaving, slot), row = slot->stage * done->micro_batches;
	for (int64_t m = first; m < first + slot->count; m++) {
		int ready;
		if (slot->kind == RH_SLOT_FORWARD)
			ready = !slot->stage || done->forward[row - done->micro_batches + m];
		else if (slot->kind == RH_SLOT_WEIGHT_GRADIENT)
			ready = done->input[row + m];
		else
			ready = done->forward[row + m] && (slot->stage + 1 == done->stages || done->input[row + done->micro_batches + m]);
		if (!ready)
			return 0;
	}
	return 1;
}

static void mark(const struct weaving *weaving, struct done *done, const struct rh_slot *slot)
{
	int64_t first = global_of(weaving, slot), row = slot->stage * done->micro_batches;
	for (int64_t m = first; m < first + slot->count; m++) {
		if (slot->kind == RH_SLOT_FORWARD)
			done->forward[row + m] = 1;
		else if (slot->kind != RH_SLOT_WEIGHT_GRADIENT)
			done->input[row + m] = 1;
	}
}

static void weave(struct weaving *weaving, struct done *done, size_t *next, struct rh_program *out)
{
	size_t left = weaving->slots;
	while (left) {
		size_t before = left;
		for (int d = 0; d < weaving->request->devices; d++)
			while (next[d] < weaving->begin[d + 1] && is_ready(weaving, done, &weaving->slot[next[d]])) {
				const struct rh_slot *slot = &weaving->slot[next[d]++];
				mark(weaving, done, slot);
				out->slot[out->slots++] = *slot;
				left--;
			}
		RH_ASSERT(left < before);
	}
}

int weaving_close(struct weaving *weaving, struct rh_program *out)
{
	size_t devices = (size_t)weaving->request->devices, cells = (size_t)weaving->request->stages * (size_t)weaving->micro_batches;
	struct done done = {.stages = weaving->request->stages, .micro_batches = weaving->micro_batches};
	size_t *next = rh_alloc(devices, sizeof *next);
	done.forward = rh_alloc(2 * cells, 1);
	int rc = weaving->rc ? weaving->rc : next && done.forward ? 0 : -ENOMEM;
	done.input = rc ? NULL : done.forward + cells;
	if (!rc)
		rc = rh_grow(&out->slot, &out->capacity, out->slots + weaving->slots, sizeof *out->slot);
	for (size_t d = 0; !rc && d < devices; d++)
		next[d] = weaving->begin[d];
	if (!rc)
		weave(weaving, &done, next, out);
	rh_free(next);
	rh_free(done.forward);
	rh_free(weaving->slot);
	rh_free(weaving->begin);
	return rc;
}

int weave_steps(const struct rh_schedule_request *request, void (*fill)(struct weaving *weaving), struct rh_program *out)
{
	for (int64_t step = 0; step < request->steps; step++) {
		struct weaving weaving;
		size_t first = out->slots;
		int rc = weaving_open(request, request->micro_batches, &weaving);
		if (!rc) {
			fill(&weaving);
			rc = weaving_close(&weaving, out);
		}
		if (rc)
			return rc;
		for (size_t i = first; i < out->slots; i++)
			out->slot[i].step = step;
	}
	return 0;
}

struct stage_times stage_times(const struct rh_schedule_request *request, int stage)
{
	const struct rh_cost_sums *sums = request->sums;
	struct rh_stage layers = request->stage[stage];
	if (!sums)
		return (struct stage_times){1, 1, 1};
	double weight = rh_cost_weight_gradient(sums, layers.lo, layers.hi);
	return (struct stage_times){rh_cost_forward(sums, layers.lo, layers.hi),
	                            rh_cost_recompute(sums, layers.lo, layers.hi) + rh_cost_backward(sums, layers.lo, layers.hi) - weight,
	                            weight};
}
