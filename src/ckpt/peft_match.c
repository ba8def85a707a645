#define PCRE2_CODE_UNIT_WIDTH 8
#include "ckpt/peft_internal.h"

#include "core/text.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int peft_match(const char *pattern, enum peft_span span, const char *name)
{
	struct rh_text whole = {0};
	int rc = rh_text_printf(&whole, span == PEFT_SUFFIX ? "(.*\\.)?(%s)$" : "(?:%s)\\z", pattern);
	if (rc)
		return rc;
	int fault;
	PCRE2_SIZE where;
	PCRE2_UCHAR text[120];
	pcre2_match_data *match = NULL;
	pcre2_code *code = pcre2_compile((PCRE2_SPTR)whole.bytes, whole.length, PCRE2_ANCHORED | PCRE2_UTF, &fault, &where, NULL);
	if (!code) {
		pcre2_get_error_message(fault, text, sizeof text);
		rc = rh_fail(-EINVAL, "'%.200s' is no regular expression: %s", pattern, (const char *)text);
		goto out;
	}
	match = pcre2_match_data_create_from_pattern(code, NULL);
	if (!match) {
		rc = rh_fail(-ENOMEM, "out of host memory");
		goto out;
	}
	int found = pcre2_match(code, (PCRE2_SPTR)name, strlen(name), 0, 0, match, NULL);
	rc = found >= 0;
	if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
		pcre2_get_error_message(found, text, sizeof text);
		rc = rh_fail(-EINVAL, "regular expression '%.200s' fails on '%s': %s", pattern, name, (const char *)text);
	}
out:
	pcre2_match_data_free(match);
	pcre2_code_free(code);
	rh_text_free(&whole);
	return rc;
}

static const struct rh_peft_override *find_override(const struct rh_peft_override *list, size_t count, const char *module, int *rc)
{
	*rc = 0;
	for (size_t i = 0; *rc == 0 && i < count; i++) {
		*rc = peft_match(list[i].pattern, PEFT_SUFFIX, module);
		if (*rc > 0)
			return &list[i];
	}
	return NULL;
}

int rh_peft_module(const struct rh_peft_config *config, const char *module, int64_t *r, double *alpha)
{
	int rc;
	const struct rh_peft_override *rank = find_override(config->rank_override, config->rank_overrides, module, &rc);
	if (rc < 0)
		return rc;
	const struct rh_peft_override *scale = find_override(config->alpha_override, config->alpha_overrides, module, &rc);
	if (rc < 0)
		return rc;
	*r = rank ? (int64_t)rank->value : config->r;
	*alpha = scale ? scale->value : config->lora_alpha;
	return 0;
}

static int ends_in_one_of(const char *name, char *const *ends, size_t count)
{
	size_t length = strlen(name);
	for (size_t i = 0; i < count; i++) {
		size_t suffix = strlen(ends[i]);
		if (length < suffix || strcmp(name + length - suffix, ends[i]))
			continue;
		if (length == suffix || name[length - suffix - 1] == '.')
			return 1;
	}
	return 0;
}

static int is_excluded(const struct rh_peft_config *config, const char *module)
{
	if (config->exclude_is_pattern)
		return peft_match(config->exclude[0], PEFT_WHOLE, module);
	return ends_in_one_of(module, config->exclude, config->excludes);
}

/* PEFT's ".*\.[^.]*\.(\d+)\.": the last part that is a number and has a part before it that is not the first, and one behind it. */
static int is_in_layers(const struct rh_peft_config *config, const char *module)
{
	int64_t layer = -1;
	const char *first = strchr(module, '.');
	for (const char *dot = first ? strchr(first + 1, '.') : NULL; dot; dot = strchr(dot + 1, '.')) {
		size_t digits = strspn(dot + 1, "0123456789");
		if (digits && dot[1 + digits] == '.')
			layer = strtoll(dot + 1, NULL, 10);
	}
	for (size_t i = 0; i < config->layers; i++)
		if (config->layer[i] == layer)
			return 1;
	return 0;
}

static int is_named(const struct rh_peft_config *config, const char *module)
{
	for (size_t i = 0; i < config->targets; i++)
		if (!strcmp(config->target[i], module))
			return 1;
	return 0;
}

int rh_peft_matches(const struct rh_peft_config *config, const char *module)
{
	int excluded = is_excluded(config, module);
	if (excluded)
		return excluded < 0 ? excluded : 0;
	if (config->all_linear)
		return strcmp(module, "lm_head") != 0;
	if (config->target_is_pattern)
		return peft_match(config->target[0], PEFT_WHOLE, module);
	return ends_in_one_of(module, config->target, config->targets) &&
	       (!config->layers || is_named(config, module) || is_in_layers(config, module));
}

int rh_peft_saves(const struct rh_peft_config *config, const char *module)
{
	return ends_in_one_of(module, config->saved, config->saves);
}

int rh_peft_matches_parameter(const struct rh_peft_config *config, const char *parameter)
{
	return ends_in_one_of(parameter, config->parameter, config->parameters);
}
