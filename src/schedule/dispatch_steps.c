#include "schedule/dispatch_steps.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "schedule/dispatch_internal.h"

#include <string.h>

static int64_t units_of(const struct rh_dispatch_steps *steps)
{
	const struct rh_boxes *boxes = steps->dispatch.boxes;
	return boxes ? rh_round_count(steps->count, boxes->unit) : steps->count;
}

static int open_order(const struct rh_dispatch *dispatch, struct rh_dispatch_steps *out)
{
	struct rh_stage *units = NULL;
	struct rh_schedule_request request = {.devices = dispatch->devices, .admission_limit = dispatch->admission_limit};
	int rc = 0;
	if (dispatch->boxes) {
		rc = dispatch_units_request(dispatch, &units, &request);
	} else {
		int stages = dispatch_model_stages(dispatch->plan, &out->stage);
		rc = stages < 0 ? stages : 0;
		request.stages = stages;
		request.stage = out->stage;
	}
	out->stages = request.stages;
	if (!rc)
		rc = rh_endless_open(dispatch->schedule, &request, &out->endless);
	rh_free(units);
	return rc;
}

int rh_dispatch_steps_open(const struct rh_dispatch *dispatch, int64_t count, struct rh_dispatch_steps *out)
{
	RH_ASSERT(rh_dispatch_is_local(dispatch));
	*out = (struct rh_dispatch_steps){.dispatch = *dispatch, .count = count};
	int rc = open_order(dispatch, out);
	if (rc)
		return rc;
	out->forward = rh_alloc((size_t)out->stages, sizeof *out->forward);
	out->other = rh_alloc((size_t)out->stages, sizeof *out->other);
	return out->forward && out->other ? 0 : -ENOMEM;
}

/* A slot of one of several boxes: a unit. */
static int append_unit(struct rh_dispatch_steps *steps, struct rh_slot *slot, int64_t number, struct rh_program *program)
{
	struct dispatch_dealing deal = {.dispatch = &steps->dispatch,
	                                .count = steps->count,
	                                .units = units_of(steps),
	                                .turn = {steps->turn[0], steps->turn[1]},
	                                .out = program};
	if (slot->stage != steps->dispatch.boxes->box)
		return 0;
	int rc = dispatch_deal_unit(&deal, slot, number);
	memcpy(steps->turn, deal.turn, sizeof steps->turn);
	return rc;
}

static int append(struct rh_dispatch_steps *steps, const struct rh_slot *from, struct rh_program *program)
{
	int64_t *made = from->kind == RH_SLOT_FORWARD ? steps->forward : steps->other, units = units_of(steps);
	struct rh_slot slot = *from;
	slot.step = made[slot.stage] / units;
	int64_t number = made[slot.stage]++ % units;
	if (steps->dispatch.boxes)
		return append_unit(steps, &slot, number, program);
	slot.first = number;
	if (!dispatch_keeps_slot(steps->dispatch.model, steps->count, &slot))
		return 0;
	int rc = rh_grow(&program->slot, &program->capacity, program->slots + 1, sizeof *program->slot);
	if (!rc)
		program->slot[program->slots++] = slot;
	return rc;
}

int rh_dispatch_steps_more(struct rh_dispatch_steps *steps, size_t over, struct rh_program *program)
{
	size_t each = 2 * (size_t)steps->stages * (size_t)units_of(steps);
	RH_ASSERT(over <= steps->noted && steps->noted <= program->slots);
	if (over)
		memmove(program->slot, program->slot + over, (program->slots - over) * sizeof *program->slot);
	program->slots -= over;
	steps->noted -= over;
	do {
		int rc = rh_endless_more(steps->endless, each, &steps->piece);
		for (size_t i = 0; !rc && i < steps->piece.slots; i++)
			rc = append(steps, &steps->piece.slot[i], program);
		if (rc)
			return rc;
		while (steps->noted < program->slots && dispatch_note_sums(program, steps->noted))
			steps->noted++;
	} while (!steps->noted);
	return 0;
}

int64_t rh_dispatch_steps_whole(const struct rh_dispatch_steps *steps)
{
	int64_t units = units_of(steps), least = INT64_MAX;
	int first = steps->dispatch.boxes ? steps->dispatch.boxes->box : 0;
	int end = steps->dispatch.boxes ? first + 1 : steps->stages;
	for (int s = first; s < end; s++)
		least = rh_min(least, rh_min(steps->forward[s], steps->other[s]));
	return least / units;
}

void rh_dispatch_steps_close(struct rh_dispatch_steps *steps)
{
	rh_endless_close(steps->endless);
	rh_program_free(&steps->piece);
	rh_free(steps->stage);
	rh_free(steps->forward);
	rh_free(steps->other);
	*steps = (struct rh_dispatch_steps){0};
}
