/* Between the steps that fill waits (idle_steps.c) and their logs (idle_log.c). */
#ifndef RH_TRAIN_IDLE_INTERNAL_H
#define RH_TRAIN_IDLE_INTERNAL_H

#include "core/error.h"

#include <stdint.h>

struct idle_log;

/* path: what this run writes. Lines of steps that a run which goes on from `step` makes again are dropped; where it goes on, a line says
 * so. replay: a log to be followed, or NULL. */
int idle_log_open(const char *path, const char *replay, int64_t step, struct idle_log **out) RH_MUST;
void idle_log_close(struct idle_log *log);

/* Micro-batches: batch m has rows[m] of `sample`, one behind the other. */
struct idle_line {
	int64_t after_step, micro_batches;
	const int64_t *sample, *rows;
	double loss;
};
int idle_log_append(struct idle_log *log, const struct idle_line *line) RH_MUST;

int idle_log_replays(const struct idle_log *log);
/* Of the log that is followed. Whether the run that wrote it lost its samples before the steps behind step `after`. */
int idle_log_restarts(const struct idle_log *log, int64_t after);
/* Its next line is of a step behind step `after`. */
int idle_log_has_next(const struct idle_log *log, int64_t after);
/* That line has these samples; then the one behind it is next. -EINVAL: it has others, so that this is no replay. */
int idle_log_check(struct idle_log *log, const struct idle_line *line) RH_MUST;

#endif
