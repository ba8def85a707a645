#include "model/config_internal.h"

#include "config/config.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"
#include "device/op.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_WIDTH = 1 << 24, MOST_HEADS = 1 << 16 };

/* Does one of the first `families` stand inside a model of that name? */
static int is_wrapper_of_one_before(size_t families, const char *architecture)
{
	for (size_t i = 0; i < families; i++) {
		const struct rh_family_wrapper *wrapper = rh_family_at(i)->wrapper;
		if (wrapper && !strcmp(wrapper->architecture, architecture))
			return 1;
	}
	return 0;
}

static int unknown(const char *where, const char *what, const char *name)
{
	struct rh_text known = {0};
	const struct rh_family *family;
	int rc = 0;
	for (size_t i = 0; !rc && (family = rh_family_at(i)); i++) {
		rc = rh_text_printf(&known, "%s%s", i ? ", " : "", family->architecture);
		const struct rh_family_wrapper *wrapper = family->wrapper;
		if (!rc && wrapper && strcmp(wrapper->architecture, family->architecture) &&
		    !is_wrapper_of_one_before(i, wrapper->architecture))
			rc = rh_text_printf(&known, ", %s", wrapper->architecture);
	}
	if (!rc)
		rc = rh_fail(-EINVAL, "%s: %s%s (known: %s)", where, name, what, known.bytes);
	rh_text_free(&known);
	return rc;
}

/* The architecture's name and the model type; either may be absent, not both. */
static int parse_names(const json_t *json, const char *where, const char **out_name, const char **model_type)
{
	const char *name = NULL;
	*model_type = NULL;
	int rc = rh_json_string(json, "model_type", where, RH_JSON_OPTIONAL, model_type);
	if (rc)
		return rc;
	const json_t *list = json_object_get(json, "architectures");
	if (list && !json_is_null(list)) {
		if (!json_is_array(list) || json_array_size(list) != 1 || !json_is_string(json_array_get(list, 0)))
			return unknown(where, " must be a list of one name", "'architectures'");
		name = json_string_value(json_array_get(list, 0));
	}
	*out_name = name;
	return name || *model_type ? 0 : unknown(where, " says what model this is", "neither 'architectures' nor 'model_type'");
}

/* The text model inside a larger one, of which nothing else is read. */
static int parse_text_type(const json_t *json, const char *where, const struct rh_family *family)
{
	const char *model_type = family->model_type;
	const json_t *text = json_object_get(json, "text_config");
	if (!json_is_object(text))
		return rh_fail(-EINVAL, "%s: %s has no 'text_config' object, which describes its text model", where,
		               family->wrapper->architecture);
	int rc = rh_json_string(text, "model_type", where, RH_JSON_OPTIONAL, &model_type);
	if (!rc && strcmp(model_type, family->model_type))
		rc = rh_fail(-EINVAL, "%s: text_config is of model_type %s, which is not supported inside %s (%s is)", where, model_type,
		             family->wrapper->architecture, family->model_type);
	return rc;
}

/* Larger models of one name hold text models of several families. */
static int is_inside_another(const struct rh_family *family, const char *text_type)
{
	const struct rh_family *other = text_type ? rh_family_find(text_type) : NULL;
	return other && other != family && other->wrapper && !strcmp(other->wrapper->architecture, family->wrapper->architecture);
}

