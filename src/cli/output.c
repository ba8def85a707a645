/* What a verb may write over: one rule for every file and directory that the user names for a result. */
#include "cli/output.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/output.h"
#include "ckpt/gguf.h"
#include "ckpt/gguf_out.h"
#include "ckpt/verify.h"
#include "core/alloc.h"
#include "core/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const kind_names[] = {[OUTPUT_GGUF] = "GGUF file",
                                         [OUTPUT_HTML] = "HTML page",
                                         [OUTPUT_SVG] = "SVG picture",
                                         [OUTPUT_PROFILE] = "hardware profile",
                                         [OUTPUT_MODELFILE] = "Modelfile"};

/* ---- what this program wrote earlier, and files that hold nothing ---- */

static int is_own_gguf(const char *path)
{
	struct rh_gguf *gguf = NULL;
	int is_own = 0, found = rh_gguf_open(path, &gguf);
	if (!found)
		found = rh_gguf_bool(gguf, RH_GGUF_WRITTEN, &is_own);
	rh_gguf_close(gguf);
	rh_error_clear(); /* whatever else the file is, it is none of ours */
	return found == 1 && is_own;
}

static int is_own_text(const char *path)
{
	char line[128] = "";
	FILE *file = fopen(path, "rb");
	if (!file)
		return 0;
	int is_own = fgets(line, sizeof line, file) && strstr(line, RH_MARK);
	fclose(file);
	return is_own;
}

static int is_empty(const char *path)
{
	struct rh_file_in *file;
	if (rh_file_open(path, &file)) {
		rh_error_clear();
		return 0;
	}
	int empty = rh_file_length(file) == 0;
	rh_file_close(file);
	return empty;
}

/* ---- the rule ---- */

/* What the command reads is never written over, not even with --force. */
static int check_no_input(const struct rh_config *config, const char *key, const char *path)
{
	const char *const inputs[] = {config->model_name_or_path, config->adapter_name_or_path, config->config_name,
	                              config->prompt_file,        config->chat_template,        config->tools,
	                              config->messages_file};
	const struct rh_list *const lists[] = {&config->train_file, &config->validation_file, &config->parts};
	int is_read = 0;
	for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
		is_read |= rh_path_is_same(path, inputs[i]);
	for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
		for (size_t i = 0; i < lists[l]->count; i++)
			is_read |= rh_path_is_same(path, lists[l]->item[i]);
	return is_read ? rh_fail(-EINVAL, "%s: %s is what this command reads; name another place", key, path) : 0;
}

/* What a run wrote must not be overwritten or mixed with a merged model: the configuration of a run names the run's own output_dir. */
static int check_no_run(const char *key, const char *dir)
{
	static const char *const names[] = {"adapter_config.json", "trainer_state.json", "metrics.jsonl"};
	int rc = 0;
	for (size_t i = 0; !rc && i < sizeof names / sizeof *names; i++) {
		char *path = rh_path_join(dir, names[i]);
		if (!path)
			return -ENOMEM;
		if (rh_file_exists(path))
			rc = rh_fail(-EINVAL, "%s: %s holds what a run wrote (%s); name another directory, or a file as outfile", key, dir,
			             names[i]);
		rh_free(path);
	}
	return rc;
}

static int check_directory(const struct rh_config *config, const char *key, const char *dir)
{
	struct rh_names names;
	int is_free = 1, rc = rh_dir_list(dir, &names);
	for (size_t i = 0; !rc && i < names.count; i++)
		is_free &= rh_checkpoint_left_behind(names.name[i]);
	rh_names_free(&names);
	if (rc == -ENOENT)
		return rh_output_check_place(dir);
	if (rc)
		return rh_fail_in(rc, key);
	if (is_free)
		return rh_output_check_place(dir);
	rc = check_no_run(key, dir);
	if (rc)
		return rc;
	char *sums = rh_path_join(dir, RH_SUMS_NAME);
	is_free = sums && (config->force || (rh_file_exists(sums) && is_own_text(sums)));
	rh_free(sums);
	return is_free ? 0
	               : rh_fail(-EEXIST,
	                         "%s: %s is not empty and holds no model that Roundhouse wrote; name another directory, or add --force "
	                         "to overwrite what is in it",
	                         key, dir);
}

/* Found before the work, not after it. */
static int check_place(const char *key, const char *path)
{
	const char *slash = strrchr(path, '/');
	char *dir = rh_strdup(slash ? path : ".");
	if (!dir)
		return -ENOMEM;
	if (slash)
		dir[slash == path ? 1 : slash - path] = 0;
	int rc = 0;
	if (!rh_dir_exists(dir))
		rc = rh_fail(-ENOENT, "%s: there is no directory %s to write %s into; make it first, or name another file", key, dir,
		             slash ? slash + 1 : path);
	else if (access(dir, W_OK | X_OK))
		rc = rh_fail(-errno, "%s: cannot write into %s: %s", key, dir, strerror(errno));
	rh_free(dir);
	return rc;
}

static int check_file(const struct rh_config *config, const char *key, const char *path, enum verb_output kind)
{
	int rc = check_place(key, path);
	if (rc)
		return rc;
	rc = rh_file_check_replaceable(path);
	if (rc)
		return rh_fail_in(rc, key);
	if (config->force || !rh_file_exists(path) || is_empty(path))
		return 0;
	if (kind == OUTPUT_GGUF ? is_own_gguf(path) : is_own_text(path))
		return 0;
	return rh_fail(-EEXIST, "%s: %s is there and is no %s that Roundhouse wrote; name another file, or add --force to replace it", key,
	               path, kind_names[kind]);
}

int verb_check_output(const struct rh_config *config, const char *key, const char *path, enum verb_output kind)
{
	int rc = check_no_input(config, key, path);
	if (rc)
		return rc;
	return kind == OUTPUT_MODEL ? check_directory(config, key, path) : check_file(config, key, path, kind);
}
