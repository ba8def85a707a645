/* Reads from a GGUF's metadata in what layers differ from plain ones: experts, attention windows, rotary tables of their own. */
#include "ckpt/source_internal.h"

#include "core/alloc.h"

#include <math.h>
#include <stdio.h>

static int has_expert_layer(const struct rh_gguf *gguf, int64_t layer)
{
	char name[64];
	snprintf(name, sizeof name, "blk.%lld.ffn_gate_inp.weight", (long long)layer);
	return rh_gguf_find(gguf, name) != NULL;
}

static int64_t layers_of(const struct rh_model_config *config)
{
	return config->num_hidden_layers < RH_MOST_LAYERS ? config->num_hidden_layers : RH_MOST_LAYERS; /* more are refused later */
}

/* Routing weights are those of the experts chosen: no file says otherwise, and no model that has these files does. */
static int read_experts(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	const struct rh_family *family = out->family;
	int64_t wide = 0;
	int rc = gguf_arch_int(gguf, arch, "expert_count", GGUF_REQUIRED, &out->experts);
	if (!rc)
		rc = gguf_arch_int(gguf, arch, "expert_used_count", GGUF_REQUIRED, &out->experts_per_token);
	if (!rc)
		rc = gguf_arch_int(gguf, arch, "expert_feed_forward_length", GGUF_REQUIRED, &wide);
	if (rc)
		return rc;
	*(family->silent.expert_size ? &out->expert_size : &out->intermediate_size) = wide;
	if (family->moe.is_shared)
		rc = gguf_arch_int(gguf, arch, "expert_shared_feed_forward_length", GGUF_REQUIRED, &out->intermediate_size);
	if (rc)
		return rc;
	out->router_softmax = RH_ROUTER_OVER_CHOSEN;
	out->experts_are_apart = family->moe.may_lie_apart;
	for (int64_t i = 0; i < layers_of(out); i++)
		out->layer[i].dense = !has_expert_layer(gguf, i);
	return 0;
}

/* A list that has a truth for each layer: *out is the caller's (rh_free), NULL where the list is not there. */
static int read_truths(const struct rh_gguf *gguf, const char *arch, const char *key, int64_t layers, unsigned char **out)
{
	char name[128];
	size_t count = 0;
	snprintf(name, sizeof name, "%s.%s", arch, key);
	*out = NULL;
	int rc = rh_gguf_flags(gguf, name, &count, out);
	if (rc > 0 && count < (size_t)layers)
		rc = rh_fail(-EINVAL, "%s: metadata '%s' has %zu entries for %lld layers", rh_gguf_path(gguf), name, count,
		             (long long)layers);
	return rc < 0 ? rc : 0;
}

static int read_pattern(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	unsigned char *is_windowed;
	int rc = read_truths(gguf, arch, "attention.sliding_window_pattern", layers_of(out), &is_windowed);
	for (int64_t i = 0; !rc && is_windowed && i < layers_of(out); i++)
		out->layer[i].windowed = is_windowed[i];
	rh_free(is_windowed);
	return rc;
}

static int has_period(enum rh_family_windows windows)
{
	return windows == RH_WINDOWS_PERIOD || windows == RH_WINDOWS_FROM_LAST;
}

static int read_windows(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	char name[128];
	const struct rh_family *family = out->family;
	int64_t window = 0, period = has_period(family->attention.windows) ? family->silent.window_period : 0;
	snprintf(name, sizeof name, "%s.attention.sliding_window_pattern", arch);
	int is_list = period && rh_gguf_is_array(gguf, name);
	int rc = gguf_arch_int(gguf, arch, "attention.sliding_window", GGUF_OPTIONAL, &window);
	if (!rc && period && !is_list)
		rc = gguf_arch_int(gguf, arch, "attention.sliding_window_pattern", GGUF_OPTIONAL, &period);
	if (rc || window <= 0 || (!period && window >= out->max_position_embeddings))
		return rc;
	if (family->attention.windows != RH_WINDOWS_ALL && !period)
		return rh_fail(-EINVAL, "%s: the model uses sliding-window attention (%lld), which is not supported", rh_gguf_path(gguf),
		               (long long)window);
	out->window = window;
	if (is_list)
		return read_pattern(gguf, arch, out);
	for (int64_t i = 0; i < layers_of(out); i++)
		out->layer[i].windowed = !period || (i + 1) % period != 0;
	return 0;
}

