/* What a model is, read from a Hugging Face config.json (or from GGUF metadata by ckpt/), and written back. */
#ifndef RH_MODEL_CONFIG_H
#define RH_MODEL_CONFIG_H

#include "config/task.h"
#include "core/json.h"
#include "model/family.h"
#include "model/rope.h"

enum { RH_MOST_LAYERS = 1024, RH_MOST_LAYER_INPUT = 1 << 14, RH_ROPES = 2 };

/* How a transformer layer differs from other layers of its model. */
struct rh_layer_config {
	unsigned char windowed;     /* its queries see at most config->window keys */
	unsigned char dense;        /* it has one MLP of intermediate_size, although the model has experts */
	unsigned char is_unrotated; /* its queries and keys know no positions */
	unsigned char is_delta;     /* it has the gated delta rule in place of attention */
};

/* Shares of a model's own that training drops: of the embedding, of attention's probabilities, of what each half adds to the residual, of
 * the rows that a classifier reads. noise: NEFTune's alpha (Jain et al. 2023): tokens' rows of the embedding get uniform noise of at most
 * alpha / sqrt(tokens of the micro-batch's longest text * hidden size); 0: none. */
struct rh_model_dropout {
	float embedding, attention, residual, head, noise;
};

/* The gated delta rule's sizes; 0: the family has none. */
struct rh_delta_config {
	int64_t key_heads, heads, key, value, taps;
};

/* The words of config.json that a model is built from. One flat struct: each is read and written by its own word. */
struct rh_model_config {
	const struct rh_family *family;
	int wrapped;            /* it is the text_config of the family's wrapper */
	enum rh_task_kind task; /* UNSET: the files have no head; until rh_model_config_set_task */
	int64_t num_labels;
	const char *architecture; /* the architecture that the files name */
	int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers;
	int64_t num_attention_heads, num_key_value_heads, head_dim;
	int64_t max_position_embeddings;
	int64_t types; /* of tokens; 0: they have none */
	/* Images are square: their sides and those of a patch, in pixels. 0: the model reads texts. */
	int64_t image_size, patch_size, num_channels;
	double rms_norm_eps, initializer_range;
	struct rh_rope rope[RH_ROPES]; /* by rh_traits' rope */
	double rotary_share;           /* of each head's elements; 0 and 1: all */
	int attention_bias;            /* on q, k, v */
	int attention_output_bias;     /* on o */
	int mlp_bias, qk_norm, tie_word_embeddings;
	/* Mixture of experts: the MLPs of a layer that is not dense, and how many of them a token uses. 0: one MLP. */
	int64_t experts, experts_per_token;
	int64_t expert_size;   /* of each, 0: intermediate_size */
	int experts_are_apart; /* in files, where others of the family have one tensor of all */
	int64_t shared_size;   /* of the MLP beside them, 0: intermediate_size */
	enum rh_router_softmax router_softmax;
	double routed_factor;               /* of experts' weights; 0: 1 */
	int64_t expert_groups, best_groups; /* which choose first; 0: none */
	double attention_scalar;            /* scores are divided by its root; 0: head_dim */
	double attention_factor;            /* of scores, in place of that; 0: not said */
	double embedding_scale;             /* 0: 1 */
	double residual_factor;             /* of what each half adds to the residual; 0: 1 */
	double logits_divisor;              /* 0: 1 */
	double post_norm_eps;               /* of norms behind halves; 0: rms_norm_eps */
	struct rh_model_dropout dropout;
	double logits_cap;                          /* logits become cap tanh(logit / cap); 0: they do not */
	int64_t full_head_dim, full_kv_heads;       /* of layers without a window, where they have others; 0: they do not */
	int values_are_keys;                        /* in those layers */
	int64_t kv_shared_layers;                   /* the uppermost, which attend to the keys and values of layers below them */
	int doubles_borrowers;                      /* the MLP of each of these is twice as wide */
	int64_t layer_input_size, layer_input_rows; /* of each layer's own input, and of the table of all; 0: layers have none */
	int64_t window;                             /* most keys that a query of a windowed layer sees */
	struct rh_delta_config delta;
	struct rh_latent_config latent;
	struct rh_layer_config layer[RH_MOST_LAYERS];
	int64_t bos_token_id, eos_token_id[8], eos_token_ids; /* bos -1: none */
	json_t *source; /* the config.json as read, from which keys without a field are written back; NULL: none */
};

