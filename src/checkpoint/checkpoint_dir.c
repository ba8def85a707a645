/* The checkpoints in output_dir. Under its visible name, checkpoint-N, a checkpoint is whole at any moment: it is made as
 * .checkpoint-N.tmp and then renamed, and an old one is renamed to .checkpoint-N.old before its files are removed. */
#include "checkpoint/checkpoint_internal.h"

#include "checkpoint/output.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "core/minmax.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "checkpoint-N"; hidden with a suffix: ".checkpoint-N.tmp". */
static void name_of(char name[64], int64_t step, const char *suffix)
{
	snprintf(name, 64, "%scheckpoint-%" PRId64 "%s", *suffix ? "." : "", step, suffix);
}

/* The step that such a name says; -1 if it is none. */
static int64_t step_of(const char *name, const char *suffix)
{
	const char *digits = strchr(name, '-');
	char same[64];
	int64_t step = digits ? strtoll(digits + 1, NULL, 10) : -1;
	name_of(same, step, suffix);
	return step >= 0 && !strcmp(name, same) ? step : -1;
}

static int path_of(char path[PATH_MAX], const char *dir, int64_t step, const char *suffix)
{
	char name[64];
	name_of(name, step, suffix);
	return checkpoint_in(path, dir, name);
}

char *rh_checkpoint_path(const char *output_dir, int64_t step)
{
	char name[64];
	name_of(name, step, "");
	return rh_path_join(output_dir, name);
}

int64_t rh_checkpoint_step(const char *path)
{
	const char *slash = path ? strrchr(path, '/') : NULL;
	return path ? step_of(slash ? slash + 1 : path, "") : -1;
}

int checkpoint_temporary(char path[PATH_MAX], const char *dir, int64_t step)
{
	return path_of(path, dir, step, ".tmp");
}

/* Out of sight in one go, to `aside`, for good also after a power cut. */
static int set_aside(const char *dir, int64_t step, char aside[PATH_MAX])
{
	char path[PATH_MAX];
	int rc = path_of(path, dir, step, "");
	if (!rc)
		rc = path_of(aside, dir, step, ".old");
	if (!rc)
		rc = rh_dir_remove(aside);
	if (!rc)
		rc = rh_path_move(path, aside);
	return rc ? rc : rh_dir_sync(dir);
}

/* 1: a directory; 0: nothing; -EEXIST: something else, which is not this program's and stays. */
static int is_checkpoint(const char *path)
{
	int kind = rh_path_kind(path);
	if (kind < 0 || kind == RH_PATH_NONE || kind == RH_PATH_DIR)
		return kind < 0 ? kind : kind == RH_PATH_DIR;
	return rh_fail(-EEXIST, "%s: is a %s where a directory is due; it is left alone: move it away", path,
	               kind == RH_PATH_LINK ? "link" : "file");
}

/* Why this user may not remove what is in a directory; NULL: it may be removed. That is no reason to end a run. */
static const char *protection_of(const char *path)
{
	int code = faccessat(AT_FDCWD, path, R_OK | W_OK | X_OK, AT_EACCESS) ? errno : 0;
	return code == EACCES || code == EPERM || code == EROFS ? strerror(code) : NULL;
}

int checkpoint_place(const char *dir, int64_t step, char path[PATH_MAX])
{
	char temporary[PATH_MAX], aside[PATH_MAX];
	int rc = path_of(path, dir, step, "");
	if (!rc)
		rc = checkpoint_temporary(temporary, dir, step);
	int replaces = rc ? rc : is_checkpoint(path); /* of an earlier attempt at the same step */
	if (replaces < 0)
		return replaces;
	const char *protection = replaces ? protection_of(path) : NULL;
	if (protection)
		return rh_fail(-EEXIST, "%s: is there already and may not be removed by this user (%s); it is left alone: move it away",
		               path, protection);
	if (replaces)
		rc = set_aside(dir, step, aside);
	if (!rc)
		rc = rh_path_move(temporary, path);
	if (rc && replaces && !rh_dir_exists(path)) {
		char line[RH_ERROR_LINE];
		snprintf(line, sizeof line, "%s", rh_error(rc));
		if (rh_path_move(aside, path)) /* if not now, then at the next start */
			rc = rh_fail_copy(rc, line);
	}
	if (!rc)
		rc = rh_dir_sync(dir);
	return rc || !replaces ? rc : rh_dir_remove(aside);
}

