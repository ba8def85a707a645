/* Families of models, and in what they differ. A family that is Llama but for one thing is a row here, and that thing where layers are
 * emitted (block.c). */
#ifndef RH_MODEL_FAMILY_H
#define RH_MODEL_FAMILY_H

#include "device/op.h"

#include <stddef.h>
#include <stdint.h>

/* Which of the attention's linears have biases. */
enum rh_family_bias {
	RH_BIAS_AS_SAID, /* q, k, v and o, if config.json says attention_bias */
	RH_BIAS_QKV      /* q, k and v always, o never */
};

struct rh_family {
	const char *architecture; /* config.json's "architectures" */
	const char *model_type;   /* its "model_type", and GGUF's "general.architecture" */
	/* What transformers 5.23 fills in where config.json is silent (its configuration_*.py). 0: derived; -1: none. */
	int64_t vocab_size, intermediate_size, key_value_heads, head_dim, max_position, bos, eos;
	enum rh_activation activation; /* of the MLP's gate: config.json's hidden_act can be no other */
	enum rh_family_bias attention_bias;
	int may_bias_mlp;  /* if config.json says mlp_bias */
	int qk_norm;       /* an RMSNorm on each head's q and k */
	int gguf_permuted; /* GGUF files hold the rows of q and k in the order of pairs that are rotated together */
	int may_window;    /* config.json may ask for sliding windows, which are refused */
};

/* clang-format off */
#define RH_FAMILIES(ROW) \
	ROW(.architecture = "LlamaForCausalLM", .model_type = "llama", .vocab_size = 32000, .intermediate_size = 11008, \
	    .max_position = 2048, .bos = 1, .eos = 2, .may_bias_mlp = 1, .gguf_permuted = 1) \
	ROW(.architecture = "Qwen2ForCausalLM", .model_type = "qwen2", .vocab_size = 151936, .intermediate_size = 22016, \
	    .key_value_heads = 32, .max_position = 32768, .bos = -1, .eos = -1, .attention_bias = RH_BIAS_QKV, .may_window = 1) \
	ROW(.architecture = "Qwen3ForCausalLM", .model_type = "qwen3", .vocab_size = 151936, .intermediate_size = 22016, \
	    .key_value_heads = 32, .head_dim = 128, .max_position = 32768, .bos = -1, .eos = -1, .qk_norm = 1, .may_window = 1)
/* clang-format on */

/* As hidden_act has it. */
const char *rh_activation_name(enum rh_activation activation);

/* Number `which`, from 0; NULL behind the last. */
const struct rh_family *rh_family_at(size_t which);
/* By its model_type; NULL when there is none. */
const struct rh_family *rh_family_find(const char *model_type);

#endif
