/* Writes the config.json of a model that was trained here, from its own config.json or a GGUF's metadata, in words of transformers 4 and
 * 5. */
#include "model/config.h"

#include "core/alloc.h"
#include "core/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Llama-3's divisor of one frequency (transformers: _compute_llama3_parameters), as a GGUF converter stores it. */
static double llama3_divisor(double frequency, double factor, double low, double high, double original)
{
	double wavelength = 2 * M_PI / frequency;
	if (wavelength < original / high)
		return 1;
	if (wavelength > original / low)
		return factor;
	double smooth = (original / wavelength - low) / (high - low);
	return 1 / ((1 - smooth) / factor + smooth);
}

/* Which scaling of Llama-3's kind made these divisors? All published models use low 1 and high 4; the factor is the largest
 * divisor, and the original length a power of two. */
static int infer_llama3(const struct rh_model_config *config, struct rh_model_config *out)
{
	double factor = 1;
	int64_t half = config->head_dim / 2;
	for (int64_t i = 0; i < half; i++)
		factor = fmax(factor, config->rope[0].divisor[i]);
	out->rope[0].type = RH_ROPE_DEFAULT;
	if (factor == 1)
		return 1;
	for (int64_t original = 1024; original <= 1 << 20; original *= 2) {
		int64_t fits = 0;
		for (int64_t i = 0; i < half; i++) {
			double frequency = pow(config->rope[0].theta, -2.0 * (double)i / (double)config->head_dim);
			double divisor = llama3_divisor(frequency, factor, 1, 4, (double)original);
			fits += fabs(divisor - config->rope[0].divisor[i]) <= 1e-4 * divisor;
		}
		if (fits < half)
			continue;
		out->rope[0].type = RH_ROPE_LLAMA3;
		out->rope[0].factor = factor;
		out->rope[0].low_freq_factor = 1;
		out->rope[0].high_freq_factor = 4;
		out->rope[0].original_max_position = original;
		return 1;
	}
	return 0;
}

/* NULL when out of memory. Without theta: rope_scaling of transformers 4; with it: rope_parameters of 5. */
static json_t *rope_json(const struct rh_rope *rope, int with_theta)
{
	json_t *json = json_object();
	if (!json)
		return NULL;
	int failed = json_object_set_new(json, "rope_type", json_string(rh_rope_type_name[rope->type]));
	if (with_theta)
		failed |= json_object_set_new(json, "rope_theta", json_real(rope->theta));
	if (rope->type != RH_ROPE_DEFAULT)
		failed |= json_object_set_new(json, "factor", json_real(rope->factor));
	if (rope->type == RH_ROPE_LLAMA3) {
		failed |= json_object_set_new(json, "low_freq_factor", json_real(rope->low_freq_factor));
		failed |= json_object_set_new(json, "high_freq_factor", json_real(rope->high_freq_factor));
		failed |= json_object_set_new(json, "original_max_position_embeddings", json_integer(rope->original_max_position));
	}
	if (!failed)
		return json;
	json_decref(json);
	return NULL;
}

/* Both spellings, where the struct holds all that they say: no other scaling, one table, whole heads. What else a config.json said stays
 * as it was. */
static int set_rope(const struct rh_model_config *c, json_t *out)
{
	const struct rh_rope *rope = &c->rope[0];
	if (c->family->names->positions || rope->type > RH_ROPE_LLAMA3 || c->family->silent.rope_theta_windowed ||
	    (c->rotary_share && c->rotary_share != 1))
		return 0;
	int failed = json_object_set_new(out, "rope_theta", json_real(rope->theta));
	failed |= json_object_set_new(out, "rope_scaling", rope->type == RH_ROPE_DEFAULT ? json_null() : rope_json(rope, 0));
	return failed | json_object_set_new(out, "rope_parameters", rope_json(rope, 1));
}

static json_t *eos_json(const struct rh_model_config *config)
{
	if (config->eos_token_ids == 0)
		return json_null();
	if (config->eos_token_ids == 1)
		return json_integer(config->eos_token_id[0]);
	json_t *list = json_array();
	for (int64_t i = 0; list && i < config->eos_token_ids; i++)
		if (json_array_append_new(list, json_integer(config->eos_token_id[i]))) {
			json_decref(list);
			return NULL;
		}
	return list;
}