static int parse_family(const json_t *json, const char *where, struct rh_model_config *out)
{
	const char *model_type, *name;
	const struct rh_family *family;
	const char *text_type = json_string_value(json_object_get(json_object_get(json, "text_config"), "model_type"));
	int rc = parse_names(json, where, &name, &model_type);
	if (rc)
		return rc;
	for (size_t i = 0; (family = rh_family_at(i)); i++) {
		enum rh_task_kind task = RH_TASK_CAUSAL_LM;
		const struct rh_family_wrapper *wrapper = family->wrapper;
		int wrapped = wrapper && !strcmp(name ? name : model_type, name ? wrapper->architecture : wrapper->model_type);
		if (wrapped && is_inside_another(family, text_type))
			continue;
		const char *expected = wrapped ? wrapper->model_type : family->model_type;
		if (!wrapped && (name ? !config_is_architecture(family, name, &task) : strcmp(model_type, family->model_type) != 0))
			continue;
		if (!name)
			(void)config_is_architecture(family, family->architecture, &task);
		if (model_type && strcmp(model_type, expected))
			return rh_fail(-EINVAL, "%s: 'architectures' says %s, but 'model_type' says %s", where, name, model_type);
		out->family = family;
		out->wrapped = wrapped;
		out->task = task;
		out->architecture = task == RH_TASK_UNSET ? family->bare : family->task[task].architecture;
		return wrapped ? parse_text_type(json, where, family) : 0;
	}
	char what[128];
	snprintf(what, sizeof what, "architecture %.64s", name ? name : model_type);
	return unknown(where, " is not supported", what);
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
        {"use_bidirectional_attention", 0},
        {"final_logit_softcapping", 0},
        {"query_pre_attn_scalar", 0},
        {"clip_qkv", 0},
        {"alibi", 0},
        {"use_parallel_residual", 0},
        {"parallel_attn", 0},
        {"num_experts", 0},
        {"num_local_experts", 0},
        {"n_routed_experts", 0},
        {"scale_attn_by_inverse_layer_idx", 0},
        {"add_cross_attention", 0},
        {"is_decoder", 0},
};

/* And keys that change the computation when they are false. */
static const char *const needed[] = {"scale_attn_weights"};

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

static int is_own(const struct rh_family *family, const char *key)
{
	for (int i = 0; i < RH_FAMILY_KEYS && family->own_key[i]; i++)
		if (!strcmp(family->own_key[i], key))
			return 1;
	return 0;
}

static int refuse_foreign(const json_t *json, const char *where, const struct rh_family *family)
{
	for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
		if (!is_own(family, foreign[i].key) && !changes_nothing(json_object_get(json, foreign[i].key), foreign[i].plain))
			return rh_fail(-EINVAL, "%s: '%s' changes what layers compute, which is not supported: %s has no such thing here",
			               where, foreign[i].key, family->architecture);
	for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
		if (json_is_false(json_object_get(json, needed[i])))
			return rh_fail(-EINVAL, "%s: '%s' false changes what layers compute, which is not supported", where, needed[i]);
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
	out->vocab_size = family->silent.vocab_size;
	out->hidden_size = family->silent.hidden_size ? family->silent.hidden_size : 4096;
	out->intermediate_size = family->silent.intermediate_size;
	out->num_hidden_layers = family->silent.layers ? family->silent.layers : 32;
	out->num_attention_heads = family->silent.heads ? family->silent.heads : 32;
	out->head_dim = family->silent.head_dim;
	out->types = family->silent.types;
	out->max_position_embeddings = family->silent.max_position;
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
	        {"type_vocab_size", &out->types},
	};
	int said_heads = json_object_get(json, "num_key_value_heads") != NULL, rc = 0;
	for (size_t i = 0; !rc && i < sizeof sizes / sizeof *sizes; i++) {
		const char *key = rh_family_key(family, sizes[i].key);
		if (!key || (sizes[i].value == &out->types && !family->names->types))
			continue;
		rc = rh_json_int(json, key, where, RH_JSON_OPTIONAL, sizes[i].value);
		const json_t *value = json_object_get(json, key);
		if (!rc && json_is_integer(value) && *sizes[i].value <= 0)
			rc = rh_fail(-EINVAL, "%s: '%s' is %lld; it must be positive", where, key, (long long)*sizes[i].value);
	}
	if (rc)
		return rc;
	if (!out->intermediate_size && out->hidden_size <= MOST_WIDTH)
		out->intermediate_size = family->mlp.size_factor * out->hidden_size;
	if (!out->num_key_value_heads)
		out->num_key_value_heads =
		        !said_heads && family->silent.key_value_heads ? family->silent.key_value_heads : out->num_attention_heads;
	if (!out->head_dim) {
		out->head_dim = out->hidden_size / out->num_attention_heads;
		if (out->hidden_size % out->num_attention_heads)
			return rh_fail(-EINVAL, "%s: hidden_size %lld is no multiple of %s %lld, and there is no head_dim", where,
			               (long long)out->hidden_size, rh_family_key(family, "num_attention_heads"),
			               (long long)out->num_attention_heads);
	}
	return 0;
}

