/* Reads from a GGUF's metadata what Gemma 4's two kinds of layers, with a window and without, have of their own, and what its small models
 * have. */
#include "ckpt/source_internal.h"

#include "core/alloc.h"

#include <math.h>
#include <stdio.h>

/* A number for each layer, in a list that the caller frees. */
static int read_list(const struct rh_gguf *gguf, const char *arch, const char *key, int64_t layers, int32_t **out)
{
	char name[128];
	size_t count = 0;
	snprintf(name, sizeof name, "%s.%s", arch, key);
	int rc = rh_gguf_ints(gguf, name, &count, out);
	if (rc == 0)
		return rh_fail(-EINVAL, "%s: metadata '%s' is missing", rh_gguf_path(gguf), name);
	if (rc > 0 && (int64_t)count != layers) {
		rh_free(*out);
		return rh_fail(-EINVAL, "%s: metadata '%s' has %zu entries for %lld layers", rh_gguf_path(gguf), name, count,
		               (long long)layers);
	}
	return rc > 0 ? 0 : rc;
}

/* One number, or one for each layer, of which each kind has one. */
static int read_kv_heads(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	char name[128];
	int32_t *heads;
	snprintf(name, sizeof name, "%s.attention.head_count_kv", arch);
	if (!rh_gguf_is_array(gguf, name)) {
		int rc = gguf_arch_int(gguf, arch, "attention.head_count_kv", GGUF_REQUIRED, &out->num_key_value_heads);
		out->full_kv_heads = out->num_key_value_heads;
		return rc;
	}
	int rc = read_list(gguf, arch, "attention.head_count_kv", out->num_hidden_layers, &heads);
	if (rc)
		return rc;
	out->num_key_value_heads = out->full_kv_heads = 0;
	for (int64_t i = 0; !rc && i < out->num_hidden_layers; i++) {
		int64_t *of = out->layer[i].windowed ? &out->num_key_value_heads : &out->full_kv_heads;
		if (*of && *of != heads[i])
			rc = rh_fail(-EINVAL, "%s: layer %lld has %d heads of keys, others of its kind %lld, which is not supported",
			             rh_gguf_path(gguf), (long long)i, heads[i], (long long)*of);
		*of = heads[i];
	}
	rh_free(heads);
	if (!out->num_key_value_heads) /* all layers are of one kind */
		out->num_key_value_heads = out->full_kv_heads;
	if (!out->full_kv_heads)
		out->full_kv_heads = out->num_key_value_heads;
	return rc;
}

/* The lengths without a suffix are those of layers without a window. */
static int read_heads(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	int64_t keys = 0, values = 0;
	int rc = gguf_arch_int(gguf, arch, "attention.key_length_swa", GGUF_REQUIRED, &keys);
	values = keys;
	if (!rc)
		rc = gguf_arch_int(gguf, arch, "attention.value_length_swa", GGUF_OPTIONAL, &values);
	if (!rc && keys != values)
		rc = rh_fail(-EINVAL, "%s: attention heads have keys of %lld and values of %lld; different lengths are not supported",
		             rh_gguf_path(gguf), (long long)keys, (long long)values);
	out->full_head_dim = out->head_dim;
	out->head_dim = keys;
	return rc ? rc : read_kv_heads(gguf, arch, out);
}

/* rope_freqs.weight: a divisor for each pair of a head of layers without a window, 1 of those that turn and then 1e30. */
static int read_turning(const struct rh_gguf *gguf, struct rh_model_config *out)
{
	enum { MOST = 1 << 14 };
	const struct rh_gguf_tensor *tensor = rh_gguf_find(gguf, "rope_freqs.weight");
	int64_t pairs = out->full_head_dim / 2, turning = 0;
	if (!tensor || tensor->dtype != RH_F32 || tensor->rank != 1 || tensor->shape[0] != pairs || pairs < 1 || pairs > MOST)
		return rh_fail(-EINVAL, "%s: rope_freqs.weight must hold %lld F32 numbers, one for each pair of a head of full attention",
		               rh_gguf_path(gguf), (long long)pairs);
	float *divisor = rh_alloc((size_t)pairs, sizeof *divisor);
	int rc = divisor ? rh_file_read(tensor->file, tensor->offset, divisor, (size_t)tensor->bytes) : -ENOMEM;
	while (!rc && turning < pairs && divisor[turning] == 1)
		turning++;
	for (int64_t i = turning; !rc && i < pairs; i++)
		if (!(divisor[i] >= 1e29f)) /* such a pair turns by nothing that fp32 could tell */
			rc = rh_fail(-EINVAL, "%s: rope_freqs.weight[%lld] is %g; 1 and behind it 1e30 are supported", rh_gguf_path(gguf),
			             (long long)i, (double)divisor[i]);
	rh_free(divisor);
	if (rc)
		return rc;
	out->rope[0].type = RH_ROPE_PROPORTIONAL;
	out->rope[0].factor = 1;
	out->rope[0].width = out->full_head_dim;
	out->rotary_share = (double)turning / (double)pairs;
	return turning ? 0 : rh_fail(-EINVAL, "%s: rope_freqs.weight lets no pair turn", rh_gguf_path(gguf));
}

