/* Inside src/schedule: the table of schedules, and helpers to weave the known orders of several devices into one program. */
#ifndef RH_SCHEDULE_SCHEDULE_INTERNAL_H
#define RH_SCHEDULE_SCHEDULE_INTERNAL_H

#include "schedule/schedule.h"

/* All schedules, as struct rh_schedule has them. */
/* clang-format off */
#define SCHEDULES(ROW) \
	ROW("roundpipe", "arXiv 2604.27085", RH_UPDATE_FLUSHES, 0, 0, 1, 0, 1, schedule_roundpipe) \
	ROW("roundpipe-async", "arXiv 2604.27085, 3.3", RH_UPDATE_STALE, 0, 0, 1, 0, 1, schedule_roundpipe) \
	ROW("gpipe", "arXiv 1811.06965", RH_UPDATE_FLUSHES, 1, 1, 0, 0, 0, schedule_gpipe) \
	ROW("1f1b", "arXiv 2006.09503 (PipeDream-Flush)", RH_UPDATE_FLUSHES, 1, 1, 0, 0, 0, schedule_1f1b) \
	ROW("interleaved-1f1b", "arXiv 2104.04473, 2.2", RH_UPDATE_FLUSHES, 1, 1 << 20, 0, 0, 0, schedule_interleaved) \
	ROW("looped-bfs", "arXiv 2211.05953", RH_UPDATE_FLUSHES, 1, 1 << 20, 0, 0, 0, schedule_looped) \
	ROW("mobius", "Feng et al., ASPLOS 2023", RH_UPDATE_FLUSHES, 1, 1 << 20, 0, 0, 1, schedule_looped) \
	ROW("zb-h1", "arXiv 2401.10241, 2.1", RH_UPDATE_FLUSHES, 1, 1, 0, 1, 0, schedule_zb_h1) \
	ROW("zb-h2", "arXiv 2401.10241, 2.2", RH_UPDATE_FLUSHES, 1, 1, 0, 1, 0, schedule_zb_h2) \
	ROW("zb-1p", "arXiv 2401.10241, 3", RH_UPDATE_FLUSHES, 1, 1, 0, 1, 0, schedule_zb_1p) \
	ROW("zb-2p", "arXiv 2401.10241, 3", RH_UPDATE_FLUSHES, 1, 1, 0, 1, 0, schedule_zb_2p) \
	ROW("zb-v", "arXiv 2401.10241, 6", RH_UPDATE_FLUSHES, 2, 2, 0, 1, 0, schedule_zb_v) \
	ROW("1f1b-async", "arXiv 1806.03377 (PipeDream)", RH_UPDATE_LOCAL, 1, 1, 0, 0, 0, schedule_1f1b_async) \
	ROW("paci", "arXiv 2606.07881, D.3", RH_UPDATE_LOCAL, 1, 1, 0, 0, 0, schedule_paci)
/* clang-format on */

#define SCHEDULE_MAKER(name, source, update, least, most, rounds, splits, swaps, make)                                                     \
	int make(const struct rh_schedule_request *request, struct rh_program *out) RH_MUST;
SCHEDULES(SCHEDULE_MAKER)
#undef SCHEDULE_MAKER

/* Collects each device's slots in that device's order, one device after the other, and weaves them into one order in which every slot comes
 * after the slots that it reads. Micro-batches are numbered over all steps of the program. */
struct weaving {
	const struct rh_schedule_request *request;
	struct rh_slot *slot;
	size_t slots, capacity;
	size_t *begin; /* (devices + 1) */
	int device, rc;
	int64_t micro_batches; /* in all */
};
int weaving_open(const struct rh_schedule_request *request, int64_t micro_batches, struct weaving *out) RH_MUST;
/* Adds the device's next slot. A fault is kept in `rc`. */
void weaving_add(struct weaving *weaving, enum rh_slot_kind kind, int stage, int64_t first, int64_t count);
void weaving_next_device(struct weaving *weaving);
/* Appends the woven slots to *out and frees everything, also after a fault. An order that deadlocks is our own mistake: it asserts. */
int weaving_close(struct weaving *weaving, struct rh_program *out) RH_MUST;

/* `make` for each step in turn, with a weaving of its own; for schedules that flush. */
int weave_steps(const struct rh_schedule_request *request, void (*fill)(struct weaving *weaving), struct rh_program *out) RH_MUST;

/* Seconds of a model stage. The whole backward is input + weight. */
struct stage_times {
	double forward, input, weight;
};
struct stage_times stage_times(const struct rh_schedule_request *request, int stage);

#endif
