/* The order of a schedule without a flush, made piece by piece: an order that never ends, from which as many slots are taken as are needed
 * next. Any number of its first slots are those of rh_schedule_make for as many micro-batches, but for the places of slots behind the last
 * forward. */
#ifndef RH_SCHEDULE_ENDLESS_H
#define RH_SCHEDULE_ENDLESS_H

#include "schedule/schedule.h"

struct rh_endless;

/* Of RH_UPDATE_LOCAL. The request's micro_batches and steps do not count; what it points to is copied. rh_endless_close in any case. */
int rh_endless_open(const struct rh_schedule *schedule, const struct rh_schedule_request *request, struct rh_endless **out) RH_MUST;
/* Replaces out's slots by at least so many next ones. A slot's `first` is the micro-batch, counted over all steps; its `step` is 0. */
int rh_endless_more(struct rh_endless *endless, size_t slots, struct rh_program *out) RH_MUST;
void rh_endless_close(struct rh_endless *endless);

#endif
