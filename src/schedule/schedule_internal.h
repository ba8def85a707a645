/* Inside src/schedule: the makers, and the two ways to a program: weaving orders that are known, and letting devices take what is ready. */
#ifndef RH_SCHEDULE_SCHEDULE_INTERNAL_H
#define RH_SCHEDULE_SCHEDULE_INTERNAL_H

#include "schedule/schedule.h"

int schedule_roundpipe(const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;
int schedule_gpipe(const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;
int schedule_1f1b(const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;
int schedule_1f1b_async(const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;
int schedule_interleaved(const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;
int schedule_looped(const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;
int schedule_zb_h1(const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;
int schedule_zb_h2(const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;
int schedule_zb_1p(const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;
int schedule_zb_2p(const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;
int schedule_zb_v(const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;
int schedule_paci(const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;

/* Each device's slots in its own order, one device after the other; woven into one order in which every slot comes after those it reads.
 * Micro-batches count on over all steps of the program. */
struct weaving {
	const struct rh_schedule_request *request;
	struct rh_slot *slot;
	size_t slots, capacity;
	size_t *begin; /* (devices + 1) */
	int device, rc;
	int64_t micro_batches; /* in all */
};
int weaving_open(const struct rh_schedule_request *request, int64_t micro_batches, struct weaving *out) RH_MUST;
/* The next slot of the device; faults stay in `rc`. */
void weaving_add(struct weaving *weaving, enum rh_slot_kind kind, int stage, int64_t first, int64_t count);
void weaving_next_device(struct weaving *weaving);
/* Ends the weaving whatever happened, and appends to *out. An order that waits for itself is our own mistake. */
int weaving_close(struct weaving *weaving, struct rh_program *out) RH_MUST;

/* `make` for each step in turn, with a weaving of its own; for schedules that flush. */
int weave_steps(const struct rh_schedule_request *request, void (*fill)(struct weaving *weaving), struct rh_program *out) RH_MUST;

/* Seconds of a model stage. The whole backward is input + weight. */
struct stage_times {
	double forward, input, weight;
};
struct stage_times stage_times(const struct rh_schedule_request *request, int stage);

#endif
