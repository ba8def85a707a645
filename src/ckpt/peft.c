#include "ckpt/peft_internal.h"

#include "core/alloc.h"
#include "core/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LARGEST_RANK = 1 << 16 };
#define PROBE "model.layers.0.self_attn.q_proj" /* a name to try patterns on when they are read */

/* NULL for what is no string, and for one with a NUL inside. */
static const char *plain_string(const json_t *value)
{
	return json_is_string(value) && strlen(json_string_value(value)) == json_string_length(value) ? json_string_value(value) : NULL;
}

static int is_set(const json_t *value)
{
	if (!value || json_is_null(value) || json_is_false(value))
		return 0;
	if (json_is_array(value))
		return json_array_size(value) > 0;
	return !json_is_object(value) || json_object_size(value) > 0;
}

/* All that changes what an adapter computes and is not built. */
static int refuse_features(const json_t *json, const char *where)
{
	static const char *const keys[] = {"layers_pattern",          "layer_replication", "lora_bias",
	                                   "trainable_token_indices", "use_qalora",        "use_bdlora",
	                                   "alora_invocation_tokens", "kasa_config",       "monteclora_config",
	                                   "velora_config",           "arrow_config",      "megatron_config"};
	static const char *const starts[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (is_set(json_object_get(json, keys[i])))
			return rh_fail(-EINVAL, "%s: '%s' is not supported; train a plain LoRA adapter", where, keys[i]);
	const char *type = plain_string(json_object_get(json, "peft_type")), *bias = "none", *init;
	if (!type || strcmp(type, "LORA"))
		return rh_fail(-EINVAL, "%s: peft_type '%.40s' is not supported (LORA is)", where, type ? type : "");
	int rc = rh_json_string(json, "bias", where, RH_JSON_OPTIONAL, &bias);
	if (!rc && strcmp(bias, "none"))
		rc = rh_fail(-EINVAL, "%s: bias '%.40s' is not supported (none is)", where, bias);
	if ((init = plain_string(json_object_get(json, "init_lora_weights"))))
		for (size_t i = 0; !rc && i < sizeof starts / sizeof *starts; i++)
			if (!strncasecmp(init, starts[i], strlen(starts[i])))
				rc = rh_fail(-EINVAL,
				             "%s: init_lora_weights '%.40s' changes the base model's weights, which is not supported",
				             where, init);
	return rc;
}

/* A list of names into freshly allocated copies; absent, null and [] are none. */
static int parse_names(const json_t *json, const char *key, const char *where, char ***out, size_t *count)
{
	const json_t *list = json_object_get(json, key);
	if (!is_set(list))
		return 0;
	*out = json_is_array(list) ? rh_alloc(json_array_size(list), sizeof **out) : NULL;
	if (!json_is_array(list))
		return rh_fail(-EINVAL, "%s: '%s' must be a list of names", where, key);
	if (!*out)
		return -ENOMEM;
	for (; *count < json_array_size(list); (*count)++) {
		const char *name = plain_string(json_array_get(list, *count));
		if (!name || !*name)
			return rh_fail(-EINVAL, "%s: '%s' has an entry that is no name", where, key);
		if (!((*out)[*count] = rh_strdup(name)))
			return -ENOMEM;
	}
	return 0;
}

static int parse_targets(const json_t *json, const char *where, struct rh_peft_config *out)
{
	const json_t *targets = json_object_get(json, "target_modules");
	const char *pattern = plain_string(targets);
	if (pattern && !strcasecmp(pattern, "all-linear")) {
		out->all_linear = 1;
		return 0;
	}
	size_t count = pattern ? 1 : json_array_size(targets);
	if (!count && out->parameters)
		return 0;
	if (!count)
		return rh_fail(-EINVAL, "%s: 'target_modules' must be a list of names, a regular expression or \"all-linear\"", where);
	out->target = rh_alloc(count, sizeof *out->target);
	if (!out->target)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		const char *name = pattern ? pattern : plain_string(json_array_get(targets, i));
		if (!name || !*name)
			return rh_fail(-EINVAL, "%s: 'target_modules' has an entry that is no name", where);
		if (!(out->target[i] = rh_strdup(name)))
			return -ENOMEM;
		out->targets++;
	}
	out->target_is_pattern = pattern != NULL;
	int rc = pattern ? peft_match(pattern, PEFT_WHOLE, PROBE) : 0;
	return rc < 0 ? rh_fail_in(rc, "%s: target_modules", where) : 0;
}

