/* Inside the outlook. What is tried is independent of the rest, and goes on beside it. */
#ifndef RH_TRAIN_OUTLOOK_INTERNAL_H
#define RH_TRAIN_OUTLOOK_INTERNAL_H

#include "core/tasks.h"
#include "partition/cuts.h"
#include "train/outlook.h"

#include <stdatomic.h>

/* ---- how fast small steps are ---- */

int outlook_is_roundpipe(const struct rh_config *config);

/* A simulation. */
struct outlook_try {
	struct rh_task task;
	struct rh_config config;
	const struct rh_session_machine *machine;
	const struct rh_forecast_input *input;
	struct rh_forecast forecast; /* without its plan */
};
/* What it reads through pointers stays until it is finished or dropped. */
void outlook_try_begin(struct rh_tasks *tasks, const struct rh_config *config, const struct rh_session_machine *machine,
                       const struct rh_forecast_input *input, struct outlook_try *out);
/* Tokens a second; 0: it cannot be had. */
double outlook_try_finish(struct outlook_try *what);

/* Two steps of the configuration's micro-batches, all as the first of `input`. */
int outlook_input_alike(const struct rh_config *config, const struct rh_forecast_input *input, struct rh_forecast_input *out) RH_MUST;

/* A step that others are compared with. */
struct outlook_small {
	struct rh_tasks *tasks;
	const struct rh_session_machine *machine;
	struct rh_config config;
	struct rh_forecast_input input;
	struct rh_cuts cuts;
	int64_t round; /* of the whole run, where the plan has chosen it; 0: not known */
	struct outlook_try base;
};
/* Of a run whose plan is there. Closed in any case. */
int outlook_small_open(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                       const struct rh_plan *plan, const struct rh_forecast *whole, struct outlook_small *out) RH_MUST;
void outlook_small_close(struct outlook_small *small);

/* On a machine with more of one thing. */
struct outlook_wider {
	struct rh_hardware hardware;
	struct rh_session_machine machine;
	struct rh_hardware_op *op;
	struct outlook_try tried;
};
struct outlook_limits {
	struct outlook_wider wider[RH_LIMITS];
};
/* The first, which is tried in any case. */
void outlook_limits_begin(const struct outlook_small *small, struct outlook_limits *limits);
/* The bottleneck; the base has been had. */
void outlook_limits_find(const struct outlook_small *small, struct outlook_limits *limits, struct rh_outlook *out);
void outlook_limits_close(struct outlook_limits *limits);

/* With changes. */
struct outlook_changes {
	struct outlook_try stale, twice;
	struct rh_forecast_input longer; /* of twice */
};
/* Those that are tried in any case. input: the run's. */
void outlook_changes_begin(const struct outlook_small *small, const struct rh_forecast_input *input, struct outlook_changes *changes);
/* The best advice; the base has been had and the bottleneck found. */
void outlook_advise(const struct outlook_small *small, const struct rh_forecast_input *input, struct outlook_changes *changes,
                    struct rh_outlook *out);
void outlook_changes_close(struct outlook_changes *changes);

/* ---- what fits, by trying ---- */

struct outlook_longest {
	struct rh_task task;
	const struct rh_config *config;
	const struct rh_session_machine *machine;
	_Atomic int unwanted; /* ends soon, without a result */
	int64_t tokens;       /* the largest max_length with which the configuration fits, one row a micro-batch; 0: none does */
};
void outlook_longest_begin(struct rh_tasks *tasks, const struct rh_config *config, const struct rh_session_machine *machine,
                           struct outlook_longest *out);

/* What a user may change, each alone enough, what is dearest (more memory) last, into out->mend. */
int outlook_mend(struct rh_tasks *tasks, const struct rh_config *config, const struct rh_session_machine *machine,
                 struct rh_outlook *out) RH_MUST;

#endif
