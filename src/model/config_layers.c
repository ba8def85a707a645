/* How a model's layers differ: which have an attention window (of one length for the model), and which have experts. */
#include "model/config_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* layer_types: a word for each layer. 1 if it is there. */
static int parse_layer_types(const json_t *json, const char *where, struct rh_model_config *out, int *said)
{
	const json_t *types = json_object_get(json, "layer_types");
	*said = json_is_array(types);
	if (!types || json_is_null(types))
		return 0;
	if (!*said || json_array_size(types) != (size_t)out->num_hidden_layers)
		return rh_fail(-EINVAL, "%s: 'layer_types' must be a list of %lld words, one for each layer", where,
		               (long long)out->num_hidden_layers);
	for (size_t i = 0; i < json_array_size(types); i++) {
		const char *kind = json_string_value(json_array_get(types, i));
		if (!kind || (strcmp(kind, "full_attention") && strcmp(kind, "sliding_attention")))
			return rh_fail(-EINVAL, "%s: layer_types has '%s', which is not supported (full_attention, sliding_attention are)",
			               where, kind ? kind : "(no string)");
		out->layer[i].windowed = !strcmp(kind, "sliding_attention");
	}
	return 0;
}

/* Layers from `first` on but each `period`-th, counted from 1; period 0: no exception. */
static void mark(struct rh_model_config *out, int64_t first, int64_t period)
{
	for (int64_t i = first; i < out->num_hidden_layers; i++)
		out->layer[i].windowed = !period || (i + 1) % period != 0;
}

static int parse_upper(const json_t *json, const char *where, struct rh_model_config *out)
{
	int is_used = 0, said = 0;
	int64_t first = 28;
	int rc = rh_json_bool(json, "use_sliding_window", where, RH_JSON_OPTIONAL, &is_used);
	if (!rc)
		rc = rh_json_int(json, "max_window_layers", where, RH_JSON_OPTIONAL, &first);
	if (!rc)
		rc = parse_layer_types(json, where, out, &said);
	if (rc)
		return rc;
	if (!is_used)
		out->window = 0;
	if (!said && out->window)
		mark(out, first < 0 ? 0 : first, 0);
	return 0;
}

static int parse_used(const json_t *json, const char *where, struct rh_model_config *out)
{
	int is_used = 0;
	int rc = rh_json_bool(json, "use_sliding_window", where, RH_JSON_OPTIONAL, &is_used);
	if (!is_used)
		out->window = 0;
	if (!rc && out->window)
		mark(out, 0, 0);
	return rc;
}

static int parse_from_last(const json_t *json, const char *where, struct rh_model_config *out)
{
	int said = 0, rc = parse_layer_types(json, where, out, &said);
	for (int64_t i = 0; !rc && !said && i < out->num_hidden_layers; i++)
		out->layer[i].windowed = (out->num_hidden_layers - 1 - i) % out->family->silent.window_period != 0;
	return rc;
}

/* Each of those objects is one of a layer without a window, and each such layer has one. */
static int check_overrides(const json_t *json, const char *where, const struct rh_model_config *out)
{
	const json_t *all = json_object_get(json, "per_layer_config");
	for (int64_t i = 0; json_object_size(all) && i < out->num_hidden_layers; i++) {
		char number[24];
		snprintf(number, sizeof number, "%lld", (long long)i);
		if ((json_object_get(all, number) != NULL) == (out->layer[i].windowed != 0))
			return rh_fail(
			        -EINVAL,
			        "%s: per_layer_config and layer_types differ at layer %lld: layers of full attention, and no others, "
			        "have sizes of their own",
			        where, (long long)i);
	}
	return 0;
}

static int parse_period(const json_t *json, const char *where, struct rh_model_config *out)
{
	int said = 0;
	int64_t period = out->family->silent.window_period;
	int rc = rh_json_int(json, "sliding_window_pattern", where, RH_JSON_OPTIONAL, &period);
	if (!rc && period < 1)
		rc = rh_fail(-EINVAL, "%s: 'sliding_window_pattern' is %lld; it must be positive", where, (long long)period);
	if (!rc)
		rc = parse_layer_types(json, where, out, &said);
	if (!rc && !said)
		mark(out, 0, period);
	return rc || !out->family->attention.splits_kinds ? rc : check_overrides(json, where, out);
}

