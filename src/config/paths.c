/* Keys that name files: "~/" written out, and what this verb will read must be there and be what it is taken for. */
#include "config/config_internal.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/glob.h"
#include "core/log.h"

#include <stdlib.h>
#include <string.h>

static const struct {
	const char *key;
	int is_read; /* 1: must be there when the verb begins; 0: is written then, or may be a name that is no file's (chat_template) */
} path_keys[] = {{"model_name_or_path", 1},
                 {"config_name", 1},
                 {"adapter_name_or_path", 1},
                 {"train_file", 1},
                 {"validation_file", 1},
                 {"dataset_info", 1},
                 {"resume_from_checkpoint", 1},
                 {"prompt_file", 1},
                 {"tools", 1},
                 {"messages_file", 1},
                 {"output_dir", 0},
                 {"chat_template", 0},
                 {"outfile", 0},
                 {"html", 0}};

/* The shell writes out "~/" only where it begins a word: not in a file, nor in --key=~/x. */
static int write_out_home(const struct config_entry *entry, char **path)
{
	const char *home = getenv("HOME");
	if ((*path)[0] != '~' || ((*path)[1] && (*path)[1] != '/'))
		return 0;
	if (!home || !*home || !config_utf8_valid(home))
		return config_entry_fail(entry, "'%s': HOME is not set, so ~ means nothing; write the path out", config_show(*path).text);
	struct rh_text whole = {0};
	int rc = rh_text_printf(&whole, "%s%s", home, *path + 1);
	if (rc)
		return rc;
	rh_free(*path);
	*path = whole.bytes;
	return 0;
}

/* 1, 0, or negative errno. */
static int holds(const char *dir, const char *name)
{
	char *path = rh_path_join(dir, name);
	int there = path ? rh_file_exists(path) : -ENOMEM;
	rh_free(path);
	return there;
}

static int ends_with(const char *text, const char *end)
{
	size_t length = strlen(text), tail = strlen(end);
	return length >= tail && !strcmp(text + length - tail, end);
}

/* Whether the path reads as a name of the Hub, ORG/NAME. "models" is no organisation there, and many people have a folder of that name. */
static int is_hub_name(const char *path)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
	size_t org = strspn(path, letters), name = path[org] == '/' ? strspn(path + org + 1, letters) : 0;
	return org && name && *path != '.' && !path[org + 1 + name] && !ends_with(path, ".gguf") && strncmp(path, "models/", 7);
}

/* Whether the path may mean something of the Hub: nothing lies there, and ORG is no folder here. 1, 0, or negative errno. */
static int may_be_on_hub(const char *path)
{
	if (!is_hub_name(path) || rh_file_exists(path) || rh_dir_exists(path))
		return 0;
	char *org = rh_strdup(path);
	if (!org)
		return -ENOMEM;
	*strchr(org, '/') = 0;
	int is_folder = rh_dir_exists(org);
	rh_free(org);
	return !is_folder;
}

/* 1: files match; 0: none does, or it is the path of one; or negative errno. */
static int matches_any(const char *pattern)
{
	struct rh_names names;
	if (rh_file_exists(pattern) || rh_dir_exists(pattern))
		return 0;
	int rc = rh_glob("", pattern, &names);
	if (rc)
		return rc;
	int any = names.count > 0;
	rh_names_free(&names);
	return any;
}

