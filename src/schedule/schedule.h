/* All schedules behind one interface: the request, and the table of schedules. To add one, write its file and its row
 * (schedule_internal.h). */
#ifndef RH_SCHEDULE_SCHEDULE_H
#define RH_SCHEDULE_SCHEDULE_H

#include "partition/costs.h"
#include "schedule/program.h"

struct rh_schedule_request {
	int devices;
	int64_t micro_batches, steps; /* micro-batches of a step */
	/* RoundPipe: the plan, and the most micro-batches of a round */
	const struct rh_stage_plan *plan;
	int64_t round_micro_batches;
	/* the other schedules: model stages bottom up, covering all layers; device d has stages d, d + devices, ... (zb-v: d and 2 *
	 * devices - 1 - d) */
	const struct rh_stage *stage;
	int stages;
	/* For schedules that search for an order, or run what is ready first: seconds of the stages' layers, and of a transfer between
	 * devices. NULL: forward, input gradient and weight gradient take 1 each. */
	const struct rh_cost_sums *sums;
	double hop_s;
	/* PACI: each stage's admission limit, bottom up: its most micro-batches in flight. NULL: the paper's, stages - stage (0-based) */
	const int64_t *admission_limit;
};

enum rh_schedule_update {
	RH_UPDATE_FLUSHES, /* a step begins when the step before has ended on all devices */
	RH_UPDATE_STALE,   /* a step begins when the step before the last has ended */
	/* Each stage updates its own blocks, and no stage waits for another's update: steps run without a flush between them. Stage s has at
	 * most devices - s micro-batches in flight, or its admission limit if that is more (rh_dispatch_in_flight). */
	RH_UPDATE_LOCAL
};

struct rh_schedule {
	const char *name, *source; /* of the paper */
	enum rh_schedule_update update;
	int stages_least, stages_most; /* model stages a device; 0, 0: the plan's stages, dealt out to the devices in turn */
	int rounds;                    /* a step's micro-batches go in rounds (rh_dispatch.train_round); else all pass as one */
	/* Backwards are split into INPUT_GRADIENT and WEIGHT_GRADIENT slots. A step with fewer micro-batches than the longest step runs the
	 * longest step's program without the slots of the missing micro-batches. */
	int splits_backward;
	int swaps; /* weights are uploaded for each slot; a boundary passes through the host even on one device */
	/* Appends the slots of all steps. Whatever a slot reads, an earlier slot has written. A stage's backwards are in ascending order
	 * of micro-batches, because gradients are summed in that order. RH_NO_ORDER: the schedule has no order for this number of
	 * micro-batches, and the run uses that of looped-bfs. Two helpers: weave_steps, where each device's order is known;
	 * listing_make, where a device runs what is ready. */
	int (*make)(const struct rh_schedule_request *request, struct rh_program *out);
};

/* A verdict, not a fault. */
enum { RH_NO_ORDER = -EDOM };

/* NULL, which is no training or the default, is RoundPipe. */
static inline int rh_schedule_has_rounds(const struct rh_schedule *schedule)
{
	return !schedule || schedule->rounds;
}

/* 1: stages are a plan's, which cuts forward and backward apart; 0: model stages that both share. NULL: likewise. */
static inline int rh_schedule_has_planned_stages(const struct rh_schedule *schedule)
{
	return !schedule || !schedule->stages_least;
}

extern const struct rh_schedule rh_schedules[];
extern const int rh_schedule_count;
/* For messages: the names that the key `schedule` may have. Asynchronous RoundPipe is not among them: optimizer_staleness selects it. */
const char *rh_schedule_names(void);
/* NULL when there is none of that name. */
const struct rh_schedule *rh_schedule_find(const char *name);

/* The program of all steps. -EINVAL names what does not match (stages and devices, micro-batches). */
int rh_schedule_make(const struct rh_schedule *schedule, const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;

/* For schedules other than RoundPipe. Beyond some number of micro-batches a step's program only has more copies of one period between its
 * fill and its drain. *fewer: a smaller number of micro-batches, a multiple of *period below the given one, whose program has the same
 * fill, period and drain, so that as much is in flight at once, in the same order. */
int rh_schedule_fewer(const struct rh_schedule *schedule, const struct rh_schedule_request *request, int64_t *fewer,
                      int64_t *period) RH_MUST;

#endif
