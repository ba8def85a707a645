/* Pointers of git-lfs: what a clone holds in place of large files until `git lfs pull` fetches them. */
#ifndef RH_CORE_LFS_H
#define RH_CORE_LFS_H

#include "core/error.h"

/* -EINVAL, naming the mend and the size of the true file, where `bytes`, the beginning of `path` or all of it, are a pointer; else 0. */
int rh_lfs_refuse(const char *path, const void *bytes, size_t length) RH_MUST;

/* The same for a file that is open: only what is as short as a pointer is read. */
struct rh_file_in;
int rh_lfs_refuse_file(const struct rh_file_in *file) RH_MUST;

#endif
