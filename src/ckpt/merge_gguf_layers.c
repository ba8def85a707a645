/* What layers have of their own, in a written GGUF's metadata, and the vectors that are in the file alone. gguf_layers.c and gguf_kinds.c
 * read it. */
#include "ckpt/merge_gguf.h"

#include "core/alloc.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Which layers' attention has a window. */
static int put_windows(struct rh_gguf_out *out, const struct rh_model_config *config)
{
	unsigned char *flag = rh_alloc((size_t)config->num_hidden_layers, sizeof *flag);
	char name[128];
	int rc = flag ? merge_gguf_int(out, config, "attention.sliding_window", config->window) : -ENOMEM;
	snprintf(name, sizeof name, "%s.attention.sliding_window_pattern", rh_gguf_architecture(config));
	for (int64_t i = 0; flag && i < config->num_hidden_layers; i++)
		flag[i] = config->layer[i].windowed;
	if (!rc)
		rc = rh_gguf_out_bools(out, name, flag, (size_t)config->num_hidden_layers);
	rh_free(flag);
	return rc;
}

/* llama.cpp knows no layer without experts among those with them, and always divides the chosen experts' weights by their sum. */
static int put_experts(struct rh_gguf_out *out, const struct rh_model_config *config, const char *dir)
{
	int has_dense = 0, is_shared_alone = config->family->moe.is_shared && !config->family->moe.is_beside;
	for (int64_t i = 0; i < config->num_hidden_layers; i++)
		has_dense |= config->layer[i].dense;
	if (has_dense)
		return rh_fail(-EINVAL, "%s: has layers without experts (mlp_only_layers), which llama.cpp does not run in this family",
		               dir);
	if (config->router_softmax != RH_ROUTER_OVER_CHOSEN)
		return rh_fail(-EINVAL, "%s: norm_topk_prob is false, which llama.cpp does not run in this family", dir);
	const struct {
		const char *key;
		int64_t value; /* 0: not written */
	} sizes[] = {{"expert_count", config->experts},
	             {"expert_used_count", config->experts_per_token},
	             {"expert_feed_forward_length", config->expert_size ? config->expert_size : config->intermediate_size},
	             {"expert_shared_feed_forward_length", is_shared_alone ? config->intermediate_size : 0}};
	int rc = 0;
	for (size_t i = 0; !rc && i < sizeof sizes / sizeof *sizes; i++)
		if (sizes[i].value)
			rc = merge_gguf_int(out, config, sizes[i].key, sizes[i].value);
	return rc;
}

/* Every which layer has attention; 0: no number says it. */
static int64_t attention_period(const struct rh_model_config *config)
{
	int64_t period = 1, layers = config->num_hidden_layers;
	while (period <= layers && config->layer[period - 1].is_delta)
		period++;
	for (int64_t i = 0; i < layers; i++)
		if ((config->layer[i].is_delta != 0) != ((i + 1) % period != 0))
			return 0;
	return period;
}

static int put_delta(struct rh_gguf_out *out, const struct rh_model_config *config, const char *dir)
{
	const struct rh_delta_config *delta = &config->delta;
	static const int32_t sections[4] = {11, 11, 10, 0}; /* of pairs by time, height and width; texts have one position for all */
	unsigned char has_rule[RH_MOST_LAYERS];
	char name[128];
	const struct {
		const char *key;
		int64_t value; /* 0: not written */
	} sizes[] = {{"ssm.conv_kernel", delta->taps},
	             {"ssm.state_size", delta->key},
	             {"ssm.group_count", delta->key_heads},
	             {"ssm.time_step_rank", delta->heads},
	             {"ssm.inner_size", delta->value * delta->heads},
	             {"full_attention_interval", attention_period(config)}};
	int rc = delta->key == delta->value
	                 ? 0
	                 : rh_fail(-EINVAL,
	                           "%s: linear_key_head_dim is %lld and linear_value_head_dim %lld; llama.cpp runs equal ones alone", dir,
	                           (long long)delta->key, (long long)delta->value);
	for (size_t i = 0; !rc && i < sizeof sizes / sizeof *sizes; i++)
		if (sizes[i].value)
			rc = merge_gguf_int(out, config, sizes[i].key, sizes[i].value);
	for (int64_t i = 0; i < config->num_hidden_layers; i++)
		has_rule[i] = config->layer[i].is_delta;
	snprintf(name, sizeof name, "%s.attention.recurrent_layers", rh_gguf_architecture(config));
	if (!rc)
		rc = rh_gguf_out_bools(out, name, has_rule, (size_t)config->num_hidden_layers);
	snprintf(name, sizeof name, "%s.rope.dimension_sections", rh_gguf_architecture(config));
	return rc || !config->family->wrapper ? rc : rh_gguf_out_ints(out, name, sections, 4); /* of families that see */
}

/* A number for each layer. */
static int put_list(struct rh_gguf_out *out, const struct rh_model_config *config, const char *key, const int32_t *value)
{
	char name[128];
	snprintf(name, sizeof name, "%s.%s", rh_gguf_architecture(config), key);
	return rh_gguf_out_ints(out, name, value, (size_t)config->num_hidden_layers);
}

