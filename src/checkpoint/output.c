#include "checkpoint/output.h"

#include "checkpoint/checkpoint.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/text.h"
#include "observe/status.h"
#include "session/preference.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* 1: the checkpoint's directory lies in output_dir. */
static int is_inside(const char *output_dir, const char *checkpoint)
{
	char *outer = realpath(output_dir, NULL), *inner = realpath(checkpoint, NULL);
	size_t length = outer ? strlen(outer) : 0;
	int inside = outer && inner && !strncmp(outer, inner, length) && inner[length] == '/';
	free(outer);
	free(inner);
	return inside;
}

/* Makes a directory there and removes it: file systems of the kernel's, such as /proc, refuse that to those whom they let write. */
static int try_directory(const char *parent)
{
	struct rh_text path = {0};
	int rc = rh_text_printf(&path, "%s/.roundhouse-%ld", parent, (long)getpid());
	if (!rc)
		rc = rh_fs()->ops->make_dir(rh_fs(), AT_FDCWD, path.bytes);
	if (!rc)
		rc = rh_fs()->ops->unlink(rh_fs(), AT_FDCWD, path.bytes, AT_REMOVEDIR);
	rh_text_free(&path);
	return rc == -EEXIST ? 0 : rc;
}

/* Looks at the directory itself, or at the nearest parent that is there. */
int rh_output_check_place(const char *dir)
{
	char *at = rh_strdup(dir);
	if (!at)
		return -ENOMEM;
	while (*at && access(at, F_OK) && (errno == ENOENT || errno == ENOTDIR)) {
		char *slash = strrchr(at, '/');
		*(!slash ? at : slash == at && at[1] ? at + 1 : slash) = 0; /* "/name": the root is next */
	}
	int code = faccessat(AT_FDCWD, *at ? at : ".", W_OK | X_OK, AT_EACCESS) ? -errno : 0;
	int made = !code && strcmp(at, dir) ? try_directory(*at ? at : ".") : 0;
	if (code)
		code = rh_fail(code, "output_dir: %s cannot be written: %s: %s", dir, *at ? at : ".", strerror(-code));
	if (made)
		code = rh_fail(made, "output_dir: %s cannot be made: %s takes no new directory: %s", dir, *at ? at : ".", strerror(-made));
	rh_free(at);
	return code;
}

int rh_output_fresh(const char *dir)
{
	struct rh_names names;
	int rc = rh_dir_list(dir, &names), fresh = 1;
	for (size_t i = 0; !rc && fresh && i < names.count; i++)
		fresh = !strcmp(names.name[i], "metrics.jsonl") || !strcmp(names.name[i], "versions.jsonl") ||
		        !strcmp(names.name[i], RH_REFERENCE_FILE) || !strcmp(names.name[i], "SAVE") ||
		        !strcmp(names.name[i], "trace.json") || !strcmp(names.name[i], "trace.svg") ||
		        !strcmp(names.name[i], RH_STATUS_NAME) || rh_checkpoint_left_behind(names.name[i]);
	rh_names_free(&names);
	return !rc ? fresh : rc == -ENOENT ? 1 : rh_fail_in(rc, "output_dir");
}

int rh_output_lock(const char *dir, int *descriptor)
{
	for (int tries = 0; tries < 8; tries++) {
		*descriptor = rh_fs()->ops->open(rh_fs(), AT_FDCWD, dir, O_RDONLY | O_DIRECTORY, 0);
		if (*descriptor < 0) { /* whatever else is wrong with it rh_output_check tells */
			*descriptor = -1;
			return 0;
		}
		int rc = rh_dir_lock(*descriptor, "output_dir", dir);
		if (rc)
			return rh_fail(rc, "output_dir: %s is in use by another run; wait for its end, or choose another", dir);
		rh_dir_bind(*descriptor, dir);
		if (rh_dir_bound_is_there())
			return 0;
		rh_output_unlock(descriptor); /* it was put in another's place between opening and locking */
	}
	return rh_fail(-EAGAIN, "output_dir: %s is renamed all the time", dir);
}

void rh_output_unlock(int *descriptor)
{
	if (*descriptor < 0)
		return;
	rh_dir_unbind();
	(void)rh_fs()->ops->close(rh_fs(), *descriptor);
	*descriptor = -1;
}

int rh_output_check(const struct rh_config *config, const char *checkpoint)
{
	int fresh = rh_output_fresh(config->output_dir), rc = fresh < 0 ? fresh : rh_output_check_place(config->output_dir);
	if (rc)
		return rc;
	if (fresh || (checkpoint && is_inside(config->output_dir, checkpoint)))
		return 0;
	int any = rh_checkpoint_count(config->output_dir);
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