/* `where` names the file. Unknown architectures, unknown rope types, disagreeing spellings and impossible sizes are -EINVAL.
 * *out is freed with rh_model_config_free. */
int rh_model_config_parse(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;
/* The same for a file, or for config.json in a directory. */
int rh_model_config_load(const char *path_or_dir, struct rh_model_config *out) RH_MUST;
/* The names of the model's modules in files; and the names of its layers and their linears in transformers' memory, which adapters use. */
const struct rh_family_names *rh_model_names(const struct rh_model_config *config);
const struct rh_family_names *rh_model_modules(const struct rh_model_config *config);
/* Sets the task that a run asks for, and its number of labels (0: as the files have it, else 2). RH_TASK_UNSET: the task of the files.
 * -EINVAL: the family does not have the task, or files without a head leave it open. */
int rh_model_config_set_task(struct rh_model_config *config, enum rh_task_kind task, int64_t num_labels, const char *where) RH_MUST;
const struct rh_family_task *rh_model_task(const struct rh_model_config *config); /* zeros for RH_TASK_CAUSAL_LM of most families */
/* The architecture that config.json is written with: that of the task. */
const char *rh_model_architecture(const struct rh_model_config *config);
/* Rows of the head's matrix: the size of the vocabulary, or the number of labels. And: is that matrix the embedding's? */
int64_t rh_model_outputs(const struct rh_model_config *config);
int rh_model_ties(const struct rh_model_config *config);
/* The most tokens of a text that the model is for: max_position_embeddings, or as far as a rotary scaling stretches the length that it was
 * trained at first, which config.json may leave as it was. */
int64_t rh_model_longest(const struct rh_model_config *config);
/* How many numbers one patch of an image has (by channel, row and column); 0: the model reads texts. An image becomes a class token and
 * its patches, so it has max_position_embeddings tokens. */
int64_t rh_model_patch(const struct rh_model_config *config);
/* 1: files of another task, or without a head, may lack this tensor, which then starts at random. */
int rh_model_may_lack(const struct rh_model_config *config, const char *tensor);

/* A copy, whose JSON is shared; the caller's (rh_model_config_free), also where it failed. -ENOMEM. */
int rh_model_config_copy(const struct rh_model_config *config, struct rh_model_config *out) RH_MUST;
/* The model of the first `count` layers: also what its config.json says of each layer. The JSON is the configuration's own from then on.
 * -ENOMEM. */
int rh_model_config_keep_layers(struct rh_model_config *config, int64_t count) RH_MUST;
void rh_model_config_free(struct rh_model_config *config);

/* Replaces the scaling of *config by `scaling`, an object in the form of config.json's rope_scaling. Theta and the rotated share of heads
 * stay unless the object names them. -EINVAL leaves *config unchanged. */
int rh_model_config_scale_rope(struct rh_model_config *config, const json_t *scaling) RH_MUST;

/* Checks that sizes cannot overflow, heads divide evenly and numbers are finite. Parsing ends with it; other sources (a GGUF file) call it.
 * -EINVAL names `where`. */
int rh_model_config_check(const struct rh_model_config *config, const char *where) RH_MUST;

/* A config.json that loads in transformers 4 and 5; `torch_dtype` "float32", "bfloat16" or "float16". The caller frees it (json_decref).
 * -EINVAL for what no config.json can express: a rope_divisor that is not Llama-3's scaling, biases that the family does not have. */
int rh_model_config_write(const struct rh_model_config *config, const char *torch_dtype, json_t **out) RH_MUST;

/* All that is known of a model, for two boxes to compare; also of models of which no config.json can be written. Not for a file. The caller
 * frees it. */
int rh_model_config_describe(const struct rh_model_config *config, json_t **out) RH_MUST;

#endif