/* Experts in MXFP4 are read as they are. */
static int is_mxfp4(const json_t *json, const struct rh_family *family)
{
	const char *method = json_string_value(json_object_get(json_object_get(json, "quantization_config"), "quant_method"));
	return family->moe.reads_mxfp4 && method && !strcmp(method, "mxfp4");
}

/* A method of several kinds, one of which is read. */
static int check_kind(const json_t *stored, const char *where, const char *key, const char *read)
{
	const char *method = json_string_value(json_object_get(stored, "quant_method"));
	const char *kind = json_string_value(json_object_get(stored, key));
	if (kind && !strcmp(kind, read))
		return 0;
	return rh_fail(-EINVAL,
	               "%s: the model is stored quantised by '%s' in the %s '%s' (quantization_config), which is not supported ('%s' is); "
	               "take the original F32, F16 or BF16 model, or a GGUF file",
	               where, method, key, kind ? kind : "", read);
}

static int check_fp8(const json_t *stored, const char *where)
{
	const json_t *block = json_object_get(stored, "weight_block_size");
	int is_there = block && !json_is_null(block);
	json_int_t rows = json_integer_value(json_array_get(block, 0)), cols = json_integer_value(json_array_get(block, 1));
	if (!is_there || (json_array_size(block) == 2 && rows == 128 && cols == 128))
		return 0;
	return rh_fail(-EINVAL,
	               "%s: quantization_config has the weight_block_size %lld x %lld, which is not supported (128 x 128 is, and none)",
	               where, (long long)rows, (long long)cols);
}

/* How a model may be stored: in types that are read as they are. */
static int check_quantised(const json_t *json, const char *where, const struct rh_family *family)
{
	const json_t *stored = json_object_get(json, "quantization_config");
	const char *method = json_string_value(json_object_get(stored, "quant_method"));
	if (!stored || json_is_null(stored) || is_mxfp4(json, family))
		return 0;
	if (method && !strcmp(method, "bitsandbytes"))
		return 0;
	if (method && !strcmp(method, "fp8"))
		return check_fp8(stored, where);
	if (method && !strcmp(method, "compressed-tensors"))
		return check_kind(stored, where, "format", "nvfp4-pack-quantized");
	if (method && !strcmp(method, "modelopt"))
		return check_kind(stored, where, "quant_algo", "NVFP4");
	return rh_fail(
	        -EINVAL,
	        "%s: the model is stored quantised by '%s' (quantization_config), which is not supported (bitsandbytes, fp8, and NVFP4 of "
	        "compressed-tensors and modelopt are); take the original F32, F16 or BF16 model, or a GGUF file",
	        where, method ? method : "");
}

/* gpt-oss: no other activation than the one there is. */
static int check_swiglu(const json_t *json, const char *where)
{
	double alpha = (double)RH_GPT_OSS_ALPHA, limit = (double)RH_GPT_OSS_LIMIT;
	int rc = rh_json_real(json, "swiglu_alpha", where, RH_JSON_OPTIONAL, &alpha);
	if (!rc)
		rc = rh_json_real(json, "swiglu_limit", where, RH_JSON_OPTIONAL, &limit);
	if (!rc && ((float)alpha != RH_GPT_OSS_ALPHA || (float)limit != RH_GPT_OSS_LIMIT))
		rc = rh_fail(-EINVAL, "%s: swiglu_alpha %g and swiglu_limit %g are not supported (1.702 and 7 are)", where, alpha, limit);
	return rc;
}

