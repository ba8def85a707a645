#include "schedule/evaluate.h"

#include "core/alloc.h"

#include <string.h>

/* Which slot made what, for each boundary between layers and micro-batch, counted over all steps; -1: none yet. */
struct makers {
	int64_t *activation, *gradient; /* (layers + 1, micro_batches) */
	int64_t *sums;                  /* (layers + 1): the step's last slot that added to the gradients of a stage that begins there */
	int64_t layers, micro_batches, step_micro_batches;
};

static int makers_open(const struct rh_program *program, int layers, struct makers *out)
{
	int64_t most = 0, steps = 0;
	for (size_t i = 0; i < program->slots; i++) {
		const struct rh_slot *slot = &program->slot[i];
		most = slot->first + slot->count > most ? slot->first + slot->count : most;
		steps = slot->step >= steps ? slot->step + 1 : steps;
	}
	*out = (struct makers){.layers = layers, .micro_batches = most * steps, .step_micro_batches = most};
	size_t cells = (size_t)(layers + 1) * (size_t)(2 * out->micro_batches + 1);
	out->activation = rh_alloc(cells, sizeof *out->activation);
	if (!out->activation)
		return -ENOMEM;
	memset(out->activation, -1, cells * sizeof *out->activation);
	out->gradient = out->activation + (layers + 1) * out->micro_batches;
	out->sums = out->gradient + (layers + 1) * out->micro_batches;
	return 0;
}

static int64_t *cell(const struct makers *makers, int64_t *table, int boundary, const struct rh_slot *slot)
{
	return &table[boundary * makers->micro_batches + slot->step * makers->step_micro_batches + slot->first];
}

static void note(const struct makers *makers, const struct rh_slot *slot, int64_t i)
{
	for (int64_t m = 0; m < slot->count; m++) {
		if (slot->kind == RH_SLOT_FORWARD)
			for (int b = slot->lo + 1; b <= slot->hi; b++)
				cell(makers, makers->activation, b, slot)[m] = i;
		else if (slot->kind != RH_SLOT_WEIGHT_GRADIENT)
			cell(makers, makers->gradient, slot->lo, slot)[m] = i;
	}
	if (slot->kind != RH_SLOT_FORWARD && slot->kind != RH_SLOT_INPUT_GRADIENT)
		makers->sums[slot->lo] = i;
}

static double transfer_seconds(const struct rh_program *program, const struct rh_program_timing *how, int64_t from,
                               const struct rh_slot *to)
{
	int stays = from < 0 || (program->slot[from].device == to->device && !how->schedule->swaps);
	return stays ? 0 : how->sums->costs->hop_s;
}

/* Recompute waits for the stage's saved input under RH_RECOMPUTE_AHEAD, else for the gradient from above, as the rest always does. For a
 * top stage `above` is its own forward, or there is none: a split backward's first part has it, as a fused slot has. */
static void describe_backward(const struct rh_program *program, const struct rh_program_timing *how, const struct makers *makers,
                              const struct rh_slot *slot, struct rh_timeline_slot *out)
{
	const struct rh_cost_sums *sums = how->sums;
	int top = slot->hi == makers->layers;
	int64_t above = *cell(makers, top ? makers->activation : makers->gradient, slot->hi, slot);
	int64_t input = slot->lo ? *cell(makers, makers->activation, slot->lo, slot) : -1;
	double weight = slot->kind == RH_SLOT_INPUT_GRADIENT ? rh_cost_weight_gradient(sums, slot->lo, slot->hi) : 0;
	int is_fused = top && above < 0; /* its forward is in this slot */
	above = is_fused ? input : above;
	RH_ASSERT(above >= 0 || is_fused);
	out->part_s[0] = (is_fused ? rh_cost_forward : rh_cost_recompute)(sums, slot->lo, slot->hi);
	out->part_s[1] = rh_cost_backward(sums, slot->lo, slot->hi) - weight;
	out->source[0] = how->recompute == RH_RECOMPUTE_AHEAD ? input : above;
	out->hop_s[0] = transfer_seconds(program, how, out->source[0], slot);
	out->source[1] = above;
	out->hop_s[1] = transfer_seconds(program, how, above, slot);
}

