/* What a model is, read from a Hugging Face config.json (or from GGUF metadata by ckpt/), and written back. */
#ifndef RH_MODEL_CONFIG_H
#define RH_MODEL_CONFIG_H

#include "core/json.h"
#include "model/family.h"
#include "model/rope.h"

enum { RH_MOST_LAYERS = 1024, RH_ROPES = 2 };

/* In what a transformer layer differs from others of its model. */
struct rh_layer_config {
	unsigned char windowed; /* its queries see config->window keys at most */
	unsigned char dense;    /* one MLP of intermediate_size, though the model has experts */
};

struct rh_model_config {
	const struct rh_family *family;
	int wrapped; /* it is the text_config of the family's wrapper */
	int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers;
	int64_t num_attention_heads, num_key_value_heads, head_dim;
	int64_t max_position_embeddings;
	double rms_norm_eps, initializer_range;
	struct rh_rope rope[RH_ROPES]; /* by rh_traits' rope */
	double rotary_share;           /* of each head's elements; 0 and 1: all */
	int attention_bias;            /* on q, k, v */
	int attention_output_bias;     /* on o */
	int mlp_bias, qk_norm, tie_word_embeddings;
	/* Mixture of experts: so many MLPs in each layer that is not dense, of which each token goes through some; 0: one MLP. */
	int64_t experts, experts_per_token;
	int64_t expert_size; /* of each, 0: intermediate_size */
	enum rh_router_softmax router_softmax;
	double attention_scalar; /* scores are divided by its root; 0: head_dim */
	double embedding_scale;  /* 0: 1 */
	int64_t window;          /* keys that a query of a windowed layer sees at most */
	struct rh_layer_config layer[RH_MOST_LAYERS];
	int64_t bos_token_id, eos_token_id[8], eos_token_ids; /* bos -1: none */
	json_t *source; /* the config.json as read, or NULL: keys that this struct does not hold are written back from it */
};

/* `where` names the file. Unknown architectures, unknown rope types, disagreeing spellings and impossible sizes are -EINVAL.
 * *out is freed with rh_model_config_free. */
int rh_model_config_parse(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;
/* The same for a file, or for config.json in a directory. */
int rh_model_config_load(const char *path_or_dir, struct rh_model_config *out) RH_MUST;
/* How the model's modules are called, in memory and in adapters. */
const struct rh_family_names *rh_model_names(const struct rh_model_config *config);
void rh_model_config_free(struct rh_model_config *config);

/* Makes `scaling`, an object as config.json's rope_scaling, the scaling of *config in place of its own; theta and the share of heads that
 * is rotated stay, where the object does not say them. -EINVAL leaves *config as it was. */
int rh_model_config_scale_rope(struct rh_model_config *config, const json_t *scaling) RH_MUST;

/* Sizes that no arithmetic on them can overflow, heads that divide, numbers that are finite: what parse checks at its end, for
 * configurations that come from elsewhere (a GGUF file). -EINVAL names `where`. */
int rh_model_config_check(const struct rh_model_config *config, const char *where) RH_MUST;

/* A config.json that loads in transformers 4 and 5; `torch_dtype` "float32" or "bfloat16". The caller's (json_decref).
 * -EINVAL for what no config.json can say: rope_divisor that is not Llama-3's scaling, biases that the family does not have. */
int rh_model_config_write(const struct rh_model_config *config, const char *torch_dtype, json_t **out) RH_MUST;

#endif