/* Heads of layers with a window, which are others than those without; which layers borrow keys and values; and layers' own inputs. */
static int put_kinds(struct rh_gguf_out *out, const struct rh_model_config *config, const char *dir)
{
	int64_t first = config->num_hidden_layers - config->kv_shared_layers; /* of those that borrow */
	if (config->kv_shared_layers && (first < 2 || !config->layer[first - 2].windowed || config->layer[first - 1].windowed))
		return rh_fail(
		        -EINVAL,
		        "%s: num_kv_shared_layers %lld: llama.cpp lends the keys and values of a layer with a window and the next one, "
		        "without; layers %lld and %lld are no such",
		        dir, (long long)config->kv_shared_layers, (long long)first - 2, (long long)first - 1);
	const struct {
		const char *key;
		int64_t value;
	} sizes[] = {{"attention.key_length_swa", config->head_dim},
	             {"attention.value_length_swa", config->head_dim},
	             {"rope.dimension_count_swa", config->head_dim},
	             {"attention.shared_kv_layers", config->kv_shared_layers},
	             {"embedding_length_per_layer_input", config->layer_input_size}};
	int32_t heads[RH_MOST_LAYERS], wide[RH_MOST_LAYERS];
	int rc = 0;
	for (size_t i = 0; !rc && i < sizeof sizes / sizeof *sizes; i++)
		rc = merge_gguf_int(out, config, sizes[i].key, sizes[i].value);
	for (int64_t i = 0; i < config->num_hidden_layers; i++)
		heads[i] = (int32_t)(config->layer[i].windowed ? config->num_key_value_heads : config->full_kv_heads);
	for (int64_t i = 0; i < config->num_hidden_layers; i++)
		wide[i] = (int32_t)config->intermediate_size * (i < first ? 1 : 2);
	if (!rc)
		rc = config->num_key_value_heads == config->full_kv_heads
		             ? merge_gguf_int(out, config, "attention.head_count_kv", config->full_kv_heads)
		             : put_list(out, config, "attention.head_count_kv", heads);
	return rc || !config->doubles_borrowers ? rc : put_list(out, config, "feed_forward_length", wide);
}

/* Muse: what llama.cpp has built in must be so in the model. */
static int put_factors(struct rh_gguf_out *out, const struct rh_model_config *config, const char *dir)
{
	for (int64_t i = 0; i < config->num_hidden_layers; i++)
		if (config->layer[i].is_unrotated == config->layer[i].windowed)
			return rh_fail(-EINVAL,
			               "%s: layer_rope_theta: llama.cpp rotates layers with a window, and no others; layer %lld is not so",
			               dir, (long long)i);
	if (config->post_norm_eps != config->family->silent.post_norm_eps)
		return rh_fail(-EINVAL, "%s: post_norm_eps is %g, where llama.cpp has %g", dir, config->post_norm_eps,
		               config->family->silent.post_norm_eps);
	return merge_gguf_real(out, config, "logit_scale", config->logits_divisor == 0 ? 1 : 1 / config->logits_divisor);
}

/* Granite's multipliers. */
static int put_scales(struct rh_gguf_out *out, const struct rh_model_config *config)
{
	const struct {
		const char *key;
		double value; /* 0: 1 */
	} scales[] = {{"attention.scale", config->attention_factor},
	              {"embedding_scale", config->embedding_scale},
	              {"residual_scale", config->residual_factor},
	              {"logit_scale", config->logits_divisor}};
	int rc = 0;
	for (size_t i = 0; !rc && i < sizeof scales / sizeof *scales; i++)
		rc = merge_gguf_real(out, config, scales[i].key, scales[i].value == 0 ? 1 : scales[i].value);
	return rc;
}

/* No file says which layers do not rotate: llama.cpp knows each so many. */
static int check_unrotated(const struct rh_model_config *config, const char *dir)
{
	int64_t period = config->family->attention.unrotated_period;
	for (int64_t i = 0; period && i < config->num_hidden_layers; i++)
		if ((config->layer[i].is_unrotated != 0) != ((i + 1) % period == 0))
			return rh_fail(-EINVAL,
			               "%s: no_rope_layers: llama.cpp rotates all layers but each number %lld; layer %lld is not so", dir,
			               (long long)period, (long long)i);
	return 0;
}

int merge_gguf_layers(struct rh_gguf_out *out, const struct rh_model_config *config, const char *dir)
{
	const struct rh_family *family = config->family;
	int rc = check_unrotated(config, dir);
	if (!rc && config->window && family->attention.windows != RH_WINDOWS_ALL)
		rc = put_windows(out, config);
	if (!rc && family->is_scaled)
		rc = put_scales(out, config);
	if (!rc && config->experts)
		rc = put_experts(out, config, dir);
	if (!rc && config->delta.heads)
		rc = put_delta(out, config, dir);
	if (!rc && family->attention.splits_kinds)
		rc = put_kinds(out, config, dir);
	if (!rc && family->silent.qk_scale_factor != 0)
		rc = put_factors(out, config, dir);
	if (!rc && family->may_cap_logits && config->logits_cap != 0)
		rc = merge_gguf_real(out, config, "final_logit_softcapping", config->logits_cap);
	return rc;
}

