/* A step over several boxes, as one of them runs it. The schedule orders units (a round's micro-batches) over boxes, each of which is a
 * device to it. Inside the box a unit goes through the plan's stages, dealt out to the box's devices in turn, as RoundPipe's are. */
#include "core/alloc.h"
#include "schedule/dispatch_internal.h"
#include "schedule/evaluate.h"

#include <math.h>
#include <stdio.h>

int dispatch_units_request(const struct rh_dispatch *dispatch, struct rh_stage **stage, struct rh_schedule_request *out)
{
	int boxes = dispatch->boxes->boxes;
	*stage = rh_alloc((size_t)boxes, sizeof **stage);
	if (!*stage)
		return -ENOMEM;
	for (int k = 0; k < boxes; k++)
		(*stage)[k] = (struct rh_stage){k, k + 1};
	*out = (struct rh_schedule_request){
	        .devices = boxes, .stage = *stage, .stages = boxes, .admission_limit = dispatch->admission_limit};
	/* Limits above PACI's own are for slow links. hop_s is the longest hop at which these limits keep all boxes busy: a unit takes 3 s a
	 * box here, and returns to box 1 just when that has begun as many units as its limit allows. */
	if (dispatch->admission_limit && boxes > 1)
		out->hop_s = fmax(3.0 * (double)(dispatch->admission_limit[0] - boxes) / (2 * (boxes - 1)), 0);
	return 0;
}

static int order_units(const struct rh_dispatch *dispatch, int64_t units, int64_t steps, struct rh_program *out)
{
	struct rh_stage *stage;
	struct rh_schedule_request request;
	int rc = dispatch_units_request(dispatch, &stage, &request);
	if (rc)
		return rc;
	request.micro_batches = units;
	request.steps = steps;
	rc = rh_schedule_make(dispatch->schedule, &request, out);
	if (rc == RH_NO_ORDER) {
		snprintf(out->replacement_reason, sizeof out->replacement_reason, "%s", rh_error(rc));
		rh_error_clear();
		rc = rh_schedule_make(rh_schedule_find("looped-bfs"), &request, out);
	}
	rh_free(stage);
	return rc;
}

/* One unit through the stages that this kind of slot has in the box. Both parts of a split backward run on the same device, which keeps
 * what the second part needs (rh_dispatch_boxes_deferrals). */
int dispatch_deal_unit(struct dispatch_dealing *deal, const struct rh_slot *unit, int64_t number)
{
	const struct rh_stage_plan *plan = deal->dispatch->plan;
	struct rh_program *out = deal->out;
	int is_forward = unit->kind == RH_SLOT_FORWARD, stages = is_forward ? plan->forward_stages : plan->backward_stages;
	int splits = unit->kind == RH_SLOT_INPUT_GRADIENT || unit->kind == RH_SLOT_WEIGHT_GRADIENT;
	int rc = rh_grow(&out->slot, &out->capacity, out->slots + (size_t)stages, sizeof *out->slot);
	for (int s = 0; !rc && s < stages; s++) {
		struct rh_stage stage = is_forward ? plan->forward[s] : plan->backward[s];
		struct rh_slot slot = {.kind = unit->kind, .lo = stage.lo, .hi = stage.hi, .step = unit->step};
		if (unit->kind == RH_SLOT_BACKWARD && rh_stage_has_head(deal->dispatch->model, stage))
			slot.kind = RH_SLOT_FUSED;
		slot.stage = is_forward ? s : plan->forward_stages + s;
		slot.device = splits ? s % deal->dispatch->devices : deal->turn[is_forward];
		slot.first_round = number == 0 && unit->kind != RH_SLOT_WEIGHT_GRADIENT;
		slot.last_round = number + 1 == deal->units && unit->kind != RH_SLOT_INPUT_GRADIENT;
		rh_round_range(deal->count, deal->units, number, &slot.first, &slot.count);
		if (!splits)
			deal->turn[is_forward] = (deal->turn[is_forward] + 1) % deal->dispatch->devices;
		out->slot[out->slots++] = slot;
	}
	return rc;
}

int rh_dispatch_boxes(const struct rh_dispatch *dispatch, int64_t count, int64_t steps, int *turn, struct rh_program *out)
{
	const struct rh_boxes *boxes = dispatch->boxes;
	struct dispatch_dealing deal = {
	        .dispatch = dispatch, .count = count, .units = rh_round_count(count, boxes->unit), .turn = {*turn, *turn}, .out = out};
	/* a schedule that splits backwards has room for what its longest step defers: a shorter step skips units of that step's program */
	int64_t longest = dispatch->schedule->splits_backward ? dispatch->train_micro_batches : count;
	struct rh_program order = {0};
	int rc = order_units(dispatch, rh_round_count(longest, boxes->unit), steps, &order);
	snprintf(out->replacement_reason, sizeof out->replacement_reason, "%s", order.replacement_reason);
	out->slots = 0;
	for (size_t i = 0; !rc && i < order.slots; i++) {
		const struct rh_slot *slot = &order.slot[i];
		for (int64_t u = slot->first; !rc && slot->device == boxes->box && u < slot->first + slot->count && u < deal.units; u++)
			rc = dispatch_deal_unit(&deal, slot, u);
	}
	*turn = deal.turn[0];
	rh_program_free(&order);
	return rc;
}

int rh_dispatch_boxes_deferrals(const struct rh_dispatch *dispatch, int stages, struct rh_deferral *out)
{
	const struct rh_boxes *boxes = dispatch->boxes;
	struct rh_program order = {0};
	struct rh_deferral *box = rh_alloc((size_t)boxes->boxes, sizeof *box);
	int rc = box ? order_units(dispatch, rh_round_count(dispatch->train_micro_batches, boxes->unit), 1, &order) : -ENOMEM;
	if (!rc)
		rh_program_deferrals(&order, boxes->boxes, box);
	for (int s = 0; !rc && s < stages; s++)
		out[s] = (struct rh_deferral){s % dispatch->devices, box[boxes->box].micro_batches * boxes->unit};
	rh_program_free(&order);
	rh_free(box);
	return rc;
}

int rh_dispatch_boxes_in_flight(const struct rh_dispatch *dispatch, int64_t count, int64_t *below, int64_t *own)
{
	const struct rh_boxes *boxes = dispatch->boxes;
	struct rh_program order = {0};
	int64_t *peak = rh_alloc((size_t)boxes->boxes, sizeof *peak);
	int rc = peak ? order_units(dispatch, rh_round_count(count, boxes->unit), 1, &order) : -ENOMEM;
	if (!rc) {
		rh_program_in_flight(&order, boxes->boxes, peak);
		*below = boxes->box ? peak[boxes->box - 1] * boxes->unit : 0;
		*own = peak[boxes->box] * boxes->unit;
	}
	rh_program_free(&order);
	rh_free(peak);
	return rc;
}
