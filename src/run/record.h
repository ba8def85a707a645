/* What an executor has lowered, kept for the checker. */
#ifndef RH_RUN_RECORD_H
#define RH_RUN_RECORD_H

#include "run/check.h"
#include "run/executor.h"

/* Between calls. The executor keeps its commands from then on until rh_record_end. */
void rh_record_begin(struct rh_executor *executor);
void rh_record_end(struct rh_executor *executor);

/* All of them. Forward-only calls are steps -1, -2, ... */
const struct rh_lanes *rh_record_lanes(const struct rh_executor *executor);
/* The rooms of this run. */
void rh_record_rooms(const struct rh_executor *executor, struct rh_check_options *out);

/* The caller publishes all (rh_updater_flush), after this step. */
int rh_record_flushed(struct rh_executor *executor, int64_t step) RH_MUST;

#endif
