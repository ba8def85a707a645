/* From a value as written to the field of its key. */
#include "config/config_internal.h"

#include "core/alloc.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* A size without a unit below this is a unit forgotten: up to so many, of GiB. */
enum { EXPECTED_BYTES = 256, BARE_LEAST = 1 << 20, BARE_GIB_MOST = 256 };

static void *field_of(struct config_draft *draft, const struct config_key *key)
{
	return (char *)draft + key->offset;
}

static int refuse(const struct config_entry *entry)
{
	char expected[EXPECTED_BYTES];
	config_key_describe(&config_keys[entry->key], expected, sizeof expected);
	if (entry->kind == VALUE_SCALAR)
		return config_entry_fail(entry, "'%s' is not allowed; expected %s", config_show(entry->text).text, expected);
	const char *found = entry->kind == VALUE_LIST                                 ? "a list"
	                    : entry->kind == VALUE_MAP || entry->kind == VALUE_NESTED ? "a nested value"
	                                                                              : "nothing";
	return config_entry_fail(entry, "%s is not allowed; expected %s", found, expected);
}

static int in_bounds(const struct config_key *key, double value)
{
	int above = key->bounds & BOUND_ABOVE_LEAST ? value > key->least : value >= key->least;
	int below = key->bounds & BOUND_BELOW_MOST ? value < key->most : value <= key->most;
	return above && below;
}

static int set_text(char **field, const char *text)
{
	char *copy = rh_strdup(text);
	if (!copy)
		return -ENOMEM;
	rh_free(*field);
	*field = copy;
	return 0;
}

static int set_string(struct config_draft *draft, const struct config_entry *entry)
{
	const struct config_key *key = &config_keys[entry->key];
	if (!*entry->text && key->offset != offsetof(struct config_draft, config.prompt))
		return config_entry_fail(entry, "is empty; leave it out or write null to leave it unset");
	return set_text(field_of(draft, key), entry->text);
}

/* "max_vram: 24" means no 24 bytes. */
static int refuse_bare_size(const struct config_entry *entry, int64_t bytes)
{
	return config_entry_fail(entry, "'%s' is %lld byte%s; did you mean %lld%s?", config_show(entry->text).text, (long long)bytes,
	                         bytes == 1 ? "" : "s", (long long)bytes, bytes <= BARE_GIB_MOST ? "GiB" : "MiB");
}

/* The ways to write "nothing" and "off". */
static int means_nothing(const struct config_entry *entry)
{
	int truth = 1;
	if (entry->kind == VALUE_LIST || entry->kind == VALUE_MAP)
		return !entry->items.count || (entry->items.count == 1 && !strcmp(entry->items.item[0], "none"));
	return !strcasecmp(entry->text, "none") || !strcasecmp(entry->text, "off") || (!config_parse_bool(entry->text, &truth) && !truth);
}

static int set_number(struct config_draft *draft, const struct config_entry *entry)
{
	const struct config_key *key = &config_keys[entry->key];
	int64_t whole = 0;
	double real = 0;
	if (key->type == KEY_INTEGER || key->type == KEY_SEED) {
		if (config_parse_integer(entry->text, &whole) || !in_bounds(key, (double)whole))
			return refuse(entry);
	} else if (key->type == KEY_SIZE) {
		int none = key->or_none && (means_nothing(entry) || !strcmp(entry->text, "0"));
		if (!none && (config_parse_size(entry->text, &whole) || !in_bounds(key, (double)whole)))
			return refuse(entry);
		if (!none && whole < BARE_LEAST && !entry->text[strspn(entry->text, "0123456789")])
			return refuse_bare_size(entry, whole);
	} else if (config_parse_real(entry->text, &real) || !in_bounds(key, real)) {
		return refuse(entry);
	}
	if (key->type == KEY_STEPS && real >= 1 && real != floor(real))
		return refuse(entry);
	if (!strcmp(entry->name, "warmup_ratio") && real >= 1)
		return config_entry_fail(entry,
		                         "'%s' is not allowed; expected a share of all steps below 1 (a number of steps: warmup_steps)",
		                         config_show(entry->text).text);
	if (key->type == KEY_SEED)
		*(uint64_t *)field_of(draft, key) = (uint64_t)whole;
	else if (key->type == KEY_INTEGER || key->type == KEY_SIZE)
		*(int64_t *)field_of(draft, key) = whole;
	else
		*(double *)field_of(draft, key) = real;
	return 0;
}

