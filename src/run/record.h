/* Today's executor on lanes: a recorder stands between it and its devices, and what is enqueued, awaited and updated becomes commands. Of
 * runs whose weights and boundaries stay in memory that is registered, and whose devices make no weights. */
#ifndef RH_RUN_RECORD_H
#define RH_RUN_RECORD_H

#include "run/check.h"
#include "run/executor.h"

struct rh_recorder;

/* Between calls. The executor's devices and updater are recorded until rh_recorder_destroy, which comes before theirs. */
int rh_recorder_create(struct rh_executor *executor, struct rh_recorder **out) RH_MUST;
void rh_recorder_destroy(struct rh_recorder *recorder);

/* What was recorded. Forward-only calls are steps -1, -2, ... -ENOMEM, if anything was lost. */
int rh_recorder_lanes(struct rh_recorder *recorder, struct rh_lanes **out) RH_MUST;
/* The rooms of this run. */
void rh_recorder_rooms(const struct rh_recorder *recorder, struct rh_check_options *out);

/* The caller updates a block itself (struct rh_stretch), or publishes all (rh_updater_flush). */
int rh_recorder_update(struct rh_recorder *recorder, int64_t step, int block) RH_MUST;
int rh_recorder_flushed(struct rh_recorder *recorder, int64_t step) RH_MUST;

#endif
