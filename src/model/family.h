/* Families of models, and in what they differ. Each is described in a file of its own in families/; layout.c and traits.c make
 * its layers of that, and the shared kinds of layers (block.c, moe.c, head.c) emit them. */
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

/* Names of modules as files have them: a tensor is a module's "weight" or "bias". */
struct rh_family_names {
	const char *embedding, *layers, *final_norm, *head; /* layers: before the layer's number */
	/* behind "<layers><number>." */
	const char *norm[2]; /* by enum rh_norm_place */
	const char *proj[7]; /* by enum rh_proj; NULL: its rows are the last of the one before it */
	const char *router, *experts;
};

struct rh_family {
	const char *architecture; /* config.json's "architectures" */
	const char *model_type;   /* its "model_type", and GGUF's "general.architecture" */
	const struct rh_family_names *names;
	/* What transformers 5.23 fills in where config.json is silent (its configuration_*.py). 0: derived; -1: none. */
	int64_t vocab_size, intermediate_size, key_value_heads, head_dim, max_position, bos, eos;
	enum rh_activation activation; /* of the MLP's gate: config.json's hidden_act can be no other */
	enum rh_family_bias attention_bias;
	int may_bias_mlp;  /* if config.json says mlp_bias */
	int qk_norm;       /* an RMSNorm on each head's q and k */
	int gguf_permuted; /* GGUF files hold the rows of q and k in the order of pairs that are rotated together */
	int may_window;    /* config.json may ask for sliding windows, which are refused */
};

/* As hidden_act has it. */
const char *rh_activation_name(enum rh_activation activation);

/* Number `which`, from 0; NULL behind the last. */
const struct rh_family *rh_family_at(size_t which);
/* By its model_type; NULL when there is none. */
const struct rh_family *rh_family_find(const char *model_type);

#endif