static int parse_rate(const json_t *json, const char *where, const char *key, float *out)
{
	double rate = (double)*out;
	int is_there = key && !json_is_null(json_object_get(json, key));
	int rc = is_there ? rh_json_real(json, key, where, RH_JSON_OPTIONAL, &rate) : 0;
	if (!rc && !(rate >= 0 && rate < 1))
		rc = rh_fail(-EINVAL, "%s: %s %g is no share from 0 to below 1", where, key, rate);
	*out = (float)rate;
	return rc;
}

/* The model's own: `model_dropout` of a run applies it. A classifier's is the residual's where the file does not say. */
static int parse_dropout(const json_t *json, const char *where, struct rh_model_config *out)
{
	const struct rh_family *family = out->family;
	struct rh_model_dropout *to = &out->dropout;
	to->embedding = to->attention = to->residual = (float)family->silent_dropout;
	int rc = parse_rate(json, where, rh_family_key(family, "attention_dropout"), &to->attention);
	if (!rc && family->embedding_dropout)
		rc = parse_rate(json, where, rh_family_key(family, "hidden_dropout"), &to->residual);
	if (!rc && family->embedding_dropout)
		rc = parse_rate(json, where, family->embedding_dropout, &to->embedding);
	to->head = family->head_dropout ? to->residual : 0;
	return rc ? rc : parse_rate(json, where, family->head_dropout, &to->head);
}

