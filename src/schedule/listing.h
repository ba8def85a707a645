/* Inside src/schedule: an order by letting each device, of one stage, whenever it is idle, take the first of its ready slots by a rule's
 * preference. */
#ifndef RH_SCHEDULE_LISTING_H
#define RH_SCHEDULE_LISTING_H

#include "schedule/schedule_internal.h"

struct listing_rule {
	enum rh_slot_kind order[3]; /* what a device prefers, best first */
	int orders;
	/* May this stage begin another forward? forwards[s], released[s]: those begun, and those whose last backward slot has begun. */
	int (*admits)(const struct listing_rule *rule, const struct rh_schedule_request *request, int stage, const int64_t *forwards,
	              const int64_t *released);
	const int64_t *window;
	int64_t limit;
};

/* Appends the program of `micro_batches`, numbered from `first` over all steps. -EDEADLK where the rule lets nobody go on. */
int listing_make(const struct rh_schedule_request *request, const struct listing_rule *rule, int64_t first, int64_t micro_batches,
                 struct rh_program *out) RH_MUST;

#endif
