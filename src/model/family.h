/* Families of models, and how they differ. Each is described in its own file in families/. layout.c and traits.c build its layers from the
 * description; the shared kinds of layers (block.c, moe.c, head.c) emit them. */
#ifndef RH_MODEL_FAMILY_H
#define RH_MODEL_FAMILY_H

#include "config/task.h"
#include "model/traits.h"

#include <stddef.h>
#include <stdint.h>

/* Which of the attention's linears have biases. */
enum rh_family_bias {
	RH_BIAS_AS_SAID, /* q, k, v and o, if config.json says attention_bias */
	RH_BIAS_QKV,     /* q, k and v always, o never */
	RH_BIAS_NONE,
	RH_BIAS_ALL, /* always, and those of the MLP too */
	RH_BIAS_ALL_BUT_QKV_AS_SAID /* the same, but q, k and v if config.json says attention_bias */
};

/* How config.json says which layers have attention windows. */
enum rh_family_windows {
	RH_WINDOWS_NONE,  /* not at all: sliding_window is not read */
	RH_WINDOWS_ALL,   /* sliding_window: all of them */
	RH_WINDOWS_USED,  /* the same, where use_sliding_window is true */
	RH_WINDOWS_UPPER, /* use_sliding_window: those from max_window_layers on, or as layer_types says */
	RH_WINDOWS_PERIOD /* all but the last of each sliding_window_pattern, or as layer_types says */
};

enum { RH_FAMILY_KEYS = 8, RH_FAMILY_RENAMES = 12 };

/* Names of modules as files have them: a tensor is a module's "weight" or "bias". */
struct rh_family_names {
	const char *embedding, *layers, *final_norm, *head; /* layers: before the layer's number */
	const char *types;                                  /* a table of token types, or NULL */
	const char *embedding_norm;                         /* over the sum of the embeddings, or NULL */
	const char *positions;                              /* a table of learned positions; NULL: they are rotated */
	const char *patches; /* the linear of an image's patches, beside which `embedding` is the class token; NULL: no images */
	const char *base; /* how names of the model without its head begin: files of that model alone leave it out; or NULL */
	/* behind "<layers><number>." */
	const char *norm[4]; /* by enum rh_norm_place */
	const char *proj[7]; /* by enum rh_proj; NULL: its rows are the last of the one before it */
	const char *router, *experts;
	const char *experts_gate_up, *experts_down; /* all experts' matrices in one tensor, transposed; NULL: each has its own */
};

/* What a family's config.json calls a key; NULL: it has no such key. */
struct rh_key_name {
	const char *key, *own;
};

/* A larger model that is trained as the text model inside it: its config.json holds this family's as "text_config". */
struct rh_family_wrapper {
	const char *architecture, *model_type;
	const struct rh_family_names *names; /* of the text model's modules there */
};

/* How a family ends for a task: final_norm where it has one, then these. */
struct rh_family_task {
	const char *architecture; /* NULL: the family does not do this task */
	const char *dense, *norm; /* a linear with its activation, and a norm behind it; or NULL */
	const char *classifier;   /* a linear with a row for each label; NULL: the head over the vocabulary */
	const char *bias;         /* module of the vocabulary head's bias, or NULL */
	enum rh_activation activation;
};

/* What a GGUF calls a module of a layer. */
struct rh_gguf_name {
	const char *module, *stored;
};

