/* Files by path, over the file layer (core/fs.h): read in pieces or whole; written whole or not at all.
 *
 * One directory can be *bound* (rh_dir_bind): names below its path then lead through its descriptor, wherever the directory itself was
 * moved to, and what is written or removed there is never reached through a symbolic link. */
#ifndef RH_CORE_FILE_H
#define RH_CORE_FILE_H

#include "core/error.h"

#include <stdint.h>

/* Bytes of a file in memory. */
struct rh_bytes {
	char *bytes; /* never NULL after a successful load, also of an empty file; a NUL follows them */
	size_t length;
};

/* A file whole, for those that are small or parsed whole. Errors name the path; -EFBIG above RH_FILE_LOAD_MOST. */
#define RH_FILE_LOAD_MOST ((int64_t)1 << 30)
int rh_file_load(const char *path, struct rh_bytes *out) RH_MUST;
void rh_bytes_free(struct rh_bytes *bytes);

/* A regular file that is open for reading, at any offset, from any thread. */
struct rh_file_in;
int rh_file_open(const char *path, struct rh_file_in **out) RH_MUST;
int64_t rh_file_length(const struct rh_file_in *file); /* when it was opened */
const char *rh_file_path(const struct rh_file_in *file);
/* All bytes, or an error that names the path; -EIO: the file has become shorter. */
int rh_file_read(const struct rh_file_in *file, int64_t offset, void *bytes, size_t length) RH_MUST;
void rh_file_close(struct rh_file_in *file); /* NULL is legal */

/* 1: this code means that the file's content is wrong (-EINVAL, or a part is missing), not that this machine failed at this moment.
 * Everything else (no more descriptors, no right to read, a read error, no memory) may pass. */
int rh_file_is_damage(int rc);

/* A file that appears under its name only when committed: written beside it under a temporary name, then fsync, rename,
 * fsync of the directory. Until rh_file_commit the old file, if any, stands untouched. */
struct rh_file_out;
int rh_file_create(const char *path, struct rh_file_out **out) RH_MUST;
int rh_file_write(struct rh_file_out *file, const void *bytes, size_t length) RH_MUST;
/* May a file appear there? 0 where nothing is or a regular file; -EEXIST, with a line, where a device, a pipe, a directory or a link is,
 * which a rename would destroy. rh_file_create asks it. */
int rh_file_check_replaceable(const char *path) RH_MUST;
/* Overwrites bytes that were written before. */
int rh_file_patch(struct rh_file_out *file, int64_t offset, const void *bytes, size_t length) RH_MUST;
/* Frees `file` whether it succeeds or not; on failure the temporary file is gone. */
int rh_file_commit(struct rh_file_out *file) RH_MUST;
/* Gives up: removes the temporary file and frees. NULL is legal. */
void rh_file_abandon(struct rh_file_out *file);

/* Create, write and commit in one call. */
int rh_file_write_whole(const char *path, const void *bytes, size_t length) RH_MUST;
/* The same without fsync, for what is of use only as long as the machine runs, or can be made again: after a power cut the file may be old,
 * empty or not there. */
int rh_file_put(const char *path, const void *bytes, size_t length) RH_MUST;

/* Copies src to dst in the same way, piece by piece. */
int rh_file_copy(const char *src, const char *dst) RH_MUST;

/* A file that grows by lines, each whole or not there; not flushed. Of what is there the first `keep` bytes stay. */
struct rh_file_log;
int rh_file_log_open(const char *path, int64_t keep, struct rh_file_log **out) RH_MUST;
int rh_file_log_append(struct rh_file_log *log, const void *bytes, size_t length) RH_MUST;
void rh_file_log_close(struct rh_file_log *log); /* NULL is legal */

/* Removes a name, or renames it within a file system; not flushed. A missing one is -ENOENT, without a line. */
int rh_file_remove(const char *path) RH_MUST;
/* The same for cleaning up after a fault, whose line is kept. */
void rh_file_discard(const char *path);
int rh_path_move(const char *from, const char *to) RH_MUST;

/* 1: there is something of that kind; symbolic links are followed, but not below the bound directory. */
int rh_file_exists(const char *path);
int rh_dir_exists(const char *path);
/* 1: there is something of any kind, links followed likewise. */
int rh_path_leads(const char *path);
enum rh_path_kind { RH_PATH_NONE, RH_PATH_FILE, RH_PATH_DIR, RH_PATH_LINK, RH_PATH_OTHER };
/* What is at the path itself, without following a link; negative errno (with a line) where that cannot be known. */
int rh_path_kind(const char *path) RH_MUST;

/* 1: both are there and are one, whatever their names. NULL is none. */
int rh_path_is_same(const char *left, const char *right);

/* Makes `path` and its parents, durably: each new directory's parent is flushed. */
int rh_dir_make(const char *path) RH_MUST;
/* Removes a directory and everything in it; links are removed, not what they point to. A missing directory is no error; a link or a file
 * in its place is -ENOTDIR and stays. */
int rh_dir_remove(const char *path) RH_MUST;
/* fsync of a directory, so that renames in it are durable; nothing where its user may not open it. */
int rh_dir_sync(const char *path) RH_MUST;

/* The names in a directory, sorted, without "." and "..". -ENOENT without a line. */
struct rh_names {
	char **name;
	size_t count, capacity;
};
int rh_dir_list(const char *path, struct rh_names *out) RH_MUST;
void rh_names_free(struct rh_names *names);

/* Locks a directory until its descriptor is closed, at the latest by the end of the process. -EBUSY, without a line: another has it. One
 * that cannot be locked at all is let pass with a warning, which begins with `key`. */
int rh_dir_lock(int descriptor, const char *key, const char *path) RH_MUST;

/* Binds the open directory `descriptor` to `path` until rh_dir_unbind; there is one at a time. Both stay the caller's. */
void rh_dir_bind(int descriptor, const char *path);
void rh_dir_unbind(void);
/* 1: the bound path still leads to the bound directory; 0: it was renamed or removed; also 1 where none is bound. */
int rh_dir_bound_is_there(void);

/* "a/b" into a fresh string (rh_free), NULL when out of memory. */
char *rh_path_join(const char *dir, const char *name) RH_MUST;

#endif
