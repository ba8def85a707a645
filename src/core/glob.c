#include "core/glob.h"

#include "core/alloc.h"
#include "core/text.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MOST = 64 };

int rh_glob_is_pattern(const char *path)
{
	return path[strcspn(path, "*?[")] != 0;
}

static int add(struct rh_names *out, const char *path)
{
	int rc = rh_grow(&out->name, &out->capacity, out->count + 1, sizeof *out->name);
	if (!rc && !(out->name[out->count++] = rh_strdup(path)))
		rc = -ENOMEM;
	return rc;
}

/* `dir` with `name` below it; an empty dir is here. */
static int join(const char *dir, const char *name, struct rh_text *out)
{
	out->length = 0;
	size_t length = strlen(dir);
	return rh_text_printf(out, "%s%s%s", dir, length && dir[length - 1] != '/' ? "/" : "", name);
}

static int match(const char *dir, const char *pattern, int depth, struct rh_names *out);

/* One name of `dir` against the pattern's first part, `part`, behind which `rest` follows (NULL: nothing). */
static int match_name(const char *dir, const char *name, const char *part, const char *rest, int depth, struct rh_names *out)
{
	struct rh_text path = {0};
	int is_any = !strcmp(part, "**"), rc = join(dir, name, &path);
	if (rc || fnmatch(is_any ? "*" : part, name, FNM_PERIOD))
		goto out;
	if (is_any) { /* goes on below each folder; the folders may also be none (match) */
		int kind = rh_path_kind(path.bytes);
		if (kind < 0)
			rc = kind;
		else if (kind == RH_PATH_DIR)
			rc = match(path.bytes, rest ? rest - strlen("**/") : "**", depth + 1, out);
		else if (!rest && rh_file_exists(path.bytes))
			rc = add(out, path.bytes);
	} else if (rest) {
		rc = rh_dir_exists(path.bytes) ? match(path.bytes, rest, depth + 1, out) : 0;
	} else if (rh_file_exists(path.bytes)) {
		rc = add(out, path.bytes);
	}
out:
	rh_text_free(&path);
	return rc;
}

/* The files below `dir` that match. */
static int match(const char *dir, const char *pattern, int depth, struct rh_names *out)
{
	struct rh_text part = {0};
	struct rh_names names = {0};
	const char *slash = strchr(pattern, '/'), *rest = slash ? slash + 1 : NULL;
	if (depth > DEPTH_MOST)
		return rh_fail(-EINVAL, "%s: more than %d folders lie in one another", dir, DEPTH_MOST);
	int rc = rh_text_append(&part, pattern, slash ? (size_t)(slash - pattern) : strlen(pattern));
	if (rc)
		return rc;
	if (rest &&
	    (!rh_glob_is_pattern(part.bytes) || !*part.bytes)) { /* a folder by its name, which may be hidden, "..", or "" (the root) */
		struct rh_text path = {0};
		rc = *part.bytes ? join(dir, part.bytes, &path) : rh_text_printf(&path, "%s/", dir);
		if (!rc && rh_dir_exists(path.bytes))
			rc = match(path.bytes, rest, depth + 1, out);
		rh_text_free(&path);
		goto out;
	}
	if (rest && !strcmp(part.bytes, "**"))
		rc = match(dir, rest, depth + 1, out);
	if (!rc)
		rc = rh_dir_list(*dir ? dir : ".", &names);
	for (size_t i = 0; !rc && i < names.count; i++)
		rc = match_name(dir, names.name[i], part.bytes, rest, depth, out);
out:
	rh_names_free(&names);
	rh_text_free(&part);
	return rc;
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int rh_glob(const char *base, const char *pattern, struct rh_names *out)
{
	*out = (struct rh_names){0};
	int rc = match(base, pattern, 0, out);
	if (rc)
		rh_names_free(out);
	else if (out->count)
		qsort(out->name, out->count, sizeof *out->name, compare);
	return rc;
}
