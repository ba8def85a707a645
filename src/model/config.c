#include "model/config.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "device/op.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_WIDTH = 1 << 24, MOST_HEADS = 1 << 16 };

/* One spelling of the rotary parameters. */
struct rope {
	int given; /* the spelling is in the file */
	enum rh_rope_type type;
	double theta; /* 0: not said */
	double factor, low, high;
	int64_t original; /* 0: not said */
};

static int unknown(const char *where, const char *what, const char *name)
{
	char known[512] = "";
	const struct rh_family *family;
	for (size_t i = 0, used = 0; (family = rh_family_at(i)) && used < sizeof known; i++)
		used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", family->architecture);
	return rh_fail(-EINVAL, "%s: %s%s (known: %s)", where, name, what, known);
}

static int parse_family(const json_t *json, const char *where, const struct rh_family **out)
{
	const char *model_type = NULL, *name = NULL;
	int rc = rh_json_string(json, "model_type", where, RH_JSON_OPTIONAL, &model_type);
	if (rc)
		return rc;
	const json_t *list = json_object_get(json, "architectures");
	if (list && !json_is_null(list)) {
		if (!json_is_array(list) || json_array_size(list) != 1 || !json_is_string(json_array_get(list, 0)))
			return unknown(where, " must be a list of one name", "'architectures'");
		name = json_string_value(json_array_get(list, 0));
	}
	if (!name && !model_type)
		return unknown(where, " says what model this is", "neither 'architectures' nor 'model_type'");
	const struct rh_family *family;
	for (size_t i = 0; (family = rh_family_at(i)); i++) {
		if (strcmp(name ? name : model_type, name ? family->architecture : family->model_type))
			continue;
		if (model_type && strcmp(model_type, family->model_type))
			return rh_fail(-EINVAL, "%s: 'architectures' says %s, but 'model_type' says %s", where, name, model_type);
		*out = family;
		return 0;
	}
	char what[128];
	snprintf(what, sizeof what, "architecture %.64s", name ? name : model_type);
	return unknown(where, " is not supported", what);
}

static int parse_rope_type(const json_t *json, const char *key, const char *where, enum rh_rope_type *out)
{
	const char *name = NULL, *old = NULL;
	int rc = rh_json_string(json, "rope_type", where, RH_JSON_OPTIONAL, &name);
	if (!rc)
		rc = rh_json_string(json, "type", where, RH_JSON_OPTIONAL, &old);
	if (rc)
		return rc;
	if (name && old && strcmp(name, old))
		return rh_fail(-EINVAL, "%s: %s says rope_type '%s' and type '%s'; keep one", where, key, name, old);
	name = name ? name : old;
	if (!name && json_object_get(json, "factor"))
		return rh_fail(-EINVAL, "%s: %s has a factor but no rope_type", where, key);
	if (!name || !strcmp(name, "default"))
		*out = RH_ROPE_DEFAULT;
	else if (!strcmp(name, "linear"))
		*out = RH_ROPE_LINEAR;
	else if (!strcmp(name, "llama3"))
		*out = RH_ROPE_LLAMA3;
	else
		return rh_fail(-EINVAL, "%s: %s: rope type '%s' is not supported (default, linear, llama3 are)", where, key, name);
	return 0;
}

