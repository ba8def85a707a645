/* One run's configuration: YAML file + command line -> this struct, validated, printed resolved, then const.
 * Keys, defaults and meaning: the table in keys.c. A field is named as its key. */
#ifndef RH_CONFIG_CONFIG_H
#define RH_CONFIG_CONFIG_H

#include "config/optim.h"
#include "config/spill.h"
#include "config/task.h"
#include "config/transport.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/form.h"
#include "core/preference.h"

#include <stddef.h>

enum rh_link_dtype { RH_LINK_DTYPE_SAME, RH_LINK_DTYPE_BF16, RH_LINK_DTYPE_INT8 };

/* How boxes cooperate: each alone; one pipeline that computes what one box would; one without a flush; one without gradients between
 * boxes. */
enum rh_mode { RH_MODE_LOCAL, RH_MODE_SYNC_PP, RH_MODE_PACI, RH_MODE_FLUIDPIPE };
#define RH_MODE_NAMES "local", "sync-pp", "paci", "fluidpipe"
const char *rh_mode_name(enum rh_mode mode);
/* Of two boxes without gradients between them: no distillation, balanced, mostly the task; odd ones with an extra layer in box 1. */
enum rh_recipe { RH_RECIPE_ND, RH_RECIPE_ND_EL, RH_RECIPE_DB, RH_RECIPE_DB_EL, RH_RECIPE_DT, RH_RECIPE_DT_EL };
/* Task and distillation: alpha and 1 - alpha of them, or their sum. */
enum rh_weighting { RH_WEIGHTING_CONVEX, RH_WEIGHTING_SUM };
enum rh_kl { RH_KL_FORWARD, RH_KL_REVERSE };
/* When box 2's logits go to box 1: behind the epoch, or behind each step. */
enum rh_logits { RH_LOGITS_EPOCH, RH_LOGITS_STREAM };
/* Which samples the opportunistic steps of mode fluidpipe train on: data/opportunistic.h. In the order of the key's words. */
enum rh_opportunistic_sampler {
	RH_OPPORTUNISTIC_NONE,
	RH_OPPORTUNISTIC_RANDOM,
	RH_OPPORTUNISTIC_DIFFICULTY,
	RH_OPPORTUNISTIC_EH_DIFFICULTY,
	RH_OPPORTUNISTIC_TASK_LOSS,
	RH_OPPORTUNISTIC_DISTILLATION_LOSS
};
enum rh_scheduler {
	RH_LR_LINEAR,
	RH_LR_COSINE,
	RH_LR_CONSTANT,
	RH_LR_CONSTANT_WITH_WARMUP,
	RH_LR_COSINE_WITH_MIN_LR,
	RH_LR_COSINE_WITH_RESTARTS,
	RH_LR_POLYNOMIAL,
	RH_LR_INVERSE_SQRT,
	RH_LR_WARMUP_STABLE_DECAY
};
enum rh_lr_decay { RH_LR_DECAY_COSINE, RH_LR_DECAY_LINEAR, RH_LR_DECAY_1_SQRT };
/* What lr_scheduler_kwargs says, transformers' defaults where it is silent. */
struct rh_lr_shape {
	double min_rate;                  /* the last rate's share of learning_rate */
	double cycles;                    /* of cosine_with_restarts, whole */
	double power;                     /* of polynomial */
	double timescale;                 /* of inverse_sqrt, in steps; 0: those of the warm-up, or 10,000 without one */
	double stable_steps, decay_steps; /* of warmup_stable_decay; stable_steps -1: what warm-up and decay leave */
	enum rh_lr_decay decay;
};
enum rh_sampling { RH_SAMPLING_RANDOM, RH_SAMPLING_SEQUENTIAL };
enum rh_when { RH_WHEN_NO, RH_WHEN_STEPS, RH_WHEN_EPOCH };
/* What the backward of a stage that updates itself works with: activations made again with the weights of now; those of its forward, and
 * the weights of now; the weights of its forward. */
enum rh_paci_backward { RH_BACKWARD_RECOMPUTE, RH_BACKWARD_STORED, RH_BACKWARD_STASH };
enum rh_packing { RH_PACKING_BFD, RH_PACKING_BFD_SPLIT, RH_PACKING_WRAPPED };
enum rh_saved_dtype { RH_SAVED_SAME, RH_SAVED_FP8 };
enum rh_accumulation { RH_ACCUMULATION_FP32, RH_ACCUMULATION_FP16 };
enum rh_choice { RH_UNSET = -1, RH_NO = 0, RH_YES = 1 };
/* How an adapter begins, as PEFT has it: A uniform and B zero; A normal and B zero; both uniform, so that it changes the model at once. */
enum rh_lora_init { RH_LORA_INIT_TRUE, RH_LORA_INIT_GAUSSIAN, RH_LORA_INIT_FALSE };

