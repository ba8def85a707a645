/* The one planner. It turns a configuration, a model, a workload, budgets and rates into the plan that a run follows: stages, rounds, tiers
 * and bytes; or into one line that says why no plan fits. `train`, `plan`, its advice and `--compare` all ask it. It is pure: it opens no
 * file, reserves nothing and asks no machine. The caller says how much memory is free and how fast devices are. */
#ifndef RH_PLAN_RUN_PLAN_H
#define RH_PLAN_RUN_PLAN_H

#include "config/config.h"
#include "config/hardware.h"
#include "offload/store.h"
#include "partition/stage_plan.h"
#include "run/executor.h"

/* What the run will compute. */
struct rh_workload {
	struct rh_micro_shape train, infer; /* the largest micro-batches, zero where there are none */
	int64_t train_micro_batches;        /* in a step */
	int64_t infer_micro_batches;        /* in one call */
	int64_t cache_rows;                 /* generate, and texts in chunks: tokens that layers carry */
	/* Above 1: rows are in chunks (data/chunks.h): each is so many of the micro-batches, `train` is the largest chunk, `row` the largest
	 * row. */
	int chunks;
	int64_t chunk; /* most tokens in a chunk; 0: rows are not cut */
	struct rh_chunk_classes classes;
	struct rh_micro_shape row;
	int infer_logits;    /* whole rows of logits come back, in place of losses */
	int64_t train_steps; /* that remain; 0: not known */
	int64_t run_steps;   /* of the whole run, those before a checkpoint that it goes on from too; 0: train_steps */
	int64_t data_bytes;  /* that datasets take; the caller reserves them */
	/* Records on NVMe that the caller writes and reads, and how many a step writes, at most. rh_session_start takes them. */
	int64_t nvme_records, nvme_record_bytes, nvme_step_records;
	int64_t reading_bytes; /* that their longest row took beside them, before all else is reserved */
};

/* Micro-batches of a row. */
static inline int rh_chunks_of(const struct rh_workload *work)
{
	return work->chunks > 1 ? work->chunks : 1;
}

/* What the thread that writes checkpoints takes: a piece of each of three files, names, stack. Its ring comes on top:
 * rh_run_plan_add_ring. */
#define RH_RUN_CHECKPOINT_BYTES ((int64_t)4 << 20)

/* Bytes of a plan, by tier. */
struct rh_run_bytes {
	int64_t store, boundaries, data;     /* reserved in host memory */
	int64_t device;                      /* reserved on each device */
	int64_t total;                       /* host memory in all, the program's own and host devices' included */
	int64_t nvme;                        /* reserved on NVMe */
	int64_t nvme_frozen;                 /* the part of `nvme` for frozen weights */
	int64_t boundaries_nvme;             /* the part of `nvme` for boundary activations */
	int64_t nvme_loaded;                 /* upper bound on what is written to NVMe before the first step */
	int64_t nvme_step;                   /* written to NVMe in each step */
	int64_t device_budget, total_budget; /* INT64_MAX: no limit */
	int64_t program;                     /* allowance for what is not reserved: program, libraries, threads, tokenizer */
	int64_t checkpoints;                 /* to write checkpoints beside the training */
	int64_t tokenizer;                   /* of `program`: its vocabulary, which a step on random tokens does without */
	int host_devices;                    /* CPU devices, whose memory is host memory and counts in `total` */
};

/* Where the run computes. */
struct rh_run_machine {
	int devices;
	int simulated;       /* the store has addresses but no memory behind them */
	int64_t device_room; /* bytes of memory of its own that each device has; 0: its memory is the host's */
	struct rh_device_grain grain;
	int64_t ram_bytes; /* of host memory that the run may take: max_ram, or what is free; INT64_MAX: no limit */
	int64_t cores;
	const struct rh_hardware *hardware; /* rates of devices and links */
};

/* What is allowed beside all that is reserved: program, libraries, that of the boxes' links with them, threads, tokenizer; but for the
 * executor's part. */
int64_t rh_run_program_bytes(const struct rh_config *config, const struct rh_run_machine *machine, const struct rh_model *model);

/* How far the planner searches. */
enum rh_run_stages {
	RH_STAGES_CHOSEN, /* stages and rounds chosen by time: what a run follows */
	RH_STAGES_PACKED  /* stages packed as full as memory allows, in rounds of the default length: quick; where this fits, a run fits */
};

