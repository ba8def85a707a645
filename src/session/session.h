/* What every verb needs before it can begin: the model's files, its layers, a plan within the budgets, the store filled, devices, executor.
 */
#ifndef RH_SESSION_SESSION_H
#define RH_SESSION_SESSION_H

#include "ckpt/source.h"
#include "config/config.h"
#include "config/hardware.h"
#include "data/dataset.h"
#include "machine/machine.h"
#include "offload/store.h"
#include "plan/run_plan.h"
#include "run/executor.h"
#include "session/adapter.h"
#include "session/box.h"
#include "weights/digest.h"

/* A machine to simulate: another one, or this one in virtual time. */
struct rh_session_machine {
	const struct rh_hardware *hardware;
	int devices;
	int64_t ram_bytes; /* free for the run where max_ram is not given; 0: no limit */
	/* One of several boxes that are simulated together: its place and virtual links, which the session closes; and the common clock, of
	 * which the session's thread has the turn. NULL: this box alone. */
	const struct rh_box *box;
	struct rh_sim_clock *clock;
};

/* All that a verb holds open, from files to executor; rh_session_close releases it in reverse order. More than 20 members: one for each
 * thing that is opened, and what was chosen for it. */
struct rh_session {
	const struct rh_config *config;           /* borrowed */
	const struct rh_session_machine *machine; /* borrowed. NULL: run on this machine. Otherwise only simulate. */
	struct rh_source *source;                 /* NULL: random initialisation */
	struct rh_model_config random_config;     /* the model's configuration in that case */
	const struct rh_model_config *model_config;
	/* pipeline: mode fluidpipe's model, which both boxes train together. stage: what model_config points to with several boxes: this box's
	 * part, or the model with its head untied */
	struct rh_model_config pipeline, stage;
	struct rh_tokenizer *tokenizer; /* NULL until loaded, and of a model of images */
	struct rh_image_form image;     /* of a model of images, loaded with it */
	int chat_trained;               /* the run trains on conversations: prompts to its output go through the template */
	int eos_changed;                /* the tokenizer's end-of-sequence token is not the base's: the output names it */
	const char *chat_jinja;         /* the template trained with, which the output carries; NULL: the base's own stays */
	int device_count; /* all that the configuration names; of a session that follows a plan, those that the plan uses: the first ones */
	int lora;
	struct rh_adapter adapter;   /* when lora */
	char base_digest[RH_DIGEST]; /* when lora: of the base as BF16, in which all runs can compare it; "": it begins at random */
	struct rh_box box;           /* of several; the model is its part once rh_box_take_layers has chosen it */
	struct rh_config cut;        /* what `config` points to once box_cuts or own_cuts are chosen; box_cuts is a single allocation */
	int64_t *own_cuts;           /* its forward_cuts; NULL: they are none of this session's */
	struct rh_link *link_below,
	        *link_above; /* the executor's links, where they are views of the box's links: borrowed. NULL: the box's */
	struct rh_model *model;
	struct rh_pool *pool;
	struct rh_space *space; /* on NVMe; NULL: nothing is spilled */
	int first_record;       /* the first of work.nvme_records records */
	struct rh_store *store;
	struct rh_updater *updater;     /* of a session that trains */
	const int64_t *admission_limit; /* of PACI, borrowed: set before rh_session_start; NULL: its own */
	int64_t *box_limits;            /* the configuration's admission limits; NULL: it has none */
	int dropped_gradient;           /* of verify's tests: number + 1 of a block whose gradients do not come down; 0: none */
	struct rh_workload work;        /* the workload that it was started for */
	struct rh_run_plan plan;        /* what the run follows */
	int planned;                    /* there is a plan */
	int rates_assumed;              /* this machine's rates are guesses */
	struct rh_devices devices;
	struct rh_executor *executor;
};

/* Files and model. Nothing large is reserved. The session must not move between the two calls. A session that does not train has an
 * adapter only when adapter_name_or_path gives one, and keeps weights alone. */
