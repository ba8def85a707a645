/* adapter_config.json as PEFT writes it. */
#include "ckpt/peft.h"

#include "core/alloc.h"
#include "core/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
	const char *const *x = a, *const *y = b;
	return strcmp(*x, *y);
}

/* Whole numbers are written as such: PEFT's lora_alpha is an int. */
static json_t *number_json(double value)
{
	return value == floor(value) && fabs(value) < 1e15 ? json_integer((json_int_t)value) : json_real(value);
}

static json_t *overrides_json(const struct rh_peft_override *list, size_t count)
{
	json_t *object = json_object();
	for (size_t i = 0; object && i < count; i++)
		if (json_object_set_new(object, list[i].pattern, number_json(list[i].value))) {
			json_decref(object);
			return NULL;
		}
	return object;
}

/* The names sorted, each once. */
static json_t *names_json(char *const *names, size_t count)
{
	const char **sorted = rh_alloc(count, sizeof *sorted);
	json_t *list = sorted ? json_array() : NULL;
	for (size_t i = 0; sorted && i < count; i++)
		sorted[i] = names[i];
	if (sorted && count)
		qsort(sorted, count, sizeof *sorted, compare);
	for (size_t i = 0; list && i < count; i++) {
		if (i && !strcmp(sorted[i], sorted[i - 1]))
			continue;
		if (json_array_append_new(list, json_string(sorted[i]))) {
			json_decref(list);
			list = NULL;
		}
	}
	rh_free(sorted);
	return list;
}

static json_t *targets_json(const struct rh_peft_config *config)
{
	if (config->all_linear && !config->targets)
		return json_string("all-linear");
	if (config->target_is_pattern)
		return json_string(config->target[0]);
	return names_json(config->target, config->targets);
}

static json_t *excluded_json(const struct rh_peft_config *config)
{
	if (!config->excludes)
		return json_null();
	return config->exclude_is_pattern ? json_string(config->exclude[0]) : names_json(config->exclude, config->excludes);
}

static json_t *layers_json(const struct rh_peft_config *config)
{
	json_t *list = config->layers ? json_array() : json_null();
	for (size_t i = 0; list && i < config->layers; i++)
		(void)json_array_append_new(list, json_integer((json_int_t)config->layer[i]));
	return list;
}

static json_t *init_json(const struct rh_peft_config *config)
{
	return !config->init ? json_true() : !strcmp(config->init, "false") ? json_false() : json_string(config->init);
}

int rh_peft_config_save(const struct rh_peft_config *config, const char *dir)
{
	/* All keys that PEFT 0.21 writes, except its version: it fills that in. */
	const char *base = config->base_model_name_or_path, *task = config->task_type ? config->task_type : "CAUSAL_LM";
	json_t *saved = config->saves ? names_json(config->saved, config->saves) : json_null();
	json_t *json =
	        json_pack("{s:n s:o s:n s:n s:o s:s s:n s:b s:n s:o s:b s:b s:o s:n s:n s:n s:o s:{} s:o s:b s:f s:n s:n s:s s:o "
	                  "s:n s:s s:i s:I s:o s:n s:o s:o s:o s:n s:n s:b s:b s:b s:n}",
	                  "alora_invocation_tokens", "alpha_pattern", overrides_json(config->alpha_override, config->alpha_overrides),
	                  "arrow_config", "auto_mapping", "base_model_name_or_path", base ? json_string(base) : json_null(), "bias", "none",
	                  "corda_config", "ensure_weight_tying", config->ties, "eva_config", "exclude_modules", excluded_json(config),
	                  "fan_in_fan_out", config->fan_in_fan_out, "inference_mode", 1, "init_lora_weights", init_json(config),
	                  "kasa_config", "layer_replication", "layers_pattern", "layers_to_transform", layers_json(config), "loftq_config",
	                  "lora_alpha", number_json(config->lora_alpha), "lora_bias", 0, "lora_dropout", config->lora_dropout,
	                  "lora_ga_config", "megatron_config", "megatron_core", "megatron.core", "modules_to_save", saved,
	                  "monteclora_config", "peft_type", "LORA", "qalora_group_size", 16, "r", (json_int_t)config->r, "rank_pattern",
	                  overrides_json(config->rank_override, config->rank_overrides), "revision", "target_modules", targets_json(config),
	                  "target_parameters", config->parameters ? names_json(config->parameter, config->parameters) : json_null(),
	                  "task_type", *task ? json_string(task) : json_null(), "trainable_token_indices", "use_bdlora", "use_dora",
	                  config->use_dora, "use_qalora", 0, "use_rslora", config->use_rslora, "velora_config");
	char *path = rh_path_join(dir, "adapter_config.json"), *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
	int rc = path ? 0 : -ENOMEM;
	if (!rc && !text)
		rc = rh_fail(-ENOMEM, "%s: cannot be made: out of host memory, or a name that is not UTF-8", path);
	if (!rc)
		rc = rh_file_write_whole(path, text, strlen(text));
	free(text);
	rh_free(path);
	json_decref(json);
	return rc;
}