/* What an evaluation is judged by. */
enum rh_metric { RH_METRIC_LOSS, RH_METRIC_TOKEN_ACCURACY, RH_METRIC_ACCURACY, RH_METRIC_REWARDS_ACCURACIES, RH_METRIC_REWARDS_MARGINS };

struct rh_list {
	char **item;
	size_t count, capacity;
};

/* One field a key, as a flat list: the table in keys.c reads, prints and compares fields by their offset. */
struct rh_config {
	/* model and files; strings are owned, NULL when unset */
	char *model_name_or_path, *config_name, *adapter_name_or_path;
	struct rh_list rope_scaling;                /* "name=value" in place of config.json's; none: config.json's */
	char *base_model_name_or_path;              /* that the adapter names; NULL: model_name_or_path */
	struct rh_list train_file, validation_file; /* paths; names of dataset_info where that is given */
	struct rh_list data_columns;                /* "our key=the file's" */
	struct rh_list data_weights;                /* numbers above 0, one for each of train_file, or none */
	char *dataset_info, *output_dir;
	int64_t max_samples; /* 0: all rows */
	int allow;           /* bits of enum rh_lint (data/dataset.h) */
	char *chat_template, *chat_template_date, *dataset_text_field, *eos_token;
	double eval_split;      /* 0: none */
	enum rh_task_kind task; /* RH_TASK_UNSET: as config.json's architectures say */
	int64_t num_labels;     /* 0: as config.json has it */
	double mlm_probability;

	/* batches and steps */
	int64_t per_device_train_batch_size, per_device_eval_batch_size, gradient_accumulation_steps;
	double num_train_epochs;
	int64_t max_steps; /* -1: by epochs */
	int64_t max_length;
	int packing;
	enum rh_packing packing_strategy;
	enum rh_choice completion_only_loss, assistant_only_loss;
	enum rh_sampling train_sampling_strategy;
	uint64_t seed, data_seed; /* data_seed is seed where unset */

	/* losses over answers; preference is resolved from the other fields, and all zeros but for these where loss_type names none */
	struct rh_list loss_type, loss_weights;
	double beta, label_smoothing, simpo_gamma, cpo_alpha, desirable_weight, undesirable_weight;
	struct rh_preference preference;

	/* optimisation */
	double learning_rate, warmup_steps; /* warmup_steps below 1: a share of all steps */
	enum rh_scheduler lr_scheduler_type;
	struct rh_list lr_scheduler_kwargs; /* "name=value" */
	struct rh_lr_shape lr_shape;        /* resolved from them */
	enum rh_optim optim;
	char *optim_args;                  /* "momentum=0.9", or NULL */
	double momentum;                   /* resolved from optim_args; sgd only */
	char *schedule;                    /* a name that is looked up later */
	int64_t optimizer_staleness;       /* 0 or 1 */
	enum rh_state_layout state_layout; /* resolved: PLAIN in fp32; else SPLIT where unset */
	int decay_embeddings;
	double weight_decay, adam_beta1, adam_beta2, adam_epsilon, max_grad_norm, router_aux_loss_coef;
	enum rh_dtype dtype; /* RH_F32 or RH_BF16, resolved from dtype, bf16 and the device */
	enum rh_accumulation accumulation;
	int64_t accumulation_chunk; /* resolved; 0 with fp32 */
	int fp8;
	enum rh_form quantize; /* in which frozen matrices that no file has packed are held; PLAIN: in none */

	/* LoRA; use_lora is resolved from lora_r, use_peft and adapter_name_or_path */
	int use_lora;
	int64_t lora_r;
	double lora_alpha, lora_dropout;
	struct rh_list lora_target_modules; /* names; or one entry: "all-linear", or a regular expression when lora_targets_pattern */
	int lora_targets_pattern;
	int use_dora;
	int use_rslora;
	struct rh_list lora_target_parameters; /* names of parameters of experts and routers */
	struct rh_list lora_modules_to_save;   /* names of the embedding or the head, trained whole */
	struct rh_list exclude_modules;        /* as lora_target_modules: names, or one expression when exclude_pattern */
	int exclude_pattern;
	struct rh_list layers_to_transform;         /* numbers of layers; none: all */
	struct rh_list rank_pattern, alpha_pattern; /* "PATTERN=NUMBER" in place of lora_r and lora_alpha */
	enum rh_lora_init init_lora_weights;
	double loraplus_lr_ratio; /* LoRA+: B's learning rate to learning_rate, which is A's */
	int lora_dropout_given;   /* the user wrote lora_dropout */
	int lora_targets_given;   /* the user wrote lora_target_modules; 0: the family's own, which the field does not hold */
	int lora_keys_given;      /* with adapter_name_or_path: which of these keys the user wrote, bits of enum rh_lora_key; else 0 */