/* `key` is "rope_scaling" or "rope_parameters"; an absent one leaves *out as it is. */
static int parse_rope(const json_t *config, const char *key, const char *where, int64_t max_position, struct rope *out)
{
	const json_t *json = json_object_get(config, key), *value;
	const char *name;
	if (!json || json_is_null(json))
		return 0;
	if (!json_is_object(json))
		return rh_fail(-EINVAL, "%s: '%s' must be an object or null", where, key);
	json_object_foreach((json_t *)(uintptr_t)json, name, value) if (json_is_object(value)) return rh_fail(
	        -EINVAL, "%s: %s differs between kinds of layers ('%s'), which is not supported", where, key, name);
	double share = 1;
	out->given = 1;
	int rc = parse_rope_type(json, key, where, &out->type);
	if (!rc)
		rc = rh_json_real(json, "rope_theta", where, RH_JSON_OPTIONAL, &out->theta);
	if (!rc)
		rc = rh_json_real(json, "partial_rotary_factor", where, RH_JSON_OPTIONAL, &share);
	if (!rc && share != 1)
		rc = rh_fail(-EINVAL, "%s: %s: partial_rotary_factor %g is not supported (only 1)", where, key, share);
	if (!rc && out->type != RH_ROPE_DEFAULT)
		rc = rh_json_real(json, "factor", where, RH_JSON_REQUIRED, &out->factor);
	if (!rc && out->type == RH_ROPE_LLAMA3) {
		out->original = max_position;
		rc = rh_json_real(json, "low_freq_factor", where, RH_JSON_REQUIRED, &out->low);
		if (!rc)
			rc = rh_json_real(json, "high_freq_factor", where, RH_JSON_REQUIRED, &out->high);
		if (!rc)
			rc = rh_json_int(json, "original_max_position_embeddings", where, RH_JSON_OPTIONAL, &out->original);
	}
	return rc;
}

static int rope_scaling_equal(const struct rope *a, const struct rope *b)
{
	return a->type == b->type && a->factor == b->factor && a->low == b->low && a->high == b->high && a->original == b->original;
}

static int parse_rotary(const json_t *json, const char *where, struct rh_model_config *out)
{
	struct rope old = {0}, fresh = {0};
	double theta = 0, share = 1;
	int rc = rh_json_real(json, "rope_theta", where, RH_JSON_OPTIONAL, &theta);
	if (!rc)
		rc = rh_json_real(json, "partial_rotary_factor", where, RH_JSON_OPTIONAL, &share);
	if (!rc && share != 1)
		rc = rh_fail(-EINVAL, "%s: partial_rotary_factor %g is not supported (only 1)", where, share);
	if (!rc)
		rc = parse_rope(json, "rope_scaling", where, out->max_position_embeddings, &old);
	if (!rc)
		rc = parse_rope(json, "rope_parameters", where, out->max_position_embeddings, &fresh);
	if (rc)
		return rc;
	old.given |= json_object_get(json, "rope_scaling") != NULL; /* null says: no scaling */
	if (old.given && fresh.given && !rope_scaling_equal(&old, &fresh))
		return rh_fail(-EINVAL, "%s: 'rope_scaling' and 'rope_parameters' disagree; keep one of them", where);
	if (json_is_number(json_object_get(json, "rope_theta")) && theta == 0)
		return rh_fail(-EINVAL, "%s: rope_theta 0 makes no sense; it must be positive", where);
	double said[3] = {theta, old.theta, fresh.theta};
	out->rope[0].theta = 0;
	for (int i = 0; i < 3; i++) {
		if (said[i] && out->rope[0].theta && said[i] != out->rope[0].theta)
			return rh_fail(-EINVAL, "%s: 'rope_theta' is given twice, as %g and as %g; keep one", where, out->rope[0].theta,
			               said[i]);
		out->rope[0].theta = out->rope[0].theta ? out->rope[0].theta : said[i];
	}
	if (!out->rope[0].theta)
		out->rope[0].theta = 10000;
	const struct rope *rope = fresh.given ? &fresh : &old;
	out->rope[0].type = rope->type;
	out->rope[0].factor = rope->factor;
	out->rope[0].low_freq_factor = rope->low;
	out->rope[0].high_freq_factor = rope->high;
	out->rope[0].original_max_position = rope->original;
	return 0;
}