struct found {
	int64_t oldest, newest, count; /* steps, -1: there is none; how many */
};

/* Checkpoints, by their names, of steps below `below` that need not stay and can be removed (kept NULL: all). No directory: none. */
static int scan(const char *dir, int64_t below, const struct checkpoint_kept *kept, struct found *found)
{
	struct rh_names names;
	*found = (struct found){-1, -1, 0};
	int rc = rh_dir_list(dir, &names);
	for (size_t i = 0; !rc && i < names.count; i++) {
		char path[PATH_MAX];
		int64_t step = step_of(names.name[i], "");
		if (step < 0 || step >= below || (kept && (step == kept->newest || step == kept->best)))
			continue;
		rc = checkpoint_in(path, dir, names.name[i]);
		int is = rc ? rc : is_checkpoint(path);
		if (is == -EEXIST) {
			rh_warn_once("output_dir: %s", rh_error(is));
			rh_error_clear();
			continue;
		}
		if (is <= 0) {
			rc = is;
			continue;
		}
		const char *protection = kept ? protection_of(path) : NULL;
		if (protection) {
			rh_warn_once(
			        "output_dir: %s may not be removed by this user (%s); it stays, beside those that save_total_limit keeps",
			        path, protection);
			continue;
		}
		found->oldest = found->count == 0 || step < found->oldest ? step : found->oldest;
		found->newest = step > found->newest ? step : found->newest;
		found->count++;
	}
	rh_names_free(&names);
	return rc == -ENOENT ? 0 : rc;
}

int checkpoint_remove_oldest(const struct rh_config *config, const struct checkpoint_kept *kept)
{
	const char *dir = config->output_dir;
	struct found all, others;
	int rc = scan(dir, INT64_MAX, kept, &all);
	if (!rc)
		rc = scan(dir, kept->common, kept, &others);
	if (rc)
		return rc;
	int64_t held = (kept->newest >= 0) + (kept->best >= 0 && kept->best != kept->newest) + all.count - others.count;
	while (!rc && config->save_total_limit > 0 && others.count && others.count + held > config->save_total_limit) {
		char aside[PATH_MAX];
		rc = set_aside(dir, others.oldest, aside);
		if (!rc)
			rc = rh_dir_remove(aside);
		if (!rc)
			rc = scan(dir, kept->common, kept, &others);
	}
	return rc;
}

int rh_checkpoint_count(const char *dir)
{
	struct found found;
	int rc = scan(dir, INT64_MAX, NULL, &found);
	return rc ? rc : (int)rh_min(found.count, INT_MAX);
}

int rh_checkpoint_left_behind(const char *name)
{
	const char *suffix = NULL;
	if (*name == '.')
		return step_of(name, ".tmp") >= 0 || step_of(name, ".old") >= 0;
	for (const char *at = name; (at = strstr(at, ".tmp.")); at++)
		suffix = at + 5;
	return suffix && *suffix && suffix[strspn(suffix, "0123456789")] == 0;
}

static int restore_hidden(const char *dir, int64_t step, const char *suffix)
{
	char path[PATH_MAX], hidden[PATH_MAX];
	int rc = path_of(path, dir, step, "");
	if (!rc)
		rc = path_of(hidden, dir, step, suffix);
	int taken = rc ? rc : rh_path_kind(path), kind = rc ? rc : rh_path_kind(hidden);
	if (taken < 0 || kind < 0)
		return taken < 0 ? taken : kind;
	if (taken != RH_PATH_NONE || kind != RH_PATH_DIR)
		return 0;
	rc = rh_checkpoint_verify(hidden);
	if (rh_file_is_damage(rc)) {
		rh_error_clear();
		return 0;
	}
	if (!rc)
		rc = rh_path_move(hidden, path);
	if (!rc)
		rh_note("%s is whole and gets its name back: a run was killed while it put another in its place", path);
	return rc ? rc : rh_dir_sync(dir);
}

int rh_checkpoint_put_back(const char *dir)
{
	static const char *const suffixes[] = {".tmp", ".old"}; /* the newer first */
	struct rh_names names;
	int rc = rh_dir_list(dir, &names);
	for (int s = 0; !rc && s < 2; s++)
		for (size_t i = 0; !rc && i < names.count; i++) {
			int64_t step = step_of(names.name[i], suffixes[s]);
			if (step >= 0)
				rc = restore_hidden(dir, step, suffixes[s]);
		}
	rh_names_free(&names);
	return rc == -ENOENT ? 0 : rc;
}

