/* The file layer: every file of the program is opened, read, written, renamed and flushed through this table. The real instance makes the
 * system calls. Tests put another one over it: one that records what happens (crash replay), one that fails the Nth call or reads short.
 * Memory-mapped, io_uring and /proc accesses stay outside: drives have their own seam (offload/drive.h). */
#ifndef RH_CORE_FS_H
#define RH_CORE_FS_H

#include "core/error.h"

#include <stdint.h>
#include <sys/stat.h>

/* All slots are required. Results: 0 or more, or negative errno; no slot sets the error line. `dir` is a directory's descriptor, or
 * AT_FDCWD; `name` is resolved from there. */
struct rh_fs;
struct rh_fs_ops {
	int (*open)(struct rh_fs *fs, int dir, const char *name, int flags, mode_t mode); /* a descriptor */
	int (*close)(struct rh_fs *fs, int file);
	/* At an offset; fewer bytes than asked for is legal, 0 is the end. */
	int64_t (*read)(struct rh_fs *fs, int file, void *bytes, size_t length, int64_t offset);
	int64_t (*write)(struct rh_fs *fs, int file, const void *bytes, size_t length, int64_t offset);
	int (*sync)(struct rh_fs *fs, int file); /* of a file, or of a directory */
	int (*truncate)(struct rh_fs *fs, int file, int64_t length);
	int (*status)(struct rh_fs *fs, int dir, const char *name, int flags,
	              struct stat *out); /* flags: AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH */
	int (*make_dir)(struct rh_fs *fs, int dir, const char *name);
	int (*rename)(struct rh_fs *fs, int from_dir, const char *from, int to_dir, const char *to);
	int (*unlink)(struct rh_fs *fs, int dir, const char *name, int flags); /* flags: AT_REMOVEDIR */
};

struct rh_fs {
	const struct rh_fs_ops *ops;
};

/* The instance in use. */
struct rh_fs *rh_fs(void);
/* The one that makes system calls. */
struct rh_fs *rh_fs_real(void);
/* Tests: `fs` from now on, NULL: the real one. No other thread may be in the layer. */
void rh_fs_use(struct rh_fs *fs);

/* Opens /dev/null for each descriptor 0 to 2 that is closed, so that no file of the run gets such a number and receives what is meant
 * for a terminal. Where there is no /dev/null, something that can be neither read nor written. */
int rh_fs_open_standard(void) RH_MUST;

#endif