	/* evaluation, logging, saving */
	enum rh_when eval_strategy, save_strategy;
	double eval_steps, save_steps; /* below 1: a share of all steps */
	struct rh_list sample_prompts; /* asked at each evaluation, RH_SAMPLES_MOST at most */
	int64_t sample_max_new_tokens;
	int64_t logging_steps;
	int logging_first_step;
	int report_to; /* bits of enum rh_report_to (observe/reports.h) */
	int verbose;
	int64_t max_bad_steps; /* in a row, whose gradient is not finite */
	int load_best_model_at_end;
	enum rh_metric metric_for_best_model;
	enum rh_choice greater_is_better; /* unset: of accuracies */
	int64_t early_stopping_patience;  /* evaluations; 0: off */
	double early_stopping_threshold;
	int verify_base;
	int64_t trace_step;           /* from 1; 0: none */
	int64_t save_total_limit;     /* 0: all */
	int save_only_model;          /* checkpoints hold no optimizer state */
	char *resume_from_checkpoint; /* NULL, "true" or a path */

	/* devices, stages and budgets */
	char *device; /* "cpu:2" */
	enum rh_saved_dtype saved_dtype;
	int64_t sequence_chunk;                        /* 0: rows are cut where they do not fit whole */
	int64_t round_micro_batches;                   /* 0: the plan chooses */
	int64_t *forward_cuts, *backward_cuts;         /* first layer of each stage but the first, ascending; NULL: the plan chooses */
	int64_t forward_cut_count, backward_cut_count; /* -1 unset: distinguishes "[]" (one stage) */
	int64_t max_vram, max_ram;                     /* bytes; 0: all free (max_ram: less 2 GiB) */
	int spill;                                     /* bits of enum rh_spill; 0: nothing */
	int frozen_share; /* of struct rh_store_options; no key: a part of a run that is simulated has the whole run's */
	struct rh_list nvme_dirs;
	int64_t max_nvme, max_nvme_writes; /* bytes; writes 0: any number */

	/* generate */
	char *prompt, *prompt_file;           /* of generate; one of them */
	char *system, *tools, *messages_file; /* of generate and chat: a text; files */
	char *outfile;                        /* of merge and export */
	int outtype;                          /* in the order of its words; -1: as the model has it */
	int64_t max_new_tokens;
	double temperature, top_p, min_p, repetition_penalty;
	int64_t top_k; /* 0: all */

	int64_t rows; /* inspect: of each file */
	char *html;   /* inspect: a file to write, or NULL */

	char *save; /* doctor: where the profile goes, a path or a name; NULL: nowhere */
	/* several boxes */
	enum rh_mode mode;
	int64_t boxes, box;              /* how many; which this is, from 1. 0: unset */
	struct rh_list box_cuts;         /* the first layer of each box but the first; empty: by speeds and memory */
	struct rh_list admission_limits; /* mode paci: most units that each box has in flight; empty: [boxes, ... 1] */
	int64_t max_version_drift;       /* mode paci: 0: no bound */
	enum rh_paci_backward paci_backward;
	int64_t paci_update_delay; /* units; 0: an update blocks its box */
	enum rh_recipe fluidpipe_recipe;
	int64_t fluidpipe_ahead;                   /* messages */
	int fluidpipe_freeze;                      /* box 1 learns nothing */
	double fluidpipe_alpha1, fluidpipe_alpha2; /* resolved; 1: that box does not distil */
	double fluidpipe_temperature;
	int64_t fluidpipe_top_k; /* likeliest tokens of a causal language model that boxes tell each other of each target; 0: whole logits */
	enum rh_weighting fluidpipe_weighting;
	enum rh_kl fluidpipe_kl;
	enum rh_logits fluidpipe_logits;
	/* opportunistic steps: most of an epoch, -1: any number; bytes of samples that are kept in memory, and on NVMe (0: none); a log to be
	 * followed, or NULL */
	enum rh_opportunistic_sampler fluidpipe_idle_sampler;
	int64_t fluidpipe_idle_steps, fluidpipe_idle_store, fluidpipe_idle_spill;
	double fluidpipe_idle_task_scale, fluidpipe_idle_distillation_scale, fluidpipe_idle_dropout;
	double fluidpipe_idle_task_weight, fluidpipe_idle_distillation_weight; /* of a sample's score */
	double fluidpipe_idle_easy_share, fluidpipe_idle_hard_share;           /* of a draw */
	char *fluidpipe_idle_replay;
	int model_dropout;    /* the model's own dropout is applied in training */
	double neftune_noise_alpha;
	struct rh_list parts; /* join: directories */
	enum rh_link_dtype link_dtype;
	int tie_word_embeddings;                              /* mode sync-pp */
	int link_transport;                                   /* row of config/transport.h */
	char *link_identity;                                  /* this box's key file */
	char *link_below, *link_above;                        /* HOST:PORT to connect to, or listen:[HOST:]PORT; NULL: none is needed */
	char *link_peer_below, *link_peer_above;              /* hashes of their certificates; NULL: plain, on this machine */
	struct rh_list link_mbit_per_second, link_latency_ms; /* rh_config_link reads them */
	struct rh_list box_hardware;       /* plan: each box's profile; empty: all like the machine that is planned for */
	double link_timeout, link_give_up; /* seconds */
	int64_t measure_seconds;           /* doctor */