static int set_bool(struct config_draft *draft, const struct config_entry *entry)
{
	const struct config_key *key = &config_keys[entry->key];
	int truth = 1, is_auto = entry->kind == VALUE_SCALAR && !strcmp(key->name, "bf16") && !strcmp(entry->text, "auto");
	if (is_auto) /* of other trainers: what the device does best, as where dtype is unset */
		truth = 0;
	else if (entry->kind != VALUE_BARE && config_parse_bool(entry->text, &truth))
		return refuse(entry);
	if (key->type == KEY_TRISTATE)
		*(enum rh_choice *)field_of(draft, key) = truth ? RH_YES : RH_NO;
	else
		*(int *)field_of(draft, key) = truth;
	return 0;
}

/* Other trainers' words for what is another key here. */
static int refuse_choice(const struct config_entry *entry)
{
	if (strcmp(config_keys[entry->key].name, "optim"))
		return refuse(entry);
	if (strstr(entry->text, "adamw") && strstr(entry->text, "8bit"))
		return config_entry_fail(entry, "'%s': 8-bit moments are state_layout: split8, with optim: adamw_torch and dtype: bfloat16",
		                         config_show(entry->text).text);
	if (!strncmp(entry->text, "adamw", 5) || !strncmp(entry->text, "paged_adamw", 11))
		return config_entry_fail(entry, "'%s' is adamw_torch here; where state lies is said by spill",
		                         config_show(entry->text).text);
	return refuse(entry);
}

/* Other trainers' short names of dtypes. */
static const char *choice_meant(const struct config_key *key, const char *text)
{
	static const char *const names[][2] = {{"bf16", "bfloat16"}, {"fp32", "float32"}, {"fp16", "float16"}};
	for (size_t i = 0; i < sizeof names / sizeof *names && !strcmp(key->name, "dtype"); i++)
		if (!strcmp(text, names[i][0]))
			return names[i][1];
	return text;
}

static int set_choice(struct config_draft *draft, const struct config_entry *entry)
{
	const struct config_key *key = &config_keys[entry->key];
	for (int i = 0; key->choices[i]; i++) {
		if (strcmp(choice_meant(key, entry->text), key->choices[i]))
			continue;
		memcpy(field_of(draft, key), &i, sizeof i); /* an enum's object is as wide as an int */
		return 0;
	}
	return refuse_choice(entry);
}

static int read_words(const struct config_entry *entry, struct rh_list *words)
{
	int rc = config_yaml_words(entry->text, words);
	return rc == -EINVAL ? refuse(entry) : rc;
}

/* One of a list's items. */
static int refuse_item(const struct config_entry *entry, const char *item)
{
	char expected[EXPECTED_BYTES];
	config_key_describe(&config_keys[entry->key], expected, sizeof expected);
	return config_entry_fail(entry, "'%s' is not allowed there; expected %s", config_show(item).text, expected);
}

static int set_cuts(struct config_draft *draft, const struct config_entry *entry)
{
	const struct config_key *key = &config_keys[entry->key];
	struct rh_list words = {0};
	const struct rh_list *items = &entry->items;
	int64_t *cuts = NULL;
	int rc = 0;
	if (entry->kind == VALUE_SCALAR) {
		rc = read_words(entry, &words);
		items = &words;
	}
	if (rc)
		goto out;
	cuts = rh_alloc(items->count, sizeof *cuts);
	if (!cuts) {
		rc = -ENOMEM;
		goto out;
	}
	for (size_t i = 0; i < items->count && !rc; i++)
		if (config_parse_integer(items->item[i], &cuts[i]) || !in_bounds(key, (double)cuts[i]) || (i && cuts[i] <= cuts[i - 1]))
			rc = refuse_item(entry, items->item[i]);
	if (rc)
		goto out;
	int forward = key->offset == offsetof(struct config_draft, config.forward_cuts);
	*(forward ? &draft->config.forward_cut_count : &draft->config.backward_cut_count) = (int64_t)items->count;
	int64_t **field = field_of(draft, key);
	rh_free(*field);
	*field = cuts;
	cuts = NULL;
out:
	config_list_free(&words);
	rh_free(cuts);
	return rc;
}

