/* What mode fluidpipe keeps for a run. */
#ifndef RH_MODES_FLUIDPIPE_FLUIDPIPE_RUN_H
#define RH_MODES_FLUIDPIPE_FLUIDPIPE_RUN_H

#include "session/mode.h"

struct fluidpipe_run {
	struct fluidpipe_talk *talk;     /* fluidpipe_step.c */
	struct fluidpipe_logits *logits; /* fluidpipe_logits.c; NULL: no box distils */
	struct idle_steps *idle;         /* opportunistic steps, idle_steps.c; NULL: this box makes none */
};

static inline struct fluidpipe_run *fluidpipe_of(const struct rh_mode_run *run)
{
	return run->own;
}

#endif
