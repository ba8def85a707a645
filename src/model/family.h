/* Families of models, and how they differ. Each is described in its own file in families/. layout.c and traits.c build its layers from the
 * description; the shared kinds of layers (block.c with its halves, head.c) emit them. */
#ifndef RH_MODEL_FAMILY_H
#define RH_MODEL_FAMILY_H

#include "config/task.h"
#include "model/traits.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Which of the attention's linears have biases. */
enum rh_family_bias {
	RH_BIAS_AS_SAID, /* q, k, v and o, if config.json says attention_bias */
	RH_BIAS_QKV,     /* q, k and v always, o never */
	RH_BIAS_NONE,
	RH_BIAS_ALL,                /* always, and those of the MLP too */
	RH_BIAS_ALL_BUT_QKV_AS_SAID /* the same, but q, k and v if config.json says attention_bias */
};

/* How config.json says which layers have attention windows. */
enum rh_family_windows {
	RH_WINDOWS_NONE,     /* not at all: sliding_window is not read */
	RH_WINDOWS_ALL,      /* sliding_window: all of them */
	RH_WINDOWS_USED,     /* the same, where use_sliding_window is true */
	RH_WINDOWS_UPPER,    /* use_sliding_window: those from max_window_layers on, or as layer_types says */
	RH_WINDOWS_PERIOD,   /* all but the last of each sliding_window_pattern, or as layer_types says */
	RH_WINDOWS_FROM_LAST /* all but the last layer and each window_period-th below it, or as layer_types says */
};

enum { RH_FAMILY_KEYS = 8, RH_FAMILY_RENAMES = 16 };

/* Names of modules as files have them: a tensor is a module's "weight" or "bias". */
struct rh_family_names {
	const char *embedding, *layers, *final_norm, *head; /* layers: before the layer's number */
	const char *types;                                  /* a table of token types, or NULL */
	const char *embedding_norm;                         /* over the sum of the embeddings, or NULL */
	const char *positions;                              /* a table of learned positions; NULL: they are rotated */
	const char *patches; /* the linear of an image's patches, beside which `embedding` is the class token; NULL: no images */
	const char *base;    /* prefix of all names but the head's: files without a head leave it out; or NULL */
	/* behind "<layers><number>." */
	const char *norm[5]; /* by enum rh_norm_place */
	/* linears by enum rh_proj, of each kind of mixer and of the MLP; NULL: its rows are the last of the one before it */
	const char *attention[5], *mlp[4];
	const char *dense[3]; /* the MLP of a layer without experts, where others have them; NULL: it has the same names */
	const char *delta[5], *conv, *a_log, *dt_bias, *gated_norm;
	const char *layer_scalar; /* a number that the layer's output is multiplied by, which is not trained; NULL: there is none */
	/* where layers have inputs of their own: their linears, by enum rh_proj; the wide table; the norm of what the last linear makes */
	const char *per_layer[3], *inputs_table, *inputs_norm;
	const char *router, *experts;
	const char *choice_bias; /* of routers that are sigmoids: a vector of fp32 numbers, which is not trained; or NULL */
	const char *experts_gate_up, *experts_down; /* all experts' matrices in one tensor; NULL: each has its own */
};

/* What a family's config.json calls a key; NULL: it has no such key. */
struct rh_key_name {
	const char *key, *family_key;
};

/* A larger model, of which only the text model inside is trained: its config.json holds this family's as "text_config". */
struct rh_family_wrapper {
	const char *architecture, *model_type;
	const struct rh_family_names *names; /* of the text model's modules there */
};

/* How a family's models end for a task: with final_norm where it has one, then with these modules. */
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

/* Latent attention's sizes: of what queries are made of, and keys with values; of a head's key without what is rotated, which is head_dim,
 * and of its value. kv_rank 0: the family has none. */
struct rh_latent_config {
	int64_t q_rank, kv_rank, own, value;
	int rotates_adjacent; /* pairs lie side by side, else half of what is rotated apart */
};

/* What transformers 5.23 fills in where config.json is silent (its configuration_*.py). 0: derived, or as said. More than 20 members: one a
 * word of config.json. */
struct rh_family_silent {
	int64_t vocab_size, intermediate_size, key_value_heads, head_dim, max_position;
	int64_t hidden_size, layers, heads; /* 0: 4096, 32, 32 */
	int64_t bos, eos;                   /* -1: none */
	int64_t types;                      /* of tokens: type_vocab_size */
	double rms_norm_eps;                /* 0: 1e-6 */
	double attention_scalar;
	double rotary_share; /* 0: 1 */
	/* factors of a family that has these keys, else 0: of queries, of logits; the epsilon of norms behind halves; the cap of logits */
	double qk_scale_factor, output_multiplier, post_norm_eps, logits_cap;
	double rope_theta,
	        rope_theta_windowed;        /* 0: 10000; and 0: windowed layers have no table of their own, below 0: of the same theta */
	int64_t window, window_period;      /* window 0: none */
	struct rh_latent_config latent;     /* kv_rank 0: attention is no such */
	int64_t delta_period;               /* all layers but each such have the gated delta rule; 0: none */
	int64_t experts, experts_per_token; /* 0: it has no experts */
	int64_t expert_size;                /* of moe_intermediate_size, where that is a key; 0: it is none */
	int64_t image_size, patch_size, num_channels; /* 0: texts */
	int attention_bias, tie_word_embeddings;
};

