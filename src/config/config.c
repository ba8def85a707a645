/* Loads a configuration: the file's entries and the command line's, the ones that count into a draft, resolved. */
#include "config/config_internal.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"

#include <string.h>

static int read_file(const char *path, struct config_entries *entries)
{
	struct rh_bytes file;
	for (const char *at = path; *at; at++) /* it stands in every error line */
		if ((unsigned char)*at < 0x20)
			return rh_fail(-EINVAL, "command line: '%s' is not the path of a CONFIG.yaml", config_show(path).text);
	int kind = rh_path_kind(path);
	if (kind == RH_PATH_NONE) {
		char near[RH_NEAR_BYTES];
		return rh_fail(-ENOENT, "%s: no such file%s", path, config_near_file(path, near));
	}
	int rc = kind < 0 ? kind : rh_file_load(path, &file);
	if (rc)
		return rc;
	rc = config_yaml_read(file.bytes, file.length, path, entries);
	rh_bytes_free(&file);
	return rc;
}

/* given[key]: the entry that counts, the command line's before the file's. */
static void choose(const struct config_entries *entries, const struct config_entry **given)
{
	for (size_t i = 0; i < entries->count; i++) {
		const struct config_entry *entry = &entries->entry[i], **slot = &given[entry->key];
		if (!*slot || entry->origin == ORIGIN_FLAG)
			*slot = entry;
	}
}

/* A file serves several runs. --use_peft false: what it says of LoRA is no matter; eval on validation_file: nor is what training
 * holds out. */
static void set_aside(const char *verb, const struct config_entry **given)
{
	const struct config_entry *peft = given[config_key_find("use_peft")], *rows = given[config_key_find("validation_file")];
	int truth = 1, is_eval = !strcmp(verb, "eval") && rows && rows->kind != VALUE_NULL;
	int is_full = peft && peft->origin == ORIGIN_FLAG && peft->kind == VALUE_SCALAR && !config_parse_bool(peft->text, &truth) && !truth;
	for (size_t i = 0; i < config_key_count; i++)
		if (is_full && config_keys[i].lora && given[i] && given[i]->origin == ORIGIN_FILE)
			given[i] = NULL;
	if (is_eval)
		given[config_key_find("train_file")] = given[config_key_find("eval_split")] = given[config_key_find("data_weights")] = NULL;
}

static int fill(struct config_draft *draft, const struct config_entry *const *given)
{
	for (size_t i = 0; i < config_key_count; i++) {
		int rc = given[i] ? config_value_set(draft, given[i]) : config_value_default(draft, (int)i);
		if (rc)
			return rc;
	}
	return 0;
}

/* Values that another origin's replace, or that were set aside, are looked at too; and several names may share one inert prefix. */
static int check_each(const struct config_entries *entries)
{
	struct config_draft unused = {0};
	int rc = 0;
	for (size_t i = 0; i < entries->count && !rc; i++)
		rc = config_value_set(&unused, &entries->entry[i]);
	rh_config_free(&unused.config);
	return rc;
}

static int said_before(const struct config_entries *entries, size_t index)
{
	for (size_t i = 0; i < index; i++)
		if (!strcmp(entries->entry[i].name, entries->entry[index].name))
			return 1;
	return 0;
}

static void tell_inert(const struct config_entries *entries)
{
	unsigned verb = config_verb_bit(entries->verb);
	for (size_t i = 0; i < entries->count; i++) {
		const struct config_key *key = &config_keys[entries->entry[i].key];
		if (key->type == KEY_INERT && (key->verbs & verb) && !said_before(entries, i))
			rh_note("%s has no effect: %s", config_show(entries->entry[i].name).text, key->help);
	}
}

int rh_config_load(const char *verb, int argc, char **argv, const char *(*default_device)(void), struct rh_config *out)
{
	struct config_draft draft = {0};
	struct config_entries entries = {.verb = verb};
	const struct config_entry **given = rh_alloc(config_key_count, sizeof *given);
	const char *path = NULL;
	int rc = given ? 0 : -ENOMEM;
	if (rc)
		goto out;
	rc = config_flags_read(argc, argv, &entries, &draft.config, &path);
	if (rc || draft.config.help)
		goto out;
	if (path)
		rc = read_file(path, &entries);
	if (rc)
		goto out;
	choose(&entries, given);
	set_aside(verb, given);
	rc = fill(&draft, given);
	if (!rc)
		rc = check_each(&entries);
	if (!rc)
		rc = config_resolve(&draft, verb, given, default_device);
	if (!rc)
		tell_inert(&entries);
out:
	if (rc) {
		rh_config_free(&draft.config);
		draft.config = (struct rh_config){0};
	}
	*out = draft.config;
	config_entries_free(&entries);
	rh_free(given);
	return rc;
}

void rh_config_free(struct rh_config *config)
{
	struct config_draft *draft = (struct config_draft *)config; /* offsets of fields of the configuration count from its start */
	for (size_t i = 0; i < config_key_count; i++) {
		const struct config_key *key = &config_keys[i];
		if (key->type != KEY_STRING && key->type != KEY_RESUME && key->type != KEY_CUTS)
			continue;
		void *owned;
		memcpy(&owned, (char *)draft + key->offset, sizeof owned);
		rh_free(owned);
	}
	struct rh_list *const lists[] = {&config->lora_target_modules,
	                                 &config->nvme_dirs,
	                                 &config->train_file,
	                                 &config->validation_file,
	                                 &config->data_columns,
	                                 &config->data_weights,
	                                 &config->loss_type,
	                                 &config->loss_weights,
	                                 &config->rope_scaling,
	                                 &config->lr_scheduler_kwargs,
	                                 &config->box_cuts,
	                                 &config->admission_limits,
	                                 &config->box_hardware,
	                                 &config->link_mbit_per_second,
	                                 &config->link_latency_ms,
	                                 &config->lora_target_parameters,
	                                 &config->lora_modules_to_save,
	                                 &config->exclude_modules,
	                                 &config->layers_to_transform,
	                                 &config->rank_pattern,
	                                 &config->alpha_pattern,
	                                 &config->sample_prompts,
	                                 &config->parts};
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
		config_list_free(lists[i]);
	*config = (struct rh_config){0};
}