int config_parse_windows(const json_t *json, const char *where, struct rh_model_config *out)
{
	const json_t *said = json_object_get(json, "sliding_window");
	if (out->family->attention.windows == RH_WINDOWS_NONE || out->num_hidden_layers > RH_MOST_LAYERS)
		return 0; /* too many: rh_model_config_check says so */
	out->window = out->family->silent.window;
	int rc = rh_json_int(json, "sliding_window", where, RH_JSON_OPTIONAL, &out->window);
	if (!rc && json_is_integer(said) && out->window < 1)
		rc = rh_fail(-EINVAL, "%s: 'sliding_window' is %lld; it must be positive, or null for none", where, (long long)out->window);
	if (rc)
		return rc;
	if (json_is_null(said))
		out->window = 0;
	switch (out->family->attention.windows) {
	case RH_WINDOWS_NONE:
		break;
	case RH_WINDOWS_ALL:
		mark(out, 0, 0);
		break;
	case RH_WINDOWS_USED:
		rc = parse_used(json, where, out);
		break;
	case RH_WINDOWS_UPPER:
		rc = parse_upper(json, where, out);
		break;
	case RH_WINDOWS_PERIOD:
		rc = parse_period(json, where, out);
		break;
	case RH_WINDOWS_FROM_LAST:
		rc = parse_from_last(json, where, out);
		break;
	}
	return rc;
}

/* no_rope_layers: a list that says 1 of layers that rotate. */
int config_parse_unrotated(const json_t *json, const char *where, struct rh_model_config *out)
{
	const json_t *list = json_object_get(json, "no_rope_layers");
	int64_t period = out->family->attention.unrotated_period;
	if (!period || out->num_hidden_layers > RH_MOST_LAYERS)
		return 0;
	int rc = rh_json_int(json, "no_rope_layer_interval", where, RH_JSON_OPTIONAL, &period);
	if (!rc && period < 1)
		rc = rh_fail(-EINVAL, "%s: 'no_rope_layer_interval' is %lld; it must be positive", where, (long long)period);
	if (!rc && json_is_true(json_object_get(json, "use_sliding_window")))
		rc = rh_fail(-EINVAL, "%s: 'use_sliding_window' true is not supported in this family", where);
	if (rc)
		return rc;
	for (int64_t i = 0; i < out->num_hidden_layers; i++)
		out->layer[i].is_unrotated = (i + 1) % period == 0;
	if (!list || json_is_null(list))
		return 0;
	if (!json_is_array(list) || json_array_size(list) != (size_t)out->num_hidden_layers)
		return rh_fail(-EINVAL, "%s: 'no_rope_layers' must be a list of %lld numbers, 1 for a layer that rotates, else 0", where,
		               (long long)out->num_hidden_layers);
	for (size_t i = 0; i < json_array_size(list); i++)
		out->layer[i].is_unrotated = json_number_value(json_array_get(list, i)) == 0;
	return 0;
}

static int parse_delta_sizes(const json_t *json, const char *where, struct rh_delta_config *out)
{
	const struct {
		const char *key;
		int64_t *value, most;
	} sizes[] = {{"linear_num_key_heads", &out->key_heads, 1 << 16},
	             {"linear_num_value_heads", &out->heads, 1 << 16},
	             {"linear_key_head_dim", &out->key, RH_DELTA_MOST},
	             {"linear_value_head_dim", &out->value, RH_DELTA_MOST},
	             {"linear_conv_kernel_dim", &out->taps, RH_CONV_MOST}};
	*out = (struct rh_delta_config){16, 32, 128, 128, 4};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		int rc = rh_json_int(json, sizes[i].key, where, RH_JSON_OPTIONAL, sizes[i].value);
		if (!rc && (*sizes[i].value < 1 || *sizes[i].value > sizes[i].most))
			rc = rh_fail(-EINVAL, "%s: '%s' is %lld; it must be 1 to %lld", where, sizes[i].key, (long long)*sizes[i].value,
			             (long long)sizes[i].most);
		if (rc)
			return rc;
	}
	if (out->heads % out->key_heads)
		return rh_fail(-EINVAL, "%s: linear_num_value_heads %lld is no multiple of linear_num_key_heads %lld", where,
		               (long long)out->heads, (long long)out->key_heads);
	return 0;
}