struct rh_family_attention {
	enum rh_attention_direction direction;
	enum rh_family_bias bias;
	enum rh_family_windows windows;
	enum rh_qk_norm qk_norm;
	int sinks;
	int may_rotate_part;      /* config.json may say partial_rotary_factor */
	int grows_queries;        /* queries are multiplied by a factor that grows with their position (llama_4_scaling_beta) */
	int64_t unrotated_period; /* each such layer does not rotate, or as no_rope_layers says; 0: all do */
	const char *scalar_key;   /* the key of config.h's attention_scalar; NULL: it has none */
	int is_unscaled;          /* scores are not divided */
	int norms_values;         /* each head's, without a weight */
	int qk_norm_is_plain;     /* the norms of queries and keys have no weights */
	int reads_thetas;         /* layer_rope_theta: 0 for a layer that does not rotate */
	int splits_kinds;         /* layers without a window have heads of their own sizes (global_head_dim), and rotate proportionally */
};

struct rh_family_mlp {
	enum rh_activation activation; /* of the gate: config.json can say no other */
	const char *activation_key;    /* NULL: hidden_act */
	const char *activation_name;   /* what config.json calls it; NULL: as rh_activation_name */
	enum rh_mlp_kind kind;         /* of layers without experts */
	int may_have_bias;             /* if config.json says mlp_bias */
	int size_factor;               /* of hidden_size, where config.json gives null as the size; 0: null is none */
};

struct rh_family_moe {
	enum rh_router_softmax softmax; /* where norm_topk_prob is absent or not true */
	int norms;                      /* norm_topk_prob, where it is absent */
	int bias;                       /* on routers and experts */
	int reads_mxfp4;                /* experts may be stored in MXFP4 */
	int is_transposed;              /* each matrix of a tensor of all experts */
	int is_shared;                  /* beside them one MLP of intermediate_size, gated token by token */
	int is_beside;                  /* with is_shared: it is not gated; MLP, router and experts each have a norm of the residual */
	int is_sigmoid;                 /* routers are sigmoids (op.h, ROUTER), and not gated what is_shared says */
	double routed_factor;           /* of routed_scaling_factor, where is_sigmoid */
	int64_t groups, best_groups;    /* of n_group and topk_group, where is_sigmoid; 0: 1 */
	int64_t first_dense;            /* of first_k_dense_replace; 0: mlp_layer_types says which layers have experts */
	int may_lie_apart;              /* files may have each expert's matrices apart where others have one tensor */
};

struct rh_family_gguf {
	const char *architecture; /* "general.architecture"; NULL: GGUFs of the family are not read */
	const char *converted_as; /* the architecture that llama.cpp's converter writes for such a directory; NULL: the same */
	int only_read;            /* such GGUFs are read, but none is written */
	int permuted;             /* rows of q and k are in the order of pairs that are rotated together */
	int yarn_plain_ramp;      /* the ends of YaRN's ramp are not rounded to whole pairs */
	int joins_experts;        /* experts' gates and ups are one tensor, as in the family's own files */
	const char *turn_end;     /* the token that llama.cpp is told to end a turn at, beside the end of sequence; NULL: none */
	struct rh_gguf_name names[RH_FAMILY_RENAMES]; /* of modules that other families' GGUFs name otherwise, or not at all */
};

struct rh_family {
	const char *architecture;             /* config.json's "architectures"; where `task` names some, the first of them */
	const char *bare;                     /* the architecture of files without a head, or NULL */
	const char *model_type;               /* its "model_type" */
	struct rh_family_task task[RH_TASKS]; /* none: RH_TASK_CAUSAL_LM, which ends with final_norm and head */
	const struct rh_family_names *names;
	const struct rh_family_names *modules; /* `layers` and `proj` as transformers has them in memory, and so adapters; NULL: as files */
	const struct rh_family_wrapper *wrapper; /* NULL: no larger model is known to hold it */
	struct rh_family_silent silent;
	struct rh_key_name key_names[RH_FAMILY_RENAMES]; /* where they are not Llama's */
	const char *own_key[RH_FAMILY_KEYS];             /* keys that config.c refuses to other families and this one reads */
	const char *lora_targets[RH_FAMILY_KEYS];        /* LoRA's default targets; none: q_proj and v_proj */
	enum rh_norm_kind norm;
	enum rh_residual residual;
	enum rh_mixer_kind mixer; /* of layers that do not have the gated delta rule */
	struct rh_family_attention attention;
	struct rh_family_mlp mlp;
	struct rh_family_moe moe;
	struct rh_family_gguf gguf;
	int transposes_linears; /* files hold linears' matrices as (in,out) */
	int shrinks_residuals;  /* initial matrices that write to the residual are divided by the root of their number */
	int is_scaled;          /* config.json has multipliers of the embedding, scores, halves and logits */
	int is_hybrid;          /* config.json may speak of experts and of recurrent layers, which are refused */
	/* config.json's words for what the embedding and a classifier drop; NULL: it drops nothing there. A family without the first has no
	 * dropout of the residual either. */
	const char *embedding_dropout, *head_dropout;
	double silent_dropout;    /* each, where the file says nothing */
	int may_cap_logits;       /* config.json may say final_logit_softcapping */
	int scales_embedding;     /* by the root of hidden_size, which is rounded to the weights' dtype */
	int norms_embedding;      /* each token's row of the table, without a weight */
	int has_plain_final_norm; /* RMS, where the layers' are RMS_PLUS_ONE */
	int keeps_others;         /* files have tensors beside the model's, of multi-token prediction, which are written back as they are */
};

/* The last part of a module's name, by which PEFT's users name it. */
static inline const char *rh_last_part(const char *name)
{
	const char *dot = strrchr(name, '.');
	return dot ? dot + 1 : name;
}

/* The activation's name in hidden_act. */
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
