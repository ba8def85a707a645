#include "model/traits.h"

#include "model/config.h"

#include <math.h>

/* Learned positions are added to the embeddings, and nothing is rotated. */
static int rope_of(const struct rh_model_config *config, const struct rh_layer_config *layer)
{
	if (config->family->names->positions || layer->is_unrotated)
		return -1;
	return layer->windowed && config->family->silent.rope_theta_windowed ? 1 : 0;
}

/* Queries that grow have a table of their own, behind the keys'. */
static int query_rope_of(const struct rh_model_config *config, const struct rh_layer_config *layer)
{
	return config->family->attention.grows_queries ? 1 : rope_of(config, layer);
}

/* Of a family whose kinds of attention differ: heads of layers without a window. Their pairs lie half of a head apart, however few turn. */
static void widen_heads(const struct rh_model_config *config, struct rh_traits *traits)
{
	traits->head_dim = config->full_head_dim;
	traits->kv_heads = config->full_kv_heads;
	traits->rotary = 2 * (int64_t)(config->rotary_share * (double)config->full_head_dim / 2);
	traits->apart = config->full_head_dim / 2;
	traits->values_are_keys = config->values_are_keys;
}

/* Keys and values are made whole: each query head has its own. */
static void make_latent(const struct rh_model_config *config, struct rh_traits *traits)
{
	const struct rh_latent_config *latent = &config->latent;
	traits->rotary = config->head_dim;
	traits->head_dim = latent->own + config->head_dim;
	traits->kv_heads = traits->heads;
	traits->q_rank = latent->q_rank;
	traits->kv_rank = latent->kv_rank;
	traits->value = latent->value;
	traits->latent_epsilon = 1e-6f; /* whatever rms_norm_eps says */
	traits->rotates_adjacent = latent->rotates_adjacent;
}

static int is_of_kind(const struct rh_model_config *config, int64_t from, int64_t to, int windowed)
{
	for (int64_t i = from; i < to; i++)
		if (config->layer[i].windowed == windowed)
			return 1;
	return 0;
}

/* Layers that borrow read those of the last layer of their kind that does not. */
static enum rh_keys keys_of(const struct rh_model_config *config, int64_t index)
{
	int64_t layers = config->num_hidden_layers, first = layers - config->kv_shared_layers;
	int kind = config->layer[index].windowed;
	if (index >= first)
		return RH_KEYS_BORROWED;
	return !is_of_kind(config, index + 1, first, kind) && is_of_kind(config, first, layers, kind) ? RH_KEYS_LENT : RH_KEYS_OWN;
}