/* An attention window is an error only where it would cut something off: on some layer, and shorter than the longest sequence. */
static int refuse_windows(const json_t *json, const char *where, const struct rh_model_config *config)
{
	int used = 0;
	int64_t window = 4096, first_layer = 28;
	int rc = rh_json_bool(json, "use_sliding_window", where, RH_JSON_OPTIONAL, &used);
	if (!rc)
		rc = rh_json_int(json, "sliding_window", where, RH_JSON_OPTIONAL, &window);
	if (!rc)
		rc = rh_json_int(json, "max_window_layers", where, RH_JSON_OPTIONAL, &first_layer);
	if (rc)
		return rc;
	used = used && !json_is_null(json_object_get(json, "sliding_window")) && window < config->max_position_embeddings;
	const json_t *layers = json_object_get(json, "layer_types");
	if (json_is_array(layers)) {
		for (size_t i = 0; i < json_array_size(layers); i++) {
			const char *kind = json_string_value(json_array_get(layers, i));
			if (!kind || (strcmp(kind, "full_attention") && strcmp(kind, "sliding_attention")))
				return rh_fail(-EINVAL, "%s: layer_types has '%s', which is not supported (only full_attention)", where,
				               kind ? kind : "(no string)");
			if (used && !strcmp(kind, "sliding_attention"))
				return rh_fail(-EINVAL, "%s: layer %zu uses sliding-window attention, which is not supported", where, i);
		}
	} else if (used && first_layer < config->num_hidden_layers) {
		return rh_fail(-EINVAL, "%s: layers from %lld on use sliding-window attention (use_sliding_window), which is not supported",
		               where, (long long)first_layer);
	}
	return 0;
}

/* Words by which other models' configurations change what layers compute, and the value that changes nothing (beside null, false and 0). No
 * family here reads them: a file that says more is of another model, whatever its architecture's name. */
static const struct {
	const char *key;
	double plain;
} foreign[] = {
        {"no_rope_layers", 1}, /* a list: 1 where a layer rotates */
        {"no_rope_layer_interval", 0},
        {"rope_interleaved", 0},
        {"attention_multiplier", 0},
        {"embedding_multiplier", 1},
        {"residual_multiplier", 1},
        {"logits_scaling", 1},
        {"logit_scale", 1},
        {"scale_emb", 1},
        {"scale_depth", 0},
        {"attn_logit_softcapping", 0},
        {"final_logit_softcapping", 0},
        {"query_pre_attn_scalar", 0},
        {"clip_qkv", 0},
        {"alibi", 0},
        {"use_parallel_residual", 0},
        {"parallel_attn", 0},
        {"num_experts", 0},
        {"num_local_experts", 0},
        {"n_routed_experts", 0},
};

static int changes_nothing(const json_t *value, double plain)
{
	if (json_is_array(value)) {
		for (size_t i = 0; i < json_array_size(value); i++)
			if (json_number_value(json_array_get(value, i)) != plain)
				return 0;
		return 1;
	}
	return !value || json_is_null(value) || json_is_false(value) ||
	       (json_is_number(value) && (json_number_value(value) == 0 || json_number_value(value) == plain));
}

static int refuse_foreign(const json_t *json, const char *where, const struct rh_family *family)
{
	for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
		if (!changes_nothing(json_object_get(json, foreign[i].key), foreign[i].plain))
			return rh_fail(-EINVAL, "%s: '%s' changes what layers compute, which is not supported: %s has no such thing here",
			               where, foreign[i].key, family->architecture);
	return 0;
}

static int parse_eos(const json_t *json, const char *where, int64_t absent, struct rh_model_config *out)
{
	const json_t *value = json_object_get(json, "eos_token_id");
	out->eos_token_ids = 0;
	if (!value) {
		if (absent >= 0)
			out->eos_token_id[out->eos_token_ids++] = absent;
		return 0;
	}
	if (json_is_null(value))
		return 0;
	size_t count = json_is_array(value) ? json_array_size(value) : 1, most = sizeof out->eos_token_id / sizeof *out->eos_token_id;
	if (count > most)
		return rh_fail(-EINVAL, "%s: 'eos_token_id' has %zu entries; at most %zu are supported", where, count, most);
	for (size_t i = 0; i < count; i++) {
		const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
		if (!json_is_integer(id))
			return rh_fail(-EINVAL, "%s: 'eos_token_id' must be a whole number or a list of them", where);
		out->eos_token_id[out->eos_token_ids++] = json_integer_value(id);
	}
	return 0;
}

