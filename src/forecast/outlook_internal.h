/* Inside the outlook. Each trial is independent of the others, so trials run in parallel. */
#ifndef RH_FORECAST_OUTLOOK_INTERNAL_H
#define RH_FORECAST_OUTLOOK_INTERNAL_H

#include "core/tasks.h"
#include "forecast/outlook.h"
#include "partition/cuts.h"

#include <stdatomic.h>

/* ---- how fast small steps are ---- */

int outlook_is_roundpipe(const struct rh_config *config);

/* One simulation of a changed configuration or machine. */
struct outlook_try {
	struct rh_task task;
	struct rh_config config;
	const struct rh_session_machine *machine;
	const struct rh_forecast_input *input;
	struct rh_forecast forecast; /* without its plan */
};
/* What the arguments point to must stay valid until the trial is finished or dropped. */
void outlook_try_begin(struct rh_tasks *tasks, const struct rh_config *config, const struct rh_session_machine *machine,
                       const struct rh_forecast_input *input, struct outlook_try *out);
/* Tokens a second; 0: the trial failed. */
double outlook_try_finish(struct outlook_try *what);

/* Micro-batches of a step of the configuration, whose rows are in the input's chunks. */
static inline int64_t outlook_micro_batches(const struct rh_config *config, const struct rh_forecast_input *input)
{
	return config->gradient_accumulation_steps * rh_chunks_of(&input->work);
}

/* Two steps of the configuration's micro-batches, all as the first row of `input`. */
int outlook_input_alike(const struct rh_config *config, const struct rh_forecast_input *input, struct rh_forecast_input *out) RH_MUST;

/* The small step that trials are compared with. */
struct outlook_small {
	struct rh_tasks *tasks;
	struct rh_session_machine used; /* the machine with only as many devices as the whole run's plan uses */
	int devices;                    /* all that the machine has */
	struct rh_config config;
	struct rh_forecast_input input;
	struct rh_cuts cuts;
	int64_t round; /* of the whole run, where the plan has chosen it; 0: not known */
	struct outlook_try base;
};
/* Takes stages and rounds from the whole run's plan. Close it in any case. */
int outlook_small_open(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                       const struct rh_stage_plan *plan, const struct rh_forecast *whole, struct outlook_small *out) RH_MUST;
void outlook_small_close(struct outlook_small *small);

/* The small step on a machine with more of one resource. */
struct outlook_wider {
	struct rh_hardware hardware;
	struct rh_session_machine machine;
	struct rh_hardware_op *op;
	struct outlook_try tried;
};
struct outlook_limits {
	struct outlook_wider wider[RH_LIMITS];
};
/* Begins the trial that always runs. */
void outlook_limits_begin(const struct outlook_small *small, struct outlook_limits *limits);
/* Finds the bottleneck, once the base trial is finished. */
void outlook_limits_find(const struct outlook_small *small, struct outlook_limits *limits, struct rh_outlook *out);
void outlook_limits_close(struct outlook_limits *limits);

/* The small step with changed settings. */
struct outlook_changes {
	struct outlook_try stale, larger_batch;
	struct rh_forecast_input longer;  /* for larger_batch, */
	struct rh_session_machine larger; /* which may use more devices */
};
/* Begins the trials that always run. input: the whole run's. */
void outlook_changes_begin(const struct outlook_small *small, const struct rh_forecast_input *input, struct outlook_changes *changes);
/* Finds the best advice, once the base trial is finished and the bottleneck known. */
void outlook_advise(const struct outlook_small *small, const struct rh_forecast_input *input, struct outlook_changes *changes,
                    struct rh_outlook *out);
void outlook_changes_close(struct outlook_changes *changes);

/* ---- what fits, by trying ---- */

/* One trial, and who asked for it. */
struct trial {
	const struct rh_session_machine *machine;
	const _Atomic int *unwanted; /* NULL, or set: nobody asks any more */
	/* NULL, or of the configuration that a search changes in place: its rows, lengths and caps, which a plan reads and opening does not. */
	struct rh_session *session;
	/* Or NULL: a run's rows, and its configuration. What is tried changes that, and evaluates as it does. */
	const struct rh_forecast_input *input;
	const struct rh_config *of;
};
struct trial_result {
	struct rh_run_bytes bytes;
	int64_t chunk; /* rows are cut into; 0: they are whole */
};

/* `session` is the caller's, also after an error: then nothing of this configuration fits. */
int trial_open(const struct trial *base, const struct rh_config *config, struct rh_session *session, struct trial *out) RH_MUST;
void trial_close(struct trial *trial);
/* 1: it fits; by a plan alone. */
int trial_fits_with(const struct rh_config *config, const struct trial *trial, enum rh_run_stages stages, struct trial_result *out);
int trial_fits(const struct rh_config *config, const struct trial *trial);
/* The run's own rows, where they are this configuration's; NULL: they are not. */
const struct rh_forecast_input *trial_rows(const struct rh_config *config, const struct trial *trial);
/* Else: steps of the configuration's rows, which are read again where the run's were, and what else the run keeps. The caller frees
 * *out. */
int trial_input(const struct rh_config *config, const struct trial *trial, struct rh_forecast_input *out) RH_MUST;
/* The largest value up to most of a key of this configuration for which it fits, to 2 %, by doubling and halving from `first`; 0: none. */
int64_t trial_largest(const struct rh_config *config, int64_t *key, int64_t first, int64_t most, const struct trial *trial);

struct outlook_longest {
	struct rh_task task;
	const struct rh_config *config;
	const struct rh_session_machine *machine;
	int64_t rows;         /* in flight at once */
	_Atomic int unwanted; /* 1: stop without a result */
	struct rh_longest found;
};
void outlook_longest_begin(struct rh_tasks *tasks, const struct rh_config *config, const struct rh_session_machine *machine, int64_t rows,
                           struct outlook_longest *out);

/* Fills out->mend: changes that a user may make, each alone enough. The fastest comes first. input: the run's. */
int outlook_mend(struct rh_tasks *tasks, const struct rh_config *config, const struct rh_session_machine *machine,
                 const struct rh_forecast_input *input, struct rh_outlook *out) RH_MUST;

#endif
