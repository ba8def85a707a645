/* The one planner: from configuration, model, workload, budgets and rates to the plan that a run follows (stages, rounds, tiers, bytes), or
 * the one line that says why there is none. `train`, `plan`, its advice and `--compare` all ask it. It opens nothing, reserves nothing and
 * asks no machine: what is free and how fast devices are is given. */
#ifndef RH_PLAN_RUN_PLAN_H
#define RH_PLAN_RUN_PLAN_H

#include "config/config.h"
#include "config/hardware.h"
#include "offload/store.h"
#include "partition/plan.h"
#include "run/executor.h"

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

/* What the thread that writes checkpoints takes: a piece of each of three files, names, stack. It reads the store's own arrays, and no copy
 * of a block is made. */
#define RH_RUN_CHECKPOINT_BYTES ((int64_t)4 << 20)

struct rh_run_bytes {
	int64_t store, boundaries, device, data, total; /* bytes of host memory reserved; device: of one device */
	int64_t nvme;                                   /* reserved there */
	int64_t boundaries_nvme;                        /* of it: boundary activations */
	int64_t nvme_loaded;                            /* written to it before the first step, at most */
	int64_t nvme_step;                              /* written to it in a whole step */
	int64_t device_budget, total_budget;            /* INT64_MAX: no limit */
	int64_t program;                                /* allowed for all that is not reserved: program, libraries, threads, tokenizer */
	int64_t checkpoints;                            /* to write them beside the training */
	int host_devices;                               /* devices whose memory counts in total: none with memory of its own */
};

/* Where it runs. */
struct rh_run_machine {
	int devices;
	int simulated;       /* nothing is held behind the store's addresses */
	int64_t device_room; /* bytes of memory of its own that each device has; 0: its memory is the host's */
	struct rh_device_grain grain;
	int64_t ram_bytes; /* of host memory that the run may take: max_ram, or what is free; INT64_MAX: no limit */
	int64_t cores;
	const struct rh_hardware *hardware; /* rates of devices and links */
};

/* How much of the plan is wanted. */
enum rh_run_stages {
	RH_STAGES_CHOSEN,  /* as a run has them */
	RH_STAGES_DEFAULT, /* in rounds of the default length: where these fit, a run does, and they are found sooner */
	RH_STAGES_PACKED   /* as full as memory allows: the same but for some host memory, and quicker */
};

/* All pointers are borrowed. */
struct rh_run_request {
	const struct rh_config *config;
	struct rh_model *model; /* its head is cut as the plan wants it */
	int lora;               /* adapters are trained, or run */
	const struct rh_workload *work;
	struct rh_run_machine machine;
	const int64_t *window;  /* PACI's admission limits; NULL: its own */
	struct rh_space *space; /* on NVMe; NULL: nothing goes there, or the machine is simulated */
	enum rh_run_stages stages;
};

/* A step by the recurrence of slots (partition/waves.h), which knows no update. */
struct rh_balanced {
	double step_s, idle; /* share; step_s 0: not known */
	int packed;          /* more layers than cuts are searched for (RH_PARTITION_LAYERS_MOST): packed by memory alone */
};

struct rh_run_plan {
	struct rh_plan stages;
	const struct rh_schedule *schedule; /* of training; NULL where there is none */
	int64_t train_round;                /* micro-batches in a round of training */
	int spill;                          /* bits of enum rh_spill: what goes to NVMe */
	struct rh_run_bytes bytes;
	struct rh_balanced balanced;
	struct rh_device_grain grain; /* that the head was cut for */
	int64_t head_rows;            /* of logits at once: rh_model's */
	/* What executor and store are created with, but for devices, store, updater, boxes and the plan itself. */
	struct rh_executor_options options;
	struct rh_store_options store;
	struct rh_boxes boxes; /* where this is one of several: options.boxes is to point here */
};

/* Plans for one request, all within its budgets. */
enum { RH_RUN_PLANS_MOST = 4 };
struct rh_run_plans {
	struct rh_run_plan plan[RH_RUN_PLANS_MOST]; /* the recurrence's choice first, then the others, the fastest first */
	int count;
};

/* Searches by the recurrence. RH_DOES_NOT_FIT with the line that says what is too little; plan[0].bytes is then as far as it was known.
 * Free *out in any case. Before one of the plans is run its head is cut (rh_run_plan_cut_head). */
int rh_run_plan_search(const struct rh_run_request *request, struct rh_run_plans *out) RH_MUST;
void rh_run_plans_free(struct rh_run_plans *plans);
/* The recurrence's choice alone, its head cut: where there is one plan to run anyway, or only whether one fits is asked. */
int rh_run_plan_make(const struct rh_run_request *request, struct rh_run_plan *out) RH_MUST;
void rh_run_plan_free(struct rh_run_plan *plan);

/* Whether `a` is to be run and not `b`, by the seconds that their steps take: the faster one, unless the difference is too small to notice,
 * or the slower one saves much host memory and little time is lost. */
int rh_run_plan_is_better(const struct rh_run_plan *a, double a_step_s, const struct rh_run_plan *b, double b_step_s);

/* The same plan for another session of the run: the request's model, and its machine, which may be a simulated one. Nothing is searched for
 * or weighed against budgets again. */
int rh_run_plan_copy(const struct rh_run_request *request, const struct rh_run_plan *plan, struct rh_run_plan *out) RH_MUST;
/* Cuts the model's head as the plan wants it. */
void rh_run_plan_cut_head(const struct rh_run_plan *plan, struct rh_model *model);

/* Bytes that so many steps write to NVMe, and what loading sets there. */
int64_t rh_run_plan_nvme_writes(const struct rh_run_plan *plan, int64_t steps);
/* The planned bytes on NVMe, and those that so many steps write there, against their budgets. */
int rh_run_plan_check_nvme(const struct rh_run_plan *plan, const struct rh_config *config, int64_t steps) RH_MUST;

#endif