static int set_biases(const struct rh_model_config *config, json_t *out)
{
	const struct rh_family *family = config->family;
	const char *name = rh_model_architecture(config);
	int always = family->attention.bias == RH_BIAS_QKV;
	if (family->attention.bias == RH_BIAS_ALL || family->attention.bias == RH_BIAS_ALL_BUT_QKV_AS_SAID) /* as it was read */
		return 0;
	if (always ? !config->attention_bias || config->attention_output_bias : config->attention_bias != config->attention_output_bias)
		return rh_fail(-EINVAL, "%s cannot have biases on %s; no config.json can describe this model", name,
		               config->attention_output_bias ? "o_proj as this model does" : "q, k and v as this model does");
	if (config->mlp_bias && !family->mlp.may_have_bias)
		return rh_fail(-EINVAL, "%s cannot have biases in its MLP; no config.json can describe this model", name);
	if (!config->qk_norm != !family->attention.qk_norm)
		return rh_fail(-EINVAL, "%s cannot %s norms on q and k; no config.json can describe this model", name,
		               config->qk_norm ? "have" : "lack");
	int failed = 0;
	if (family->attention.bias == RH_BIAS_AS_SAID)
		failed |= json_object_set_new(out, "attention_bias", json_boolean(config->attention_bias));
	if (family->mlp.may_have_bias)
		failed |= json_object_set_new(out, "mlp_bias", json_boolean(config->mlp_bias));
	return failed ? rh_fail(-ENOMEM, "config.json: out of host memory") : 0;
}

/* Takes the value even when it fails; NULL fails. */
static int set_key(const struct rh_family *family, json_t *out, const char *key, json_t *value)
{
	const char *own = rh_family_key(family, key);
	if (own)
		return json_object_set_new(out, own, value);
	json_decref(value);
	return value ? 0 : -ENOMEM;
}

/* Their names stay where there are as many. */
static int set_labels(const struct rh_model_config *c, json_t *out)
{
	const json_t *names = json_object_get(out, "id2label");
	if (rh_task_classifies(c->task))
		(void)json_object_del(out, "num_labels"); /* id2label says it, and the run may have changed it */
	if (!rh_task_classifies(c->task) || (json_is_object(names) && (int64_t)json_object_size(names) == c->num_labels))
		return 0;
	json_t *by_id = json_object(), *by_label = json_object();
	int failed = !by_id || !by_label;
	for (int64_t i = 0; !failed && i < c->num_labels; i++) {
		char id[24], label[32];
		snprintf(id, sizeof id, "%lld", (long long)i);
		snprintf(label, sizeof label, "LABEL_%lld", (long long)i);
		failed = json_object_set_new(by_id, id, json_string(label)) | json_object_set_new(by_label, label, json_integer(i));
	}
	failed |= json_object_set_new(out, "id2label", by_id);
	return failed | json_object_set_new(out, "label2id", by_label);
}

static int set_all(const struct rh_model_config *c, const char *torch_dtype, json_t *out)
{
	const struct {
		const char *key;
		json_t *value;
	} pairs[] = {
	        {"architectures", json_pack("[s]", rh_model_architecture(c))},
	        {"model_type", json_string(c->family->model_type)},
	        {"vocab_size", json_integer(c->vocab_size)},
	        {"hidden_size", json_integer(c->hidden_size)},
	        {"intermediate_size", json_integer(c->intermediate_size)},
	        {"num_hidden_layers", json_integer(c->num_hidden_layers)},
	        {"num_attention_heads", json_integer(c->num_attention_heads)},
	        {"num_key_value_heads", json_integer(c->num_key_value_heads)},
	        {"head_dim", json_integer(c->head_dim)},
	        {c->family->mlp.activation_key ? c->family->mlp.activation_key : "hidden_act",
	         json_string(rh_family_activation(c->family))},
	        {"max_position_embeddings", json_integer(c->max_position_embeddings)},
	        {"rms_norm_eps", json_real(c->rms_norm_eps)},
	        {"initializer_range", json_real(c->initializer_range)},
	        {"tie_word_embeddings", json_boolean(c->tie_word_embeddings)},
	        {"bos_token_id", c->bos_token_id >= 0 ? json_integer(c->bos_token_id) : json_null()},
	        {"eos_token_id", eos_json(c)},
	        {"torch_dtype", json_string(torch_dtype)},
	        {"dtype", json_string(torch_dtype)},
	};
	int failed = set_rope(c, out) | set_labels(c, out);
	(void)json_object_del(out, "quantization_config");
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
		failed |= set_key(c->family, out, pairs[i].key, pairs[i].value);
	return failed ? rh_fail(-ENOMEM, "config.json: out of host memory") : 0;
}

