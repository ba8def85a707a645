/* A layer's attributes, beside its tensors. Each layer of a model has its own; code that emits, measures or compares layers reads these. */
#ifndef RH_MODEL_TRAITS_H
#define RH_MODEL_TRAITS_H

#include "device/op.h"

struct rh_model_config;

enum rh_norm_kind {
	RH_NORM_RMS,          /* x / root mean square(x) * w */
	RH_NORM_RMS_PLUS_ONE, /* ... * (1 + w) */
	RH_NORM_LAYER         /* (x - mean) / standard deviation(x) * w + b */
};

/* The kinds of a layer's two halves, and their rows of functions (half.h). To add one: a file with its row, and its name here. */
#define RH_MIXER_KINDS(KIND)                                                                                                               \
	KIND(ATTENTION, attention)                                                                                                         \
	KIND(GATED_ATTENTION, gated_attention)                                                                                             \
	KIND(SIDE_GATED_ATTENTION, side_gated_attention) KIND(DELTA, delta) KIND(LATENT_ATTENTION, latent_attention)
#define RH_MLP_KINDS(KIND)       KIND(GATED, mlp) KIND(PLAIN, mlp) KIND(EXPERTS, experts) KIND(SHARED, shared_experts) KIND(BESIDE, beside)
#define RH_MIXER_NAME(name, row) RH_MIXER_##name,
#define RH_MLP_NAME(name, row)   RH_MLP_##name,
enum rh_mixer_kind { RH_MIXER_KINDS(RH_MIXER_NAME) };
enum rh_mlp_kind {
	/* down(act(gate h) * up h); down(act(up h)); experts, each gated; these, and an MLP that all tokens share; the
	 * two of these with norms of their own around each */
	RH_MLP_KINDS(RH_MLP_NAME)
};
#undef RH_MIXER_NAME
#undef RH_MLP_NAME

/* How they join the residual. */
enum rh_residual {
	RH_RESIDUAL_PRE,      /* x + f(norm(x)) */
	RH_RESIDUAL_SANDWICH, /* x + norm'(f(norm(x))) */
	RH_RESIDUAL_BEHIND,   /* x + norm'(f(x)) */
	RH_RESIDUAL_POST      /* norm(x + f(x)) */
};
/* Whose keys and values attention reads. */
enum rh_keys {
	RH_KEYS_OWN,
	RH_KEYS_LENT,    /* its own, which layers above read, too */
	RH_KEYS_BORROWED /* those of a layer below: it has no linears for any */
};
/* What q and k are normalised over: each head, or all heads at once. */
enum rh_qk_norm { RH_QK_NORM_NONE, RH_QK_NORM_HEADS, RH_QK_NORM_ALL };

/* Each has its line in rh_traits_of and in rh_traits_equal. */
struct rh_traits {
	enum rh_norm_kind norm;
	enum rh_residual residual;
	enum rh_mixer_kind mixer;
	enum rh_mlp_kind mlp;
	float epsilon;
	float epsilon_behind; /* of the norms behind the halves */
	/* attention */
	int64_t heads, kv_heads, head_dim;
	int64_t window; /* most keys that a query sees; 0: all */
	float scale;    /* of scores */
	enum rh_attention_direction direction;
	int rope;       /* which of the model's tables; -1: positions are not rotated */
	int query_rope; /* the same, of queries */
	int64_t rotary; /* how many of each head's elements are rotated */
	int64_t apart;  /* how far apart the two of a pair lie; 0: they are the first elements, half of these apart */
	enum rh_qk_norm qk_norm;
	int qk_norm_is_plain; /* without weights */
	int sinks;            /* each head has a logit of one more key, whose value is zero */
	int norms_values;     /* each head's, without a weight */
	int values_are_keys;  /* values are what k_proj makes: there is no v_proj */
	/* latent attention, of heads whose last `rotary` elements turn: lengths of what queries, and keys with values, are made of; of these
	 * two's norms */
	int64_t q_rank, kv_rank;
	int64_t value; /* length of each head's value, at most head_dim; the op takes it with zeros behind it */
	float latent_epsilon;
	int rotates_adjacent; /* pairs lie side by side */
	enum rh_keys keys;
	int lane; /* where lent keys and values travel (struct rh_side) */
	/* the gated delta rule: value heads and key heads, their sizes, and how many tokens the convolution sees */
	int64_t delta_heads, delta_key_heads, delta_value, delta_key, taps;
	/* MLP */
	enum rh_activation activation;
	int64_t intermediate;
	int64_t experts, experts_per_token; /* 0: one MLP */
	int64_t shared;                     /* width of the one that all tokens share, beside them; 0: none */
	enum rh_router_softmax softmax;
	int is_sigmoid; /* in place of the softmax, with a bias of the choice (op.h, ROUTER) */
	float routed_factor;
	int64_t expert_groups, best_groups;
	int expert_bias;   /* on the router and on the experts' products */
	int64_t per_layer; /* columns of the layer's own input; 0: it has none */
	int makes_inputs;  /* the lowest layer, to the table's rows for all layers adds what it makes of its input */
	int is_scaled;     /* the layer's output is multiplied by a number of the files */
};

/* Is there a norm before each half? */
static inline int rh_residual_norms_input(enum rh_residual residual)
{
	return residual == RH_RESIDUAL_PRE || residual == RH_RESIDUAL_SANDWICH;
}

/* Of transformer layer `index`, from 0. */
struct rh_traits rh_traits_of(const struct rh_model_config *config, int64_t index);
int rh_traits_equal(const struct rh_traits *a, const struct rh_traits *b);

#endif