	int json;             /* --json */
	int force;            /* --force: results may be written over files of others */
	char *gantt;          /* of plan: --gantt FILE.svg, borrowed from the command line */
	int compare;          /* of plan: --compare, all schedules */
	int check;            /* of plan: --check, prove the plan's lanes (run/check.h) */
	int gpus;             /* of plan and stress: --gpus N of the profile's, 0: all */
	char *svg;            /* of stress: --svg FILE.svg, likewise */
	double time_s;        /* of stress: --time; 0: not given */
	int64_t first_layers; /* of verify: the model of its first so many layers; 0: all. No key */
	int help;             /* --help: nothing else is set */
};

enum { RH_BOXES_MAX = 64, RH_SAMPLES_MOST = 16 };

enum rh_lora_key {
	RH_LORA_R = 1,
	RH_LORA_ALPHA = 2,
	RH_LORA_DROPOUT = 4,
	RH_LORA_TARGETS = 8,
	RH_LORA_RSLORA = 16,
	RH_LORA_PARAMETERS = 32,
	RH_LORA_SAVED = 64,
	RH_LORA_DORA = 256,
	RH_LORA_PATTERNS = 128 /* what is said of single modules: refused beside an adapter, which says it itself */
};

/* argv[0] is the first word after the verb: an optional CONFIG.yaml (its first word, or one that ends in .yaml or .yml), and
 * --key value, --key=value or --flag pairs. The command line wins over the file; the file may hold keys of other verbs. Checked: names,
 * values, contradictions, keys that `verb` needs, files that it will read. If all is well, rh_note names the keys without effect; else
 * -EINVAL with one line, and *out is empty. default_device is called only where no device is named, and names one; NULL: cpu:1. */
int rh_config_load(const char *verb, int argc, char **argv, const char *(*default_device)(void), struct rh_config *out) RH_MUST;
void rh_config_free(struct rh_config *config);

/* The resolved configuration as YAML, in the order of the key table, for the log and the output directory. Loading the printed text
 * gives the same configuration. */
struct rh_text;
int rh_config_print(const struct rh_config *config, struct rh_text *out) RH_MUST;
/* A number of link_mbit_per_second or link_latency_ms: of link 0, that of boxes 1 and 2, or one above it; way 0: up, 1: down. 0: none is
 * given. */
double rh_config_link(const struct rh_config *config, const struct rh_list *list, int link, int way);

/* Mode fluidpipe: does a box, from 0, learn from the other's logits? */
static inline int rh_config_distils(const struct rh_config *config, int box)
{
	return config->mode == RH_MODE_FLUIDPIPE && (box ? config->fluidpipe_alpha2 : config->fluidpipe_alpha1) < 1;
}

/* The keys in which boxes that train one model must agree, as name=value lines. */
int rh_config_print_shared(const struct rh_config *config, struct rh_text *out) RH_MUST;

/* The config.json that the program holds under this name (examples/models); NULL: there is none. */
const char *rh_config_model(const char *name);

/* The keys that `verb` uses, with meaning, allowed values and defaults. schedules: the allowed values of the key `schedule`, which this
 * folder does not know. */
int rh_config_help(const char *verb, const char *schedules, struct rh_text *out) RH_MUST;

#endif
