/* A made-up machine: files of /proc and /sys under a directory of its own. */
#ifndef RH_TESTS_MACHINE_MADE_UP_H
#define RH_TESTS_MACHINE_MADE_UP_H

#include "check.h"

#include "core/file.h"

#include <string.h>

struct root {
	char dir[64];
};

static inline void root_make(struct root *root)
{
	snprintf(root->dir, sizeof root->dir, "/tmp/rh-machine-XXXXXX");
	assert_non_null(mkdtemp(root->dir));
}

static inline void put(const struct root *root, const char *path, const char *text)
{
	char full[512];
	snprintf(full, sizeof full, "%s%s", root->dir, path);
	char *slash = strrchr(full, '/');
	*slash = 0;
	check_ok(rh_dir_make(full));
	*slash = '/';
	check_ok(rh_file_write_whole(full, text, strlen(text)));
}

static inline void root_close(const struct root *root)
{
	check_ok(rh_dir_remove(root->dir));
}

#endif
