/* Inside src/schedule: list scheduling. Each device has one stage; whenever it is idle it takes the ready slot that a rule prefers. */
#ifndef RH_SCHEDULE_LISTING_H
#define RH_SCHEDULE_LISTING_H

#include "schedule/schedule_internal.h"

struct listing_rule {
	enum rh_slot_kind order[3]; /* what a device prefers, best first */
	int orders;
	/* 1: this stage may begin another forward. forwards[s]: forwards begun; released[s]: micro-batches whose last backward slot has begun. */
	int (*admits)(const struct listing_rule *rule, const struct rh_schedule_request *request, int stage, const int64_t *forwards,
	              const int64_t *released);
	const int64_t *admission_limit;
	int64_t limit;
};

struct listing;

/* A list of `micro_batches`, numbered from `first` over all steps, of which at most `window` are ever in flight. Borrows request and rule.
 * listing_close in any case. */
int listing_open(const struct rh_schedule_request *request, const struct listing_rule *rule, int64_t first, int64_t micro_batches,
                 int64_t window, struct listing **out) RH_MUST;
/* Appends its next slots. -EDEADLK: the rule admits no slot. */
int listing_more(struct listing *listing, size_t slots, struct rh_program *out) RH_MUST;
void listing_close(struct listing *listing);

/* Appends the program of `micro_batches`, numbered from `first` over all steps. -EDEADLK: the rule admits no slot although some remain. */
int listing_make(const struct rh_schedule_request *request, const struct listing_rule *rule, int64_t first, int64_t micro_batches,
                 struct rh_program *out) RH_MUST;

/* PACI's rule: paci.c. */
int schedule_paci_rule(const struct rh_schedule_request *request, struct listing_rule *out) RH_MUST;

#endif