static int parse_kinds(const json_t *json, const char *where, struct rh_model_config *out)
{
	const char *own = rh_family_activation(out->family), *act = own, *old = NULL, *fresh = NULL;
	enum rh_family_bias bias = out->family->attention.bias;
	out->attention_output_bias = out->mlp_bias = bias == RH_BIAS_ALL || bias == RH_BIAS_ALL_BUT_QKV_AS_SAID;
	out->attention_bias = bias == RH_BIAS_ALL || bias == RH_BIAS_QKV || out->family->silent.attention_bias;
	out->qk_norm = out->family->attention.qk_norm;
	out->tie_word_embeddings = out->family->silent.tie_word_embeddings;
	out->attention_scalar = out->family->silent.attention_scalar;
	out->attention_factor = out->family->attention.is_unscaled ? 1 : 0;
	out->embedding_scale = out->family->scales_embedding ? sqrt((double)out->hidden_size) : 0;
	out->rms_norm_eps = out->family->silent.rms_norm_eps ? out->family->silent.rms_norm_eps : 1e-6;
	out->initializer_range = 0.02;
	out->logits_cap = out->family->silent.logits_cap;
	out->bos_token_id = out->family->silent.bos;
	const char *key = out->family->mlp.activation_key ? out->family->mlp.activation_key : "hidden_act";
	int rc = rh_json_string(json, key, where, RH_JSON_OPTIONAL, &act);
	if (!rc && strcmp(strcmp(act, "swish") ? act : "silu", own))
		rc = rh_fail(-EINVAL, "%s: %s '%s' is not supported (%s is)", where, key, act, own);
	if (!rc)
		rc = check_quantised(json, where, out->family);
	if (!rc && out->family->attention.bias == RH_BIAS_AS_SAID) {
		rc = rh_json_bool(json, "attention_bias", where, RH_JSON_OPTIONAL, &out->attention_bias);
		out->attention_output_bias = out->attention_bias;
	}
	if (!rc && bias == RH_BIAS_ALL_BUT_QKV_AS_SAID)
		rc = rh_json_bool(json, rh_family_key(out->family, "attention_bias"), where, RH_JSON_OPTIONAL, &out->attention_bias);
	if (!rc && out->family->mlp.may_have_bias)
		rc = rh_json_bool(json, "mlp_bias", where, RH_JSON_OPTIONAL, &out->mlp_bias);
	if (!rc)
		rc = rh_json_bool(json, "tie_word_embeddings", where, RH_JSON_OPTIONAL, &out->tie_word_embeddings);
	if (!rc)
		rc = rh_json_real(json, rh_family_key(out->family, "rms_norm_eps"), where, RH_JSON_OPTIONAL, &out->rms_norm_eps);
	if (!rc && out->family->attention.scalar_key)
		rc = rh_json_real(json, out->family->attention.scalar_key, where, RH_JSON_OPTIONAL, &out->attention_scalar);
	if (!rc && out->family->may_cap_logits)
		rc = rh_json_real(json, "final_logit_softcapping", where, RH_JSON_OPTIONAL, &out->logits_cap);
	if (!rc && !(isfinite(out->logits_cap) && out->logits_cap >= 0))
		rc = rh_fail(-EINVAL, "%s: final_logit_softcapping %g makes no sense", where, out->logits_cap);
	if (!rc && !(isfinite(out->attention_scalar) && out->attention_scalar >= 0))
		rc = rh_fail(-EINVAL, "%s: %s %g makes no sense", where, out->family->attention.scalar_key, out->attention_scalar);
	if (!rc)
		rc = rh_json_real(json, "initializer_range", where, RH_JSON_OPTIONAL, &out->initializer_range);
	if (!rc && json_is_null(json_object_get(json, "bos_token_id")))
		out->bos_token_id = -1;
	if (!rc)
		rc = rh_json_int(json, "bos_token_id", where, RH_JSON_OPTIONAL, &out->bos_token_id);
	if (!rc)
		rc = parse_eos(json, where, out->family->silent.eos, out);
	if (!rc)
		rc = parse_dropout(json, where, out);
	if (!rc)
		rc = rh_json_string(json, "torch_dtype", where, RH_JSON_OPTIONAL, &old);
	if (!rc)
		rc = rh_json_string(json, "dtype", where, RH_JSON_OPTIONAL, &fresh);
	if (!rc && old && fresh && strcmp(old, fresh))
		rc = rh_fail(-EINVAL, "%s: 'torch_dtype' says %s, but 'dtype' says %s; keep one", where, old, fresh);
	return rc;
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
	        {"head_dim", config->head_dim, 2 * RH_ROPE_MAX_HALF},
	        {"global_head_dim", config->full_head_dim ? config->full_head_dim : 1, RH_OP_MAX_HEAD_DIM},
	        {"num_global_key_value_heads", config->full_head_dim ? config->full_kv_heads : 1, MOST_HEADS},
	        {"moe_intermediate_size", config->expert_size ? config->expert_size : 1, MOST_WIDTH},
	        {"max_position_embeddings", config->max_position_embeddings, INT32_MAX},
	        {"type_vocab_size", config->types ? config->types : 1, INT32_MAX},
	};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		if (sizes[i].value <= 0 || sizes[i].value > sizes[i].most)
			return rh_fail(-EINVAL, "%s: %s is %lld; it must be 1 to %lld", where, sizes[i].name, (long long)sizes[i].value,
			               (long long)sizes[i].most);
	if (config->head_dim % 2 && !config->family->names->positions)
		return rh_fail(-EINVAL, "%s: head_dim %lld is odd; rotary embeddings need pairs", where, (long long)config->head_dim);
	if (config->rotary_share && !config->full_head_dim && !config->family->names->positions &&
	    (int64_t)((double)config->head_dim * config->rotary_share) % 2)
		return rh_fail(-EINVAL, "%s: partial_rotary_factor %g of heads of %lld elements is odd; rotary embeddings need pairs",
		               where, config->rotary_share, (long long)config->head_dim);
	int64_t widest = config->full_head_dim > config->head_dim ? config->full_head_dim : config->head_dim;
	if (config->num_attention_heads * widest > MOST_WIDTH)
		return rh_fail(-EINVAL, "%s: %lld heads of %lld are too wide (at most %d in all)", where,
		               (long long)config->num_attention_heads, (long long)widest, MOST_WIDTH);
	if (config->full_head_dim && (config->full_head_dim % 2 || config->num_attention_heads % config->full_kv_heads))
		return rh_fail(
		        -EINVAL,
		        "%s: num_attention_heads %lld is no multiple of num_global_key_value_heads %lld, or global_head_dim %lld is odd",
		        where, (long long)config->num_attention_heads, (long long)config->full_kv_heads, (long long)config->full_head_dim);
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
	int rc = config_check_lenders(config, where);
	if (rc)
		return rc;
	for (int i = 0; i < RH_ROPES; i++) {
		rc = config_check_rope(config, i, where);
		if (rc)
			return rc;
	}
	return 0;
}

