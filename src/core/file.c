#include "core/file_internal.h"

#include "core/alloc.h"
#include "core/text.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- reading ---- */

struct rh_file_in {
	int descriptor;
	int64_t length;
	char *path;
};

static int open_regular(const char *path, int *descriptor, int64_t *length)
{
	struct rh_fs *fs = rh_fs();
	struct place place;
	struct stat info;
	int rc = place_of(path, PLACE_READ, &place);
	if (rc)
		return rc;
	/* not blocked by a pipe without a writer */
	int file = fs->ops->open(fs, place.dir, place.name, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
	if (file < 0)
		return rh_fail(file, "%s: cannot open: %s", path, strerror(-file));
	rc = fs->ops->status(fs, file, "", AT_EMPTY_PATH, &info);
	if (rc)
		rc = rh_fail(rc, "%s: cannot stat: %s", path, strerror(-rc));
	else if (!S_ISREG(info.st_mode))
		rc = rh_fail(-EINVAL, "%s: not a regular file", path);
	if (rc) {
		(void)fs->ops->close(fs, file);
		return rc;
	}
	*descriptor = file;
	*length = info.st_size;
	return 0;
}

int rh_file_open(const char *path, struct rh_file_in **out)
{
	struct rh_file_in *file = rh_alloc(1, sizeof *file);
	int rc = file && (file->path = rh_strdup(path)) ? 0 : -ENOMEM;
	if (!rc)
		rc = open_regular(path, &file->descriptor, &file->length);
	if (!rc) {
		*out = file;
		return 0;
	}
	if (file)
		rh_free(file->path);
	rh_free(file);
	return rc;
}

int64_t rh_file_length(const struct rh_file_in *file)
{
	return file->length;
}

const char *rh_file_path(const struct rh_file_in *file)
{
	return file->path;
}

static int read_all(int descriptor, const char *path, int64_t offset, char *bytes, size_t length)
{
	struct rh_fs *fs = rh_fs();
	while (length) {
		int64_t done = fs->ops->read(fs, descriptor, bytes, length, offset);
		if (done < 0)
			return rh_fail((int)done, "%s: cannot read at byte %lld: %s", path, (long long)offset, strerror((int)-done));
		if (!done)
			return rh_fail(-EINVAL, "%s: ends at byte %lld: it became shorter while it was read", path, (long long)offset);
		bytes += done;
		offset += done;
		length -= (size_t)done;
	}
	return 0;
}

int rh_file_read(const struct rh_file_in *file, int64_t offset, void *bytes, size_t length)
{
	return read_all(file->descriptor, file->path, offset, bytes, length);
}

void rh_file_close(struct rh_file_in *file)
{
	if (!file)
		return;
	(void)rh_fs()->ops->close(rh_fs(), file->descriptor);
	rh_free(file->path);
	rh_free(file);
}

int rh_file_load(const char *path, struct rh_bytes *out)
{
	int descriptor;
	int64_t length;
	int rc = open_regular(path, &descriptor, &length);
	if (rc)
		return rc;
	char *bytes = NULL;
	if (length > RH_FILE_LOAD_MOST)
		rc = rh_fail(-EFBIG, "%s: has %lld bytes; files of its kind have at most %lld", path, (long long)length,
		             (long long)RH_FILE_LOAD_MOST);
	else if (!(bytes = rh_alloc((size_t)length + 1, 1)))
		rc = -ENOMEM;
	else
		rc = read_all(descriptor, path, 0, bytes, (size_t)length);
	(void)rh_fs()->ops->close(rh_fs(), descriptor);
	if (rc) {
		rh_free(bytes);
		return rc;
	}
	*out = (struct rh_bytes){bytes, (size_t)length};
	return 0;
}

void rh_bytes_free(struct rh_bytes *bytes)
{
	rh_free(bytes->bytes);
	*bytes = (struct rh_bytes){0};
}

int rh_file_is_damage(int rc)
{
	return rc == -EINVAL || rc == -ENOENT || rc == -ENOTDIR || rc == -EISDIR || rc == -ELOOP || rc == -EFBIG;
}

/* ---- writing ---- */

struct rh_file_out {
	int descriptor;
	int64_t length;
	char *path, *temporary, *parent;
	struct place place, temporary_place; /* of the path, of the temporary name: one directory, which `place` owns */
};

static void out_free(struct rh_file_out *file)
{
	place_close(&file->place);
	rh_free(file->path);
	rh_free(file->temporary);
	rh_free(file->parent);
	rh_free(file);
}

/* The directory that a path lies in, in a fresh string. */
static char *parent_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	char *parent = rh_strdup(slash ? path : ".");
	if (parent && slash)
		parent[slash == path ? 1 : slash - path] = 0;
	return parent;
}

