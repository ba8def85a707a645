#include "core/alloc.h"
#include "core/minmax.h"
#include "schedule/dispatch_internal.h"

#include <stdio.h>

/* The plan's stages bottom up, those that forward and backward share: the fused one is the last. */
int dispatch_model_stages(const struct rh_stage_plan *plan, struct rh_stage **out)
{
	int stages = plan->forward_stages + 1;
	struct rh_stage *stage = rh_alloc((size_t)stages, sizeof *stage);
	if (!stage)
		return -ENOMEM;
	for (int s = 0; s < plan->forward_stages; s++)
		stage[s] = plan->forward[s];
	stage[stages - 1] = plan->backward[0];
	*out = stage;
	return stages;
}

int dispatch_keeps_slot(const struct rh_model *model, int64_t count, struct rh_slot *slot)
{
	int top = slot->hi == model->layers, forward = slot->kind == RH_SLOT_FORWARD;
	if (slot->first >= count || (forward ? top : slot->hi <= model->first_trained))
		return 0;
	slot->first_round = slot->first == 0 && slot->kind != RH_SLOT_WEIGHT_GRADIENT;
	slot->last_round = slot->first + slot->count == count && slot->kind != RH_SLOT_INPUT_GRADIENT;
	if (slot->kind == RH_SLOT_BACKWARD && top)
		slot->kind = RH_SLOT_FUSED;
	if (!forward && !top && slot->lo < model->first_trained)
		slot->lo = model->first_trained;
	return 1;
}

static void drop_unneeded_slots(const struct rh_model *model, int64_t count, struct rh_program *program)
{
	size_t kept = 0;
	for (size_t i = 0; i < program->slots; i++) {
		struct rh_slot slot = program->slot[i];
		if (dispatch_keeps_slot(model, count, &slot))
			program->slot[kept++] = slot;
	}
	program->slots = kept;
}

/* The next slot that adds to the same sums, or makes gradients on the same device; NULL: the program has none. */
static const struct rh_slot *next_sums(const struct rh_program *program, size_t i)
{
	const struct rh_slot *slot = &program->slot[i];
	for (size_t k = i + 1; k < program->slots; k++) {
		const struct rh_slot *later = &program->slot[k];
		if (rh_slot_makes_gradients(later) && (later->device == slot->device || later->lo == slot->lo))
			return later;
	}
	return NULL;
}

int dispatch_note_sums(struct rh_program *program, size_t i)
{
	struct rh_slot *slot = &program->slot[i], *next = (struct rh_slot *)(uintptr_t)next_sums(program, i);
	if (!rh_slot_makes_gradients(slot))
		return 1;
	if (next && next->device == slot->device && next->lo == slot->lo && next->step == slot->step)
		slot->sums_stay = next->sums_there = 1;
	return next != NULL;
}

static void note_sums(struct rh_program *program)
{
	for (size_t i = 0; i < program->slots; i++)
		(void)dispatch_note_sums(program, i);
}

/* Schedules that split backwards have room for what the longest step defers: a shorter step runs the longest step's program and skips the
 * missing micro-batches. */
static int make_scheduled(const struct rh_dispatch *dispatch, int64_t count, int64_t steps, struct rh_program *out)
{
	const struct rh_schedule *schedule = dispatch->schedule;
	struct rh_stage *stage = NULL;
	int stages = dispatch_model_stages(dispatch->plan, &stage);
	if (stages < 0)
		return stages;
	struct rh_schedule_request request = {.devices = dispatch->devices,
	                                      .micro_batches = schedule->splits_backward ? dispatch->train_micro_batches : count,
	                                      .steps = steps,
	                                      .stage = stage,
	                                      .stages = stages,
	                                      .admission_limit = dispatch->admission_limit};
	int rc = rh_schedule_make(schedule, &request, out);
	if (rc == RH_NO_ORDER) {
		snprintf(out->replacement_reason, sizeof out->replacement_reason, "%s", rh_error(rc));
		rh_error_clear();
		rc = rh_schedule_make(rh_schedule_find("looped-bfs"), &request, out);
	}
	if (!rc)
		drop_unneeded_slots(dispatch->model, count, out);
	rh_free(stage);
	return rc;
}

