/* Files by pattern: `*`, `?` and `[...]` within a name, `**` for any folders. Hidden names, which begin with a dot, match only where that
 * part of the pattern begins so too. */
#ifndef RH_CORE_GLOB_H
#define RH_CORE_GLOB_H

#include "core/file.h"

/* The paths of all files that match, sorted; none is no fault. `base`, "" or a folder's path, is taken as it is; the pattern is looked for
 * below it. In place of `**` no folder is entered through a symbolic link. */
int rh_glob(const char *base, const char *pattern, struct rh_names *out) RH_MUST;
/* 1: `path` has such a mark. */
int rh_glob_is_pattern(const char *path);

#endif
