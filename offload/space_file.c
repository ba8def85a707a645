/* A drive's file: nameless where the file system can have such files, so that nothing is left behind; opened with O_DIRECT where
 * possible; its space is allocated whole. */
#include "offload/space_internal.h"

#include "core/file.h"
#include "core/log.h"
#include "offload/drive_internal.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

static int fail_at(const char *dir, const char *what, int rc)
{
	return rh_fail(rc, "nvme_dirs: %s: %s: %s", dir, what, strerror(-rc));
}

static int open_directory(struct space_file *file)
{
	int due = drive_fault_due();
	file->directory = due ? -1 : open(file->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (file->directory < 0)
		return fail_at(file->dir, "cannot open the directory", due ? due : -errno);
	int rc = rh_dir_lock(file->directory, "nvme_dirs", file->dir);
	return rc ? rh_fail(rc, "nvme_dirs: %s is in use by another run, or is output_dir; give each a directory of its own", file->dir)
	          : 0;
}

/* A file without a name where the file system has such a thing, else one whose name is gone at once. */
static int open_nameless(const struct space_file *file, int flags)
{
	int descriptor = openat(file->directory, ".", O_TMPFILE | flags, 0600);
	if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
		return descriptor;
	char name[64];
	snprintf(name, sizeof name, ".roundhouse-%ld.tmp", (long)getpid());
	descriptor = openat(file->directory, name, O_CREAT | O_EXCL | flags, 0600);
	if (descriptor >= 0)
		unlinkat(file->directory, name, 0);
	return descriptor;
}

static int open_file(struct space_file *file)
{
	int flags = O_RDWR | O_CLOEXEC, due = drive_fault_due();
	errno = -due;
	file->file = due ? -1 : open_nameless(file, flags | O_DIRECT);
	file->direct = file->file >= 0;
	if (file->file < 0 && errno == EINVAL)
		file->file = open_nameless(file, flags);
	return file->file < 0 ? fail_at(file->dir, "cannot make a file", -errno) : 0;
}

static void leave_direct(struct space_file *file, const char *why)
{
	int flags = fcntl(file->file, F_GETFL);
	if (file->direct && flags >= 0)
		(void)fcntl(file->file, F_SETFL, flags & ~O_DIRECT);
	file->direct = 0;
	rh_warn_once("nvme_dirs: %s: this file system has no direct access (%s): data pass through the page cache, which costs memory and "
	             "processor time; choose a directory on ext4 or xfs",
	             file->dir, why);
}

static int lies_in_memory(const struct space_file *file)
{
	struct statfs about;
	return !fstatfs(file->file, &about) && (about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC);
}

/* The alignment that the kernel names; older kernels name none, and then the file system's block works. */
static int find_unit(struct space_file *file)
{
	struct stat about;
	if (fstat(file->file, &about) < 0)
		return fail_at(file->dir, "cannot look at the file", -errno);
	int64_t block = about.st_blksize;
	file->unit = RH_SPACE_UNIT;
	if (!file->direct) {
		leave_direct(file, "O_DIRECT is refused");
		return 0;
	}
#ifdef STATX_DIOALIGN
	struct statx said;
	if (statx(file->file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &said) == 0 && said.stx_mask & STATX_DIOALIGN) {
		if (!said.stx_dio_offset_align)
			leave_direct(file, "statx gives no alignment");
		block = said.stx_dio_offset_align > said.stx_dio_mem_align ? said.stx_dio_offset_align : said.stx_dio_mem_align;
	} else
#endif
	        if (!lies_in_memory(file))
		rh_warn_once(
		        "nvme_dirs: %s: the kernel does not tell how direct access is to be aligned (before Linux 6.1, or on this file "
		        "system): %lld bytes, the file system's block, are taken",
		        file->dir, (long long)block);
	if (file->direct && lies_in_memory(file))
		leave_direct(file, "it keeps files in memory");
	while (file->unit < block)
		file->unit *= 2;
	return 0;
}

int space_file_open(const char *dir, struct space_file *out)
{
	*out = (struct space_file){.dir = dir, .directory = -1, .file = -1};
	int rc = open_directory(out);
	if (!rc)
		rc = open_file(out);
	if (!rc)
		rc = find_unit(out);
	if (rc)
		space_file_close(out);
	return rc;
}

void space_file_close(struct space_file *file)
{
	if (file->file >= 0)
		close(file->file);
	if (file->directory >= 0)
		close(file->directory); /* and the lock is gone */
	file->file = file->directory = -1;
}

static int no_room(const struct space_file *file, int64_t bytes, int rc)
{
	struct statvfs disk;
	double room = fstatvfs(file->file, &disk) ? 0 : (double)disk.f_bavail * (double)disk.f_frsize;
	return rh_fail(rc, "nvme_dirs: %s: %.1f MiB are needed here and %.1f are free: %s; make room, spill less, or add a directory",
	               file->dir, (double)(bytes - file->reserved) / 1048576, room / 1048576, strerror(-rc));
}

int space_file_reserve(struct space_file *file, int64_t bytes)
{
	if (bytes <= file->reserved)
		return 0;
	int rc = drive_fault_due();
	while (!rc && fallocate(file->file, 0, file->reserved, bytes - file->reserved) < 0)
		if (errno != EINTR)
			rc = -errno;
	if (rc == -EOPNOTSUPP) {
		rh_warn_once("nvme_dirs: %s: this file system cannot reserve room: should the disk fill up, the run stops in the middle",
		             file->dir);
		rc = ftruncate(file->file, bytes) < 0 ? -errno : 0;
	}
	if (rc)
		return no_room(file, bytes, rc);
	file->reserved = bytes;
	return 0;
}