static int parse_sizes(const json_t *json, const char *where, struct rh_model_config *out)
{
	const struct rh_family *family = out->family;
	out->vocab_size = family->vocab_size;
	out->hidden_size = 4096;
	out->intermediate_size = family->intermediate_size;
	out->num_hidden_layers = 32;
	out->num_attention_heads = 32;
	out->head_dim = family->head_dim;
	out->max_position_embeddings = family->max_position;
	struct {
		const char *key;
		int64_t *value;
	} sizes[] = {
	        {"vocab_size", &out->vocab_size},
	        {"hidden_size", &out->hidden_size},
	        {"intermediate_size", &out->intermediate_size},
	        {"num_hidden_layers", &out->num_hidden_layers},
	        {"num_attention_heads", &out->num_attention_heads},
	        {"num_key_value_heads", &out->num_key_value_heads},
	        {"head_dim", &out->head_dim},
	        {"max_position_embeddings", &out->max_position_embeddings},
	};
	int said_heads = json_object_get(json, "num_key_value_heads") != NULL, rc = 0;
	for (size_t i = 0; !rc && i < sizeof sizes / sizeof *sizes; i++) {
		rc = rh_json_int(json, sizes[i].key, where, RH_JSON_OPTIONAL, sizes[i].value);
		const json_t *value = json_object_get(json, sizes[i].key);
		if (!rc && json_is_integer(value) && *sizes[i].value <= 0)
			rc = rh_fail(-EINVAL, "%s: '%s' is %lld; it must be positive", where, sizes[i].key, (long long)*sizes[i].value);
	}
	if (rc)
		return rc;
	if (!out->num_key_value_heads)
		out->num_key_value_heads = !said_heads && family->key_value_heads ? family->key_value_heads : out->num_attention_heads;
	if (!out->head_dim) {
		out->head_dim = out->hidden_size / out->num_attention_heads;
		if (out->hidden_size % out->num_attention_heads)
			return rh_fail(-EINVAL, "%s: hidden_size %lld is no multiple of num_attention_heads %lld, and there is no head_dim",
			               where, (long long)out->hidden_size, (long long)out->num_attention_heads);
	}
	return 0;
}

static int parse_kinds(const json_t *json, const char *where, struct rh_model_config *out)
{
	const char *own = rh_activation_name(out->family->activation), *act = own, *old = NULL, *fresh = NULL;
	double dropout = 0;
	out->attention_bias = out->family->attention_bias == RH_BIAS_QKV;
	out->qk_norm = out->family->qk_norm;
	out->rms_norm_eps = 1e-6;
	out->initializer_range = 0.02;
	out->bos_token_id = out->family->bos;
	int rc = rh_json_string(json, "hidden_act", where, RH_JSON_OPTIONAL, &act);
	if (!rc && strcmp(strcmp(act, "swish") ? act : "silu", own))
		rc = rh_fail(-EINVAL, "%s: hidden_act '%s' is not supported (%s is)", where, act, own);
	if (!rc && json_is_object(json_object_get(json, "quantization_config")))
		rc = rh_fail(-EINVAL,
		             "%s: the model is stored quantised (quantization_config), which is not supported; take the original "
		             "F32, F16 or BF16 model, or a GGUF file",
		             where);
	if (!rc && out->family->attention_bias == RH_BIAS_AS_SAID) {
		rc = rh_json_bool(json, "attention_bias", where, RH_JSON_OPTIONAL, &out->attention_bias);
		out->attention_output_bias = out->attention_bias;
	}
	if (!rc && out->family->may_bias_mlp)
		rc = rh_json_bool(json, "mlp_bias", where, RH_JSON_OPTIONAL, &out->mlp_bias);
	if (!rc)
		rc = rh_json_bool(json, "tie_word_embeddings", where, RH_JSON_OPTIONAL, &out->tie_word_embeddings);
	if (!rc)
		rc = rh_json_real(json, "rms_norm_eps", where, RH_JSON_OPTIONAL, &out->rms_norm_eps);
	if (!rc)
		rc = rh_json_real(json, "initializer_range", where, RH_JSON_OPTIONAL, &out->initializer_range);
	if (!rc && json_is_null(json_object_get(json, "bos_token_id")))
		out->bos_token_id = -1;
	if (!rc)
		rc = rh_json_int(json, "bos_token_id", where, RH_JSON_OPTIONAL, &out->bos_token_id);
	if (!rc)
		rc = parse_eos(json, where, out->family->eos, out);
	if (!rc)
		rc = rh_json_real(json, "attention_dropout", where, RH_JSON_OPTIONAL, &dropout);
	if (!rc && dropout != 0)
		rh_warn_once("%s: attention_dropout %g is not applied", where, dropout);
	if (!rc)
		rc = rh_json_string(json, "torch_dtype", where, RH_JSON_OPTIONAL, &old);
	if (!rc)
		rc = rh_json_string(json, "dtype", where, RH_JSON_OPTIONAL, &fresh);
	if (!rc && old && fresh && strcmp(old, fresh))
		rc = rh_fail(-EINVAL, "%s: 'torch_dtype' says %s, but 'dtype' says %s; keep one", where, old, fresh);
	return rc;
}