/* A vector of `values` numbers, to be filled in. */
static int add_extra(struct rh_gguf_extras *extras, const char *name, int64_t values, float **out)
{
	int rc = rh_grow(&extras->extra, &extras->capacity, extras->count + 1, sizeof *extras->extra);
	if (rc)
		return rc;
	struct rh_gguf_extra *extra = &extras->extra[extras->count++];
	*extra = (struct rh_gguf_extra){.value = rh_alloc((size_t)values, sizeof *extra->value), .values = values};
	snprintf(extra->name, sizeof extra->name, "%s", name);
	*out = extra->value;
	return extra->value ? 0 : -ENOMEM;
}

/* Llama 3's scaling as one divisor for each pair, as llama.cpp's converter makes it. */
static float llama3_divisor(const struct rh_rope *rope, int64_t pair, int64_t head)
{
	double low = (double)rope->original_max_position / rope->low_freq_factor,
	       high = (double)rope->original_max_position / rope->high_freq_factor;
	double length = 2 * M_PI * pow(rope->theta, 2.0 * (double)pair / (double)head);
	double smooth =
	        ((double)rope->original_max_position / length - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
	return (float)(length < high ? 1 : length > low ? rope->factor : 1 / ((1 - smooth) / rope->factor + smooth));
}

static int make_divisors(const struct rh_model_config *config, struct rh_gguf_extras *out)
{
	const struct rh_rope *rope = &config->rope[0];
	int is_proportional = rope->type == RH_ROPE_PROPORTIONAL;
	int64_t head = is_proportional ? config->full_head_dim : config->head_dim;
	int64_t turning = (int64_t)(config->rotary_share * (double)head / 2);
	float *divisor;
	if (!rope->divisor && !is_proportional && rope->type != RH_ROPE_LLAMA3)
		return 0;
	int rc = add_extra(out, "rope_freqs.weight", head / 2, &divisor);
	for (int64_t i = 0; !rc && i < head / 2; i++)
		divisor[i] = rope->divisor     ? rope->divisor[i]
		             : is_proportional ? i < turning ? 1 : 1e30F /* such a pair turns by nothing that fp32 could tell */
		                               : llama3_divisor(rope, i, head);
	return rc;
}

/* Norms of queries and keys without weights: llama.cpp takes such that multiply queries by the model's factor, and keys by 1. */
static int make_plain_norms(const struct rh_model_config *config, struct rh_gguf_extras *out)
{
	static const char *const names[] = {"attn_q_norm", "attn_k_norm"};
	double of_queries = config->attention_factor == 0 ? 1 : config->attention_factor * sqrt((double)config->head_dim);
	int rc = 0;
	for (int64_t layer = 0; layer < config->num_hidden_layers; layer++)
		for (int k = 0; !rc && k < 2; k++) {
			char name[48];
			float *weight;
			snprintf(name, sizeof name, "blk.%lld.%s.weight", (long long)layer, names[k]);
			rc = add_extra(out, name, config->head_dim, &weight);
			for (int64_t i = 0; !rc && i < config->head_dim; i++)
				weight[i] = k ? 1 : (float)of_queries;
		}
	return rc;
}

/* LongRoPE's two lists, for texts that are longer than the model was first made for and for others. */
static int make_factors(const struct rh_model_config *config, struct rh_gguf_extras *out)
{
	const struct rh_rope *rope = &config->rope[0];
	double share = config->rotary_share == 0 ? 1 : config->rotary_share;
	int64_t pairs = (int64_t)((double)config->head_dim * share) / 2;
	float *factor[2];
	int rc = add_extra(out, "rope_factors_long.weight", pairs, &factor[0]);
	if (!rc)
		rc = add_extra(out, "rope_factors_short.weight", pairs, &factor[1]);
	for (int64_t i = 0; !rc && i < pairs; i++) {
		factor[0][i] = rope->long_factor[i];
		factor[1][i] = rope->short_factor[i];
	}
	return rc;
}

int rh_gguf_extras_make(const struct rh_model_config *config, struct rh_gguf_extras *out)
{
	int rc = make_divisors(config, out);
	if (!rc && config->rope[0].type == RH_ROPE_LONGROPE)
		rc = make_factors(config, out);
	return rc || !config->family->attention.qk_norm_is_plain ? rc : make_plain_norms(config, out);
}

void rh_gguf_extras_free(struct rh_gguf_extras *extras)
{
	for (size_t i = 0; i < extras->count; i++)
		rh_free(extras->extra[i].value);
	rh_free(extras->extra);
	*extras = (struct rh_gguf_extras){0};
}

int rh_gguf_extra_write(struct rh_gguf_out *out, const struct rh_gguf_extra *extra)
{
	int rc = rh_gguf_out_write(out, extra->value, extra->values * (int64_t)sizeof *extra->value);
	return rc ? rc : rh_gguf_out_end(out);
}
