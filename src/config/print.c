/* The resolved configuration as YAML. */
#include "config/config_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Words that no YAML reader takes for anything but text. */
static int is_plain_word(const char *text)
{
	static const char *const taken[] = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"};
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
	static const char rest[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./-";
	for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
		if (!strcasecmp(text, taken[i]))
			return 0;
	int path = !strncmp(text, "./", 2) || !strncmp(text, "../", 3) || text[0] == '/';
	return (path || (*text && strchr(letters, *text))) && !text[strspn(text, rest)];
}

/* One character of valid UTF-8; its bytes. */
static unsigned decode(const unsigned char *at, size_t *length)
{
	*length = *at < 0x80 ? 1 : *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : 4;
	unsigned code = *length == 1 ? *at : *at & (0x7fu >> *length);
	for (size_t i = 1; i < *length; i++)
		code = code << 6 | (at[i] & 0x3fu);
	return code;
}

static int print_quoted(struct rh_text *out, const char *text)
{
	int rc = rh_text_append(out, "\"", 1);
	for (const unsigned char *at = (const unsigned char *)text; *at && !rc;) {
		size_t length;
		unsigned code = decode(at, &length);
		int hidden = code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 || code == 0xfeff ||
		             code == 0xfffe || code == 0xffff;
		if (code == '"' || code == '\\')
			rc = rh_text_printf(out, "\\%c", (char)code);
		else if (hidden)
			rc = rh_text_printf(out, "\\u%04x", code);
		else
			rc = rh_text_append(out, at, length);
		at += length;
	}
	return rc ? rc : rh_text_append(out, "\"", 1);
}

static int print_word(struct rh_text *out, const char *text)
{
	return is_plain_word(text) ? rh_text_printf(out, "%s", text) : print_quoted(out, text);
}

/* The fewest digits that read back as the same number, with a point, so that YAML 1.1 readers see a number too. */
static int print_real(struct rh_text *out, double value)
{
	char text[40];
	for (int digits = 1; digits <= 17; digits++) {
		snprintf(text, sizeof text, "%.*g", digits, value);
		if (strtod(text, NULL) == value)
			break;
	}
	if (fabs(value) < 1e15 && value == floor(value))
		snprintf(text, sizeof text, "%.1f", value);
	char *exponent = strchr(text, 'e');
	if (!exponent || strchr(text, '.'))
		return rh_text_printf(out, "%s", text);
	return rh_text_printf(out, "%.*s.0%s", (int)(exponent - text), text, exponent);
}

static int print_integer(struct rh_text *out, int64_t value, int unset)
{
	return unset ? rh_text_printf(out, "null") : rh_text_printf(out, "%lld", (long long)value);
}

static int print_cuts(struct rh_text *out, const int64_t *cuts, int64_t count)
{
	if (count < 0)
		return rh_text_printf(out, "null");
	int rc = rh_text_printf(out, "[");
	for (int64_t i = 0; i < count && !rc; i++)
		rc = rh_text_printf(out, "%s%lld", i ? ", " : "", (long long)cuts[i]);
	return rc ? rc : rh_text_printf(out, "]");
}

static int print_list(struct rh_text *out, const struct rh_list *list)
{
	int rc = rh_text_printf(out, "[");
	for (size_t i = 0; i < list->count && !rc; i++) {
		rc = rh_text_printf(out, "%s", i ? ", " : "");
		if (!rc)
			rc = print_word(out, list->item[i]);
	}
	return rc ? rc : rh_text_printf(out, "]");
}

static int print_paths(struct rh_text *out, const struct rh_list *list)
{
	if (!list->count)
		return rh_text_printf(out, "null");
	return list->count == 1 && list->item[0][0] != '[' ? print_word(out, list->item[0]) : print_list(out, list);
}

/* has_names: of those that the key knows; else of patterns, to numbers. */
static int print_map(struct rh_text *out, const struct rh_list *pairs, int has_names)
{
	int rc = rh_text_printf(out, "{");
	for (size_t i = 0; i < pairs->count && !rc; i++) {
		char name[256];
		const char *equals = has_names ? strchr(pairs->item[i], '=') : strrchr(pairs->item[i], '=');
		snprintf(name, sizeof name, "%.*s", (int)(equals - pairs->item[i]), pairs->item[i]);
		rc = rh_text_printf(out, "%s", i ? ", " : "");
		if (!rc)
			rc = has_names ? rh_text_printf(out, "%s", name) : print_word(out, name);
		if (!rc)
			rc = rh_text_printf(out, ": ");
		if (!rc)
			rc = has_names ? print_word(out, equals + 1) : rh_text_printf(out, "%s", equals + 1);
	}
	return rc ? rc : rh_text_printf(out, "}");
}

static int print_bits(struct rh_text *out, const char *const *choices, int bits)
{
	int rc = rh_text_printf(out, "[");
	for (int i = 0, said = 0; choices[i] && !rc; i++)
		if (bits >> i & 1)
			rc = rh_text_printf(out, "%s%s", said++ ? ", " : "", choices[i]);
	return rc ? rc : rh_text_printf(out, "]");
}

static int print_targets(struct rh_text *out, const struct rh_config *config, int excludes)
{
	const struct rh_list *list = excludes ? &config->exclude_modules : &config->lora_target_modules;
	if (excludes ? config->exclude_pattern : config->lora_targets_pattern)
		return print_quoted(out, list->item[0]);
	if (list->count == 1 && !strcmp(list->item[0], "all-linear"))
		return rh_text_printf(out, "all-linear");
	return print_list(out, list);
}

static int print_value(struct rh_text *out, const struct config_draft *draft, const struct config_key *key)
{
	const struct rh_config *config = &draft->config;
	const void *field = (const char *)draft + key->offset;
	int forward = key->offset == offsetof(struct config_draft, config.forward_cuts);
	const char *text;
	int choice;
	switch (key->type) {
	case KEY_STRING:
	case KEY_RESUME:
		memcpy(&text, field, sizeof text);
		return !text                                              ? rh_text_printf(out, "null")
		       : key->type == KEY_RESUME && !strcmp(text, "true") ? rh_text_printf(out, "true")
		                                                          : print_word(out, text);
	case KEY_SIZE:
		if (*(const int64_t *)field > 0) /* with its unit: a small number without one is refused */
			return rh_text_printf(out, "%lldB", (long long)*(const int64_t *)field);
		return print_integer(out, *(const int64_t *)field, !key->fallback && !*(const int64_t *)field);
	case KEY_INTEGER:
		return print_integer(out, *(const int64_t *)field, !key->fallback && !*(const int64_t *)field);
	case KEY_SEED:
		return rh_text_printf(out, "%llu", (unsigned long long)*(const uint64_t *)field);
	case KEY_REAL:
	case KEY_STEPS:
		if (!key->fallback && *(const double *)field == 0)
			return rh_text_printf(out, "null");
		if (key->type == KEY_STEPS && *(const double *)field >= 1)
			return rh_text_printf(out, "%.0f", *(const double *)field);
		return print_real(out, *(const double *)field);
	case KEY_BOOL:
	case KEY_TRISTATE:
	case KEY_CHOICE:
		memcpy(&choice, field, sizeof choice);
		if (choice < 0)
			return rh_text_printf(out, "null");
		if (key->type != KEY_CHOICE)
			return rh_text_printf(out, choice ? "true" : "false");
		return print_word(out, key->choices[choice]);
	case KEY_CUTS:
		return forward ? print_cuts(out, config->forward_cuts, config->forward_cut_count)
		               : print_cuts(out, config->backward_cuts, config->backward_cut_count);
	case KEY_TARGETS:
		return print_targets(out, config, key->offset == offsetof(struct config_draft, config.exclude_modules));
	case KEY_LIST:
		return print_list(out, field);
	case KEY_PATHS:
	case KEY_TEXTS:
		return print_paths(out, field);
	case KEY_MAP:
		return print_map(out, field, key->choices != NULL);
	case KEY_WORDS:
		memcpy(&choice, field, sizeof choice);
		return choice ? print_bits(out, key->choices, choice) : rh_text_printf(out, "none");
	case KEY_INERT:
		break;
	}
	return rh_text_printf(out, "%s", key->fallback ? key->fallback : "null");
}

/* Full fine-tuning has no LoRA keys; one that goes on from an adapter has only those that the user wrote, to be held against it. */
static int is_printed(const struct rh_config *config, const struct config_key *key)
{
	if (key->type == KEY_INERT || key->unprinted)
		return 0;
	if (!key->lora)
		return 1;
	if (key->lora == RH_LORA_TARGETS && !config->lora_targets_given)
		return 0;
	if (key->lora == RH_LORA_DROPOUT && !config->lora_dropout_given) /* unset it depends on the targets */
		return 0;
	return config->use_lora && (!config->adapter_name_or_path || (config->lora_keys_given & key->lora));
}

static struct config_draft draft_of(const struct rh_config *config)
{
	int word = 0, nested = 0;
	while (config_forms[word][nested] != config->quantize) {
		word += nested;
		nested = !nested;
	}
	int is_plain_bnb = !nested && config_forms[word][1] != config->quantize;
	return (struct config_draft){.config = *config, /* borrowed */
	                             .use_peft = config->use_lora ? RH_YES : RH_NO,
	                             .dtype = config->dtype == RH_BF16 ? DTYPE_BFLOAT16 : DTYPE_FLOAT32,
	                             .quantize = word,
	                             .bnb_nested = is_plain_bnb ? RH_NO : RH_UNSET};
}

int rh_config_print_shared(const struct rh_config *config, struct rh_text *out)
{
	struct config_draft draft = draft_of(config);
	int rc = 0;
	for (size_t i = 0; i < config_key_count && !rc; i++) {
		const struct config_key *key = &config_keys[i];
		if (!is_printed(config, key) || key->per_box || !(key->verbs & VERB_TRAIN))
			continue;
		rc = rh_text_printf(out, "%s=", key->name);
		if (!rc)
			rc = print_value(out, &draft, key);
		if (!rc)
			rc = rh_text_printf(out, "\n");
	}
	return rc;
}

int rh_config_print(const struct rh_config *config, struct rh_text *out)
{
	struct config_draft draft = draft_of(config);
	int rc = 0;
	for (size_t i = 0; i < config_key_count && !rc; i++) {
		const struct config_key *key = &config_keys[i];
		if (!is_printed(config, key))
			continue;
		if (key->heading)
			rc = rh_text_printf(out, "# %s\n", key->heading);
		if (!rc)
			rc = rh_text_printf(out, "%s: ", key->name);
		if (!rc)
			rc = print_value(out, &draft, key);
		if (!rc)
			rc = rh_text_printf(out, "\n");
	}
	return rc;
}
