/* Between the steps that fill waits (idle_steps.c) and their logs (idle_log.c). */
#ifndef RH_MODES_FLUIDPIPE_IDLE_INTERNAL_H
#define RH_MODES_FLUIDPIPE_IDLE_INTERNAL_H

#include "core/error.h"

#include <stdint.h>

struct idle_log;

/* path: the log that this run writes. Lines of steps that a run continued from `step` makes again are dropped; a new line says where it
 * continues. replay: a log to follow, or NULL. */
int idle_log_open(const char *path, const char *replay, int64_t step, struct idle_log **out) RH_MUST;
void idle_log_close(struct idle_log *log);

/* The micro-batches of one opportunistic step: batch m has rows[m] samples; `sample` lists the samples of all batches. */
struct idle_line {
	int64_t after_step, micro_batches;
	const int64_t *sample, *rows;
	double loss;
};
int idle_log_append(struct idle_log *log, const struct idle_line *line) RH_MUST;

int idle_log_replays(const struct idle_log *log);
/* In the followed log: did the run that wrote it lose its samples (by a restart) before the opportunistic steps after step `after`? */
int idle_log_restarts(const struct idle_log *log, int64_t after);
/* 1: the followed log's next line belongs to an opportunistic step after step `after`. */
int idle_log_has_next(const struct idle_log *log, int64_t after);
/* Checks that this line has these samples, and moves to the next one. -EINVAL: it has others, so this run is no replay. */
int idle_log_check(struct idle_log *log, const struct idle_line *line) RH_MUST;

#endif