/* exclude_modules: a list of names, or one regular expression. */
static int parse_excluded(const json_t *json, const char *where, struct rh_peft_config *out)
{
	const char *pattern = plain_string(json_object_get(json, "exclude_modules"));
	if (!pattern || !*pattern)
		return parse_names(json, "exclude_modules", where, &out->exclude, &out->excludes);
	out->exclude = rh_alloc(1, sizeof *out->exclude);
	if (!out->exclude || !(out->exclude[0] = rh_strdup(pattern)))
		return -ENOMEM;
	out->excludes = 1;
	out->exclude_is_pattern = 1;
	int rc = peft_match(pattern, PEFT_WHOLE, PROBE);
	return rc < 0 ? rh_fail_in(rc, "%s: exclude_modules", where) : 0;
}

/* layers_to_transform: a number or a list of them. */
static int parse_layers(const json_t *json, const char *where, struct rh_peft_config *out)
{
	const json_t *said = json_object_get(json, "layers_to_transform");
	size_t count = json_is_array(said) ? json_array_size(said) : 1;
	if (!said || json_is_null(said) || !count)
		return 0;
	if (out->target_is_pattern || out->all_linear)
		return rh_fail(-EINVAL, "%s: 'layers_to_transform' goes with a list of target_modules alone", where);
	if (!(out->layer = rh_alloc(count, sizeof *out->layer)))
		return -ENOMEM;
	for (; out->layers < count; out->layers++) {
		const json_t *number = json_is_array(said) ? json_array_get(said, out->layers) : said;
		if (!json_is_integer(number))
			return rh_fail(-EINVAL, "%s: 'layers_to_transform' must be a whole number or a list of them", where);
		out->layer[out->layers] = json_integer_value(number);
	}
	return 0;
}

enum kind { RANK, ALPHA };

static int parse_overrides(const json_t *json, const char *key, const char *where, enum kind kind, struct rh_peft_override **out,
                           size_t *count)
{
	json_t *object = json_object_get(json, key), *value;
	const char *pattern;
	if (!object || json_is_null(object))
		return 0;
	if (!json_is_object(object))
		return rh_fail(-EINVAL, "%s: '%s' must be an object", where, key);
	*out = rh_alloc(json_object_size(object), sizeof **out);
	if (!*out)
		return -ENOMEM;
	json_object_foreach(object, pattern, value)
	{
		double number = json_number_value(value);
		if (kind == RANK ? !json_is_integer(value) || number < 1 || number > LARGEST_RANK
		                 : !json_is_number(value) || !isfinite(number))
			return rh_fail(-EINVAL, "%s: %s['%.100s'] must be %s", where, key, pattern,
			               kind == RANK ? "a whole number from 1 to 65536" : "a number");
		int rc = peft_match(pattern, PEFT_SUFFIX, PROBE);
		if (rc < 0)
			return rh_fail_in(rc, "%s: %s", where, key);
		char *copy = rh_strdup(pattern);
		if (!copy)
			return -ENOMEM;
		(*out)[(*count)++] = (struct rh_peft_override){copy, number};
	}
	return 0;
}