static int check_path(const struct config_entry *entry, const char *key, const char *path)
{
	const struct config_shown shown = config_show(path);
	const char *mend = "no such file or directory";
	int model = !strcmp(key, "model_name_or_path"), adapter = !strcmp(key, "adapter_name_or_path");
	int rows = !strcmp(key, "train_file") || !strcmp(key, "validation_file");
	if (model)
		mend = "no such file or directory here (models are not downloaded; give a directory or a .gguf file; for plan, one with a "
		       "config.json is enough)";
	int is_pattern = rows && rh_glob_is_pattern(path), matches = is_pattern ? matches_any(path) : 0;
	if (matches)
		return matches < 0 ? matches : 0;
	if (is_pattern)
		mend = "no file matches the pattern";
	else if (rows && strchr(path, ','))
		mend = "no such file; several files are a list: [a.jsonl,b.jsonl]";
	int on_hub = model || (rows && !strchr(path, '.')) ? may_be_on_hub(path) : 0;
	if (on_hub < 0)
		return on_hub;
	if (on_hub && rows)
		return config_entry_fail(entry,
		                         "'%s': no such file here, and nothing is downloaded; if it is a data set of the Hub: hf download "
		                         "--repo-type dataset %s --local-dir %s, then name that folder or files of it in %s",
		                         shown.text, shown.text, strchr(path, '/') + 1, key);
	if (on_hub)
		return config_entry_fail(
		        entry,
		        "'%s': no such directory here, and nothing is downloaded; if it is a model of the Hub: hf download %s "
		        "--local-dir %s, then %s: %s (for plan, one with a config.json is enough)",
		        shown.text, shown.text, strchr(path, '/') + 1, key, strchr(path, '/') + 1);
	int kind = rh_path_kind(path), is_other = kind == RH_PATH_OTHER || (kind == RH_PATH_LINK && rh_path_leads(path)),
	    is_prompt = !strcmp(key, "prompt_file"); /* which is read once */
	if (kind < 0)
		return config_entry_fail(entry, "'%s': %s", shown.text, strerror(-kind));
	int is_there = rh_file_exists(path) || rh_dir_exists(path);
	if (!is_there && is_other && !is_prompt)
		return config_entry_fail(entry,
		                         "'%s' is a pipe or a device, and this is read more than once; write what it brings to a file, "
		                         "and name that",
		                         shown.text);
	char near[RH_NEAR_BYTES] = "";
	if (!is_there && !is_other)
		return config_entry_fail(entry, "'%s': %s%s", shown.text, kind == RH_PATH_LINK ? "is a link that leads nowhere" : mend,
		                         kind == RH_PATH_NONE && !is_pattern ? config_near_file(path, near) : near);
	int adapts = model || adapter ? holds(path, "adapter_config.json") : 0, whole = model ? holds(path, "config.json") : 0,
	    ran = model || adapter ? holds(path, "metrics.jsonl") : 0;
	if (adapts < 0 || whole < 0 || ran < 0)
		return -ENOMEM;
	if (ran && !adapts && !whole)
		return config_entry_fail(entry, "'%s': the run there has not ended; give one of its checkpoints, %s/checkpoint-N",
		                         shown.text, shown.text);
	if (model && adapts && !whole)
		return config_entry_fail(entry, "'%s' holds an adapter; name it in adapter_name_or_path, and its base model here",
		                         shown.text);
	if (model && rh_file_exists(path) && ends_with(path, ".safetensors"))
		return config_entry_fail(entry, "'%s' is one file of a model; give its directory", shown.text);
	if (adapter && rh_file_exists(path))
		return config_entry_fail(entry, "'%s' is a file; give the directory that holds adapter_config.json beside it", shown.text);
	if (adapter && !adapts)
		return config_entry_fail(entry, "'%s' holds no adapter_config.json; give the directory that a LoRA run wrote", shown.text);
	return 0;
}

const char *rh_config_model(const char *name)
{
	for (const struct config_profile *model = config_models; model->name; model++)
		if (!strcmp(model->name, name))
			return model->text;
	return NULL;
}

/* A model that a plan may name without a directory: nothing of that name is here. */
static int is_known_model(const char *name)
{
	return rh_config_model(name) && !rh_file_exists(name) && !rh_dir_exists(name);
}

static int fail_to_find_model(const struct config_entry *entry, const char *path)
{
	struct rh_text names = {0};
	int rc = 0;
	for (const struct config_profile *model = config_models; !rc && model->name; model++)
		rc = rh_text_printf(&names, "%s%s", model == config_models ? "" : ", ", model->name);
	if (!rc)
		rc = config_entry_fail(
		        entry,
		        "'%s': no such file or directory here; give a directory (for plan, one with a config.json is enough), a "
		        ".gguf file, or a model that plan knows by name: %s",
		        config_show(path).text, names.bytes);
	rh_text_free(&names);
	return rc;
}

