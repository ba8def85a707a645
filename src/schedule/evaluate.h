/* A program in time: the slot recurrence over it (partition/timeline.h), and what it holds. Pure. */
#ifndef RH_SCHEDULE_EVALUATE_H
#define RH_SCHEDULE_EVALUATE_H

#include "partition/timeline.h"
#include "schedule/schedule.h"

enum rh_recompute { RH_RECOMPUTE_LATE, RH_RECOMPUTE_AHEAD }; /* once the gradient is there; while it is on its way */

struct rh_program_timing {
	const struct rh_schedule *schedule;
	const struct rh_cost_sums *sums; /* its hop_s too; recompute_s 0 where activations are kept */
	int devices;
	enum rh_recompute recompute;
	double upload_bytes_per_s; /* of schedules that swap; 0: uploads are free */
};

/* The recurrence's slots are the program's, one for one. */
int rh_program_evaluate(const struct rh_program *program, const struct rh_program_timing *how, struct rh_timeline *out) RH_MUST;

/* The most micro-batches whose activations a device holds at once, over its stages, going through its order: from a forward's begin to the
 * end of the backward, or of its weight gradient where that is split off. peak: (devices). A fused slot holds one while it runs. */
void rh_program_in_flight(const struct rh_program *program, int devices, int64_t *peak);

/* Of each model stage (stages), where backwards are split: its device, and the most micro-batches between the begin of the input gradient
 * and the end of the weight gradient. */
void rh_program_put_off(const struct rh_program *program, int stages, struct rh_put_off *out);

#endif
