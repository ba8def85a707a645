/* The slot recurrence: when each slot runs, from compute times and hops alone. The caller gives the slots in an order in which they may be
 * enqueued; each device runs its own slots in that order. Pure. */
#ifndef RH_PARTITION_TIMELINE_H
#define RH_PARTITION_TIMELINE_H

#include "core/error.h"

#include <stdint.h>

/* Micro-batches [first, first + count), one after the other. Each has two parts (recompute, then the rest), and the first part may run
 * while the input of the second is in flight. `source` names, for each part, an earlier slot with the same micro-batches that it reads,
 * -1: none; hop: seconds that this slot's output needs to arrive. */
struct rh_timeline_slot {
	int device;
	int64_t first, count;
	double part_s[2];
	int64_t source[2];
	double hop_s[2];
	int64_t previous_sum; /* the slot to whose gradient sums this one adds, layer by layer, each once it is whole; -1: none */
	/* Gradient sums: seconds to upload them for the slot's first micro-batch, and to download them from its last one on. A device holds
	 * one stage's sums at a time. -1: the slot adds to none. */
	double sums_s[2];
	double last_sum_s; /* one way, of the layer whose sums come and go last */
	double head_sum_s; /* one way, of the head, for whose sums the slot waits before it begins; -1: not in this slot */
	int64_t barrier;   /* all slots before this one must have ended; 0: none */
	double upload_s;   /* of its weights; begins when the device's slot before the last has ended; one upload at a time */
};

struct rh_timeline {
	int64_t *offset;                   /* (slots + 1) of a slot's first micro-batch in start and end */
	double *start, *end;               /* one for each micro-batch of each slot; start is that of the first part that takes time */
	double makespan_s, busy_s, bubble; /* bubble: 1 - busy / (devices * makespan) */
	double longest_span_s;             /* a device's first start to its last end, the longest */
};

int rh_timeline_run(const struct rh_timeline_slot *slot, int64_t slots, int devices, struct rh_timeline *out) RH_MUST;
void rh_timeline_free(struct rh_timeline *timeline);

#endif
