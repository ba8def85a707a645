/* A schedule is a pure function from (plan, devices, micro-batches) to a program: the slots of one step, in an order in which they may be
 * enqueued. Whatever a slot reads, an earlier slot has written. Lowering reads programs and knows no schedule. */
#ifndef RH_SCHEDULE_PROGRAM_H
#define RH_SCHEDULE_PROGRAM_H

#include "partition/rounds.h"
#include "partition/stage_plan.h"

enum rh_slot_kind {
	RH_SLOT_FORWARD,
	RH_SLOT_FUSED,          /* forward, loss and backward of the top layers */
	RH_SLOT_BACKWARD,       /* recompute and backward */
	RH_SLOT_INFER,          /* forward of the top layers with loss or logits, no backward */
	RH_SLOT_INPUT_GRADIENT, /* first part of a split backward: recompute, and the gradient that the stage below waits for */
	RH_SLOT_WEIGHT_GRADIENT /* its second part: the deferred weight gradients */
};

/* One stage of one round on one device: micro-batches [first, first + count), in order. */
struct rh_slot {
	enum rh_slot_kind kind;
	int lo, hi; /* layers */
	int device;
	/* 1: its round is the step's first (gradient sums begin at zero) or last (they are rounded). RoundPipe's maker sets them, for other
	 * schedules dispatch.c does. */
	int first_round, last_round;
	/* Set by dispatch.c for slots that add to gradient sums. sums_there: the device still has the stage's sums from its slot before;
	 * sums_stay: they stay for its next slot. */
	int sums_there, sums_stay;
	int64_t first, count;
	int stage;    /* its number in the schedule: RoundPipe's place in the round; the others' model stage, bottom up */
	int64_t step; /* where a program holds several */
};

static inline int rh_slot_makes_gradients(const struct rh_slot *slot)
{
	return slot->kind != RH_SLOT_FORWARD && slot->kind != RH_SLOT_INFER;
}

/* Does the slot read the gradient at its upper end? */
static inline int rh_slot_reads_gradient(const struct rh_stage_plan *cuts, const struct rh_slot *slot)
{
	int is_below = slot->hi < rh_stage_plan_top(cuts) || cuts->feeds;
	return slot->kind == RH_SLOT_BACKWARD || (slot->kind == RH_SLOT_INPUT_GRADIENT && is_below);
}
/* Is the slot the first of its micro-batches to need what comes from another box: the input at layer 0; the gradient at the top? */
static inline int rh_slot_takes_input(const struct rh_stage_plan *cuts, const struct rh_slot *slot)
{
	return cuts->is_fed && slot->lo == 0 && slot->kind != RH_SLOT_WEIGHT_GRADIENT &&
	       (slot->kind == RH_SLOT_FORWARD || !cuts->forward_stages);
}
static inline int rh_slot_takes_gradient(const struct rh_stage_plan *cuts, const struct rh_slot *slot)
{
	return cuts->feeds && slot->hi == rh_stage_plan_top(cuts) && rh_slot_reads_gradient(cuts, slot);
}
/* Does it send its output, or its input's gradient, to another box? */
static inline int rh_slot_gives_output(const struct rh_stage_plan *cuts, const struct rh_slot *slot)
{
	int taps = cuts->tap > slot->lo && cuts->tap <= slot->hi;
	return slot->kind == RH_SLOT_FORWARD && (taps || (cuts->feeds && slot->hi == rh_stage_plan_top(cuts)));
}
static inline int rh_slot_gives_gradient(const struct rh_stage_plan *cuts, const struct rh_slot *slot)
{
	return cuts->owes_gradient && slot->lo == 0 && rh_slot_makes_gradients(slot) && slot->kind != RH_SLOT_WEIGHT_GRADIENT;
}

struct rh_program {
	struct rh_slot *slot;
	size_t slots, capacity;       /* reused from step to step */
	char replacement_reason[160]; /* why looped-bfs's order replaces the schedule's, which has none here; "": it does not */
};
void rh_program_free(struct rh_program *program);

/* The default number of micro-batches in a round: min(M, max(8, 2N)). */
int64_t rh_roundpipe_default_round(int64_t micro_batches, int devices);

/* RoundPipe: slot i of a step runs on device (*turn + i) mod devices; *turn moves on by the step's slots. trains 0: forward slots, then
 * RH_SLOT_INFER. */
int rh_roundpipe_program(const struct rh_stage_plan *plan, int trains, int devices, int64_t micro_batches, int64_t round_micro_batches,
                         int *turn, struct rh_program *out) RH_MUST;

#endif