int config_parse_delta(const json_t *json, const char *where, struct rh_model_config *out)
{
	const json_t *types = json_object_get(json, "layer_types");
	int64_t period = out->family->silent.delta_period;
	if (!period || out->num_hidden_layers > RH_MOST_LAYERS)
		return 0;
	int rc = parse_delta_sizes(json, where, &out->delta);
	if (!rc)
		rc = rh_json_int(json, "full_attention_interval", where, RH_JSON_OPTIONAL, &period);
	if (!rc && period < 1)
		rc = rh_fail(-EINVAL, "%s: 'full_attention_interval' is %lld; it must be positive", where, (long long)period);
	if (!rc && json_is_false(json_object_get(json, "attn_output_gate")))
		rc = rh_fail(-EINVAL, "%s: 'attn_output_gate' false is not supported: attention has gates in this family", where);
	if (rc)
		return rc;
	for (int64_t i = 0; i < out->num_hidden_layers; i++)
		out->layer[i].is_delta = (i + 1) % period != 0;
	if (!types || json_is_null(types))
		return 0;
	if (!json_is_array(types) || json_array_size(types) != (size_t)out->num_hidden_layers)
		return rh_fail(-EINVAL, "%s: 'layer_types' must be a list of %lld words, one for each layer", where,
		               (long long)out->num_hidden_layers);
	for (size_t i = 0; i < json_array_size(types); i++) {
		const char *kind = json_string_value(json_array_get(types, i));
		if (!kind || (strcmp(kind, "full_attention") && strcmp(kind, "linear_attention")))
			return rh_fail(-EINVAL, "%s: layer_types has '%s', which is not supported (full_attention, linear_attention are)",
			               where, kind ? kind : "(no string)");
		out->layer[i].is_delta = !strcmp(kind, "linear_attention");
	}
	return 0;
}

/* What of Gemma 4 is not built. */
static int refuse_parts(const json_t *json, const char *where)
{
	const char *both = NULL;
	int rc = rh_json_string(json, "use_bidirectional_attention", where, RH_JSON_OPTIONAL, &both);
	if (!rc && both && strcmp(both, "vision"))
		rc = rh_fail(-EINVAL,
		             "%s: use_bidirectional_attention '%s' is not supported ('vision' is, of whose texts no token sees a "
		             "later one)",
		             where, both);
	return rc;
}

/* Experts beside each layer's MLP (26B-A4B). */
static int parse_beside(const json_t *json, const char *where, struct rh_model_config *out)
{
	int has_experts = 0;
	int rc = rh_json_bool(json, "enable_moe_block", where, RH_JSON_OPTIONAL, &has_experts);
	if (rc || !has_experts)
		return rc;
	rc = rh_json_int(json, "num_experts", where, RH_JSON_REQUIRED, &out->experts);
	if (!rc)
		rc = rh_json_int(json, "top_k_experts", where, RH_JSON_REQUIRED, &out->experts_per_token);
	if (!rc)
		rc = rh_json_int(json, "moe_intermediate_size", where, RH_JSON_REQUIRED, &out->expert_size);
	if (!rc && (out->experts < 1 || out->expert_size < 1))
		rc = rh_fail(-EINVAL, "%s: enable_moe_block with %lld experts of moe_intermediate_size %lld; both must be positive", where,
		             (long long)out->experts, (long long)out->expert_size);
	out->router_softmax = RH_ROUTER_OVER_CHOSEN;
	return rc;
}

/* The uppermost layers that borrow keys and values. */
static int parse_borrowers(const json_t *json, const char *where, struct rh_model_config *out)
{
	int rc = rh_json_int(json, "num_kv_shared_layers", where, RH_JSON_OPTIONAL, &out->kv_shared_layers);
	if (!rc && (out->kv_shared_layers < 0 || out->kv_shared_layers >= out->num_hidden_layers))
		rc = rh_fail(-EINVAL, "%s: num_kv_shared_layers is %lld; it must be 0 or more, and less than the %lld layers", where,
		             (long long)out->kv_shared_layers, (long long)out->num_hidden_layers);
	return rc ? rc : rh_json_bool(json, "use_double_wide_mlp", where, RH_JSON_OPTIONAL, &out->doubles_borrowers);
}

