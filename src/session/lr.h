/* Learning-rate schedules: pure functions, those of transformers' get_scheduler. */
#ifndef RH_SESSION_LR_H
#define RH_SESSION_LR_H

#include "config/config.h"

#include <stdint.h>

/* Warm-up in steps: `warmup_steps` itself from 1 on, below it a share of `total_steps`, rounded up (TrainingArguments.get_warmup_steps). */
int64_t rh_lr_warmup_steps(double warmup_steps, int64_t total_steps);

/* A course of learning rates. The constant ones and RH_LR_INVERSE_SQRT do not look at total_steps. */
struct rh_lr {
	enum rh_scheduler scheduler;
	double base; /* the highest */
	int64_t warmup_steps, total_steps;
	struct rh_lr_shape shape;
};

/* The rate that step `step` (from 0) is made with: in the first step of a warm-up 0, of RH_LR_WARMUP_STABLE_DECAY shape.min_rate of the
 * base. RH_LR_CONSTANT ignores the warm-up. Steps from total_steps on are outside a run; there the cosine rises again, as transformers'
 * does. */
double rh_lr_at(const struct rh_lr *lr, int64_t step);

#endif
