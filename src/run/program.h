/* The program of one call of the executor: a schedule's, as devices run it. */
#ifndef RH_RUN_PROGRAM_H
#define RH_RUN_PROGRAM_H

#include "run/executor.h"

/* Of `count` micro-batches. *turn: of RoundPipe's round robin, moved on. Other schedules' model stages are the plan's; their top stage
 * computes its loss and its gradient at once, in the place of its backward. Forward-only calls go RoundPipe's way.
 * 1, and the error line says why, where the schedule has no order for so many micro-batches and looped-bfs's was taken: same results. */
int run_program_make(const struct rh_executor_options *options, int trains, int64_t count, int *turn, struct rh_program *out) RH_MUST;

/* Of several steps, under a schedule that has them. */
int run_program_stretch(const struct rh_executor_options *options, int64_t count, int64_t steps, struct rh_program *out) RH_MUST;

int run_makes_gradients(const struct rh_slot *slot);

#endif
