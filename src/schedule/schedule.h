/* All schedules under one form: what is asked of them, and the table that lists them. Adding one is its file and its row. */
#ifndef RH_SCHEDULE_SCHEDULE_H
#define RH_SCHEDULE_SCHEDULE_H

#include "partition/costs.h"
#include "schedule/program.h"

struct rh_schedule_request {
	int devices;
	int64_t micro_batches, steps; /* micro-batches of a step */
	/* RoundPipe: the plan, and the most micro-batches of a round */
	const struct rh_plan *plan;
	int64_t round_micro_batches;
	/* the others: model stages bottom up, covering all layers; device d has stages d, d + devices, ... (zb-v: d and 2 * devices - 1 -
	 * d) */
	const struct rh_stage *stage;
	int stages;
	/* Those that look for an order, or admit as things arrive, need times: of the stages' layers, and of a hop between devices. NULL:
	 * forward, input gradient and weight gradient take 1 each. */
	const struct rh_cost_sums *sums;
	double hop_s;
	/* PACI: the most micro-batches in flight, for each stage bottom up; NULL: its own, stages - stage (0-based) */
	const int64_t *window;
};

enum rh_schedule_update {
	RH_UPDATE_FLUSHES, /* a step begins when the step before has ended on all devices */
	RH_UPDATE_STALE,   /* a step begins when the step before the last has ended */
	/* Each stage updates by itself, nobody waits: steps are one stretch. Of stage s no more than devices - s micro-batches are in flight,
	 * or its `window` if that is more: there is room for these (rh_dispatch_window). */
	RH_UPDATE_LOCAL
};

struct rh_schedule {
	const char *name, *source; /* of the paper */
	enum rh_schedule_update update;
	int stages_least, stages_most; /* model stages a device; 0, 0: RoundPipe's */
	/* Backwards are INPUT_GRADIENT and WEIGHT_GRADIENT slots. A step of fewer micro-batches than the longest runs the longest's program
	 * without the slots of those that it lacks. */
	int splits_backward;
	int swaps; /* weights are uploaded for each slot; a boundary passes through the host even on one device */
	/* Appends the slots of all steps, in an order in which whatever a slot reads was written by one before it, and a stage's backwards in
	 * ascending micro-batches: gradients are summed in that order. RH_NO_ORDER: none for so many micro-batches, and a run takes
	 * looped-bfs's. Two ways to one: weave_steps, where each device's order is known; listing_make, where devices take what is ready. */
	int (*make)(const struct rh_schedule_request *request, struct rh_program *out);
};

/* A verdict, no fault. */
enum { RH_NO_ORDER = -EDOM };

/* RoundPipe's rounds of a plan's stages; else model stages that forward and backward share. NULL, where nothing is trained, or named:
 * RoundPipe. */
static inline int rh_schedule_is_roundpipe(const struct rh_schedule *schedule)
{
	return !schedule || !schedule->stages_least;
}

extern const struct rh_schedule rh_schedules[];
extern const int rh_schedule_count;
/* Those that the key `schedule` may name, as a list to be read: all but asynchronous RoundPipe, which optimizer_staleness makes of it. */
const char *rh_schedule_names(void);
/* NULL when there is none of that name. */
const struct rh_schedule *rh_schedule_find(const char *name);

/* The program of all steps. -EINVAL names what does not go together (stages and devices, micro-batches). */
int rh_schedule_make(const struct rh_schedule *schedule, const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;

/* Not of RoundPipe. From some number of micro-batches on a step is only longer: its program has more of the same periods between its two
 * ends. *fewer: of so many micro-batches, and a multiple of *period more, there are the same ends and periods as of all of them, so that as
 * much is in flight at once, in the same order. */
int rh_schedule_fewer(const struct rh_schedule *schedule, const struct rh_schedule_request *request, int64_t *fewer,
                      int64_t *period) RH_MUST;

#endif