static int follows_schedule(const struct rh_dispatch *dispatch, int trains)
{
	return trains && !rh_schedule_has_planned_stages(dispatch->schedule);
}

/* RoundPipe's program of texts, of which each is so many micro-batches. */
static int make_of_chunks(const struct rh_dispatch *dispatch, int64_t count, int *turn, struct rh_program *out)
{
	int64_t chunks = dispatch->chunks, texts = count / chunks, round = rh_max(dispatch->train_round / chunks, 1);
	RH_ASSERT(count % chunks == 0);
	int rc = rh_roundpipe_program(dispatch->plan, 1, dispatch->devices, texts, rh_min(round, texts), turn, out);
	for (size_t i = 0; !rc && i < out->slots; i++) {
		out->slot[i].first *= chunks;
		out->slot[i].count *= chunks;
	}
	return rc;
}

int rh_dispatch_call(const struct rh_dispatch *dispatch, int trains, int64_t count, int *turn, struct rh_program *out)
{
	int64_t round = trains ? dispatch->train_round : dispatch->infer_round;
	int rc;
	out->replacement_reason[0] = 0;
	if (dispatch->boxes && follows_schedule(dispatch, trains))
		rc = rh_dispatch_boxes(dispatch, count, 1, turn, out);
	else if (follows_schedule(dispatch, trains))
		rc = make_scheduled(dispatch, count, 1, out);
	else if (trains && dispatch->chunks > 1)
		rc = make_of_chunks(dispatch, count, turn, out);
	else
		rc = rh_roundpipe_program(dispatch->plan, trains, dispatch->devices, count, round < count ? round : count, turn, out);
	if (!rc)
		note_sums(out);
	return rc;
}

int rh_dispatch_shorter(const struct rh_dispatch *dispatch, int64_t count, struct rh_program *out)
{
	struct rh_dispatch shorter = *dispatch;
	int turn = 0;
	shorter.train_micro_batches = count;
	return rh_dispatch_call(&shorter, 1, count, &turn, out);
}

int rh_dispatch_fewer(const struct rh_dispatch *dispatch, int64_t count, int64_t *fewer, int64_t *period)
{
	struct rh_stage *stage = NULL;
	int stages = dispatch_model_stages(dispatch->plan, &stage);
	if (stages < 0)
		return stages;
	const struct rh_schedule_request request = {.devices = dispatch->devices,
	                                            .micro_batches = count,
	                                            .stage = stage,
	                                            .stages = stages,
	                                            .admission_limit = dispatch->admission_limit};
	int rc = rh_schedule_fewer(dispatch->schedule, &request, fewer, period);
	if (rc == RH_NO_ORDER) { /* looped-bfs replaces it; each of its slots has all micro-batches */
		rh_error_clear();
		*fewer = dispatch->devices + count % dispatch->devices;
		*period = dispatch->devices;
		rc = 0;
	}
	rh_free(stage);
	return rc;
}

int rh_dispatch_brief(const struct rh_dispatch *dispatch, int64_t count, struct rh_dispatch_brief *brief, struct rh_program *out)
{
	RH_ASSERT(follows_schedule(dispatch, 1) && (!dispatch->schedule->splits_backward || count == dispatch->train_micro_batches));
	*brief = (struct rh_dispatch_brief){.count = count, .scale = 1, .period = 1};
	if (dispatch->boxes)
		return rh_dispatch_shorter(dispatch, count, out);
	int rc = rh_dispatch_fewer(dispatch, count, &brief->count, &brief->period);
	if (rc)
		return rc;
	rc = rh_dispatch_shorter(dispatch, brief->count, out);
	if (rc)
		return rc;
	brief->periods = (count - brief->count) / brief->period;
	if (!out->slots || out->slot[0].count < 2)
		return 0;
	*brief = (struct rh_dispatch_brief){.count = 1, .scale = count}; /* each slot has all micro-batches */
	return rh_dispatch_shorter(dispatch, 1, out);
}