static void describe_slot(const struct rh_program *program, const struct rh_program_timing *how, const struct makers *makers, int64_t i,
                          struct rh_timeline_slot *out)
{
	const struct rh_slot *slot = &program->slot[i];
	*out = (struct rh_timeline_slot){.device = slot->device,
	                                 .first = slot->first,
	                                 .count = slot->count,
	                                 .source = {-1, -1},
	                                 .previous_sum = -1,
	                                 .head_sum_s = slot->hi == makers->layers ? 0 : -1};
	if (slot->kind == RH_SLOT_WEIGHT_GRADIENT) {
		out->part_s[1] = rh_cost_weight_gradient(how->sums, slot->lo, slot->hi);
		out->source[1] = *cell(makers, makers->gradient, slot->lo, slot);
		RH_ASSERT(out->source[1] >= 0);
	} else if (slot->kind == RH_SLOT_BACKWARD || slot->kind == RH_SLOT_INPUT_GRADIENT) {
		describe_backward(program, how, makers, slot, out);
	} else {
		enum rh_pass pass = slot->kind == RH_SLOT_FUSED ? RH_PASS_FUSED : RH_PASS_FORWARD;
		out->part_s[1] = rh_cost_stage(how->sums, pass, slot->lo, slot->hi);
		out->source[1] = slot->lo ? *cell(makers, makers->activation, slot->lo, slot) : -1;
		out->hop_s[1] = transfer_seconds(program, how, out->source[1], slot);
	}
	int64_t before = makers->sums[slot->lo];
	int sums = slot->kind != RH_SLOT_FORWARD && slot->kind != RH_SLOT_INPUT_GRADIENT;
	if (sums && before >= 0 && program->slot[before].step == slot->step && program->slot[before].device != slot->device)
		out->previous_sum = before; /* the left fold goes on where another device left it */
	if (how->schedule->swaps && how->upload_bytes_per_s > 0)
		out->upload_s = (double)rh_costs_upload_bytes(how->sums->costs, slot->lo, slot->hi) / how->upload_bytes_per_s;
}

int rh_program_evaluate(const struct rh_program *program, const struct rh_program_timing *how, struct rh_timeline *out)
{
	struct makers makers;
	*out = (struct rh_timeline){0};
	int rc = makers_open(program, how->sums->costs->layers, &makers);
	struct rh_timeline_slot *slot = rh_alloc(program->slots, sizeof *slot);
	int64_t step_first[2] = {0, 0}; /* of this step, and of the one before it */
	if (!slot)
		rc = -ENOMEM;
	if (rc)
		goto out;
	for (int64_t i = 0; i < (int64_t)program->slots; i++) {
		if (i && program->slot[i].step != program->slot[i - 1].step && how->schedule->update != RH_UPDATE_LOCAL) {
			step_first[1] = step_first[0];
			step_first[0] = i;
		}
		describe_slot(program, how, &makers, i, &slot[i]);
		slot[i].barrier = step_first[how->schedule->update == RH_UPDATE_STALE];
		if (how->schedule->update == RH_UPDATE_LOCAL)
			slot[i].barrier = 0;
		/* the recurrence matches micro-batches by number: over steps */
		slot[i].first += program->slot[i].step * makers.step_micro_batches;
		note(&makers, &program->slot[i], i);
	}
	rc = rh_timeline_run(slot, (int64_t)program->slots, how->devices, out);
out:
	rh_free(slot);
	rh_free(makers.activation);
	return rc;
}

void rh_program_in_flight(const struct rh_program *program, int devices, int64_t *peak)
{
	int split = 0;
	for (size_t i = 0; i < program->slots; i++)
		split = split || program->slot[i].kind == RH_SLOT_WEIGHT_GRADIENT;
	for (int d = 0; d < devices; d++) {
		int64_t in_flight = 0;
		peak[d] = 0;
		for (size_t i = 0; i < program->slots; i++) {
			const struct rh_slot *slot = &program->slot[i];
			if (slot->device != d)
				continue;
			int64_t now = in_flight + (slot->kind == RH_SLOT_FUSED);
			if (slot->kind == RH_SLOT_FORWARD)
				now = in_flight += slot->count;
			else if (slot->kind == (split ? RH_SLOT_WEIGHT_GRADIENT : RH_SLOT_BACKWARD))
				in_flight -= slot->count;
			peak[d] = now > peak[d] ? now : peak[d];
		}
	}
}

void rh_program_deferrals(const struct rh_program *program, int stages, struct rh_deferral *out)
{
	for (int s = 0; s < stages; s++) {
		int64_t deferred = 0;
		out[s] = (struct rh_deferral){0};
		for (size_t i = 0; i < program->slots; i++) {
			const struct rh_slot *slot = &program->slot[i];
			if (slot->stage != s)
				continue;
			out[s].device = slot->device;
			if (slot->kind == RH_SLOT_INPUT_GRADIENT)
				deferred += slot->count;
			out[s].micro_batches = deferred > out[s].micro_batches ? deferred : out[s].micro_batches;
			if (slot->kind == RH_SLOT_WEIGHT_GRADIENT)
				deferred -= slot->count;
		}
	}
}
