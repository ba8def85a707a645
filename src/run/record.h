/* What an executor has lowered, kept for the checker. */
#ifndef RH_RUN_RECORD_H
#define RH_RUN_RECORD_H

#include "run/check.h"
#include "run/executor.h"

struct rh_recorder;

/* Between calls. The executor keeps its commands from then on until rh_recorder_destroy, which comes before its own end. */
int rh_recorder_create(struct rh_executor *executor, struct rh_recorder **out) RH_MUST;
void rh_recorder_destroy(struct rh_recorder *recorder);

/* All of them. Forward-only calls are steps -1, -2, ... */
const struct rh_lanes *rh_recorder_lanes(const struct rh_recorder *recorder);
/* The rooms of this run. */
void rh_recorder_rooms(const struct rh_recorder *recorder, struct rh_check_options *out);

/* The caller publishes all (rh_updater_flush), after this step. */
int rh_recorder_flushed(struct rh_recorder *recorder, int64_t step) RH_MUST;

#endif