enum rh_session_purpose { RH_SESSION_TRAINS, RH_SESSION_INFERS };
int rh_session_open(const struct rh_config *config, enum rh_session_purpose purpose, struct rh_session *out) RH_MUST;

/* A session that trains on a simulated machine. It reads and holds no weights; updates and copies only take virtual time. */
int rh_session_simulate(const struct rh_config *config, const struct rh_session_machine *machine, struct rh_session *out) RH_MUST;

/* Gives frozen weights of a model of the session's files the forms that these have: after its creation. */
void rh_session_pack(const struct rh_session *session, struct rh_model *model);

/* One of several boxes: from now on the model is its part, layers session->box.lo to .hi. */
int rh_session_keep_layers(struct rh_session *session) RH_MUST;

/* Loads what turns rows into the model's input: its tokenizer or, for a model of images, how images are prepared. */
int rh_session_load_tokenizer(struct rh_session *session) RH_MUST;

/* The run's rope_scaling as config.json would hold it; NULL: it has none. The caller frees it (json_decref). */
int rh_session_rope_scaling(const struct rh_config *config, json_t **out) RH_MUST;

/* What the session's rows are made into; borrows from its model's configuration. */
struct rh_objective rh_session_objective(const struct rh_session *session);

/* -EINVAL where the model does not continue texts. */
int rh_session_check_speaks(const struct rh_session *session) RH_MUST;

/* max_length against the positions that the model knows. */
int rh_session_check_length(const struct rh_session *session) RH_MUST;

/* The machine that the session runs on, or simulates; and its rates. *local: of this machine, the caller's (rh_hardware_free), and borrowed
 * by *out. */
int rh_session_run_machine(struct rh_session *session, struct rh_run_machine *out) RH_MUST;
int rh_session_rates(struct rh_session *session, struct rh_hardware *local, struct rh_run_machine *out) RH_MUST;

/* The plan alone, by the recurrence, within the budgets: nothing is reserved. */
int rh_session_plan(struct rh_session *session, const struct rh_workload *workload, enum rh_run_stages stages) RH_MUST;
/* The best few plans by the recurrence for so many devices, to be judged (forecast/judge.h); the session follows none of them yet.
 * The caller's (rh_run_plans_free). */
int rh_session_search(struct rh_session *session, const struct rh_workload *workload, int devices, struct rh_run_plans *out) RH_MUST;
/* Of a planned session: the devices of one box that clip apart, because their stages update themselves. 0: nothing does. */
int rh_session_clipping_devices(const struct rh_session *session);
/* The stage of a block, bottom up, where forward and backward share stages. */
int rh_session_stage_of(const struct rh_session *session, int block);
/* Before it is planned: the model drops what the run's model_dropout asks for (model_dropout.c). */
int rh_session_set_dropout(struct rh_session *session) RH_MUST;
/* Box 1 of mode fluidpipe: the embedding drops what opportunistic steps ask for (1), as it is planned, or what others do (0). */
void rh_session_idle_dropout(struct rh_session *session, int is_idle);
/* From now on the session's configuration has these forward_cuts, which are copied. */
int rh_session_set_cuts(struct rh_session *session, const int64_t *cut, int64_t count) RH_MUST;
/* The session's plan is a copy of this one, which may have been made for another session of the same run. */
int rh_session_follow(struct rh_session *session, const struct rh_workload *workload, const struct rh_run_plan *plan) RH_MUST;
/* Store, weights, devices, executor; before them the plan by the recurrence, where there is none. */
int rh_session_start(struct rh_session *session, const struct rh_workload *workload) RH_MUST;
void rh_session_close(struct rh_session *session);

/* Prints where the bytes are. */
void rh_session_report(const struct rh_session *session);

/* A data batch as the executor takes it; results are not wanted unless the caller sets them. */
struct rh_batch;
struct rh_micro_batch rh_micro_of(const struct rh_batch *batch);

#endif
