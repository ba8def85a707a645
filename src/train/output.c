#include "train/output.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "train/checkpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether a checkpoint's directory lies in output_dir. */
static int is_inside(const char *output_dir, const char *checkpoint)
{
	char *outer = realpath(output_dir, NULL), *inner = realpath(checkpoint, NULL);
	size_t length = outer ? strlen(outer) : 0;
	int inside = outer && inner && !strncmp(outer, inner, length) && inner[length] == '/';
	free(outer);
	free(inner);
	return inside;
}

/* The directory itself, or the nearest parent that is there. */
static int check_writable(const char *dir)
{
	char *at = rh_strdup(dir);
	if (!at)
		return -ENOMEM;
	while (*at && access(at, F_OK) && (errno == ENOENT || errno == ENOTDIR)) {
		char *slash = strrchr(at, '/');
		*(!slash ? at : slash == at && at[1] ? at + 1 : slash) = 0; /* "/name": the root is next */
	}
	int code = faccessat(AT_FDCWD, *at ? at : ".", W_OK | X_OK, AT_EACCESS) ? -errno : 0;
	if (code)
		code = rh_fail(code, "output_dir: %s cannot be written: %s: %s", dir, *at ? at : ".", strerror(-code));
	rh_free(at);
	return code;
}

int rh_output_fresh(const char *dir)
{
	DIR *entries = opendir(dir);
	if (!entries)
		return errno == ENOENT ? 1 : rh_fail(-errno, "output_dir: %s: cannot be read: %s", dir, strerror(errno));
	int fresh = 1;
	for (struct dirent *entry; fresh && (entry = readdir(entries));)
		fresh = !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") || !strcmp(entry->d_name, "metrics.jsonl") ||
		        !strcmp(entry->d_name, "trace.json") || !strcmp(entry->d_name, "trace.svg") ||
		        rh_checkpoint_left_behind(entry->d_name);
	closedir(entries);
	return fresh;
}

int rh_output_lock(const char *dir, int *descriptor)
{
	*descriptor = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (*descriptor < 0) /* whatever else is wrong with it rh_output_check tells */
		return 0;
	int rc = rh_dir_lock(*descriptor, "output_dir", dir);
	return rc ? rh_fail(rc, "output_dir: %s is in use by another run; wait for its end, or choose another", dir) : 0;
}

int rh_output_check(const struct rh_config *config, const char *checkpoint)
{
	int fresh = rh_output_fresh(config->output_dir), rc = fresh < 0 ? fresh : check_writable(config->output_dir);
	if (rc)
		return rc;
	if (fresh || (checkpoint && is_inside(config->output_dir, checkpoint)))
		return 0;
	int any = rh_checkpoint_any(config->output_dir);
	if (any < 0)
		return any;
	return rh_fail(-EEXIST, "output_dir: %s is not empty%s", config->output_dir,
	               any ? "; choose another, or go on from what is there with resume_from_checkpoint: true"
	                   : " and holds no complete checkpoint to go on from; remove what is in it, or choose another");
}

/* The step that dir/trainer_state.json ends at; -1: none can be read. */
static int64_t step_written(const char *dir)
{
	char *path = rh_path_join(dir, "trainer_state.json");
	json_t *state = NULL;
	int64_t step = -1;
	if (path && rh_file_exists(path) && !rh_json_load(path, &state) && rh_json_int(state, "global_step", path, RH_JSON_REQUIRED, &step))
		step = -1;
	json_decref(state);
	rh_free(path);
	return step;
}

int rh_output_holds(const struct rh_session *session, const char *dir, int64_t step)
{
	static const char *const names[] = {"adapter_model.safetensors", "model.safetensors", "model.safetensors.index.json"};
	int weights = 0;
	for (int i = session->lora ? 0 : 1; i < (session->lora ? 1 : 3); i++) {
		char *path = rh_path_join(dir, names[i]);
		weights |= path && rh_file_exists(path);
		rh_free(path);
	}
	return weights && step_written(dir) == step; /* which is written last */
}