/* Around a text_config: what transformers reads there. */
static int set_outer(const struct rh_model_config *c, const char *torch_dtype, json_t *out)
{
	int failed = json_object_set_new(out, "torch_dtype", json_string(torch_dtype));
	failed |= json_object_set_new(out, "dtype", json_string(torch_dtype));
	failed |= json_object_set_new(out, "tie_word_embeddings", json_boolean(c->tie_word_embeddings));
	json_object_del(json_object_get(out, "text_config"), "architectures");
	return failed ? rh_fail(-ENOMEM, "config.json: out of host memory") : 0;
}

/* All but biases. */
static int say(const struct rh_model_config *config, const char *torch_dtype, json_t **out)
{
	json_t *json = config->source ? json_deep_copy(config->source) : json_object();
	int rc = json ? set_all(config, torch_dtype, config->wrapped ? json_object_get(json, "text_config") : json)
	              : rh_fail(-ENOMEM, "config.json: out of host memory");
	if (!rc && config->wrapped)
		rc = set_outer(config, torch_dtype, json);
	if (rc)
		json_decref(json);
	else
		*out = json;
	return rc;
}

/* Does a GGUF tell less of the family's models than a config.json says? */
static int is_told_in_part(const struct rh_family *family)
{
	return family->gguf.only_read || family->gguf.converted_as || family->is_scaled || family->silent.delta_period ||
	       family->silent.experts || family->attention.may_rotate_part || family->attention.grows_queries ||
	       family->attention.unrotated_period || family->residual == RH_RESIDUAL_BEHIND || family->residual == RH_RESIDUAL_SANDWICH;
}

int rh_model_config_write(const struct rh_model_config *config, const char *torch_dtype, json_t **out)
{
	struct rh_model_config said = *config; /* borrows its pointers */
	if (!config->source && is_told_in_part(config->family))
		return rh_fail(
		        -EINVAL,
		        "a config.json for %s is not made of a GGUF file's metadata; take the model's directory, or train an adapter and "
		        "leave it unmerged",
		        config->family->architecture);
	if (config->rope[0].divisor && !infer_llama3(config, &said))
		return rh_fail(-EINVAL,
		               "rope_freqs.weight of the GGUF file follows no known scaling; no config.json can describe this model "
		               "(train an adapter and leave it unmerged)");
	if (json_object_get(config->source, "quantization_config"))
		rh_warn_once("weights that are stored quantised are written in %s", torch_dtype);
	int rc = say(&said, torch_dtype, out);
	if (!rc)
		rc = set_biases(config, config->wrapped ? json_object_get(*out, "text_config") : *out);
	if (rc) {
		json_decref(*out);
		*out = NULL;
	}
	return rc;
}

int rh_model_config_describe(const struct rh_model_config *config, json_t **out)
{
	json_t *json = NULL, *divisors = json_array();
	int rc = say(config, "float32", &json), failed = !divisors;
	for (int64_t i = 0; !rc && !failed && config->rope[0].divisor && i < config->head_dim / 2; i++)
		failed = json_array_append_new(divisors, json_real(config->rope[0].divisor[i]));
	if (!rc)
		failed |= json_object_set_new(json, "as_stored",
		                              json_pack("{s:O, s:b, s:b, s:b, s:b}", "rope_divisors", divisors, "attention_bias",
		                                        config->attention_bias, "attention_output_bias", config->attention_output_bias,
		                                        "mlp_bias", config->mlp_bias, "qk_norm", config->qk_norm));
	json_decref(divisors);
	if (!rc && failed)
		rc = rh_fail(-ENOMEM, "config.json: out of host memory");
	if (rc)
		json_decref(json);
	else
		*out = json;
	return rc;
}