static int check_rope(const struct rh_model_config *config, const char *where)
{
	if (!(isfinite(config->rope[0].theta) && config->rope[0].theta > 0))
		return rh_fail(-EINVAL, "%s: rope_theta %g makes no sense; it must be positive", where, config->rope[0].theta);
	if (config->rope[0].type != RH_ROPE_DEFAULT && !(isfinite(config->rope[0].factor) && config->rope[0].factor > 0))
		return rh_fail(-EINVAL, "%s: rope scaling factor %g makes no sense; it must be positive", where, config->rope[0].factor);
	if (config->rope[0].type == RH_ROPE_LLAMA3 &&
	    !(config->rope[0].low_freq_factor > 0 && config->rope[0].high_freq_factor > config->rope[0].low_freq_factor &&
	      isfinite(config->rope[0].high_freq_factor) && config->rope[0].original_max_position > 0))
		return rh_fail(-EINVAL,
		               "%s: llama3 rope scaling needs 0 < low_freq_factor < high_freq_factor and a positive "
		               "original_max_position_embeddings; found %g, %g, %lld",
		               where, config->rope[0].low_freq_factor, config->rope[0].high_freq_factor,
		               (long long)config->rope[0].original_max_position);
	for (int64_t i = 0; config->rope[0].divisor && i < config->head_dim / 2; i++)
		if (!(isfinite(config->rope[0].divisor[i]) && config->rope[0].divisor[i] > 0))
			return rh_fail(-EINVAL, "%s: rope_freqs.weight[%lld] is %g; it must be positive", where, (long long)i,
			               (double)config->rope[0].divisor[i]);
	return 0;
}