struct rh_family {
	const char *architecture;             /* config.json's "architectures"; where `task` names some, the first of them */
	const char *bare;                     /* that of files without a head, or NULL */
	struct rh_family_task task[RH_TASKS]; /* none: RH_TASK_CAUSAL_LM, which ends with final_norm and head */
	const char *model_type;               /* its "model_type" */
	const char *gguf;                     /* GGUF's "general.architecture"; NULL: its GGUFs are not read */
	const struct rh_family_names *names;
	const struct rh_family_names *modules; /* `layers` and `proj` as transformers has them in memory, and so adapters; NULL: as files */
	const struct rh_family_wrapper *wrapper; /* NULL: no larger model is known to hold it */
	/* What transformers 5.23 fills in where config.json is silent (its configuration_*.py). 0: derived; -1: none. */
	int64_t vocab_size, intermediate_size, key_value_heads, head_dim, max_position, bos, eos;
	int64_t hidden_size, layers, heads; /* 0: 4096, 32, 32 */
	double rms_norm_eps;                /* 0: 1e-6 */
	enum rh_norm_kind norm;
	enum rh_residual residual;
	enum rh_attention_direction direction;
	int64_t types;                  /* of tokens, where type_vocab_size is silent */
	int64_t image_size, patch_size, num_channels; /* where config.json is silent; 0: texts */
	enum rh_activation activation;  /* of the MLP's gate: config.json can say no other */
	const char *activation_key;     /* NULL: hidden_act */
	const char *activation_name;    /* what config.json calls it; NULL: as rh_activation_name */
	int ungated;                    /* MLPs have no gate: the activation is that of up */
	int transposes_linears;         /* files hold linears' matrices as (in,out) */
	int shrinks_residuals;          /* random matrices that write to the residual are so much smaller as there are of them: 1/root */
	int intermediate_factor;        /* of hidden_size, where config.json gives null; 0: null is no size */
	const char *attention_scalar;   /* the key of config.h's, or NULL: it has none */
	double attention_scalar_silent; /* where config.json is silent */
	int64_t experts, experts_per_token; /* where config.json is silent; 0: it has no experts */
	int64_t expert_size;                /* of moe_intermediate_size, where that is a key; 0: it is none */
	enum rh_router_softmax softmax;     /* where norm_topk_prob is no key or not true */
	int expert_bias;                    /* on routers and experts */
	int sinks;                          /* of attention */
	int biases_attention;               /* where config.json does not say attention_bias */
	int reads_mxfp4;                    /* its experts may be stored so */
	int scales_embedding;               /* by the root of hidden_size, rounded to the weights' dtype */
	int ties;                           /* where config.json does not say tie_word_embeddings */
	enum rh_family_bias attention_bias;
	int may_bias_mlp;  /* if config.json says mlp_bias */
	int qk_norm;       /* an RMSNorm on each head's q and k */
	int yarn_plain_ramp; /* YaRN's ramp where a GGUF has it: its ends are not rounded to whole pairs */
	int gguf_only_read;  /* no GGUF of the family is written */
	int gguf_permuted; /* GGUF files hold the rows of q and k in the order of pairs that are rotated together */
	enum rh_family_windows windows;
	int64_t window, window_period;                   /* where config.json is silent; window 0: none */
	double rope_theta, rope_theta_windowed;          /* 0: 10000; and 0: windowed layers have no table of their own */
	int may_rotate_part;                             /* config.json may say partial_rotary_factor */
	struct rh_key_name key_names[RH_FAMILY_RENAMES]; /* where they are not Llama's */
	const char *own_key[RH_FAMILY_KEYS];             /* of those that config.c calls foreign, what this family reads */
	struct rh_gguf_name gguf_names[RH_FAMILY_KEYS];  /* of modules that other families' GGUFs name otherwise, or not at all */
	const char *lora_targets[RH_FAMILY_KEYS];        /* where the run does not say; none: q_proj and v_proj */
};

/* As hidden_act has it. */
const char *rh_activation_name(enum rh_activation activation);
const char *rh_family_activation(const struct rh_family *family);

/* What the family's config.json calls one of Llama's keys; NULL: it has none. */
const char *rh_family_key(const struct rh_family *family, const char *key);

/* Number `which`, from 0; NULL behind the last. */
const struct rh_family *rh_family_at(size_t which);
/* By its model_type, or by its name in GGUFs; NULL when there is none. */
const struct rh_family *rh_family_find(const char *model_type);
const struct rh_family *rh_family_of_gguf(const char *architecture);

#endif