/* On the command line "a,b", "[a, b]" and a single name are lists, as TRL's command line has them; anything else is an expression. */
static int flag_is_list(const char *text)
{
	static const char name[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-., ";
	size_t length = strlen(text);
	return !text[strspn(text, name)] || (length > 1 && text[0] == '[' && text[length - 1] == ']');
}

static int set_targets(struct config_draft *draft, const struct config_entry *entry)
{
	struct rh_list words = {0};
	int pattern = 0, rc = 0;
	if (entry->kind == VALUE_SCALAR && entry->origin == ORIGIN_FILE && strchr(entry->text, ',') && flag_is_list(entry->text))
		return config_entry_fail(entry, "'%s': a string is a regular expression; several names are a list: [%s]",
		                         config_show(entry->text).text, config_show(entry->text).text);
	if (entry->kind == VALUE_LIST) {
		for (size_t i = 0; i < entry->items.count && !rc; i++)
			rc = config_list_append(&words, entry->items.item[i]);
	} else if (!strcmp(entry->text, "all-linear") || entry->origin == ORIGIN_FILE || !flag_is_list(entry->text)) {
		pattern = strcmp(entry->text, "all-linear") != 0;
		rc = config_list_append(&words, entry->text);
	} else {
		rc = read_words(entry, &words);
	}
	int excludes = config_keys[entry->key].offset == offsetof(struct config_draft, config.exclude_modules),
	    empty = !words.count && !excludes;
	for (size_t i = 0; i < words.count; i++)
		empty |= !*words.item[i];
	if (!rc && excludes && words.count == 1 && !strcmp(words.item[0], "all-linear"))
		rc = config_entry_fail(entry, "'all-linear' would leave nothing; expected a list of names, or a regular expression");
	if (!rc && words.count == 1 && (!strcmp(words.item[0], "all") || !strcmp(words.item[0], "all_linear")))
		rc = config_entry_fail(entry, "'%s' is all-linear here", words.item[0]);
	if (!rc && empty)
		rc = config_entry_fail(entry, "names no module; expected %s", "a list of names, all-linear, or a regular expression");
	if (!rc) {
		struct rh_list *field = excludes ? &draft->config.exclude_modules : &draft->config.lora_target_modules;
		config_list_free(field);
		*field = words;
		*(excludes ? &draft->config.exclude_pattern : &draft->config.lora_targets_pattern) = pattern;
		return 0;
	}
	config_list_free(&words);
	return rc;
}

/* A list, or a line that holds one, into words; "none" and the like are no word at all. */
static int words_of(const struct config_entry *entry, struct rh_list *words)
{
	if (means_nothing(entry))
		return 0;
	if (entry->kind == VALUE_SCALAR)
		return read_words(entry, words);
	int rc = 0;
	for (size_t i = 0; i < entry->items.count && !rc; i++)
		rc = config_list_append(words, entry->items.item[i]);
	return rc;
}

static int item_fits(const struct config_key *key, const char *item)
{
	int64_t whole;
	double real;
	if (key->items == KEY_INTEGER)
		return !config_parse_integer(item, &whole) && in_bounds(key, (double)whole);
	return key->items == KEY_REAL ? !config_parse_real(item, &real) && in_bounds(key, real) : *item != 0;
}

static int set_list(struct config_draft *draft, const struct config_entry *entry)
{
	const struct config_key *key = &config_keys[entry->key];
	struct rh_list *field = field_of(draft, key), words = {0};
	int rc = words_of(entry, &words);
	for (size_t i = 0; i < words.count && !rc; i++)
		if (!item_fits(key, words.item[i]))
			rc = refuse_item(entry, words.item[i]);
	if (rc) {
		config_list_free(&words);
		return rc;
	}
	config_list_free(field);
	*field = words;
	return 0;
}

/* One path or text, which may hold commas and spaces; or a list. */
static int set_one_or_more(struct config_draft *draft, const struct config_entry *entry)
{
	struct rh_list *field = field_of(draft, &config_keys[entry->key]), words = {0};
	int is_one = entry->kind == VALUE_SCALAR && entry->text[0] != '[', rc;
	if (is_one && !*entry->text)
		return config_entry_fail(entry, "is empty; leave it out or write null to leave it unset");
	if (!is_one)
		return set_list(draft, entry);
	rc = config_list_append(&words, entry->text);
	if (rc) {
		config_list_free(&words);
		return rc;
	}
	config_list_free(field);
	*field = words;
	return 0;
}

/* A name that a map of this key does not have. */
static int refuse_name(const struct config_entry *entry, const char *item)
{
	const struct config_key *key = &config_keys[entry->key];
	char known[512] = "";
	size_t used = 0;
	for (int n = 0; key->choices[n] && used < sizeof known; n++)
		used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", n ? ", " : "", key->choices[n]);
	return config_entry_fail(entry, "'%s' is not known in this map; it may have %s", config_show(item).text, known);
}

/* "{name: value}" of a file; "name=value,name=value" on the command line. A key without choices takes any names, of numbers. */
static int set_map(struct config_draft *draft, const struct config_entry *entry)
{
	const struct config_key *key = &config_keys[entry->key];
	const char *const *names = key->choices;
	struct rh_list *field = field_of(draft, key), pairs = {0};
	int takes_lists = key->offset == offsetof(struct config_draft, config.rope_scaling);
	int rc = words_of(entry, &pairs);
	for (size_t i = 0; i < pairs.count && !rc; i++) {
		const char *item = pairs.item[i], *equals = names ? strchr(item, '=') : strrchr(item, '=');
		int known = !names && equals > item;
		for (size_t n = 0; equals && names && names[n]; n++)
			known |= strlen(names[n]) == (size_t)(equals - item) && !strncmp(names[n], item, strlen(names[n]));
		if (!equals || !equals[1] || (equals[1] == '[' && !takes_lists))
			rc = refuse(entry);
		else if (!known)
			rc = names ? refuse_name(entry, item) : refuse(entry);
		else if (!names && !item_fits(key, equals + 1))
			rc = refuse_item(entry, equals + 1);
	}
	if (rc) {
		config_list_free(&pairs);
		return rc;
	}
	config_list_free(field);
	*field = pairs;
	return 0;
}

static int set_words(struct config_draft *draft, const struct config_entry *entry)
{
	const struct config_key *key = &config_keys[entry->key];
	struct rh_list words = {0};
	int bits = 0, rc = words_of(entry, &words);
	for (size_t i = 0; i < words.count && !rc; i++) {
		int choice = 0;
		while (key->choices[choice] && strcmp(key->choices[choice], words.item[i]))
			choice++;
		bits |= 1 << choice;
		if (!key->choices[choice] && !strcmp(key->name, "report_to"))
			rc = config_entry_fail(entry,
			                       "'%s' is not built in; tensorboard and csv are, and a run always writes metrics.jsonl",
			                       config_show(words.item[i]).text);
		else if (!key->choices[choice]) {
			char expected[EXPECTED_BYTES];
			config_key_describe(key, expected, sizeof expected);
			rc = config_entry_fail(entry, "'%s' is not allowed; expected %s", config_show(words.item[i]).text, expected);
		}
	}
	config_list_free(&words);
	if (!rc)
		*(int *)field_of(draft, key) = bits;
	return rc;
}

static int set_resume(struct config_draft *draft, const struct config_entry *entry)
{
	int truth;
	char **field = field_of(draft, &config_keys[entry->key]);
	if (!*entry->text)
		return refuse(entry);
	if (config_parse_bool(entry->text, &truth))
		return set_text(field, entry->text);
	return truth ? set_text(field, "true") : 0;
}

/* A key without effect may have any value, unless the value asks for something that will not happen. */
static int check_inert(const struct config_entry *entry)
{
	if (!strcmp(entry->name, "deepspeed"))
		return config_entry_fail(entry, "is not run here; remove it (memory is managed by max_vram and max_ram)");
	if (!strncmp(entry->name, "load_in_", 8)) {
		int truth = 1;
		if (entry->kind == VALUE_SCALAR && !config_parse_bool(entry->text, &truth) && !truth)
			return 0;
		return config_entry_fail(entry,
		                         "only false is taken: %.1s-bit weights in training are not built yet; a GGUF file is read, and "
		                         "trained in dtype",
		                         entry->name + 8);
	}
	return 0;
}

/* The kinds of value that a type is made from. */
static int kind_fits(enum config_type type, enum config_kind kind)
{
	switch (kind) {
	case VALUE_SCALAR:
		return 1;
	case VALUE_LIST:
		return type == KEY_CUTS || type == KEY_TARGETS || type == KEY_LIST || type == KEY_WORDS || type == KEY_PATHS ||
		       type == KEY_TEXTS;
	case VALUE_MAP:
		return type == KEY_MAP;
	case VALUE_BARE:
		return type == KEY_BOOL || type == KEY_TRISTATE;
	default:
		return 0;
	}
}

int config_value_set(struct config_draft *draft, const struct config_entry *entry)
{
	const struct config_key *key = &config_keys[entry->key];
	if (entry->kind == VALUE_NULL)
		return key->refuse_null ? config_entry_fail(entry, "null is not taken: %s", key->refuse_null)
		                        : config_value_default(draft, entry->key);
	if (key->type == KEY_INERT)
		return check_inert(entry);
	if (!kind_fits(key->type, entry->kind))
		return refuse(entry);
	switch (key->type) {
	case KEY_STRING:
		return set_string(draft, entry);
	case KEY_BOOL:
	case KEY_TRISTATE:
		return set_bool(draft, entry);
	case KEY_CHOICE:
		return set_choice(draft, entry);
	case KEY_CUTS:
		return set_cuts(draft, entry);
	case KEY_TARGETS:
		return set_targets(draft, entry);
	case KEY_LIST:
		return set_list(draft, entry);
	case KEY_WORDS:
		return set_words(draft, entry);
	case KEY_PATHS:
	case KEY_TEXTS:
		return set_one_or_more(draft, entry);
	case KEY_MAP:
		return set_map(draft, entry);
	case KEY_RESUME:
		return set_resume(draft, entry);
	default:
		return set_number(draft, entry);
	}
}

/* Unset means zero but for these. */
static void set_unset(struct config_draft *draft, const struct config_key *key)
{
	static const int none = -1;
	if (key->type == KEY_TRISTATE || key->type == KEY_CHOICE)
		memcpy(field_of(draft, key), &none, sizeof none);
	else if (key->offset == offsetof(struct config_draft, config.forward_cuts))
		draft->config.forward_cut_count = -1;
	else if (key->offset == offsetof(struct config_draft, config.backward_cuts))
		draft->config.backward_cut_count = -1;
}

int config_value_default(struct config_draft *draft, int index)
{
	const struct config_key *key = &config_keys[index];
	if (key->type == KEY_INERT)
		return 0;
	if (!key->fallback) {
		set_unset(draft, key);
		return 0;
	}
	char name[64], text[64];
	struct config_entry entry = {.key = index, .name = name, .origin = ORIGIN_FLAG, .kind = VALUE_SCALAR, .text = text};
	strcpy(name, key->name);
	strcpy(text, key->fallback);
	return config_value_set(draft, &entry);
}
