/* A file system that fails, or whose user is killed, at the n-th change: a test program that includes this (once) has open, write, mkdir,
 * rename, unlink, rmdir, fsync and ftruncate of its own, which are linked before the C library's. */
#ifndef RH_TESTS_FS_FAULTS_H
#define RH_TESTS_FS_FAULTS_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum fs_fault { FS_NONE, FS_KILLED, FS_FAILS };
enum { FS_KILLED_STATUS = 99 };

static struct {
	enum fs_fault what;
	long at, asked;   /* changes: the faulty one, from 1; since fs_fault_set */
	const char *full; /* no room for files whose path holds this; NULL: there is */
} fs_faults;

/* The n-th change from now on ends the process with FS_KILLED_STATUS, or fails with EIO; for programs in which one thread writes. */
static inline void fs_fault_set(enum fs_fault what, long at)
{
	fs_faults.what = what;
	fs_faults.at = at;
	fs_faults.asked = 0;
}

/* Counts a change; 1: it is to fail. */
static inline int fs_fault_due(void)
{
	if (fs_faults.what == FS_NONE || ++fs_faults.asked != fs_faults.at)
		return 0;
	if (fs_faults.what == FS_KILLED)
		_exit(FS_KILLED_STATUS);
	errno = EIO;
	return 1;
}

int open(const char *path, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0;
	va_end(args);
	return flags & O_CREAT && fs_fault_due() ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static inline int fs_is_full(int fd)
{
	char link[32], path[1024];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t length = fs_faults.full ? readlink(link, path, sizeof path - 1) : 0;
	path[length > 0 ? length : 0] = 0;
	return length > 0 && strstr(path, fs_faults.full);
}

ssize_t write(int fd, const void *bytes, size_t length)
{
	if (fs_is_full(fd)) {
		errno = ENOSPC;
		return -1;
	}
	return fd > 2 && fs_fault_due() ? -1 : syscall(SYS_write, fd, bytes, length);
}

int mkdir(const char *path, mode_t mode)
{
	return fs_fault_due() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int rename(const char *from, const char *to)
{
	return fs_fault_due() ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlink(const char *path)
{
	return fs_fault_due() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
	return fs_fault_due() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

int fsync(int fd)
{
	return fs_fault_due() ? -1 : (int)syscall(SYS_fsync, fd);
}

int ftruncate(int fd, off_t length)
{
	return fs_fault_due() ? -1 : (int)syscall(SYS_ftruncate, fd, length);
}

#endif