/* Layers' own inputs (E2B, E4B), of a table as wide as all of them. */
static int parse_inputs(const json_t *json, const char *where, struct rh_model_config *out)
{
	int64_t size = 256, rows = 262144;
	int is_null = json_is_null(json_object_get(json, "hidden_size_per_layer_input")); /* they have none */
	int rc = is_null ? 0 : rh_json_int(json, "hidden_size_per_layer_input", where, RH_JSON_OPTIONAL, &size);
	if (rc || is_null || !size)
		return rc;
	rc = rh_json_int(json, "vocab_size_per_layer_input", where, RH_JSON_OPTIONAL, &rows);
	if (!rc && (size < 1 || size > RH_MOST_LAYER_INPUT))
		rc = rh_fail(-EINVAL, "%s: hidden_size_per_layer_input is %lld; it must be 1 to %d, or 0 for none", where, (long long)size,
		             RH_MOST_LAYER_INPUT);
	if (!rc && (rows < out->vocab_size || rows > INT32_MAX))
		rc = rh_fail(-EINVAL, "%s: vocab_size_per_layer_input is %lld; each of the vocabulary's %lld needs a row", where,
		             (long long)rows, (long long)out->vocab_size);
	out->layer_input_size = size;
	out->layer_input_rows = rows;
	return rc;
}

int config_check_lenders(const struct rh_model_config *config, const char *where)
{
	int64_t first = config->num_hidden_layers - config->kv_shared_layers;
	int lends[2] = {0, 0};
	for (int64_t i = 0; config->kv_shared_layers && i < config->num_hidden_layers; i++) {
		int kind = config->layer[i].windowed != 0;
		lends[kind] |= i < first;
		if (!lends[kind])
			return rh_fail(-EINVAL,
			               "%s: layer %lld is to reuse the keys of a layer with%s a window, but layers 0 to %lld are none",
			               where, (long long)i, kind ? "" : "out", (long long)first - 1);
	}
	return 0;
}

/* As transformers 5.23 writes these sizes: an object for each layer without a window, by its number. *found: one is there. */
static int parse_overrides(const json_t *json, const char *where, struct rh_model_config *out, int *found)
{
	const json_t *all = json_object_get(json, "per_layer_config");
	const char *number;
	json_t *of;
	*found = json_object_size(all) > 0;
	if (!all || json_is_null(all))
		return 0;
	json_object_foreach((json_t *)(uintptr_t)all, number, of)
	{
		int64_t size = out->head_dim, kv_heads = out->num_key_value_heads;
		int rc = json_is_object(of) ? 0 : rh_fail(-EINVAL, "%s: per_layer_config must hold an object for each layer", where);
		if (!rc)
			rc = rh_json_int(of, "head_dim", where, RH_JSON_OPTIONAL, &size);
		if (!rc)
			rc = rh_json_int(of, "num_key_value_heads", where, RH_JSON_OPTIONAL, &kv_heads);
		if (!rc && out->full_head_dim && (size != out->full_head_dim || kv_heads != out->full_kv_heads))
			rc = rh_fail(-EINVAL, "%s: per_layer_config has layers of different sizes, which is not supported", where);
		if (rc)
			return rc;
		out->full_head_dim = size;
		out->full_kv_heads = kv_heads;
	}
	return 0;
}

int config_parse_kinds(const json_t *json, const char *where, struct rh_model_config *out)
{
	int64_t kv_heads = 0;
	int shares = 0;
	if (!out->family->attention.splits_kinds)
		return 0;
	int found = 0, rc = refuse_parts(json, where);
	if (!rc)
		rc = parse_borrowers(json, where, out);
	if (!rc)
		rc = parse_inputs(json, where, out);
	if (!rc)
		rc = parse_beside(json, where, out);
	if (!rc)
		rc = parse_overrides(json, where, out, &found);
	if (!rc)
		rc = rh_json_bool(json, "attention_k_eq_v", where, RH_JSON_OPTIONAL, &shares);
	out->values_are_keys = shares;
	if (rc || found)
		return rc;
	out->full_head_dim = 512;
	out->full_kv_heads = out->num_key_value_heads;
	if (!rc)
		rc = rh_json_int(json, "global_head_dim", where, RH_JSON_OPTIONAL, &out->full_head_dim);
	if (!rc)
		rc = rh_json_int(json, "num_global_key_value_heads", where, RH_JSON_OPTIONAL, &kv_heads);
	if (!rc && (kv_heads < 0 || out->full_head_dim < 2))
		rc = rh_fail(-EINVAL, "%s: num_global_key_value_heads %lld and global_head_dim %lld must be positive", where,
		             (long long)kv_heads, (long long)out->full_head_dim);
	if (shares && kv_heads) /* else it is not read */
		out->full_kv_heads = kv_heads;
	return rc;
}

