/* A file layer that fails, or whose user is killed, at the n-th call of some kinds; that reads and writes short; that has no room. Over the
 * real one (core/fs.h). */
#ifndef RH_TESTS_FS_FAULTS_H
#define RH_TESTS_FS_FAULTS_H

#include "core/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* FS_ENDS: files end where they are read; FS_SHRINKS: the file is cut off there, for good; FS_SIGNALLED: SIGTERM comes, and the call is
 * made. */
enum fs_fault { FS_NONE, FS_KILLED, FS_FAILS, FS_SHORT, FS_ENDS, FS_SHRINKS, FS_SIGNALLED };
enum { FS_KILLED_STATUS = 99 };

/* Kinds of calls, as bits. */
enum fs_kind {
	FS_CREATE = 1,
	FS_WRITE = 2,
	FS_SYNC = 4,
	FS_TRUNCATE = 8,
	FS_MAKE_DIR = 16,
	FS_RENAME = 32,
	FS_UNLINK = 64,
	FS_LINK = 128,
	FS_OPEN = 256,
	FS_READ = 512,
	FS_STATUS = 1024,
	FS_CHANGES = 255, /* all above FS_OPEN */
	FS_LOOKS = FS_OPEN | FS_READ | FS_STATUS
};

static struct {
	enum fs_fault what;
	unsigned kinds;
	int code;           /* positive errno of a failure */
	long at;            /* of these kinds' calls: the faulty one, from 1 */
	_Atomic long asked; /* since fs_fault_set */
	const char *full;   /* no room for files whose path holds this; NULL: there is */
	const char *only;   /* opening and reading: only of names that hold this; NULL: all */
} fs_faults;

/* Counts a call; a negative errno: it is to fail. */
static inline int fs_fault_due(enum fs_kind kind)
{
	if (fs_faults.what == FS_NONE || !(fs_faults.kinds & kind) || ++fs_faults.asked != fs_faults.at || fs_faults.what == FS_SHORT)
		return 0; /* from any thread: each call has a number of its own */
	if (fs_faults.what == FS_KILLED)
		_exit(FS_KILLED_STATUS);
	if (fs_faults.what == FS_SIGNALLED) {
		(void)kill(getpid(), SIGTERM);
		return 0;
	}
	return -fs_faults.code;
}

static inline void fs_path_of(int fd, char path[1024])
{
	char link[32];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t length = readlink(link, path, 1023);
	path[length > 0 ? length : 0] = 0;
}

static inline int fs_faulty_open(struct rh_fs *fs, int dir, const char *name, int flags, mode_t mode)
{
	(void)fs;
	int counts = flags & O_CREAT || !fs_faults.only || strstr(name, fs_faults.only);
	int rc = counts ? fs_fault_due(flags & O_CREAT ? FS_CREATE : FS_OPEN) : 0;
	return rc ? rc : rh_fs_real()->ops->open(rh_fs_real(), dir, name, flags, mode);
}

static inline int fs_faulty_close(struct rh_fs *fs, int file)
{
	(void)fs;
	return rh_fs_real()->ops->close(rh_fs_real(), file);
}

static inline int64_t fs_faulty_read(struct rh_fs *fs, int file, void *bytes, size_t length, int64_t offset)
{
	char path[1024];
	(void)fs;
	if (fs_faults.only)
		fs_path_of(file, path);
	int rc = !fs_faults.only || strstr(path, fs_faults.only) ? fs_fault_due(FS_READ) : 0;
	if (rc && fs_faults.what == FS_ENDS)
		return 0;
	if (rc && fs_faults.what == FS_SHRINKS) {
		fs_path_of(file, path);
		rc = truncate(path, offset) ? -errno : 0;
	}
	if (fs_faults.what == FS_SHORT && length > 1)
		length = 1 + length / 3;
	return rc ? rc : rh_fs_real()->ops->read(rh_fs_real(), file, bytes, length, offset);
}

static inline int64_t fs_faulty_write(struct rh_fs *fs, int file, const void *bytes, size_t length, int64_t offset)
{
	char path[1024];
	(void)fs;
	fs_path_of(file, path);
	if (fs_faults.full && strstr(path, fs_faults.full))
		return -ENOSPC;
	int rc = fs_fault_due(FS_WRITE);
	if (fs_faults.what == FS_SHORT && length > 1)
		length = 1 + length / 3;
	return rc ? rc : rh_fs_real()->ops->write(rh_fs_real(), file, bytes, length, offset);
}

static inline int fs_faulty_sync(struct rh_fs *fs, int file)
{
	(void)fs;
	int rc = fs_fault_due(FS_SYNC);
	return rc ? rc : rh_fs_real()->ops->sync(rh_fs_real(), file);
}

static inline int fs_faulty_truncate(struct rh_fs *fs, int file, int64_t length)
{
	(void)fs;
	int rc = fs_fault_due(FS_TRUNCATE);
	return rc ? rc : rh_fs_real()->ops->truncate(rh_fs_real(), file, length);
}

static inline int fs_faulty_status(struct rh_fs *fs, int dir, const char *name, int flags, struct stat *out)
{
	(void)fs;
	int rc = fs_fault_due(FS_STATUS);
	return rc ? rc : rh_fs_real()->ops->status(rh_fs_real(), dir, name, flags, out);
}

static inline int fs_faulty_make_dir(struct rh_fs *fs, int dir, const char *name)
{
	(void)fs;
	int rc = fs_fault_due(FS_MAKE_DIR);
	return rc ? rc : rh_fs_real()->ops->make_dir(rh_fs_real(), dir, name);
}

static inline int fs_faulty_rename(struct rh_fs *fs, int from_dir, const char *from, int to_dir, const char *to)
{
	(void)fs;
	int rc = fs_fault_due(FS_RENAME);
	return rc ? rc : rh_fs_real()->ops->rename(rh_fs_real(), from_dir, from, to_dir, to);
}

static inline int fs_faulty_unlink(struct rh_fs *fs, int dir, const char *name, int flags)
{
	(void)fs;
	int rc = fs_fault_due(FS_UNLINK);
	return rc ? rc : rh_fs_real()->ops->unlink(rh_fs_real(), dir, name, flags);
}

static const struct rh_fs_ops fs_faulty_ops = {fs_faulty_open,   fs_faulty_close,    fs_faulty_read,   fs_faulty_write,
                                               fs_faulty_sync,   fs_faulty_truncate, fs_faulty_status, fs_faulty_make_dir,
                                               fs_faulty_rename, fs_faulty_unlink};
static struct rh_fs fs_faulty = {&fs_faulty_ops};

/* The n-th call of `kinds` from now on ends the process with FS_KILLED_STATUS, or fails with `code`; FS_SHORT: all reads and writes move a
 * third. Set while no other thread uses files. */
static inline void fs_fault_set_kinds(enum fs_fault what, unsigned kinds, long at, int code)
{
	fs_faults.what = what;
	fs_faults.kinds = kinds;
	fs_faults.at = at;
	fs_faults.code = code;
	fs_faults.asked = 0;
	rh_fs_use(&fs_faulty);
}

static inline void fs_fault_set(enum fs_fault what, long at)
{
	fs_fault_set_kinds(what, FS_CHANGES, at, EIO);
}

#endif