static int read_experts(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	int rc = gguf_arch_int(gguf, arch, "expert_count", GGUF_OPTIONAL, &out->experts);
	if (rc || !out->experts)
		return rc;
	rc = gguf_arch_int(gguf, arch, "expert_used_count", GGUF_REQUIRED, &out->experts_per_token);
	if (!rc)
		rc = gguf_arch_int(gguf, arch, "expert_feed_forward_length", GGUF_REQUIRED, &out->expert_size);
	out->router_softmax = RH_ROUTER_OVER_CHOSEN;
	return rc;
}

/* One width, or one for each layer: those of layers that borrow keys may be twice as large. */
static int read_widths(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	char name[128];
	int32_t *widths;
	int64_t own = out->num_hidden_layers - out->kv_shared_layers;
	snprintf(name, sizeof name, "%s.feed_forward_length", arch);
	if (!rh_gguf_is_array(gguf, name))
		return gguf_arch_int(gguf, arch, "feed_forward_length", GGUF_REQUIRED, &out->intermediate_size);
	int rc = read_list(gguf, arch, "feed_forward_length", out->num_hidden_layers, &widths);
	if (rc)
		return rc;
	out->intermediate_size = widths[0];
	out->doubles_borrowers = own < out->num_hidden_layers && widths[own] != widths[0];
	for (int64_t i = 0; !rc && i < out->num_hidden_layers; i++)
		if (widths[i] != out->intermediate_size * (i >= own && out->doubles_borrowers ? 2 : 1))
			rc = rh_fail(-EINVAL, "%s: layer %lld has an MLP of %d, which is not supported beside one of %lld",
			             rh_gguf_path(gguf), (long long)i, (int)widths[i], (long long)out->intermediate_size);
	rh_free(widths);
	return rc;
}

/* Keys and values that the uppermost layers borrow, and layers' own inputs (E2B, E4B). */
static int read_small_parts(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	int rc = gguf_arch_int(gguf, arch, "attention.shared_kv_layers", GGUF_OPTIONAL, &out->kv_shared_layers);
	if (!rc)
		rc = gguf_arch_int(gguf, arch, "embedding_length_per_layer_input", GGUF_OPTIONAL, &out->layer_input_size);
	if (rc)
		return rc;
	if (out->kv_shared_layers < 0 || out->kv_shared_layers >= out->num_hidden_layers || out->layer_input_size < 0 ||
	    out->layer_input_size > RH_MOST_LAYER_INPUT)
		return rh_fail(-EINVAL, "%s: %s.attention.shared_kv_layers %lld or embedding_length_per_layer_input %lld makes no sense",
		               rh_gguf_path(gguf), arch, (long long)out->kv_shared_layers, (long long)out->layer_input_size);
	const struct rh_gguf_tensor *table = rh_gguf_find(gguf, "per_layer_token_embd.weight"),
	                            *tokens = rh_gguf_find(gguf, "token_embd.weight");
	if (out->layer_input_size &&
	    (!table || !tokens || table->rank != 2 || table->shape[0] < tokens->shape[0] || table->shape[0] > INT32_MAX))
		return rh_fail(-EINVAL, "%s: per_layer_token_embd.weight must hold a row for each token", rh_gguf_path(gguf));
	out->layer_input_rows = out->layer_input_size ? table->shape[0] : 0;
	return 0;
}

/* Layers of full attention whose values are their keys have no matrix for values. */
static void find_values(const struct rh_gguf *gguf, struct rh_model_config *out)
{
	for (int64_t i = 0; i < out->num_hidden_layers - out->kv_shared_layers; i++) {
		char name[64];
		snprintf(name, sizeof name, "blk.%lld.attn_v.weight", (long long)i);
		if (!out->layer[i].windowed)
			out->values_are_keys = rh_gguf_find(gguf, name) == NULL;
	}
}

int gguf_read_kinds(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	if (out->num_hidden_layers < 1 || out->num_hidden_layers > RH_MOST_LAYERS)
		return 0; /* rh_model_config_check says so */
	out->attention_factor = 1;
	int rc = read_heads(gguf, arch, out);
	if (!rc)
		rc = read_small_parts(gguf, arch, out);
	if (!rc)
		rc = read_widths(gguf, arch, out);
	if (!rc)
		rc = read_turning(gguf, out);
	if (!rc)
		rc = read_experts(gguf, arch, out);
	if (!rc)
		rc = gguf_arch_real(gguf, arch, "final_logit_softcapping", GGUF_OPTIONAL, &out->logits_cap);
	if (!rc && !(isfinite(out->logits_cap) && out->logits_cap >= 0))
		rc = rh_fail(-EINVAL, "%s: %s.final_logit_softcapping %g makes no sense", rh_gguf_path(gguf), arch, out->logits_cap);
	find_values(gguf, out);
	return rc;
}