/* How the boxes of a mode use the schedule. */
struct rh_mode_order {
	/* 1: the schedule orders units over boxes, and updates as `update` says; 0: each box runs rounds of its own */
	int orders_boxes;
	enum rh_schedule_update update;
};

/* All pointers are borrowed. */
struct rh_run_request {
	const struct rh_config *config;
	struct rh_model *model; /* its head is cut as the plan wants it */
	int lora;               /* the model has adapters */
	const struct rh_workload *work;
	struct rh_run_machine machine;
	const struct rh_mode_order *order; /* of one of several boxes; NULL: this box alone */
	const int64_t *admission_limit;    /* PACI's admission limits; NULL: its own */
	int64_t linked_bytes; /* of one of several boxes: to put together their adapter at the end, or to pass on the pieces of a tied table's
	                       * gradient; the caller reserves them */
	struct rh_space *space; /* on NVMe; NULL: nothing goes there, or the machine is simulated */
	enum rh_run_stages stages;
};

/* A step as the slot recurrence predicts it (partition/waves.h). The recurrence leaves out the optimizer's update. */
struct rh_balanced {
	double step_s; /* 0: not known. What drives take at least counts */
	double work_s; /* the same without drives */
	double idle;   /* share of the devices' time */
	int packed;    /* the model has too many layers for a search (RH_PARTITION_LAYERS_MOST): stages are packed by memory alone */
};

struct rh_run_plan {
	struct rh_stage_plan stages;
	int spill; /* bits of enum rh_spill: what lies on NVMe */
	struct rh_run_bytes bytes;
	struct rh_balanced balanced;
	struct rh_device_grain grain; /* of the devices that the head was cut for */
	int64_t head_rows;            /* rows of logits computed at once */
	struct rh_executor_plan executor;
	struct rh_store_options store; /* without devices; space and addresses_only are those of the session that planned */
	struct rh_boxes boxes;         /* where this is one of several */
};

/* Several plans for one request, each within its budgets. */
enum { RH_RUN_PLANS_MOST = 48, RH_RUN_PLANS_ALIKE = 32 }; /* ALIKE: with the same kinds on NVMe */
struct rh_run_plans {
	struct rh_run_plan plan[RH_RUN_PLANS_MOST]; /* [0] is the recurrence's choice; the others follow, fastest first */
	int count;
};

/* -EINVAL: the schedule does not order boxes as their mode wants it; the line names those that do. order: may be NULL. */
int rh_run_check_boxes(const struct rh_config *config, const struct rh_mode_order *order) RH_MUST;

/* Searches by the recurrence. RH_DOES_NOT_FIT: the error line names the budget that is too small, and plan[0].bytes holds what was counted
 * until then. Free *out in any case. Call rh_run_plan_cut_head before you run one of the plans. */
int rh_run_plan_search(const struct rh_run_request *request, struct rh_run_plans *out) RH_MUST;
void rh_run_plans_free(struct rh_run_plans *plans);
/* The recurrence's choice alone, with the model's head cut for it. For callers without a judge, and for those who only ask whether a plan
 * fits. */
int rh_run_plan_make(const struct rh_run_request *request, struct rh_run_plan *out) RH_MUST;
void rh_run_plan_free(struct rh_run_plan *plan);

/* 1: run `a` rather than `b`. The faster plan is better, but one that saves much host memory, or that needs no NVMe, may be 1 % slower than
 * the fastest of all plans that are compared. */
int rh_run_plan_is_better(const struct rh_run_plan *a, double a_step_s, const struct rh_run_plan *b, double b_step_s, double fastest_s);

/* The caller's (rh_run_plan_free), also where it failed. */
int rh_run_plan_copy(const struct rh_run_plan *plan, struct rh_run_plan *out) RH_MUST;
/* Cuts the model's head as the plan expects it. */
void rh_run_plan_cut_head(const struct rh_run_plan *plan, struct rh_model *model);

/* Of a plan that a run follows: half of the memory that max_ram leaves, `most` at most, is added for the ring that checkpoints are
 * copied into while updates wait for them. Returns its bytes; 0: too little is left. */
int64_t rh_run_plan_add_ring(struct rh_run_plan *plan, int64_t most_bytes);

/* Bytes that loading and so many steps write to NVMe. */
int64_t rh_run_plan_nvme_writes(const struct rh_run_plan *plan, int64_t steps);
/* Checks the planned bytes on NVMe against max_nvme, and what so many steps write there against max_nvme_writes. */
int rh_run_plan_check_nvme(const struct rh_run_plan *plan, const struct rh_config *config, int64_t steps) RH_MUST;

#endif
