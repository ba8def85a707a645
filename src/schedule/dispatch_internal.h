/* Inside src/schedule: what programs of whole calls (dispatch.c, box_programs.c) and those made piece by piece (dispatch_steps.c) share. */
#ifndef RH_SCHEDULE_DISPATCH_INTERNAL_H
#define RH_SCHEDULE_DISPATCH_INTERNAL_H

#include "schedule/dispatch.h"

/* The plan's stages bottom up, those that forward and backward share: the fused one is the last. Returns their number, or -ENOMEM; the
 * caller frees *out. */
int dispatch_model_stages(const struct rh_stage_plan *plan, struct rh_stage **out) RH_MUST;
/* A schedule's slot as the executor runs it; 0: it does not. It runs micro-batches below `count`, no forward of the top stage, which
 * computes its loss with its gradient, and no backward of frozen layers below the lowest trained one. A stage's first backward begins its
 * sums, its last one ends them. */
int dispatch_keeps_slot(const struct rh_model *model, int64_t count, struct rh_slot *slot) RH_MUST;
/* Sums stay on the device if the next slot that adds to them is also the device's next slot that makes gradients: notes this of slot i. 0:
 * the program has no such slot, so that one that is appended may be it. */
int dispatch_note_sums(struct rh_program *program, size_t i);

/* The caller frees *stage, to which the request points; it sets micro_batches and steps. -ENOMEM. */
int dispatch_units_request(const struct rh_dispatch *dispatch, struct rh_stage **stage, struct rh_schedule_request *out) RH_MUST;

struct dispatch_dealing {
	const struct rh_dispatch *dispatch;
	int64_t count, units; /* micro-batches, of which each unit has about as many */
	int turn[2];          /* of backwards, of forwards: each kind is spread over all devices */
	struct rh_program *out;
};
/* Appends one unit on its way through the stages that this kind of slot has in the box. */
int dispatch_deal_unit(struct dispatch_dealing *deal, const struct rh_slot *unit, int64_t number) RH_MUST;

#endif