/* A directory that is hidden, or a file: what a killed run leaves under such a name. Anything else is left alone and named. */
static int remove_left_behind(const char *path, int hidden)
{
	int kind = rh_path_kind(path);
	if (kind < 0)
		return kind;
	if (kind != (hidden ? RH_PATH_DIR : RH_PATH_FILE)) {
		rh_warn_once("output_dir: %s: has a name that a killed run leaves behind, but is no %s; it is left alone: move it away",
		             path, hidden ? "directory" : "file");
		return 0;
	}
	const char *protection = hidden ? protection_of(path) : NULL;
	if (protection) {
		rh_warn_once("output_dir: %s may not be removed by this user (%s); it is left alone", path, protection);
		return 0;
	}
	int rc = hidden ? rh_dir_remove(path) : rh_file_remove(path);
	if (!rc)
		rh_note("%s is removed: a run was killed while it wrote it", path);
	return rc;
}

int rh_checkpoint_tidy(const struct rh_config *config, int64_t resumed, int64_t best)
{
	struct rh_names names;
	int rc = rh_dir_list(config->output_dir, &names);
	if (rc == -ENOENT)
		rc = rh_fail(rc, "output_dir: %s was removed", config->output_dir);
	for (size_t i = 0; !rc && i < names.count; i++) {
		char path[PATH_MAX];
		if (!rh_checkpoint_left_behind(names.name[i]))
			continue;
		rc = checkpoint_in(path, config->output_dir, names.name[i]);
		if (!rc)
			rc = remove_left_behind(path, *names.name[i] == '.');
	}
	rh_names_free(&names);
	const struct checkpoint_kept kept = {.newest = resumed, .best = best, .common = INT64_MAX};
	return rc ? rc : checkpoint_remove_oldest(config, &kept);
}

int rh_checkpoint_newest(const char *dir, int64_t below, char **path)
{
	for (*path = NULL;;) {
		struct found found;
		char at[PATH_MAX];
		int rc = scan(dir, below, NULL, &found);
		if (rc || !found.count)
			return rc;
		rc = path_of(at, dir, found.newest, "");
		if (!rc)
			rc = rh_checkpoint_verify_state(at);
		if (!rc) {
			*path = rh_strdup(at);
			return *path ? 0 : -ENOMEM;
		}
		if (!rh_file_is_damage(rc)) /* it may be whole: going on from an older one would lose it */
			return rc == -ENOMEM ? rc : rh_fail_in(rc, "resume_from_checkpoint: the newest checkpoint cannot be read now");
		rh_note("%s is passed over: %s", at, rh_error(rc));
		rh_error_clear();
		below = found.newest;
	}
}

static int find_newest(const char *dir, char **path)
{
	int rc = rh_checkpoint_newest(dir, INT64_MAX, path), fresh = rc || *path ? rc : rh_output_fresh(dir);
	if (fresh < 0 || *path)
		return fresh < 0 ? fresh : 0;
	int any = rh_checkpoint_count(dir); /* each was named, and why it is none to go on from */
	if (any < 0)
		return any;
	return rh_fail(-ENOENT, "resume_from_checkpoint: there is no complete checkpoint in %s; to begin a new run %sleave the key out",
	               dir,
	               fresh ? ""
	               : any ? "choose another output_dir, and "
	                     : "remove what is in it, or choose another output_dir, and ");
}

int rh_checkpoint_find(const struct rh_config *config, char **path)
{
	const char *named = config->resume_from_checkpoint;
	*path = NULL;
	if (!named)
		return 0;
	if (!strcmp(named, "true"))
		return find_newest(config->output_dir, path);
	if (!rh_dir_exists(named))
		return rh_fail(-ENOENT, "resume_from_checkpoint: %s is not a directory", named);
	int rc = rh_checkpoint_verify_state(named);
	if (rc)
		return rh_file_is_damage(rc) ? rh_fail_in(rc, "resume_from_checkpoint: give another, this one is not whole")
		                             : rh_fail_in(rc, "resume_from_checkpoint: it cannot be read now");
	*path = rh_strdup(named);
	return *path ? 0 : -ENOMEM;
}
