/* Directories, and the one that is bound. */
#include "core/file_internal.h"

#include "core/alloc.h"
#include "core/log.h"
#include "core/text.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Set when a run has its output_dir and left when it ends, while no other thread uses files; read by all. */
static struct {
	int descriptor;
	const char *path;
	size_t length;
} bound = {-1, NULL, 0};

void rh_dir_bind(int descriptor, const char *path)
{
	bound.descriptor = descriptor;
	bound.path = path;
	bound.length = strlen(path);
	while (bound.length > 1 && path[bound.length - 1] == '/')
		bound.length--;
}

void rh_dir_unbind(void)
{
	bound.descriptor = -1;
	bound.path = NULL;
}

int rh_dir_bound_is_there(void)
{
	struct stat opened, named;
	if (!bound.path)
		return 1;
	if (rh_fs()->ops->status(rh_fs(), bound.descriptor, "", AT_EMPTY_PATH, &opened))
		return 0;
	int rc = rh_fs()->ops->status(rh_fs(), AT_FDCWD, bound.path, 0, &named);
	if (rc)
		return rc != -ENOENT && rc != -ENOTDIR; /* a path that cannot be looked at now is not one that is gone */
	return named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

/* The part of `path` below the bound path; NULL: it does not lie there. */
static const char *below_bound(const char *path)
{
	if (!bound.path || strncmp(path, bound.path, bound.length))
		return NULL;
	const char *rest = path + bound.length;
	if (*rest && *rest != '/' && bound.path[bound.length - 1] != '/')
		return NULL;
	rest += strspn(rest, "/");
	for (const char *at = rest; at; at = strchr(at, '/')) {
		at += *at == '/';
		if (!strncmp(at, "..", 2) && (!at[2] || at[2] == '/'))
			return NULL;
	}
	return rest;
}

/* Goes down to the directory that the last name lies in, through directories alone. */
static int descend(const char *path, struct place *place)
{
	for (const char *slash; (slash = strchr(place->name, '/')) && slash[strspn(slash, "/")];) {
		char name[256];
		size_t length = (size_t)(slash - place->name);
		if (length >= sizeof name)
			return rh_fail(-ENAMETOOLONG, "%s: a name in it is too long", path);
		memcpy(name, place->name, length);
		name[length] = 0;
		int down = rh_fs()->ops->open(rh_fs(), place->dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
		place_close(place);
		if (down == -ENOTDIR || down == -ELOOP)
			return rh_fail(-ENOTDIR,
			               "%s: '%s' in it is a link or a file where a directory is due; it is left alone: move it away", path,
			               name);
		if (down < 0)
			return rh_fail(down, "%s: cannot open directory: %s", path, strerror(-down));
		place->dir = down;
		place->opened = 1;
		place->name = slash + strspn(slash, "/");
	}
	return 0;
}

int place_of(const char *path, enum place_use use, struct place *out)
{
	const char *rest = below_bound(path);
	*out = (struct place){.dir = AT_FDCWD, .name = path};
	if (!rest)
		return 0;
	out->dir = bound.descriptor;
	out->name = *rest ? rest : ".";
	out->bound = 1;
	return use == PLACE_CHANGE ? descend(path, out) : 0;
}

void place_close(struct place *place)
{
	if (place->opened)
		(void)rh_fs()->ops->close(rh_fs(), place->dir);
	place->opened = 0;
}

static int status_of(const char *path, int flags, struct stat *out)
{
	struct place place;
	int rc = place_of(path, PLACE_READ, &place);
	if (!rc)
		rc = rh_fs()->ops->status(rh_fs(), place.dir, place.name, flags | (place.bound ? AT_SYMLINK_NOFOLLOW : 0), out);
	return rc;
}

int rh_file_exists(const char *path)
{
	struct stat info;
	return status_of(path, 0, &info) == 0 && S_ISREG(info.st_mode);
}

int rh_dir_exists(const char *path)
{
	struct stat info;
	return status_of(path, 0, &info) == 0 && S_ISDIR(info.st_mode);
}

int rh_path_leads(const char *path)
{
	struct stat info;
	return status_of(path, 0, &info) == 0;
}

int rh_path_kind(const char *path)
{
	struct stat info;
	int rc = status_of(path, AT_SYMLINK_NOFOLLOW, &info);
	if (rc == -ENOENT || rc == -ENOTDIR)
		return RH_PATH_NONE;
	if (rc)
		return rh_fail(rc, "%s: cannot look at it: %s", path, strerror(-rc));
	return S_ISREG(info.st_mode)   ? RH_PATH_FILE
	       : S_ISDIR(info.st_mode) ? RH_PATH_DIR
	       : S_ISLNK(info.st_mode) ? RH_PATH_LINK
	                               : RH_PATH_OTHER;
}

static int sync_directory(int descriptor, const char *path)
{
	int rc = rh_fs()->ops->sync(rh_fs(), descriptor);
	return rc && rc != -EINVAL /* some file systems have no fsync for directories */
	               ? rh_fail(rc, "%s: cannot flush directory: %s", path, strerror(-rc))
	               : 0;
}

/* The directory that a place's name lies in. */
static int sync_around(const struct place *place, const char *path)
{
	const char *slash = strrchr(place->name, '/');
	if (place->dir != AT_FDCWD && !slash)
		return sync_directory(place->dir, path);
	char *parent = rh_strdup(slash ? path : ".");
	if (!parent)
		return -ENOMEM;
	char *end = slash ? strrchr(parent, '/') : NULL;
	if (end)
		end[end == parent] = 0;
	int rc = rh_dir_sync(parent);
	rh_free(parent);
	return rc;
}

int rh_path_is_same(const char *left, const char *right)
{
	struct stat one, two;
	return left && right && rh_fs()->ops->status(rh_fs(), AT_FDCWD, left, 0, &one) == 0 &&
	       rh_fs()->ops->status(rh_fs(), AT_FDCWD, right, 0, &two) == 0 && one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

int rh_dir_make(const char *path)
{
	char *prefix = rh_strdup(path);
	if (!prefix)
		return -ENOMEM;
	int rc = 0;
	for (char *at = prefix + 1; !rc; at++) {
		if (*at && *at != '/')
			continue;
		char kept = *at;
		struct place place;
		*at = 0;
		rc = place_of(prefix, PLACE_CHANGE, &place);
		int made = rc ? rc : rh_fs()->ops->make_dir(rh_fs(), place.dir, place.name);
		if (!rc && !made)
			rc = sync_around(&place, prefix);
		else if (!rc && made != -EEXIST)
			rc = rh_fail(made, "%s: cannot make directory: %s", prefix, strerror(-made));
		place_close(&place);
		*at = kept;
		if (!kept)
			break;
	}
	if (!rc && !rh_dir_exists(path))
		rc = rh_fail(-ENOTDIR, "%s: exists and is not a directory", path);
	rh_free(prefix);
	return rc;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Takes over the descriptor. */
static int list_names(int descriptor, const char *path, struct rh_names *out)
{
	DIR *entries = fdopendir(descriptor);
	int rc = entries ? 0 : rh_fail(-errno, "%s: cannot read directory: %s", path, strerror(errno));
	*out = (struct rh_names){0};
	if (rc) {
		(void)rh_fs()->ops->close(rh_fs(), descriptor);
		return rc;
	}
	errno = 0;
	for (struct dirent *entry; !rc && (entry = readdir(entries)); errno = 0) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		rc = rh_grow(&out->name, &out->capacity, out->count + 1, sizeof *out->name);
		if (!rc && !(out->name[out->count++] = rh_strdup(entry->d_name)))
			rc = -ENOMEM;
	}
	if (!rc && errno)
		rc = rh_fail(-errno, "%s: cannot read directory: %s", path, strerror(errno));
	closedir(entries);
	if (rc)
		rh_names_free(out);
	else if (out->count)
		qsort(out->name, out->count, sizeof *out->name, compare_names);
	return rc;
}

static int open_directory(const char *path, enum place_use use, int *out)
{
	struct place place;
	int rc = place_of(path, use, &place);
	if (rc)
		return rc;
	int follow = use == PLACE_CHANGE && place.bound && strcmp(place.name, ".") ? O_NOFOLLOW : 0;
	*out = rh_fs()->ops->open(rh_fs(), place.dir, place.name, O_RDONLY | O_DIRECTORY | follow, 0);
	place_close(&place);
	return *out < 0 ? *out : 0;
}

int rh_dir_list(const char *path, struct rh_names *out)
{
	int descriptor, rc = open_directory(path, PLACE_READ, &descriptor);
	*out = (struct rh_names){0};
	if (rc)
		return rc == -ENOENT ? rc : rh_fail(rc, "%s: cannot read directory: %s", path, strerror(-rc));
	return list_names(descriptor, path, out);
}

void rh_names_free(struct rh_names *names)
{
	for (size_t i = 0; i < names->count; i++)
		rh_free(names->name[i]);
	rh_free(names->name);
	*names = (struct rh_names){0};
}

/* All in the directory that `name` is in `dir`, then itself. No link is followed; each name is tried as a file first. */
static int remove_below(int dir, const char *name, const char *path)
{
	struct rh_fs *fs = rh_fs();
	struct rh_names names = {0};
	int down = fs->ops->open(fs, dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
	if (down < 0)
		return down == -ENOENT ? 0 : rh_fail(down, "%s: cannot read directory: %s", path, strerror(-down));
	int listed = fs->ops->open(fs, down, ".", O_RDONLY | O_DIRECTORY, 0);
	int rc = listed < 0 ? rh_fail(listed, "%s: cannot read directory: %s", path, strerror(-listed)) : list_names(listed, path, &names);
	for (size_t i = 0; !rc && i < names.count; i++) {
		char *child = rh_path_join(path, names.name[i]);
		rc = child ? fs->ops->unlink(fs, down, names.name[i], 0) : -ENOMEM;
		if (rc == -EISDIR || rc == -EPERM) /* the second is POSIX's, of some file systems */
			rc = remove_below(down, names.name[i], child);
		else if (rc && child)
			rc = rh_fail(rc, "%s: cannot remove: %s", child, strerror(-rc));
		rh_free(child);
	}
	rh_names_free(&names);
	(void)fs->ops->close(fs, down);
	if (rc)
		return rc;
	rc = fs->ops->unlink(fs, dir, name, AT_REMOVEDIR);
	return rc ? rh_fail(rc, "%s: cannot remove: %s", path, strerror(-rc)) : 0;
}

int rh_dir_remove(const char *path)
{
	struct place place;
	int rc = place_of(path, PLACE_CHANGE, &place);
	if (rc)
		return rc;
	struct stat info;
	rc = rh_fs()->ops->status(rh_fs(), place.dir, place.name, AT_SYMLINK_NOFOLLOW, &info);
	if (!rc && !S_ISDIR(info.st_mode))
		rc = rh_fail(-ENOTDIR, "%s: is a link or a file where a directory is due; it is left alone: move it away", path);
	else if (!rc)
		rc = remove_below(place.dir, place.name, path);
	else if (rc == -ENOENT)
		rc = 0;
	else
		rc = rh_fail(rc, "%s: cannot look at it: %s", path, strerror(-rc));
	place_close(&place);
	return rc;
}

int rh_dir_sync(const char *path)
{
	int descriptor, rc = open_directory(path, PLACE_CHANGE, &descriptor);
	if (rc == -EACCES) /* it may be written to, but not read: the system flushes it in time */
		return 0;
	if (rc)
		return rh_fail(rc, "%s: cannot open directory: %s", path, strerror(-rc));
	rc = sync_directory(descriptor, path);
	(void)rh_fs()->ops->close(rh_fs(), descriptor);
	return rc;
}

int rh_dir_lock(int descriptor, const char *key, const char *path)
{
	if (flock(descriptor, LOCK_EX | LOCK_NB) == 0)
		return 0;
	if (errno == EWOULDBLOCK)
		return -EBUSY;
	rh_warn_once("%s: %s cannot be locked (%s): see that no other run uses it", key, path, strerror(errno));
	return 0;
}

char *rh_path_join(const char *dir, const char *name)
{
	struct rh_text path = {0};
	size_t length = strlen(dir);
	return rh_text_printf(&path, "%s%s%s", dir, length && dir[length - 1] == '/' ? "" : "/", name) ? NULL : path.bytes;
}
