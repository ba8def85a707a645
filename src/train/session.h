/* What every verb needs before it can begin: the model's files, its layers, a plan within the budgets, the store filled, devices, executor.
 */
#ifndef RH_TRAIN_SESSION_H
#define RH_TRAIN_SESSION_H

#include "ckpt/source.h"
#include "config/config.h"
#include "config/hardware.h"
#include "offload/store.h"
#include "partition/plan.h"
#include "run/executor.h"
#include "run/machine.h"
#include "train/adapter.h"
#include "train/balance.h"

/* A machine that is not this one, or this one in virtual time. */
struct rh_session_machine {
	const struct rh_hardware *hardware;
	int devices;
	int64_t ram_bytes; /* free for the run where max_ram is not given; 0: no limit */
};

struct rh_session_bytes {
	int64_t store, boundaries, device, data, total; /* bytes of host memory reserved; device: of one device */
	int64_t nvme;                                   /* reserved there */
	int64_t boundaries_nvme;                        /* of it: boundary activations */
	int64_t nvme_loaded;                            /* written to it before the first step, at most */
	int64_t nvme_step;                              /* written to it in a whole step */
	int64_t device_budget, total_budget;            /* INT64_MAX: no limit */
	int64_t program;                                /* allowed for all that is not reserved: program, libraries, threads, tokenizer */
	int host_devices;                               /* devices whose memory counts in total: none with memory of its own */
};

struct rh_session {
	const struct rh_config *config;           /* borrowed */
	const struct rh_session_machine *machine; /* borrowed; NULL: this one, and work is done */
	struct rh_source *source;                 /* NULL: random initialisation */
	struct rh_model_config own;               /* then its configuration */
	const struct rh_model_config *model_config;
	struct rh_tokenizer *tokenizer; /* NULL until loaded */
	const char *chat_jinja;         /* static; the template trained with, which the output carries; NULL: the base's own stays */
	int device_count;
	int lora;
	struct rh_adapter adapter; /* when lora */
	struct rh_model *model;
	struct rh_pool *pool;
	struct rh_space *space; /* on NVMe; NULL: nothing is spilled */
	int spill;              /* bits of enum rh_spill: what is */
	struct rh_store *store;
	struct rh_updater *updater;         /* of a session that trains */
	int64_t *cuts;                      /* that a schedule other than RoundPipe made, else NULL */
	struct rh_put_off *put_off;         /* of a schedule that splits backwards, else NULL */
	const struct rh_schedule *schedule; /* of training; NULL where there is none */
	const int64_t *window;              /* of PACI, borrowed: set before rh_session_start; NULL: its own */
	struct rh_plan plan;
	int64_t train_round;         /* micro-batches in a round of training, as planned */
	struct rh_balanced balanced; /* what the plan's stages were chosen by; step_s 0: by memory alone, or by the user */
	int rates_assumed;
	int is_recorded; /* on lanes (run/record.h), which know of no weights that devices make; set before rh_session_start */
	struct rh_devices devices;
	struct rh_executor *executor;
	struct rh_session_bytes bytes;
};

/* Files and model. Nothing large is reserved. The session must not move between the two calls. A session that does not train has an
 * adapter only when adapter_name_or_path gives one, and keeps weights alone. */
enum rh_session_purpose { RH_SESSION_TRAINS, RH_SESSION_INFERS };
int rh_session_open(const struct rh_config *config, enum rh_session_purpose purpose, struct rh_session *out) RH_MUST;

/* A session that trains on a simulated machine: no weights are read and none are held, updates and copies take time alone. */
int rh_session_simulate(const struct rh_config *config, const struct rh_session_machine *machine, struct rh_session *out) RH_MUST;

/* The tokenizer that belongs to the model, into session->tokenizer. */
int rh_session_load_tokenizer(struct rh_session *session) RH_MUST;

/* max_length against the positions that the model knows. */
int rh_session_check_length(const struct rh_session *session) RH_MUST;

/* What will be run. */
struct rh_workload {
	struct rh_micro_shape train, infer; /* the largest micro-batches, zero where there are none */
	int64_t train_micro_batches;        /* in a step */
	int64_t infer_micro_batches;        /* in one call */
	int64_t cache_rows;                 /* generate */
	int infer_logits;
	int64_t train_steps; /* still to come, 0: not known */
	int64_t data_bytes;  /* held by the caller beside all this: datasets */
};
/* Plan and budgets alone, for those who ask whether it fits: nothing is reserved, and rh_session_start may not follow. */
enum rh_session_stages {
	RH_STAGES_CHOSEN,  /* as a run has them */
	RH_STAGES_DEFAULT, /* in rounds of the default length: where these fit, a run does, and they are found sooner */
	RH_STAGES_PACKED   /* as full as memory allows: the same but for some host memory, and quicker */
};
int rh_session_plan(struct rh_session *session, const struct rh_workload *workload, enum rh_session_stages stages) RH_MUST;
/* Plan, budgets, store, weights, devices, executor. */
int rh_session_start(struct rh_session *session, const struct rh_workload *workload) RH_MUST;
void rh_session_close(struct rh_session *session);

/* Prints where the bytes are. */
void rh_session_report(const struct rh_session *session);

/* A data batch as the executor takes it; results are not wanted unless the caller sets them. */
struct rh_batch;
struct rh_micro_batch rh_micro_of(const struct rh_batch *batch);

#endif
