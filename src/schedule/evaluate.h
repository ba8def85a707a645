/* Evaluates a program: its times by the slot recurrence (partition/timeline.h), and how much it keeps in flight. Pure. */
#ifndef RH_SCHEDULE_EVALUATE_H
#define RH_SCHEDULE_EVALUATE_H

#include "partition/timeline.h"
#include "schedule/schedule.h"

enum rh_recompute { RH_RECOMPUTE_LATE, RH_RECOMPUTE_AHEAD }; /* LATE: once the gradient has arrived; AHEAD: while it is in flight */

struct rh_program_timing {
	const struct rh_schedule *schedule;
	const struct rh_cost_sums *sums; /* its hop_s too; recompute_s 0 where activations are kept */
	int devices;
	enum rh_recompute recompute;
	double upload_bytes_per_s; /* of schedules that swap; 0: uploads are free */
};

/* The recurrence's slots are the program's, one for one. */
int rh_program_evaluate(const struct rh_program *program, const struct rh_program_timing *how, struct rh_timeline *out) RH_MUST;

/* peak: (devices) the most micro-batches whose activations a device keeps at once, over its stages. It keeps them from a forward's begin to
 * the end of the backward, or of the weight gradient where backwards are split. A fused slot counts as one while it runs. */
void rh_program_in_flight(const struct rh_program *program, int devices, int64_t *peak);

/* out: (stages) for each model stage, where backwards are split: its device, and the most micro-batches between the begin of their input
 * gradient and the end of their weight gradient. */
void rh_program_deferrals(const struct rh_program *program, int stages, struct rh_deferral *out);

#endif