int64_t rh_dispatch_distinct(const struct rh_dispatch *dispatch, int trains, int64_t longest)
{
	int64_t round = trains ? dispatch->train_round : dispatch->infer_round;
	/* a second round may overlap the first's; where backwards are split, a shorter step's program is a part of the longest's */
	if (follows_schedule(dispatch, trains) && dispatch->schedule->splits_backward)
		round = 1;
	return round < longest ? round : longest;
}

int rh_dispatch_is_local(const struct rh_dispatch *dispatch)
{
	return dispatch->train_micro_batches && dispatch->schedule->update == RH_UPDATE_LOCAL;
}

int rh_dispatch_stretch(const struct rh_dispatch *dispatch, int64_t count, int64_t steps, struct rh_program *out)
{
	RH_ASSERT(rh_dispatch_is_local(dispatch));
	int turn = 0;
	int rc = dispatch->boxes ? rh_dispatch_boxes(dispatch, count, steps, &turn, out) : make_scheduled(dispatch, count, steps, out);
	if (!rc)
		note_sums(out);
	return rc;
}

struct rh_boxes_ahead rh_dispatch_ahead(int64_t admission_limit, int64_t units)
{
	int64_t in_flight = (admission_limit + units - 1) / units, results = 1 + (admission_limit - 1 + units - 1) / units;
	return (struct rh_boxes_ahead){.data = in_flight, .results = results, .shares = results + 2 * in_flight};
}

/* The schedule's own limit: 1F1B's, which is the PACI paper's. */
static int64_t own_limit(const struct rh_dispatch *dispatch, int at)
{
	return (dispatch->boxes ? dispatch->boxes->boxes : dispatch->devices) - at;
}

int64_t rh_dispatch_admission_limit(const struct rh_dispatch *dispatch, int stage)
{
	int at = dispatch->boxes ? dispatch->boxes->box : stage;
	return dispatch->admission_limit ? dispatch->admission_limit[at] : own_limit(dispatch, at);
}

int64_t rh_dispatch_drift_bound(const struct rh_dispatch *dispatch, int stage)
{
	int64_t units = rh_round_count(dispatch->train_micro_batches, dispatch->boxes ? dispatch->boxes->unit : 1);
	return (rh_dispatch_admission_limit(dispatch, stage) - 1 + units - 1) / units;
}

int rh_dispatch_publishes(const struct rh_dispatch *dispatch, const struct rh_slot *slot)
{
	int64_t count = dispatch->train_micro_batches, first, size;
	if (!dispatch->update_delay || !rh_slot_makes_gradients(slot))
		return 0;
	rh_round_range(count, rh_round_count(count, dispatch->boxes ? dispatch->boxes->unit : 1), dispatch->update_delay - 1, &first,
	               &size);
	return slot->first == first;
}

static int64_t in_flight(const struct rh_dispatch *dispatch, int at)
{
	const struct rh_boxes *boxes = dispatch->boxes;
	int64_t own = own_limit(dispatch, at);
	if (dispatch->admission_limit && dispatch->admission_limit[at] > own)
		own = dispatch->admission_limit[at];
	return boxes ? own * boxes->unit : own;
}

int64_t rh_dispatch_in_flight(const struct rh_dispatch *dispatch, int stage)
{
	return in_flight(dispatch, dispatch->boxes ? dispatch->boxes->box : stage);
}

int64_t rh_dispatch_in_flight_below(const struct rh_dispatch *dispatch)
{
	return in_flight(dispatch, dispatch->boxes->box - 1);
}
