/* Files: read whole by mapping; written whole or not at all. */
#ifndef RH_CORE_FILE_H
#define RH_CORE_FILE_H

#include "core/error.h"

#include <stdint.h>

struct rh_mapping {
	const char *bytes; /* read-only; never NULL after a successful map, also for an empty file */
	size_t length;
};

/* Maps `path` for reading. Errors name the path. */
int rh_file_map(const char *path, struct rh_mapping *out) RH_MUST;
void rh_file_unmap(struct rh_mapping *mapping);
/* This part of a mapping will not be read soon: its pages no longer count as this process's memory. They come back when touched. */
void rh_file_forget(const void *bytes, size_t length);

/* A file that appears under its name only when committed: written beside it under a temporary name, then fsync, rename,
 * fsync of the directory. Until rh_file_commit the old file, if any, stands untouched. */
struct rh_file_out;
int rh_file_create(const char *path, struct rh_file_out **out) RH_MUST;
int rh_file_write(struct rh_file_out *file, const void *bytes, size_t length) RH_MUST;
/* Frees `file` whether it succeeds or not; on failure the temporary file is gone. */
int rh_file_commit(struct rh_file_out *file) RH_MUST;
/* Gives up: removes the temporary file and frees. NULL is legal. */
void rh_file_abandon(struct rh_file_out *file);

/* The three above in one go. */
int rh_file_write_whole(const char *path, const void *bytes, size_t length) RH_MUST;

/* Copies src to dst through the same door. */
int rh_file_copy(const char *src, const char *dst) RH_MUST;

int rh_file_exists(const char *path);
int rh_dir_exists(const char *path);
/* Makes `path` and its parents, durably: each that is new is flushed into the one above. */
int rh_dir_make(const char *path) RH_MUST;
/* Removes a directory and all in it. A missing one is no error. */
int rh_dir_remove(const char *path) RH_MUST;
/* fsync of a directory, so that renames in it are durable; nothing where its user may not open it. */
int rh_dir_sync(const char *path) RH_MUST;

/* Locks a directory until its descriptor is closed, at the latest by the end of the process. -EBUSY, without a line: another has it. One
 * that cannot be locked at all is let pass with a warning, which begins with `key`. */
int rh_dir_lock(int descriptor, const char *key, const char *path) RH_MUST;

/* "a/b" into a fresh string (rh_free), NULL when out of memory. */
char *rh_path_join(const char *dir, const char *name) RH_MUST;

#endif
