#include "core/file.h"

#include "core/alloc.h"
#include "core/log.h"
#include "core/text.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct rh_file_out {
	int fd;
	char *path, *temporary;
};

int rh_file_map(const char *path, struct rh_mapping *out)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return rh_fail(-errno, "%s: cannot open: %s", path, strerror(errno));
	struct stat info;
	int rc = 0;
	if (fstat(fd, &info) < 0) {
		rc = rh_fail(-errno, "%s: cannot stat: %s", path, strerror(errno));
	} else if (!S_ISREG(info.st_mode)) {
		rc = rh_fail(-EINVAL, "%s: not a regular file", path);
	} else if (info.st_size == 0) {
		*out = (struct rh_mapping){"", 0};
	} else {
		void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (bytes == MAP_FAILED)
			rc = rh_fail(-errno, "%s: cannot map %lld bytes: %s", path, (long long)info.st_size, strerror(errno));
		else
			*out = (struct rh_mapping){bytes, (size_t)info.st_size};
	}
	close(fd);
	return rc;
}

void rh_file_unmap(struct rh_mapping *mapping)
{
	if (mapping->length)
		munmap((void *)(uintptr_t)mapping->bytes, mapping->length);
	*mapping = (struct rh_mapping){0};
}

void rh_file_forget(const void *bytes, size_t length)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)bytes / page * page;
	if (length)
		madvise((void *)first, (uintptr_t)bytes + length - first, MADV_DONTNEED);
}

int rh_file_create(const char *path, struct rh_file_out **out)
{
	struct rh_text temporary = {0};
	struct rh_file_out *file = rh_alloc(1, sizeof *file);
	int rc = file ? 0 : -ENOMEM;
	if (!rc)
		rc = rh_text_printf(&temporary, "%s.tmp.%ld", path, (long)getpid());
	if (!rc && !(file->path = rh_strdup(path)))
		rc = -ENOMEM;
	if (!rc) {
		file->fd = open(temporary.bytes, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
		if (file->fd < 0)
			rc = rh_fail(-errno, "%s: cannot create: %s", temporary.bytes, strerror(errno));
	}
	if (rc) {
		rh_text_free(&temporary);
		if (file)
			rh_free(file->path);
		rh_free(file);
		return rc;
	}
	file->temporary = temporary.bytes;
	*out = file;
	return 0;
}

int rh_file_write(struct rh_file_out *file, const void *bytes, size_t length)
{
	const char *at = bytes;
	while (length) {
		ssize_t done = write(file->fd, at, length < INT_MAX ? length : INT_MAX);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0) {
			int fault = done < 0 ? errno : EIO;
			return rh_fail(-fault, "%s: cannot write: %s", file->path, strerror(fault));
		}
		at += done;
		length -= (size_t)done;
	}
	return 0;
}

static int sync_parent(const char *path)
{
	const char *slash = strrchr(path, '/');
	if (!slash)
		return rh_dir_sync(".");
	char *parent = rh_strdup(path);
	if (!parent)
		return -ENOMEM;
	parent[slash == path ? 1 : slash - path] = 0;
	int rc = rh_dir_sync(parent);
	rh_free(parent);
	return rc;
}

static void file_free(struct rh_file_out *file)
{
	rh_free(file->path);
	rh_free(file->temporary);
	rh_free(file);
}

int rh_file_commit(struct rh_file_out *file)
{
	int rc = 0;
	if (fsync(file->fd) < 0)
		rc = rh_fail(-errno, "%s: cannot flush to disk: %s", file->path, strerror(errno));
	if (close(file->fd) < 0 && !rc)
		rc = rh_fail(-errno, "%s: cannot close: %s", file->path, strerror(errno));
	if (!rc && rename(file->temporary, file->path) < 0)
		rc = rh_fail(-errno, "%s: cannot rename into place: %s", file->path, strerror(errno));
	if (rc)
		unlink(file->temporary);
	else
		rc = sync_parent(file->path);
	file_free(file);
	return rc;
}

void rh_file_abandon(struct rh_file_out *file)
{
	if (!file)
		return;
	close(file->fd);
	unlink(file->temporary);
	file_free(file);
}

int rh_file_write_whole(const char *path, const void *bytes, size_t length)
{
	struct rh_file_out *file;
	int rc = rh_file_create(path, &file);
	if (rc)
		return rc;
	rc = rh_file_write(file, bytes, length);
	if (!rc)
		return rh_file_commit(file);
	rh_file_abandon(file);
	return rc;
}

int rh_file_copy(const char *src, const char *dst)
{
	struct rh_mapping source;
	int rc = rh_file_map(src, &source);
	if (rc)
		return rc;
	rc = rh_file_write_whole(dst, source.bytes, source.length);
	rh_file_unmap(&source);
	return rc;
}

int rh_file_exists(const char *path)
{
	struct stat info;
	return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

int rh_dir_exists(const char *path)
{
	struct stat info;
	return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
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
		*at = 0;
		if (mkdir(prefix, 0777) == 0)
			rc = sync_parent(prefix);
		else if (errno != EEXIST)
			rc = rh_fail(-errno, "%s: cannot make directory: %s", prefix, strerror(errno));
		*at = kept;
		if (!kept)
			break;
	}
	if (!rc && !rh_dir_exists(path))
		rc = rh_fail(-ENOTDIR, "%s: exists and is not a directory", path);
	rh_free(prefix);
	return rc;
}

int rh_dir_remove(const char *path)
{
	DIR *dir = opendir(path);
	if (!dir)
		return errno == ENOENT ? 0 : rh_fail(-errno, "%s: cannot read directory: %s", path, strerror(errno));
	int rc = 0;
	for (struct dirent *entry; !rc && (entry = readdir(dir));) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		char *child = rh_path_join(path, entry->d_name);
		struct stat info;
		if (!child)
			rc = -ENOMEM;
		else if (lstat(child, &info) == 0 && S_ISDIR(info.st_mode))
			rc = rh_dir_remove(child);
		else if (unlink(child) < 0)
			rc = rh_fail(-errno, "%s: cannot remove: %s", child, strerror(errno));
		rh_free(child);
	}
	closedir(dir);
	if (!rc && rmdir(path) < 0)
		rc = rh_fail(-errno, "%s: cannot remove: %s", path, strerror(errno));
	return rc;
}

int rh_dir_sync(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 && errno == EACCES) /* it may be written to, but not read: the system flushes it in time */
		return 0;
	if (fd < 0)
		return rh_fail(-errno, "%s: cannot open directory: %s", path, strerror(errno));
	int rc = 0;
	if (fsync(fd) < 0 && errno != EINVAL) /* some file systems have no fsync for directories */
		rc = rh_fail(-errno, "%s: cannot flush directory: %s", path, strerror(errno));
	close(fd);
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