int config_parse_scales(const json_t *json, const char *where, struct rh_model_config *out)
{
	double embedding = 1, attention = 1, residual = 1, logits = 1;
	const struct {
		const char *key;
		double *value;
	} scales[] = {{"embedding_multiplier", &embedding},
	              {"attention_multiplier", &attention},
	              {"residual_multiplier", &residual},
	              {"logits_scaling", &logits}};
	if (!out->family->is_scaled)
		return 0;
	for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
		int rc = rh_json_real(json, scales[i].key, where, RH_JSON_OPTIONAL, scales[i].value);
		if (rc)
			return rc;
		if (!(isfinite(*scales[i].value) && *scales[i].value > 0))
			return rh_fail(-EINVAL, "%s: %s %g makes no sense; it must be positive", where, scales[i].key, *scales[i].value);
	}
	if (residual != 1 && (out->attention_output_bias || out->mlp_bias))
		return rh_fail(-EINVAL, "%s: residual_multiplier %g beside attention_bias or mlp_bias is not supported", where, residual);
	out->embedding_scale = embedding == 1 ? 0 : embedding;
	out->attention_factor = attention;
	out->residual_factor = residual;
	out->logits_divisor = logits;
	return 0;
}

int config_parse_hybrid(const json_t *json, const char *where, struct rh_model_config *out)
{
	const json_t *types = json_object_get(json, "layer_types");
	const char *positions = NULL;
	int64_t experts = 8; /* where nothing is said */
	if (!out->family->is_hybrid || out->num_hidden_layers > RH_MOST_LAYERS)
		return 0;
	int rc = rh_json_int(json, "num_local_experts", where, RH_JSON_OPTIONAL, &experts);
	if (!rc)
		rc = rh_json_string(json, "position_embedding_type", where, RH_JSON_OPTIONAL, &positions);
	if (!rc && experts)
		rc = rh_fail(-EINVAL, "%s: num_local_experts %lld is not supported in this family (0 is, which must be said)", where,
		             (long long)experts);
	if (!rc && (!json_is_array(types) || json_array_size(types) != (size_t)out->num_hidden_layers))
		rc = rh_fail(-EINVAL, "%s: 'layer_types' must be a list of %lld words, one for each layer", where,
		             (long long)out->num_hidden_layers);
	for (size_t i = 0; !rc && i < json_array_size(types); i++) {
		const char *kind = json_string_value(json_array_get(types, i));
		if (!kind || (strcmp(kind, "attention") && strcmp(kind, "full_attention")))
			rc = rh_fail(-EINVAL, "%s: layer_types has '%s', which is not supported (attention, full_attention are)", where,
			             kind ? kind : "(no string)");
	}
	for (int64_t i = 0; !rc && i < out->num_hidden_layers; i++)
		out->layer[i].is_unrotated = !positions || strcmp(positions, "rope");
	return rc;
}

/* decoder_sparse_step and mlp_only_layers: the layers that have one MLP all the same. */
static int parse_dense(const json_t *json, const char *where, struct rh_model_config *out)
{
	const json_t *list = json_object_get(json, "mlp_only_layers");
	int64_t step = 1;
	int rc = rh_json_int(json, "decoder_sparse_step", where, RH_JSON_OPTIONAL, &step);
	if (!rc && step < 1)
		rc = rh_fail(-EINVAL, "%s: 'decoder_sparse_step' is %lld; it must be positive", where, (long long)step);
	for (int64_t i = 0; !rc && i < out->num_hidden_layers; i++)
		out->layer[i].dense = (i + 1) % step != 0;
	int is_list = !list || json_is_null(list) || json_is_array(list);
	for (size_t i = 0; !rc && is_list && i < json_array_size(list); i++) {
		const json_t *layer = json_array_get(list, i);
		is_list = json_is_integer(layer) && json_integer_value(layer) >= 0 && json_integer_value(layer) < out->num_hidden_layers;
		if (is_list)
			out->layer[json_integer_value(layer)].dense = 1;
	}
	if (!rc && !is_list)
		rc = rh_fail(-EINVAL, "%s: 'mlp_only_layers' must be a list of layers from 0 to %lld", where,
		             (long long)out->num_hidden_layers - 1);
	return rc;
}

/* One number under either of two keys. */
static int parse_experts(const json_t *json, const char *where, const struct rh_family *family, int64_t *out)
{
	const char *key = rh_family_key(family, "num_local_experts");
	int64_t other = 0;
	int rc = rh_json_int(json, key, where, RH_JSON_OPTIONAL, out);
	if (!rc)
		rc = rh_json_int(json, "num_experts", where, RH_JSON_OPTIONAL, &other);
	if (!rc && other && json_is_integer(json_object_get(json, key)) && other != *out)
		rc = rh_fail(-EINVAL, "%s: 'num_experts' says %lld, but '%s' says %lld; keep one", where, (long long)other, key,
		             (long long)*out);
	*out = other ? other : *out;
	return rc;
}

