/* The programs of a run, call by call: its schedule's, as devices run them. What the executor walks is made here alone. */
#ifndef RH_SCHEDULE_DISPATCH_H
#define RH_SCHEDULE_DISPATCH_H

#include "schedule/schedule.h"

/* Where this box stands among several that train one model together: box 0 holds the lowest layers. */
struct rh_boxes {
	int boxes, box;
	int64_t unit; /* micro-batches that are passed on together, at most: a round inside the box */
};

struct rh_dispatch {
	const struct rh_model *model; /* all pointers are borrowed */
	const struct rh_plan *plan;
	const struct rh_schedule
	        *schedule; /* of training, NULL: nothing is. Others than RoundPipe run the stages of a plan whose cuts all agree */
	int devices;
	int64_t train_micro_batches;      /* the most in one training step; 0: none */
	int64_t train_round, infer_round; /* M_R */
	const int64_t *window;            /* of PACI: rh_schedule_request's */
	const struct rh_boxes *boxes;     /* NULL: this box alone. Then the schedule is one of units over boxes */
};

/* Of `count` micro-batches. *turn: of RoundPipe's round robin, moved on. Other schedules' model stages are the plan's; their top stage
 * computes its loss and its gradient at once, in the place of its backward. Forward-only calls go RoundPipe's way.
 * Where the schedule has no order for so many micro-batches looped-bfs's is taken, with the same results, and out->instead says why. */
int rh_dispatch_call(const struct rh_dispatch *dispatch, int trains, int64_t count, int *turn, struct rh_program *out) RH_MUST;

/* What a step under a schedule other than RoundPipe keeps, told by the program of a shorter one: each of its micro-batches stands for
 * `each` of the step's in every slot; and the step has `periods` more of so many micro-batches than it. */
struct rh_dispatch_brief {
	int64_t count, each, period, periods;
};
/* rh_schedule_fewer. */
int rh_dispatch_fewer(const struct rh_dispatch *dispatch, int64_t count, int64_t *fewer, int64_t *period) RH_MUST;
int rh_dispatch_brief(const struct rh_dispatch *dispatch, int64_t count, struct rh_dispatch_brief *brief, struct rh_program *out) RH_MUST;
/* Such a shorter step alone, of so many micro-batches. */
int rh_dispatch_shorter(const struct rh_dispatch *dispatch, int64_t count, struct rh_program *out) RH_MUST;

/* This box's slots of so many steps, of `count` micro-batches each; dispatch->boxes is there. */
int rh_dispatch_boxes(const struct rh_dispatch *dispatch, int64_t count, int64_t steps, int *turn, struct rh_program *out) RH_MUST;

/* Calls of `longest` micro-batches or fewer: so many of the longest among them have a program that no other is a part of. */
int64_t rh_dispatch_distinct(const struct rh_dispatch *dispatch, int trains, int64_t longest);

/* Do stages update themselves? Then several steps are one program without a flush, of `count` micro-batches a step. */
int rh_dispatch_is_local(const struct rh_dispatch *dispatch);
int rh_dispatch_stretch(const struct rh_dispatch *dispatch, int64_t count, int64_t steps, struct rh_program *out) RH_MUST;
/* The most micro-batches that a stage (bottom up) has in flight there. */
int64_t rh_dispatch_window(const struct rh_dispatch *dispatch, int stage);

#endif
