/* The command line after the verb: CONFIG.yaml, --key value, --key=value, --flag; kebab-case or snake_case. */
#include "config/config_internal.h"

#include "core/alloc.h"

#include <stdio.h>
#include <string.h>

/* The name of a flag as its key is spelled: up to '=', with '_' for '-'. */
static char *name_of(const char *flag)
{
	char *name = rh_strdup(flag + 2);
	if (!name)
		return NULL;
	for (char *at = name; *at; at++) {
		if (*at == '=') {
			*at = 0;
			break;
		}
		if (*at == '-')
			*at = '_';
	}
	return name;
}

/* These may stand alone: a switch means true, and what has no effect needs no value. */
static int may_stand_alone(const struct config_key *key)
{
	return key->type == KEY_BOOL || key->type == KEY_TRISTATE || key->type == KEY_INERT;
}

/* CONFIG.yaml after a switch that stands alone, as in `--packing run.yaml`, is not its value. */
static int is_yaml(const char *word)
{
	const char *dot = strrchr(word, '.');
	return word[0] != '-' && dot && (!strcmp(dot, ".yaml") || !strcmp(dot, ".yml"));
}

static int is_null(const char *text)
{
	return !strcmp(text, "null") || !strcmp(text, "~");
}

static int read_flag(char **argv, int left, unsigned verb, struct config_entries *entries, int *taken)
{
	struct config_entry *entry = NULL;
	char *name = name_of(argv[0]);
	if (!name)
		return -ENOMEM;
	int rc = config_entries_add(entries, name, ORIGIN_FLAG, NULL, 0, &entry);
	rh_free(name);
	if (rc)
		return rc;
	const struct config_key *key = &config_keys[entry->key];
	if (!(key->verbs & verb))
		return config_entry_fail(entry, "this verb has no use for it: remove it (--help lists its keys)");
	const char *equals = strchr(argv[0], '='), *value = equals ? equals + 1 : NULL;
	*taken = 1;
	if (!value && left > 1 && strncmp(argv[1], "--", 2) && !(may_stand_alone(key) && is_yaml(argv[1]))) {
		value = argv[1];
		*taken = 2;
	}
	if (!value && !may_stand_alone(key))
		return config_entry_fail(entry, "needs a value (one that begins with -- is written --%s=...)", entry->name);
	entry->kind = !value ? VALUE_BARE : is_null(value) ? VALUE_NULL : VALUE_SCALAR;
	if (!value)
		return 0;
	if (!config_utf8_valid(value))
		return config_entry_fail(entry, "the value is not valid UTF-8");
	entry->text = rh_strdup(value);
	return entry->text ? 0 : -ENOMEM;
}

/* The value of --NAME, behind '=' or in the next word; NULL: it is another flag; empty: it has none. */
static const char *value_of(const char *name, char **argv, int left, int *taken)
{
	size_t length = strlen(name);
	if (strncmp(argv[0], "--", 2) || strncmp(argv[0] + 2, name, length) || (argv[0][2 + length] && argv[0][2 + length] != '='))
		return NULL;
	*taken = argv[0][2 + length] ? 1 : 2;
	if (*taken == 1)
		return argv[0] + 3 + length;
	return left > 1 && strncmp(argv[1], "--", 2) ? argv[1] : "";
}

static int set_hardware(const char *name, struct config_entries *entries)
{
	struct config_entry *entry = NULL;
	struct rh_text device = {0};
	if (!*name || !config_utf8_valid(name))
		return rh_fail(-EINVAL, "--hardware: expected the name of a hardware profile, or a file");
	const int key = config_key_find("device");
	for (size_t i = 0; i < entries->count; i++)
		if (entries->entry[i].key == key && entries->entry[i].origin == ORIGIN_FLAG)
			return strcmp(entries->entry[i].name, "hardware")
			               ? rh_fail(-EINVAL, "--hardware names the machine, as --%s does; remove one", entries->entry[i].name)
			               : rh_fail(-EINVAL, "--hardware is given twice; remove one");
	int rc = config_entries_add(entries, "device", ORIGIN_FLAG, NULL, 0, &entry);
	if (!rc)
		rc = rh_text_printf(&device, "sim:%s", name);
	if (!rc) {
		entry->kind = VALUE_SCALAR;
		entry->text = rh_strdup(device.bytes);
		rh_free(entry->name);
		entry->name = rh_strdup("hardware");
		rc = entry->text && entry->name ? 1 : -ENOMEM;
	}
	rh_text_free(&device);
	return rc;
}

/* "90", "90s", "15m", "2h"; 0: none of these. */
static double seconds_of(const char *text)
{
	static const struct {
		const char *unit;
		double seconds;
	} units[] = {{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}};
	char number[32];
	size_t digits = strspn(text, "0123456789.");
	double value;
	if (!digits || digits >= sizeof number)
		return 0;
	memcpy(number, text, digits);
	number[digits] = 0;
	if (config_parse_real(number, &value))
		return 0;
	for (size_t i = 0; i < sizeof units / sizeof *units; i++)
		if (!strcmp(text + digits, units[i].unit))
			return value * units[i].seconds;
	return 0;
}