int config_parse_experts(const json_t *json, const char *where, struct rh_model_config *out)
{
	const struct rh_family *family = out->family;
	int is_normed = family->moe.norms;
	if (!family->silent.experts || out->num_hidden_layers > RH_MOST_LAYERS)
		return 0;
	out->experts = family->silent.experts;
	out->experts_per_token = family->silent.experts_per_token;
	out->expert_size = family->silent.expert_size;
	int rc = parse_experts(json, where, family, &out->experts);
	if (!rc)
		rc = rh_json_int(json, "num_experts_per_tok", where, RH_JSON_OPTIONAL, &out->experts_per_token);
	if (!rc && family->silent.expert_size)
		rc = rh_json_int(json, "moe_intermediate_size", where, RH_JSON_OPTIONAL, &out->expert_size);
	if (!rc && family->silent.expert_size)
		rc = rh_json_bool(json, "norm_topk_prob", where, RH_JSON_OPTIONAL, &is_normed);
	if (!rc && out->experts < 1)
		rc = rh_fail(-EINVAL, "%s: %lld experts; this family has at least one", where, (long long)out->experts);
	out->router_softmax = is_normed ? RH_ROUTER_OVER_CHOSEN : family->moe.softmax;
	if (!rc && family->moe.is_sigmoid)
		rc = config_parse_sigmoids(json, where, out);
	else if (!rc && family->silent.expert_size)
		rc = parse_dense(json, where, out);
	for (int64_t i = 0; !rc && family->moe.is_shared && !family->names->dense[0] && i < out->num_hidden_layers; i++)
		if (out->layer[i].dense)
			rc = rh_fail(-EINVAL,
			             "%s: layer %lld is to have no experts (mlp_only_layers, decoder_sparse_step), which is not "
			             "supported in this family",
			             where, (long long)i);
	/* fp8 is stored expert by expert */
	const char *method = json_string_value(json_object_get(json_object_get(json, "quantization_config"), "quant_method"));
	out->experts_are_apart = family->moe.may_lie_apart && method && !strcmp(method, "fp8");
	return rc;
}

int rh_model_config_keep_layers(struct rh_model_config *config, int64_t count)
{
	RH_ASSERT(count > 0 && count <= config->num_hidden_layers);
	int64_t own = config->num_hidden_layers - config->kv_shared_layers;
	config->num_hidden_layers = count;
	config->kv_shared_layers = count > own ? count - own : 0;
	if (!config->source)
		return 0;
	json_t *source = json_deep_copy(config->source), *text = config->wrapped ? json_object_get(source, "text_config") : source;
	if (!source)
		return rh_fail(-ENOMEM, "config.json: out of host memory");
	json_t *types = json_object_get(text, "layer_types"), *dense = json_object_get(text, "mlp_only_layers");
	json_t *thetas = json_object_get(text, "layer_rope_theta"), *mlps = json_object_get(text, "mlp_layer_types");
	if (json_object_get(text, "num_kv_shared_layers"))
		(void)json_object_set_new(text, "num_kv_shared_layers", json_integer(config->kv_shared_layers));
	json_t *rotated = json_object_get(text, "no_rope_layers"), *sizes = json_object_get(text, "per_layer_config");
	for (int64_t i = count; i < RH_MOST_LAYERS && json_object_size(sizes); i++) {
		char number[24];
		snprintf(number, sizeof number, "%lld", (long long)i);
		(void)json_object_del(sizes, number);
	}
	for (size_t i = json_array_size(rotated); i > (size_t)count; i--)
		(void)json_array_remove(rotated, i - 1);
	for (size_t i = json_array_size(thetas); i > (size_t)count; i--)
		(void)json_array_remove(thetas, i - 1);
	for (size_t i = json_array_size(types); i > (size_t)count; i--)
		(void)json_array_remove(types, i - 1);
	for (size_t i = json_array_size(mlps); i > (size_t)count; i--)
		(void)json_array_remove(mlps, i - 1);
	for (size_t i = json_array_size(dense); i > 0; i--)
		if (json_integer_value(json_array_get(dense, i - 1)) >= count)
			(void)json_array_remove(dense, i - 1);
	json_decref(config->source);
	config->source = source;
	return 0;
}
