/* output_dir's checkpoints. A visible name, checkpoint-N, is whole at any moment: a checkpoint is made as .checkpoint-N.tmp and renamed,
 * and one that goes is renamed to .checkpoint-N.old before anything of it is removed. */
#include "train/checkpoint_internal.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "train/output.h"

#include <dirent.h>
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

int checkpoint_temporary(char path[PATH_MAX], const char *dir, int64_t step)
{
	return path_of(path, dir, step, ".tmp");
}

static int move(const char *from, const char *to)
{
	return rename(from, to) ? rh_fail(-errno, "%s: cannot rename it to %s: %s", from, to, strerror(errno)) : 0;
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
		rc = move(path, aside);
	return rc ? rc : rh_dir_sync(dir);
}

int checkpoint_place(const char *dir, int64_t step)
{
	char path[PATH_MAX], temporary[PATH_MAX], aside[PATH_MAX];
	int rc = path_of(path, dir, step, "");
	if (!rc)
		rc = checkpoint_temporary(temporary, dir, step);
	int replaces = !rc && rh_dir_exists(path); /* of an earlier attempt at the same step */
	if (replaces)
		rc = set_aside(dir, step, aside);
	if (!rc)
		rc = move(temporary, path);
	if (rc && replaces && !rh_dir_exists(path))
		(void)rename(aside, path); /* if not now, then at the next start */
	if (!rc)
		rc = rh_dir_sync(dir);
	return rc || !replaces ? rc : rh_dir_remove(aside);
}

struct found {
	int64_t oldest, newest, count; /* steps, -1: there is none; how many */
};

/* Checkpoints, by their names, of steps below `below` and other than `except`. No directory: none. */
static int scan(const char *dir, int64_t below, int64_t except, struct found *found)
{
	*found = (struct found){-1, -1, 0};
	DIR *entries = opendir(dir);
	if (!entries)
		return errno == ENOENT ? 0 : rh_fail(-errno, "%s: cannot read directory: %s", dir, strerror(errno));
	for (struct dirent *entry; (entry = readdir(entries));) {
		int64_t step = step_of(entry->d_name, "");
		if (step < 0 || step >= below || step == except)
			continue;
		found->oldest = found->count == 0 || step < found->oldest ? step : found->oldest;
		found->newest = step > found->newest ? step : found->newest;
		found->count++;
	}
	closedir(entries);
	return 0;
}

int checkpoint_remove_oldest(const struct rh_config *config, int64_t kept)
{
	const char *dir = config->output_dir;
	struct found others;
	int rc = scan(dir, INT64_MAX, kept, &others);
	while (!rc && config->save_total_limit > 0 && others.count + (kept >= 0) > config->save_total_limit) {
		char aside[PATH_MAX];
		rc = set_aside(dir, others.oldest, aside);
		if (!rc)
			rc = rh_dir_remove(aside);
		if (!rc)
			rc = scan(dir, INT64_MAX, kept, &others);
	}
	return rc;
}

int rh_checkpoint_any(const char *dir)
{
	struct found found;
	int rc = scan(dir, INT64_MAX, -1, &found);
	return rc ? rc : found.count > 0;
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

static int put_back(const char *dir, int64_t step, const char *suffix)
{
	char path[PATH_MAX], hidden[PATH_MAX];
	int rc = path_of(path, dir, step, "");
	if (!rc)
		rc = path_of(hidden, dir, step, suffix);
	if (rc || access(path, F_OK) == 0)
		return rc;
	rc = rh_checkpoint_verify(hidden);
	if (rc && rc != -ENOMEM) {
		rh_error_clear();
		return 0;
	}
	if (!rc)
		rc = move(hidden, path);
	if (!rc)
		rh_note("%s is whole and gets its name back: a run was killed while it put another in its place", path);
	return rc ? rc : rh_dir_sync(dir);
}

int rh_checkpoint_put_back(const char *dir)
{
	static const char *const suffixes[] = {".tmp", ".old"}; /* the newer first */
	int rc = 0;
	for (int i = 0; !rc && i < 2; i++) {
		DIR *entries = opendir(dir);
		if (!entries)
			return errno == ENOENT ? 0 : rh_fail(-errno, "output_dir: %s: cannot be read: %s", dir, strerror(errno));
		for (struct dirent *entry; !rc && (entry = readdir(entries));) {
			int64_t step = step_of(entry->d_name, suffixes[i]);
			if (step >= 0)
				rc = put_back(dir, step, suffixes[i]);
		}
		closedir(entries);
	}
	return rc;
}

int rh_checkpoint_tidy(const struct rh_config *config, int64_t resumed)
{
	const char *output_dir = config->output_dir;
	DIR *entries = opendir(output_dir);
	if (!entries)
		return rh_fail(-errno, "%s: cannot read directory: %s", output_dir, strerror(errno));
	int rc = 0;
	for (struct dirent *entry; !rc && (entry = readdir(entries));) {
		char path[PATH_MAX];
		if (!rh_checkpoint_left_behind(entry->d_name))
			continue;
		rc = checkpoint_in(path, output_dir, entry->d_name);
		if (!rc && *entry->d_name == '.')
			rc = rh_dir_remove(path);
		else if (!rc && unlink(path) < 0)
			rc = rh_fail(-errno, "%s: cannot remove: %s", path, strerror(errno));
		if (!rc)
			rh_note("%s is removed: a run was killed while it wrote it", path);
	}
	closedir(entries);
	return rc ? rc : checkpoint_remove_oldest(config, resumed);
}

static int find_newest(const char *dir, char **path)
{
	for (int64_t below = INT64_MAX;;) {
		struct found found;
		char at[PATH_MAX];
		int rc = scan(dir, below, -1, &found), fresh = rc ? rc : rh_output_fresh(dir);
		if (fresh < 0)
			return fresh;
		if (!found.count)
			return rh_fail(
			        -ENOENT,
			        "resume_from_checkpoint: there is no complete checkpoint in %s; to begin a new run %sleave the key out",
			        dir, fresh ? "" : "remove what is in it, or choose another output_dir, and ");
		rc = path_of(at, dir, found.newest, "");
		if (!rc)
			rc = rh_checkpoint_verify(at);
		if (!rc) {
			*path = rh_strdup(at);
			return *path ? 0 : -ENOMEM;
		}
		if (rc == -ENOMEM)
			return rc;
		rh_note("%s is passed over: %s", at, rh_error(rc));
		rh_error_clear();
		below = found.newest;
	}
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
	int rc = rh_checkpoint_verify(named);
	if (rc)
		return rh_fail_in(rc, "resume_from_checkpoint: give another, this one is not whole");
	*path = rh_strdup(named);
	return *path ? 0 : -ENOMEM;
}
