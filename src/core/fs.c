#include "core/fs.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Linux moves no more at once. */
enum { MOST_AT_ONCE = INT_MAX & ~4095 };

static int result(int rc)
{
	return rc < 0 ? -errno : rc;
}

static int real_open(struct rh_fs *fs, int dir, const char *name, int flags, mode_t mode)
{
	(void)fs;
	return result(openat(dir, name, flags | O_CLOEXEC, mode));
}

static int real_close(struct rh_fs *fs, int file)
{
	(void)fs;
	return result(close(file));
}

static int64_t real_read(struct rh_fs *fs, int file, void *bytes, size_t length, int64_t offset)
{
	(void)fs;
	ssize_t done;
	do
		done = pread(file, bytes, length < MOST_AT_ONCE ? length : MOST_AT_ONCE, offset);
	while (done < 0 && errno == EINTR);
	return done < 0 ? -errno : done;
}

static int64_t real_write(struct rh_fs *fs, int file, const void *bytes, size_t length, int64_t offset)
{
	(void)fs;
	ssize_t done;
	do
		done = pwrite(file, bytes, length < MOST_AT_ONCE ? length : MOST_AT_ONCE, offset);
	while (done < 0 && errno == EINTR);
	return done < 0 ? -errno : done;
}

static int real_sync(struct rh_fs *fs, int file)
{
	(void)fs;
	return result(fsync(file));
}

static int real_truncate(struct rh_fs *fs, int file, int64_t length)
{
	(void)fs;
	return result(ftruncate(file, length));
}

static int real_status(struct rh_fs *fs, int dir, const char *name, int flags, struct stat *out)
{
	(void)fs;
	return result(fstatat(dir, name, out, flags));
}

static int real_make_dir(struct rh_fs *fs, int dir, const char *name)
{
	(void)fs;
	return result(mkdirat(dir, name, 0777));
}

static int real_rename(struct rh_fs *fs, int from_dir, const char *from, int to_dir, const char *to)
{
	(void)fs;
	return result(renameat(from_dir, from, to_dir, to));
}

static int real_unlink(struct rh_fs *fs, int dir, const char *name, int flags)
{
	(void)fs;
	return result(unlinkat(dir, name, flags));
}

static const struct rh_fs_ops real_ops = {real_open,     real_close,  real_read,     real_write,  real_sync,
                                          real_truncate, real_status, real_make_dir, real_rename, real_unlink};
static struct rh_fs real = {&real_ops};
static struct rh_fs *used = &real;

struct rh_fs *rh_fs(void)
{
	return used;
}

struct rh_fs *rh_fs_real(void)
{
	return &real;
}

void rh_fs_use(struct rh_fs *fs)
{
	used = fs ? fs : &real;
}

int rh_fs_open_standard(void)
{
	for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; stream++) {
		if (fcntl(stream, F_GETFD) >= 0)
			continue;
		int file = open("/dev/null", O_RDWR); /* the lowest number that is free: the stream's */
		if (file < 0)
			file = open("/", O_RDONLY); /* a file system without devices: what is read or written fails */
		if (file < 0)
			return rh_fail(-errno, "cannot open /dev/null in place of a closed standard stream: %s", strerror(errno));
	}
	return 0;
}