/* Reads what a larger model's config.json says about its text model outside text_config. */
static int parse_outer(const json_t *json, const json_t *text, const char *where, struct rh_model_config *out)
{
	int rc = rh_json_bool(json, "tie_word_embeddings", where, RH_JSON_OPTIONAL, &out->tie_word_embeddings);
	if (!rc && !json_object_get(text, "eos_token_id"))
		rc = parse_eos(json, where, out->family->silent.eos, out);
	return rc;
}

/* `json` describes the family's model itself. */
static int parse_text(const json_t *json, const char *where, struct rh_model_config *out)
{
	int rc = parse_sizes(json, where, out);
	if (!rc)
		rc = config_parse_images(json, where, out);
	if (!rc)
		rc = parse_kinds(json, where, out);
	if (!rc)
		rc = config_parse_kinds(json, where, out);
	if (!rc)
		rc = config_parse_rope(json, where, out);
	if (!rc)
		rc = config_parse_windows(json, where, out);
	if (!rc)
		rc = config_parse_unrotated(json, where, out);
	if (!rc)
		rc = config_parse_delta(json, where, out);
	if (!rc)
		rc = config_parse_latent(json, where, out);
	if (!rc)
		rc = config_parse_scales(json, where, out);
	if (!rc)
		rc = config_parse_factors(json, where, out);
	if (!rc)
		rc = config_parse_hybrid(json, where, out);
	if (!rc)
		rc = config_parse_experts(json, where, out);
	if (!rc)
		rc = config_parse_labels(json, where, out);
	if (!rc && out->family->mlp.activation == RH_ACT_GPT_OSS)
		rc = check_swiglu(json, where);
	return rc ? rc : refuse_foreign(json, where, out->family);
}

int rh_model_config_parse(const json_t *json, const char *where, struct rh_model_config *out)
{
	*out = (struct rh_model_config){0};
	if (!json_is_object(json))
		return rh_fail(-EINVAL, "%s: expected a JSON object", where);
	int rc = parse_family(json, where, out);
	const json_t *text = rc || !out->wrapped ? json : json_object_get(json, "text_config");
	if (!rc)
		rc = parse_text(text, where, out);
	if (!rc && out->wrapped)
		rc = parse_outer(json, text, where, out);
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
	const char *held = rh_file_exists(path_or_dir) || rh_dir_exists(path_or_dir) ? NULL : rh_config_model(path_or_dir);
	json_t *json = NULL;
	int rc = !path ? -ENOMEM : held ? rh_json_parse(held, strlen(held), path, &json) : rh_json_load(path, &json);
	*out = (struct rh_model_config){0};
	if (!rc)
		rc = rh_model_config_parse(json, path, out);
	json_decref(json);
	rh_free(path);
	return rc;
}

const struct rh_family_names *rh_model_names(const struct rh_model_config *config)
{
	return config->wrapped ? config->family->wrapper->names : config->family->names;
}

const struct rh_family_names *rh_model_modules(const struct rh_model_config *config)
{
	return config->family->modules ? config->family->modules : rh_model_names(config);
}

int rh_model_config_copy(const struct rh_model_config *config, struct rh_model_config *out)
{
	const float *divisor = config->rope[0].divisor;
	size_t count = (size_t)config->head_dim / 2;
	*out = *config;
	json_incref(out->source);
	if (!divisor)
		return 0;
	out->rope[0].divisor = rh_alloc(count, sizeof *divisor);
	if (!out->rope[0].divisor)
		return -ENOMEM;
	memcpy(out->rope[0].divisor, divisor, count * sizeof *divisor);
	return 0;
}

void rh_model_config_free(struct rh_model_config *config)
{
	rh_free(config->rope[0].divisor);
	json_decref(config->source);
	*config = (struct rh_model_config){0};
}