struct rh_traits rh_traits_of(const struct rh_model_config *config, int64_t index)
{
	const struct rh_layer_config *layer = &config->layer[index];
	int64_t experts = layer->dense ? 0 : config->experts;
	double width = config->attention_scalar ? config->attention_scalar : (double)config->head_dim;
	struct rh_traits traits = {.norm = config->family->norm,
	                           .residual = config->family->residual,
	                           .mixer = layer->is_delta ? RH_MIXER_DELTA : config->family->mixer,
	                           .mlp = !experts                        ? config->family->mlp.kind
	                                  : config->family->moe.is_beside ? RH_MLP_BESIDE
	                                  : config->family->moe.is_shared ? RH_MLP_SHARED
	                                                                  : RH_MLP_EXPERTS,
	                           .epsilon = (float)config->rms_norm_eps,
	                           .epsilon_behind = (float)(config->post_norm_eps ? config->post_norm_eps : config->rms_norm_eps),
	                           .heads = config->num_attention_heads,
	                           .kv_heads = config->num_key_value_heads,
	                           .head_dim = config->head_dim,
	                           .window = layer->windowed ? config->window : 0,
	                           .scale = config->attention_factor ? (float)config->attention_factor : 1.0f / sqrtf((float)width),
	                           .direction = config->family->attention.direction,
	                           .rope = rope_of(config, layer),
	                           .query_rope = query_rope_of(config, layer),
	                           .rotary = config->rotary_share && !config->full_head_dim
	                                             ? (int64_t)((double)config->head_dim * config->rotary_share)
	                                             : config->head_dim,
	                           .qk_norm = config->qk_norm ? config->family->attention.qk_norm : RH_QK_NORM_NONE,
	                           .qk_norm_is_plain = config->family->attention.qk_norm_is_plain,
	                           .activation = config->family->mlp.activation,
	                           .intermediate = experts && config->expert_size ? config->expert_size : config->intermediate_size,
	                           .experts = experts,
	                           .experts_per_token = experts ? config->experts_per_token : 0,
	                           .shared = !experts || !config->family->moe.is_shared ? 0
	                                     : config->shared_size                      ? config->shared_size
	                                                                                : config->intermediate_size,
	                           .is_sigmoid = experts && config->family->moe.is_sigmoid,
	                           .routed_factor = experts ? (float)config->routed_factor : 0,
	                           .expert_groups = experts ? config->expert_groups : 0,
	                           .best_groups = experts ? config->best_groups : 0,
	                           .softmax = config->router_softmax,
	                           .sinks = config->family->attention.sinks,
	                           .norms_values = config->family->attention.norms_values,
	                           .expert_bias = experts && config->family->moe.bias,
	                           .is_scaled = config->family->names->layer_scalar != NULL,
	                           .per_layer = config->layer_input_size,
	                           .makes_inputs = config->layer_input_size && !index,
	                           .keys = keys_of(config, index),
	                           .lane = keys_of(config, index) && layer->windowed};
	if (config->full_head_dim && !layer->windowed)
		widen_heads(config, &traits);
	if (config->latent.kv_rank)
		make_latent(config, &traits);
	if (traits.keys == RH_KEYS_BORROWED && config->doubles_borrowers) {
		traits.intermediate *= experts ? 1 : 2;
		traits.shared *= 2;
	}
	if (layer->is_delta) {
		traits.delta_heads = config->delta.heads;
		traits.delta_key_heads = config->delta.key_heads;
		traits.delta_value = config->delta.value;
		traits.delta_key = config->delta.key;
		traits.taps = config->delta.taps;
	}
	return traits;
}

int rh_traits_equal(const struct rh_traits *a, const struct rh_traits *b)
{
	return a->norm == b->norm && a->residual == b->residual && a->mixer == b->mixer && a->mlp == b->mlp && a->epsilon == b->epsilon &&
	       a->epsilon_behind == b->epsilon_behind && a->qk_norm_is_plain == b->qk_norm_is_plain && a->heads == b->heads &&
	       a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->window == b->window && a->scale == b->scale &&
	       a->direction == b->direction && a->rope == b->rope && a->query_rope == b->query_rope && a->rotary == b->rotary &&
	       a->qk_norm == b->qk_norm && a->activation == b->activation && a->intermediate == b->intermediate &&
	       a->experts == b->experts && a->experts_per_token == b->experts_per_token && a->shared == b->shared &&
	       a->softmax == b->softmax && a->sinks == b->sinks && a->apart == b->apart && a->norms_values == b->norms_values &&
	       a->values_are_keys == b->values_are_keys && a->is_scaled == b->is_scaled && a->expert_bias == b->expert_bias &&
	       a->delta_heads == b->delta_heads && a->delta_key_heads == b->delta_key_heads && a->delta_value == b->delta_value &&
	       a->delta_key == b->delta_key && a->taps == b->taps && a->keys == b->keys && a->lane == b->lane &&
	       a->per_layer == b->per_layer && a->makes_inputs == b->makes_inputs && a->q_rank == b->q_rank && a->kv_rank == b->kv_rank &&
	       a->value == b->value && a->latent_epsilon == b->latent_epsilon && a->rotates_adjacent == b->rotates_adjacent &&
	       a->is_sigmoid == b->is_sigmoid && a->routed_factor == b->routed_factor && a->expert_groups == b->expert_groups &&
	       a->best_groups == b->best_groups;
}