/* LongRoPE's factors, a tensor for each of the two. */
static int read_factors(const struct rh_gguf *gguf, const char *name, int64_t count, float *out)
{
	const struct rh_gguf_tensor *tensor = rh_gguf_find(gguf, name);
	if (!tensor || tensor->dtype != RH_F32 || tensor->rank != 1 || tensor->shape[0] != count || count > RH_ROPE_MAX_HALF)
		return rh_fail(-EINVAL, "%s: %s must hold %lld F32 numbers, one for each rotated pair", rh_gguf_path(gguf), name,
		               (long long)count);
	return rh_file_read(tensor->file, tensor->offset, out, (size_t)tensor->bytes);
}

static int read_longrope(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	struct rh_rope *rope = &out->rope[0];
	int64_t pairs = (int64_t)((double)out->head_dim * out->rotary_share) / 2;
	if (!rh_gguf_find(gguf, "rope_factors_long.weight"))
		return 0;
	rope->type = RH_ROPE_LONGROPE;
	int rc = gguf_arch_int(gguf, arch, "rope.scaling.original_context_length", GGUF_REQUIRED, &rope->original_max_position);
	if (!rc)
		rc = gguf_arch_real(gguf, arch, "rope.scaling.attn_factor", GGUF_OPTIONAL, &rope->attention_factor);
	if (!rc && rope->original_max_position > 0)
		rope->factor = (double)out->max_position_embeddings / (double)rope->original_max_position;
	if (!rc)
		rc = read_factors(gguf, "rope_factors_long.weight", pairs, rope->long_factor);
	return rc ? rc : read_factors(gguf, "rope_factors_short.weight", pairs, rope->short_factor);
}

static int read_windowed_rope(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	double silent = out->family->silent.rope_theta_windowed; /* below 0: the other's */
	out->rope[1] = (struct rh_rope){.theta = silent < 0 ? out->rope[0].theta : silent};
	return gguf_arch_real(gguf, arch, "rope.freq_base_swa", GGUF_OPTIONAL, &out->rope[1].theta);
}

/* Gemma 3's 27B alone, known by its layers, divides scores by the root of another width than its heads' (as llama.cpp has it). */
enum { GEMMA3_27B_LAYERS = 62 };

/* Granite's multipliers. What llama.cpp leaves out changes nothing. */
static int read_scales(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	double embedding = 1;
	int rc = gguf_arch_real(gguf, arch, "attention.scale", GGUF_OPTIONAL, &out->attention_factor);
	if (!rc)
		rc = gguf_arch_real(gguf, arch, "residual_scale", GGUF_OPTIONAL, &out->residual_factor);
	if (!rc)
		rc = gguf_arch_real(gguf, arch, "logit_scale", GGUF_OPTIONAL, &out->logits_divisor);
	if (!rc)
		rc = gguf_arch_real(gguf, arch, "embedding_scale", GGUF_OPTIONAL, &embedding);
	const double all[] = {out->attention_factor, out->residual_factor, out->logits_divisor, embedding};
	for (int i = 0; !rc && i < 4; i++)
		if (!(isfinite(all[i]) && all[i] >= 0))
			rc = rh_fail(-EINVAL, "%s: a scale of %g makes no sense", rh_gguf_path(gguf), all[i]);
	out->embedding_scale = embedding == 1 ? 0 : embedding;
	return rc;
}