int rh_model_config_check(const struct rh_model_config *config, const char *where)
{
	const struct {
		const char *name;
		int64_t value, most;
	} sizes[] = {
	        {"vocab_size", config->vocab_size, INT32_MAX},
	        {"hidden_size", config->hidden_size, MOST_WIDTH},
	        {"intermediate_size", config->intermediate_size, MOST_WIDTH},
	        {"num_hidden_layers", config->num_hidden_layers, RH_MOST_LAYERS},
	        {"num_attention_heads", config->num_attention_heads, MOST_HEADS},
	        {"num_key_value_heads", config->num_key_value_heads, MOST_HEADS},
	        {"head_dim", config->head_dim, RH_OP_MAX_HEAD_DIM},
	        {"max_position_embeddings", config->max_position_embeddings, INT32_MAX},
	};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		if (sizes[i].value <= 0 || sizes[i].value > sizes[i].most)
			return rh_fail(-EINVAL, "%s: %s is %lld; it must be 1 to %lld", where, sizes[i].name, (long long)sizes[i].value,
			               (long long)sizes[i].most);
	if (config->head_dim % 2)
		return rh_fail(-EINVAL, "%s: head_dim %lld is odd; rotary embeddings need pairs", where, (long long)config->head_dim);
	if (config->num_attention_heads * config->head_dim > MOST_WIDTH)
		return rh_fail(-EINVAL, "%s: %lld heads of %lld are too wide (at most %d in all)", where,
		               (long long)config->num_attention_heads, (long long)config->head_dim, MOST_WIDTH);
	if (config->experts < 0 || config->experts > RH_ROUTER_MAX_EXPERTS)
		return rh_fail(-EINVAL, "%s: %lld experts; at most %d are supported", where, (long long)config->experts,
		               RH_ROUTER_MAX_EXPERTS);
	int64_t top = config->experts < RH_ROUTER_MAX_TOP ? config->experts : RH_ROUTER_MAX_TOP;
	if (config->experts && (config->experts_per_token < 1 || config->experts_per_token > top))
		return rh_fail(-EINVAL, "%s: %lld experts for a token; it must be 1 to %lld", where, (long long)config->experts_per_token,
		               (long long)top);
	if (config->window < 0 || config->window > INT32_MAX)
		return rh_fail(-EINVAL, "%s: an attention window of %lld keys makes no sense", where, (long long)config->window);
	if (config->num_attention_heads % config->num_key_value_heads)
		return rh_fail(-EINVAL, "%s: num_attention_heads %lld is no multiple of num_key_value_heads %lld", where,
		               (long long)config->num_attention_heads, (long long)config->num_key_value_heads);
	if (!(isfinite(config->rms_norm_eps) && config->rms_norm_eps >= 0))
		return rh_fail(-EINVAL, "%s: rms_norm_eps %g makes no sense", where, config->rms_norm_eps);
	if (!(isfinite(config->initializer_range) && config->initializer_range >= 0))
		return rh_fail(-EINVAL, "%s: initializer_range %g makes no sense", where, config->initializer_range);
	if (config->bos_token_id < -1 || config->bos_token_id > INT32_MAX)
		return rh_fail(-EINVAL, "%s: bos_token_id %lld makes no sense", where, (long long)config->bos_token_id);
	for (int64_t i = 0; i < config->eos_token_ids; i++)
		if (config->eos_token_id[i] < 0 || config->eos_token_id[i] > INT32_MAX)
			return rh_fail(-EINVAL, "%s: eos_token_id %lld makes no sense", where, (long long)config->eos_token_id[i]);
	return check_rope(config, where);
}

int rh_model_config_parse(const json_t *json, const char *where, struct rh_model_config *out)
{
	*out = (struct rh_model_config){0};
	if (!json_is_object(json))
		return rh_fail(-EINVAL, "%s: expected a JSON object", where);
	int rc = parse_family(json, where, &out->family);
	if (!rc)
		rc = parse_sizes(json, where, out);
	if (!rc)
		rc = parse_kinds(json, where, out);
	if (!rc)
		rc = parse_rotary(json, where, out);
	if (!rc && out->family->may_window)
		rc = refuse_windows(json, where, out);
	if (!rc)
		rc = refuse_foreign(json, where, out->family);
	if (!rc)
		rc = rh_model_config_check(out, where);
	if (!rc && !(out->source = json_deep_copy(json)))
		rc = rh_fail(-ENOMEM, "%s: out of host memory", where);
	if (rc)
		rh_model_config_free(out);
	return rc;
}

int rh_model_config_load(const char *path_or_dir, struct rh_model_config *out)
{
	char *path = rh_dir_exists(path_or_dir) ? rh_path_join(path_or_dir, "config.json") : rh_strdup(path_or_dir);
	json_t *json = NULL;
	int rc = path ? rh_json_load(path, &json) : -ENOMEM;
	*out = (struct rh_model_config){0};
	if (!rc)
		rc = rh_model_config_parse(json, path, out);
	json_decref(json);
	rh_free(path);
	return rc;
}

void rh_model_config_free(struct rh_model_config *config)
{
	rh_free(config->rope[0].divisor);
	json_decref(config->source);
	*config = (struct rh_model_config){0};
}