static int parse(const json_t *json, const char *where, struct rh_peft_config *out)
{
	const char *base = NULL;
	out->r = 8; /* PEFT's defaults */
	out->lora_alpha = 8;
	if (!json_is_object(json))
		return rh_fail(-EINVAL, "%s: expected a JSON object", where);
	int rc = refuse_features(json, where);
	if (!rc)
		rc = rh_json_int(json, "r", where, RH_JSON_OPTIONAL, &out->r);
	if (!rc && (out->r < 1 || out->r > LARGEST_RANK))
		rc = rh_fail(-EINVAL, "%s: r is %lld; it must be 1 to %d", where, (long long)out->r, LARGEST_RANK);
	if (!rc)
		rc = rh_json_real(json, "lora_alpha", where, RH_JSON_OPTIONAL, &out->lora_alpha);
	if (!rc)
		rc = rh_json_real(json, "lora_dropout", where, RH_JSON_OPTIONAL, &out->lora_dropout);
	if (!rc && !(out->lora_dropout >= 0 && out->lora_dropout < 1))
		rc = rh_fail(-EINVAL, "%s: lora_dropout is %g; it must be at least 0 and below 1", where, out->lora_dropout);
	if (!rc)
		rc = rh_json_bool(json, "use_rslora", where, RH_JSON_OPTIONAL, &out->use_rslora);
	if (!rc)
		rc = rh_json_bool(json, "use_dora", where, RH_JSON_OPTIONAL, &out->use_dora);
	if (!rc)
		rc = rh_json_string(json, "base_model_name_or_path", where, RH_JSON_OPTIONAL, &base);
	if (!rc && base && !(out->base_model_name_or_path = rh_strdup(base)))
		rc = -ENOMEM;
	if (!rc)
		rc = parse_names(json, "target_parameters", where, &out->parameter, &out->parameters);
	if (!rc && out->use_dora && out->parameters)
		rc = rh_fail(-EINVAL,
		             "%s: 'use_dora' is of modules, and 'target_parameters' names parameters of experts; PEFT has no DoRA of these",
		             where);
	if (!rc)
		rc = parse_names(json, "modules_to_save", where, &out->saved, &out->saves);
	if (!rc)
		rc = rh_json_bool(json, "ensure_weight_tying", where, RH_JSON_OPTIONAL, &out->ties);
	if (!rc)
		rc = parse_targets(json, where, out);
	if (!rc)
		rc = parse_excluded(json, where, out);
	if (!rc)
		rc = parse_layers(json, where, out);
	if (!rc)
		rc = parse_overrides(json, "rank_pattern", where, RANK, &out->rank_override, &out->rank_overrides);
	if (!rc)
		rc = parse_overrides(json, "alpha_pattern", where, ALPHA, &out->alpha_override, &out->alpha_overrides);
	return rc;
}

int rh_peft_config_load(const char *dir, struct rh_peft_config *out)
{
	char *path = rh_path_join(dir, "adapter_config.json");
	json_t *json = NULL;
	*out = (struct rh_peft_config){0};
	int rc = path ? rh_json_load(path, &json) : -ENOMEM;
	if (!rc)
		rc = parse(json, path, out);
	json_decref(json);
	rh_free(path);
	if (rc)
		rh_peft_config_free(out);
	return rc;
}

static void free_overrides(struct rh_peft_override *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		rh_free(list[i].pattern);
	rh_free(list);
}

void rh_peft_config_free(struct rh_peft_config *config)
{
	for (size_t i = 0; i < config->targets; i++)
		rh_free(config->target[i]);
	rh_free(config->target);
	for (size_t i = 0; i < config->parameters; i++)
		rh_free(config->parameter[i]);
	rh_free(config->parameter);
	for (size_t i = 0; i < config->saves; i++)
		rh_free(config->saved[i]);
	rh_free(config->saved);
	for (size_t i = 0; i < config->excludes; i++)
		rh_free(config->exclude[i]);
	rh_free(config->exclude);
	rh_free(config->layer);
	free_overrides(config->rank_override, config->rank_overrides);
	free_overrides(config->alpha_override, config->alpha_overrides);
	rh_free(config->base_model_name_or_path);
	*config = (struct rh_peft_config){0};
}