/* The gated delta rule's sizes, and which layers have it. */
static int read_delta(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	struct rh_delta_config *delta = &out->delta;
	unsigned char *has_rule;
	int64_t inner = 0, period = out->family->silent.delta_period;
	const struct {
		const char *key;
		int64_t *value, most;
	} sizes[] = {{"ssm.conv_kernel", &delta->taps, RH_CONV_MOST},
	             {"ssm.state_size", &delta->key, RH_DELTA_MOST},
	             {"ssm.group_count", &delta->key_heads, 1 << 16},
	             {"ssm.time_step_rank", &delta->heads, 1 << 16},
	             {"ssm.inner_size", &inner, (int64_t)RH_DELTA_MOST << 16}};
	int rc = gguf_arch_int(gguf, arch, "full_attention_interval", GGUF_OPTIONAL, &period);
	for (size_t i = 0; !rc && i < sizeof sizes / sizeof *sizes; i++) {
		rc = gguf_arch_int(gguf, arch, sizes[i].key, GGUF_REQUIRED, sizes[i].value);
		if (!rc && (*sizes[i].value < 1 || *sizes[i].value > sizes[i].most))
			rc = rh_fail(-EINVAL, "%s: %s.%s is %lld; it must be 1 to %lld", rh_gguf_path(gguf), arch, sizes[i].key,
			             (long long)*sizes[i].value, (long long)sizes[i].most);
	}
	if (rc)
		return rc;
	delta->value = inner / delta->heads;
	if (period < 1 || delta->heads % delta->key_heads || inner % delta->heads || delta->value > RH_DELTA_MOST)
		return rh_fail(-EINVAL,
		               "%s: %lld value heads for %lld key heads, %lld values in all and attention in each layer number %lld do "
		               "not go together",
		               rh_gguf_path(gguf), (long long)delta->heads, (long long)delta->key_heads, (long long)inner,
		               (long long)period);
	rc = read_truths(gguf, arch, "attention.recurrent_layers", layers_of(out), &has_rule);
	for (int64_t i = 0; !rc && i < layers_of(out); i++)
		out->layer[i].is_delta = has_rule ? has_rule[i] : (i + 1) % period != 0;
	rh_free(has_rule);
	return rc;
}

/* Muse: scores and logits times a number, of which llama.cpp keeps the first as weights of the queries' norm, all alike. */
static int read_factors_of(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	const struct rh_gguf_tensor *norm = rh_gguf_find(gguf, "blk.0.attn_q_norm.weight");
	double logits = 1;
	float first = 0;
	int rc = gguf_arch_real(gguf, arch, "logit_scale", GGUF_REQUIRED, &logits);
	if (!rc)
		rc = gguf_arch_real(gguf, arch, "final_logit_softcapping", GGUF_OPTIONAL, &out->logits_cap);
	if (!rc && (!norm || norm->dtype != RH_F32 || norm->rank != 1 || norm->shape[0] < 1))
		rc = rh_fail(-EINVAL, "%s: blk.0.attn_q_norm.weight must hold F32 numbers", rh_gguf_path(gguf));
	if (!rc)
		rc = rh_file_read(norm->file, norm->offset, &first, sizeof first);
	if (!rc && !(isfinite(logits) && logits > 0 && isfinite(first) && first > 0))
		rc = rh_fail(-EINVAL, "%s: a logit_scale of %g, or queries times %g, makes no sense", rh_gguf_path(gguf), logits,
		             (double)first);
	if (rc)
		return rc;
	out->logits_divisor = 1 / logits;
	out->attention_factor = (double)first / sqrt((double)out->head_dim);
	out->post_norm_eps = out->family->silent.post_norm_eps;
	for (int64_t i = 0; i < layers_of(out); i++) /* no file says so: llama.cpp rotates windowed layers */
		out->layer[i].is_unrotated = !out->layer[i].windowed;
	return 0;
}

int gguf_read_layers(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	const struct rh_family *family = out->family;
	int rc = family->silent.experts ? read_experts(gguf, arch, out) : 0;
	if (!rc)
		rc = read_windows(gguf, arch, out);
	if (!rc && family->attention.splits_kinds)
		rc = gguf_read_kinds(gguf, arch, out);
	if (!rc && family->attention.may_rotate_part)
		rc = read_longrope(gguf, arch, out);
	if (!rc && family->silent.rope_theta_windowed)
		rc = read_windowed_rope(gguf, arch, out);
	if (!rc && family->is_scaled)
		rc = read_scales(gguf, arch, out);
	if (!rc && family->silent.delta_period)
		rc = read_delta(gguf, arch, out);
	if (!rc && family->silent.qk_scale_factor != 0)
		rc = read_factors_of(gguf, arch, out);
	if (!rc && family->attention.grows_queries) { /* as config_rope.c has it */
		out->rope[1] = out->rope[0];
		out->rope[0].growth = 0;
	}
	int64_t still = family->attention.unrotated_period; /* no file says which layers do not rotate: llama.cpp knows each fourth */
	for (int64_t i = 0; still && i < layers_of(out); i++)
		out->layer[i].is_unrotated = (i + 1) % still == 0;
	if (family->scales_embedding)
		out->embedding_scale = sqrt((double)out->hidden_size);
	if (family->attention.scalar_key && out->num_attention_heads > 0)
		out->attention_scalar =
		        (double)(out->num_hidden_layers == GEMMA3_27B_LAYERS ? out->hidden_size / out->num_attention_heads : out->head_dim);
	return rc;
}