/* Flags of stress alone, likewise. */
static int read_stress_flag(char **argv, int left, struct rh_config *config, int *taken)
{
	const char *value;
	*taken = 1;
	if ((value = value_of("svg", argv, left, taken))) {
		config->svg = (char *)(uintptr_t)value;
		return *value ? 1 : rh_fail(-EINVAL, "--svg: expected the name of an SVG file to write");
	}
	if (!(value = value_of("time", argv, left, taken)))
		return 0;
	config->time_s = seconds_of(value);
	return config->time_s >= 1 && config->time_s <= 1e7 ? 1 : rh_fail(-EINVAL, "--time: expected a time such as 90s, 10m or 2h");
}

/* Flags of plan that are no keys; of stress two of them. 1: it was one, and *taken words are its; 0: it was none. */
static int read_plan_flag(char **argv, int left, unsigned verb, struct config_entries *entries, struct rh_config *config, int *taken)
{
	const char *value;
	int64_t gpus;
	if (verb == VERB_STRESS) {
		int rc = read_stress_flag(argv, left, config, taken);
		if (rc)
			return rc;
	}
	*taken = 1;
	if (verb == VERB_PLAN && !strcmp(argv[0], "--compare")) {
		config->compare = 1;
		return 1;
	}
	if (verb == VERB_PLAN && !strcmp(argv[0], "--check")) {
		config->check = 1;
		return 1;
	}
	if (verb == VERB_PLAN && (value = value_of("gantt", argv, left, taken))) {
		config->gantt = (char *)(uintptr_t)value;
		return *value ? 1 : rh_fail(-EINVAL, "--gantt: expected the name of an SVG file to write");
	}
	if ((value = value_of("gpus", argv, left, taken))) {
		if (config_parse_integer(value, &gpus) || gpus < 1 || gpus > 64)
			return rh_fail(-EINVAL, "--gpus: expected a number of devices from 1 to 64");
		config->gpus = (int)gpus;
		return 1;
	}
	value = value_of("hardware", argv, left, taken);
	return value ? set_hardware(value, entries) : 0;
}

/* Rows in the place of CONFIG.yaml. JSON may be either. */
static int is_rows(const char *word)
{
	static const char *const ends[] = {".jsonl", ".csv", ".tsv", ".parquet", ".txt", ".gz", ".zst"};
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
		if (strlen(word) > strlen(ends[i]) && !strcmp(word + strlen(word) - strlen(ends[i]), ends[i]))
			return 1;
	return 0;
}

/* llama.cpp's short options; key=value, as Hydra and torchtune have it. */
static int refuse_word(const char *word)
{
	static const char *const shorts[][2] = {{"-m", "model_name_or_path"},
	                                        {"-p", "prompt"},
	                                        {"-n", "max_new_tokens"},
	                                        {"-f", "prompt_file"},
	                                        {"-s", "seed"},
	                                        {"-sys", "system"},
	                                        {"-o", "outfile"},
	                                        {"-c", "config"},
	                                        {"-ngl", "n_gpu_layers"},
	                                        {"-t", "threads"},
	                                        {"-r", "lora_r"}};
	const struct config_shown shown = config_show(word);
	for (size_t i = 0; i < sizeof shorts / sizeof *shorts; i++) {
		const struct config_elsewhere *found = config_elsewhere_find(shorts[i][1]);
		if (!strcmp(word, shorts[i][0]))
			return found ? rh_fail(-EINVAL, "command line: unexpected word '%s': %s", shown.text, found->note)
			             : rh_fail(-EINVAL, "command line: unexpected word '%s'; here it is --%s", shown.text, shorts[i][1]);
	}
	char name[64];
	size_t length = strcspn(word, "=");
	snprintf(name, sizeof name, "%.*s", (int)(length < 63 ? length : 63), word);
	if (word[length] && config_key_find(name) >= 0)
		return rh_fail(-EINVAL, "command line: unexpected word '%s'; write --%s", shown.text, shown.text);
	return rh_fail(-EINVAL,
	               "command line: unexpected word '%s'; beside CONFIG.yaml come --key value pairs, and lists are written [a,b]",
	               shown.text);
}

int config_flags_read(int argc, char **argv, struct config_entries *entries, struct rh_config *config, const char **path)
{
	unsigned verb = config_verb_bit(entries->verb);
	*path = NULL;
	for (int i = 0; i < argc;) {
		int taken = 1, rc = verb & VERB_FORECASTS ? read_plan_flag(argv + i, argc - i, verb, entries, config, &taken) : 0;
		if (rc < 0)
			return rc;
		if (rc) {
			i += taken;
			continue;
		}
		taken = 1;
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
			config->help = 1;
			return 0;
		}
		if (!strcmp(argv[i], "--json"))
			config->json = 1;
		else if (!strcmp(argv[i], "--force") && (verb & VERB_REPLACES))
			config->force = 1;
		else if (!strncmp(argv[i], "--", 2))
			rc = read_flag(argv + i, argc - i, verb, entries, &taken);
		else if (!*path && i == 0 && is_rows(argv[i]))
			rc = rh_fail(-EINVAL, "command line: %s: a file of rows comes after a key: --train_file %s",
			             config_show(argv[i]).text, config_show(argv[i]).text);
		else if (!*path && argv[i][0] != '-' && (i == 0 || is_yaml(argv[i])))
			*path = argv[i];
		else
			rc = refuse_word(argv[i]);
		if (rc)
			return rc;
		i += taken;
	}
	return 0;
}