/* A directory of which no weights are there yet: a plan and a look at the rows need none. */
static int go_by_shapes(struct rh_config *config)
{
	const char *dir = config->model_name_or_path;
	if (dir && !config->config_name && is_known_model(dir)) {
		rh_note("%s: planned by its published config.json, which this program holds", dir);
		config->config_name = config->model_name_or_path;
		config->model_name_or_path = NULL;
		return 0;
	}
	if (!dir || config->config_name || !rh_dir_exists(dir))
		return 0;
	int shapes = holds(dir, "config.json"), whole = holds(dir, "model.safetensors"),
	    shards = holds(dir, "model.safetensors.index.json");
	if (shapes < 0 || whole < 0 || shards < 0)
		return -ENOMEM;
	if (!shapes || whole || shards)
		return 0;
	rh_note("%s: no weights there: shapes from config.json", config_show(dir).text);
	config->config_name = config->model_name_or_path;
	config->model_name_or_path = NULL;
	return 0;
}

/* A plan may come before the data: where one file is not there, none is read. 1: so it is; 0: all are there; or negative errno. */
static int plan_without(const char *key, struct rh_list *files)
{
	for (size_t i = 0; i < files->count; i++) {
		int matches = rh_glob_is_pattern(files->item[i]) ? matches_any(files->item[i]) : 0;
		if (matches < 0)
			return matches;
		if (matches || rh_path_leads(files->item[i]))
			continue;
		char near[RH_NEAR_BYTES];
		rh_note("%s: '%s': no such file or directory: planned without it%s", key, config_show(files->item[i]).text,
		        config_near_file(files->item[i], near));
		config_list_free(files);
		return 1;
	}
	return 0;
}

static int resolve_files(struct config_draft *draft, unsigned verb, const struct config_entry *entry, const struct config_key *key)
{
	struct rh_list *files = (struct rh_list *)(void *)((char *)draft + key->offset);
	int rc = 0;
	if (!entry || draft->config.dataset_info) /* names */
		return 0;
	for (size_t i = 0; i < files->count && !rc; i++)
		rc = write_out_home(entry, &files->item[i]);
	if (!rc && (verb & VERB_FORECASTS))
		rc = plan_without(key->name, files);
	if (rc)
		return rc < 0 ? rc : 0;
	for (size_t i = 0; i < files->count && !rc; i++)
		rc = key->verbs & verb ? check_path(entry, key->name, files->item[i]) : 0;
	return rc;
}

int config_resolve_paths(struct config_draft *draft, unsigned verb, const struct config_entry *const *given)
{
	for (size_t i = 0; i < sizeof path_keys / sizeof path_keys[0]; i++) {
		int index = config_key_find(path_keys[i].key);
		const struct config_key *key = &config_keys[index];
		const struct config_entry *entry = given[index];
		char **path = (char **)(void *)((char *)draft + key->offset);
		if (key->type == KEY_PATHS) {
			int rc = resolve_files(draft, verb, entry, key);
			if (rc)
				return rc;
			continue;
		}
		if (!entry || !*path)
			continue;
		int rc = write_out_home(entry, path);
		int is_read = path_keys[i].is_read && !(key->type == KEY_RESUME && !strcmp(*path, "true")) &&
		              !(!strcmp(key->name, "prompt_file") && !strcmp(*path, "-"));
		int is_model = !strcmp(key->name, "model_name_or_path"), is_config = !strcmp(key->name, "config_name");
		if (!rc && (verb & VERB_FORECASTS) && (is_model || is_config) && is_known_model(*path))
			continue;
		int is_elsewhere = !rc && is_model && (verb & VERB_FORECASTS) ? may_be_on_hub(*path) : 0;
		if (is_elsewhere < 0)
			return is_elsewhere;
		if (!rc && is_model && (verb & VERB_FORECASTS) && !is_elsewhere && rh_path_kind(*path) == RH_PATH_NONE)
			rc = fail_to_find_model(entry, *path);
		if (!rc && is_read && (key->verbs & verb))
			rc = check_path(entry, key->name, *path);
		if (rc)
			return rc;
	}
	return verb & (VERB_FORECASTS | VERB_INSPECT) ? go_by_shapes(&draft->config) : 0;
}
