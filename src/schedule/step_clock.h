/* How long a step of a schedule takes under different cuts of its stages, by the slot recurrence: for a search over cuts. Pure. */
#ifndef RH_SCHEDULE_STEP_CLOCK_H
#define RH_SCHEDULE_STEP_CLOCK_H

#include "schedule/dispatch.h"

struct rh_step_clock;

/* Of a schedule that flushes and has model stages; the dispatch needs no plan. A step of many micro-batches is timed by a shorter one and
 * the busiest device. sums, and what the dispatch points to, are borrowed. upload_bytes_per_s: of schedules that swap; 0: uploads are free.
 * rh_step_clock_close in any case. */
int rh_step_clock_open(const struct rh_dispatch *dispatch, int stages, const struct rh_cost_sums *sums, double upload_bytes_per_s,
                       struct rh_step_clock **out) RH_MUST;
/* cut: (stages + 1) stage s has layers [cut[s], cut[s + 1]). */
int rh_step_clock_time(struct rh_step_clock *clock, const int *cut, double *seconds) RH_MUST;
void rh_step_clock_close(struct rh_step_clock *clock);

#endif
