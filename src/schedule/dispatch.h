/* The programs of a run, one for each call: the schedule's program, completed with what devices need to know. Every program that the
 * executor lowers is made here. */
#ifndef RH_SCHEDULE_DISPATCH_H
#define RH_SCHEDULE_DISPATCH_H

#include "schedule/schedule.h"

/* This box's place among several that train one model together: box 0 holds the lowest layers. */
struct rh_boxes {
	int boxes, box;
	/* The most micro-batches that are sent on together: inside a box they are a round. 0: boxes do not wait for one another (mode
	 * fluidpipe), and each has rounds of its own. */
	int64_t unit;
};

/* Do a box's gradient sums leave its device before they are whole: between two units, or, with other stages of the box between them, the
 * two parts of a split backward? */
static inline int rh_boxes_cross_rounds(const struct rh_schedule *schedule, int64_t micro_batches, int64_t unit)
{
	return micro_batches > unit || (schedule && schedule->splits_backward);
}

struct rh_dispatch {
	const struct rh_model *model; /* all pointers are borrowed */
	const struct rh_stage_plan *plan;
	const struct rh_schedule
	        *schedule; /* of training; NULL: no training. One other than RoundPipe needs a plan whose forward and backward cuts agree */
	int devices;
	int64_t train_micro_batches;      /* the most in one training step; 0: none */
	int64_t train_round, infer_round; /* M_R */
	const int64_t *admission_limit;   /* as in struct rh_schedule_request */
	int64_t update_delay;             /* of local updates: rh_dispatch_publishes */
	/* Above 1: texts are in chunks, which are the micro-batches of a training step: so many follow one another, the last of which may
	 * be empty, and rounds do not part them. RoundPipe's schedule alone. */
	int chunks;
	struct rh_chunk_classes classes; /* of these */
	const struct rh_boxes *boxes;    /* NULL: this box alone; else the schedule orders units over boxes, unless it is RoundPipe */
};

/* The program of a call with `count` micro-batches. *turn: the device of RoundPipe's next slot, advanced. Other schedules' model stages are
 * the plan's; their top stage computes loss and gradient at once, in its backward slot. Forward-only calls always use RoundPipe's order.
 * Where the schedule has no order for this number of micro-batches, looped-bfs's replaces it, with the same results, and
 * out->replacement_reason says why. */
int rh_dispatch_call(const struct rh_dispatch *dispatch, int trains, int64_t count, int *turn, struct rh_program *out) RH_MUST;

/* A shorter step that shows how much a step keeps in flight, for schedules other than RoundPipe. Each of its micro-batches stands for
 * `scale` of the step's; the step has `periods` more periods of `period` micro-batches. */
struct rh_dispatch_brief {
	int64_t count, scale, period, periods;
};
/* rh_schedule_fewer. */
int rh_dispatch_fewer(const struct rh_dispatch *dispatch, int64_t count, int64_t *fewer, int64_t *period) RH_MUST;
int rh_dispatch_brief(const struct rh_dispatch *dispatch, int64_t count, struct rh_dispatch_brief *brief, struct rh_program *out) RH_MUST;
/* The program of that shorter step. */
int rh_dispatch_shorter(const struct rh_dispatch *dispatch, int64_t count, struct rh_program *out) RH_MUST;

/* This box's slots of `steps` steps with `count` micro-batches each; dispatch->boxes must be given. */
int rh_dispatch_boxes(const struct rh_dispatch *dispatch, int64_t count, int64_t steps, int *turn, struct rh_program *out) RH_MUST;

/* For a step that ends with a flush: the most micro-batches in flight in the box below (0: there is none), and in this box. */
int rh_dispatch_boxes_in_flight(const struct rh_dispatch *dispatch, int64_t count, int64_t *below, int64_t *own) RH_MUST;

/* For a schedule that splits backwards: the device of each of this box's backward stages, top down, and the most micro-batches whose
 * weight gradients it defers. */
int rh_dispatch_boxes_deferrals(const struct rh_dispatch *dispatch, int stages, struct rh_deferral *out) RH_MUST;

/* Of calls of `longest` micro-batches, one less, and so on: how many have a program that is no part of a longer call's. */
int64_t rh_dispatch_distinct(const struct rh_dispatch *dispatch, int trains, int64_t longest);

/* 1: each stage updates its own blocks. Then several steps, of `count` micro-batches each, are one program without a flush. */
int rh_dispatch_is_local(const struct rh_dispatch *dispatch);
int rh_dispatch_stretch(const struct rh_dispatch *dispatch, int64_t count, int64_t steps, struct rh_program *out) RH_MUST;
/* Between boxes without a flush, in steps. data: how far ahead of a step's first activation its micro-batches go. results: how much later
 * the results of a step pass; then box 1, whose admission limit this is, has done the step's last backward. shares: how much earlier the
 * step is whose norm a step clips by: its results pass before box 1 begins the first forward of the step in whose place it lowers this
 * one's, as many units ahead as it has in flight, so that receives are posted a trip ahead. units: of a step. */
struct rh_boxes_ahead {
	int64_t data, results, shares;
};
struct rh_boxes_ahead rh_dispatch_ahead(int64_t admission_limit, int64_t units);
/* The admission limit in such a program: the most units that the stage may have in flight. With one box a unit is a micro-batch; with
 * several the limit is this box's. */
int64_t rh_dispatch_admission_limit(const struct rh_dispatch *dispatch, int stage);
/* The most updates of a stage between a unit's forward and its backward: with admission limit w and a units in a step ceil((w - 1) / a).
 * The first stage's is the largest. */
int64_t rh_dispatch_drift_bound(const struct rh_dispatch *dispatch, int stage);
/* Updates that do not block their stage are published at fixed places of its order: 1 after the slot of the update_delay-th backward behind
 * an update; 0 elsewhere. After n backwards of a program, forward and backward both have max(0, floor((n - update_delay) / a)) updates. So
 * the drift's bound is what it is without a delay; were the place chosen while it runs, it would be one more. */
int rh_dispatch_publishes(const struct rh_dispatch *dispatch, const struct rh_slot *slot);
/* The most micro-batches that a stage (bottom up) has in flight in such a program; with several boxes the most that this box has. */
int64_t rh_dispatch_in_flight(const struct rh_dispatch *dispatch, int stage);
int64_t rh_dispatch_in_flight_below(const struct rh_dispatch *dispatch); /* in the box below */

#endif