int rh_file_check_replaceable(const char *path)
{
	static const char *const names[] = {
	        [RH_PATH_DIR] = "a directory", [RH_PATH_LINK] = "a link", [RH_PATH_OTHER] = "a device, a pipe or a socket"};
	int kind = rh_path_kind(path);
	if (kind < 0 || kind == RH_PATH_NONE || kind == RH_PATH_FILE)
		return kind < 0 ? kind : 0;
	return rh_fail(-EEXIST, "%s: is %s where a file is due; it is left alone: name another file, or move it away", path, names[kind]);
}

int rh_file_create(const char *path, struct rh_file_out **out)
{
	struct rh_text temporary = {0};
	struct rh_file_out *file;
	int rc = rh_file_check_replaceable(path);
	if (rc)
		return rc;
	file = rh_alloc(1, sizeof *file);
	rc = file ? 0 : -ENOMEM;
	if (!rc)
		rc = rh_text_printf(&temporary, "%s.tmp.%ld", path, (long)getpid());
	if (rc) {
		rh_free(file);
		return rc;
	}
	file->temporary = temporary.bytes;
	file->path = rh_strdup(path);
	file->parent = parent_of(path); /* now: a commit must not fail for want of memory after its rename */
	rc = file->path && file->parent ? place_of(file->path, PLACE_CHANGE, &file->place) : -ENOMEM;
	if (!rc) {
		file->temporary_place = file->place;
		file->temporary_place.name = file->temporary + (file->place.name - file->path);
		/* a name that a killed run left goes first, so that nothing is written through a link */
		int gone = rh_fs()->ops->unlink(rh_fs(), file->temporary_place.dir, file->temporary_place.name, 0);
		file->descriptor = rh_fs()->ops->open(rh_fs(), file->temporary_place.dir, file->temporary_place.name,
		                                      O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
		if (file->descriptor < 0)
			rc = rh_fail(gone && gone != -ENOENT ? gone : file->descriptor, "%s: cannot create: %s", file->temporary,
			             strerror(gone && gone != -ENOENT ? -gone : -file->descriptor));
	}
	if (rc)
		out_free(file);
	else
		*out = file;
	return rc;
}

int rh_file_patch(struct rh_file_out *file, int64_t offset, const void *bytes, size_t length)
{
	const char *at = bytes;
	while (length) {
		int64_t done = rh_fs()->ops->write(rh_fs(), file->descriptor, at, length, offset);
		if (done <= 0) {
			int fault = done < 0 ? (int)-done : EIO;
			return rh_fail(-fault, "%s: cannot write: %s", file->path, strerror(fault));
		}
		at += done;
		offset += done;
		length -= (size_t)done;
	}
	return 0;
}

int rh_file_write(struct rh_file_out *file, const void *bytes, size_t length)
{
	int rc = rh_file_patch(file, file->length, bytes, length);
	if (!rc)
		file->length += (int64_t)length;
	return rc;
}

static int commit(struct rh_file_out *file, int is_flushed)
{
	struct rh_fs *fs = rh_fs();
	int rc = is_flushed ? fs->ops->sync(fs, file->descriptor) : 0;
	if (rc)
		rc = rh_fail(rc, "%s: cannot flush to disk: %s", file->path, strerror(-rc));
	int closed = fs->ops->close(fs, file->descriptor);
	if (closed && !rc)
		rc = rh_fail(closed, "%s: cannot close: %s", file->path, strerror(-closed));
	if (!rc) {
		rc = fs->ops->rename(fs, file->temporary_place.dir, file->temporary_place.name, file->place.dir, file->place.name);
		if (rc)
			rc = rh_fail(rc, "%s: cannot rename into place: %s", file->path, strerror(-rc));
	}
	if (rc)
		(void)fs->ops->unlink(fs, file->temporary_place.dir, file->temporary_place.name, 0);
	else if (is_flushed)
		rc = rh_dir_sync(file->parent);
	out_free(file);
	return rc;
}

int rh_file_commit(struct rh_file_out *file)
{
	return commit(file, 1);
}

void rh_file_abandon(struct rh_file_out *file)
{
	if (!file)
		return;
	(void)rh_fs()->ops->close(rh_fs(), file->descriptor);
	(void)rh_fs()->ops->unlink(rh_fs(), file->temporary_place.dir, file->temporary_place.name, 0);
	out_free(file);
}

static int write_whole(const char *path, const void *bytes, size_t length, int is_flushed)
{
	struct rh_file_out *file;
	int rc = rh_file_create(path, &file);
	if (rc)
		return rc;
	rc = rh_file_write(file, bytes, length);
	if (!rc)
		return commit(file, is_flushed);
	rh_file_abandon(file);
	return rc;
}

int rh_file_write_whole(const char *path, const void *bytes, size_t length)
{
	return write_whole(path, bytes, length, 1);
}

int rh_file_put(const char *path, const void *bytes, size_t length)
{
	return write_whole(path, bytes, length, 0);
}

int rh_file_copy(const char *src, const char *dst)
{
	enum { PIECE = 1 << 18 };
	struct rh_file_in *in = NULL;
	struct rh_file_out *out = NULL;
	char *piece = rh_alloc(PIECE, 1);
	int rc = piece ? rh_file_open(src, &in) : -ENOMEM;
	if (!rc)
		rc = rh_file_create(dst, &out);
	for (int64_t at = 0; !rc && at < in->length; at += PIECE) {
		size_t now = in->length - at < PIECE ? (size_t)(in->length - at) : PIECE;
		rc = rh_file_read(in, at, piece, now);
		if (!rc)
			rc = rh_file_write(out, piece, now);
	}
	if (rc)
		rh_file_abandon(out);
	else
		rc = rh_file_commit(out);
	rh_file_close(in);
	rh_free(piece);
	return rc;
}

/* ---- logs ---- */

struct rh_file_log {
	int descriptor;
	int64_t length; /* bytes of whole lines */
	char *path;
};

static int open_log(struct rh_file_log *log)
{
	struct place place;
	int rc = place_of(log->path, PLACE_CHANGE, &place);
	if (rc)
		return rc;
	int follow = place.bound ? O_NOFOLLOW : 0;
	/* not blocked by a pipe without a reader, which open then refuses; a device is refused by truncate */
	log->descriptor = rh_fs()->ops->open(rh_fs(), place.dir, place.name, O_WRONLY | O_CREAT | O_NONBLOCK | follow, 0666);
	place_close(&place);
	if (log->descriptor == -ELOOP)
		return rh_fail(-ELOOP, "%s: is a link where a file is due; it is left alone: move it away", log->path);
	if (log->descriptor < 0)
		return rh_fail(log->descriptor, "%s: cannot open for writing: %s", log->path, strerror(-log->descriptor));
	rc = rh_fs()->ops->truncate(rh_fs(), log->descriptor, log->length);
	return rc ? rh_fail(rc, "%s: cannot cut it to %lld bytes: %s", log->path, (long long)log->length, strerror(-rc)) : 0;
}

int rh_file_log_open(const char *path, int64_t keep, struct rh_file_log **out)
{
	struct rh_file_log *log = rh_alloc(1, sizeof *log);
	if (!log)
		return -ENOMEM;
	log->descriptor = -1;
	log->length = keep;
	int rc = (log->path = rh_strdup(path)) ? open_log(log) : -ENOMEM;
	if (rc)
		rh_file_log_close(log);
	else
		*out = log;
	return rc;
}

int rh_file_log_append(struct rh_file_log *log, const void *bytes, size_t length)
{
	struct rh_fs *fs = rh_fs();
	for (size_t done = 0; done < length;) {
		int64_t now = fs->ops->write(fs, log->descriptor, (const char *)bytes + done, length - done, log->length + (int64_t)done);
		if (now <= 0) {
			int rc = now < 0 ? (int)now : -EIO;
			if (fs->ops->truncate(fs, log->descriptor, log->length))
				return rh_fail(rc, "%s: cannot write (%s), and its last line is torn", log->path, strerror(-rc));
			return rh_fail(rc, "%s: cannot write: %s", log->path, strerror(-rc));
		}
		done += (size_t)now;
	}
	log->length += (int64_t)length;
	return 0;
}

void rh_file_log_close(struct rh_file_log *log)
{
	if (!log)
		return;
	if (log->descriptor >= 0)
		(void)rh_fs()->ops->close(rh_fs(), log->descriptor);
	rh_free(log->path);
	rh_free(log);
}

/* ---- names ---- */

int rh_file_remove(const char *path)
{
	struct place place;
	int rc = place_of(path, PLACE_CHANGE, &place);
	if (rc)
		return rc;
	rc = rh_fs()->ops->unlink(rh_fs(), place.dir, place.name, 0);
	place_close(&place);
	return !rc || rc == -ENOENT ? rc : rh_fail(rc, "%s: cannot remove: %s", path, strerror(-rc));
}

void rh_file_discard(const char *path)
{
	char line[RH_ERROR_LINE];
	snprintf(line, sizeof line, "%s", rh_error(-EIO));
	if (rh_file_remove(path))
		(void)rh_fail_copy(-EIO, line);
}

int rh_path_move(const char *from, const char *to)
{
	struct place here, there;
	int rc = place_of(from, PLACE_CHANGE, &here);
	if (rc)
		return rc;
	rc = place_of(to, PLACE_CHANGE, &there);
	if (!rc) {
		rc = rh_fs()->ops->rename(rh_fs(), here.dir, here.name, there.dir, there.name);
		place_close(&there);
		if (rc)
			rc = rh_fail(rc, "%s: cannot rename it to %s: %s", from, to, strerror(-rc));
	}
	place_close(&here);
	return rc;
}
