/* Directories that stand for drives. */
#ifndef RH_TESTS_OFFLOAD_DRIVES_H
#define RH_TESTS_OFFLOAD_DRIVES_H

#include "check.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DRIVES = 3 };

struct drives {
	char root[64], dir[DRIVES][96];
	char *name[DRIVES]; /* as options want them */
};

static inline void drives_make_in(struct drives *drives, const char *where)
{
	char root[sizeof drives->root];
	snprintf(root, sizeof root, "%s/rh-drives-XXXXXX", where);
	assert_non_null(mkdtemp(root));
	memcpy(drives->root, root, sizeof root);
	for (int d = 0; d < DRIVES; d++) {
		snprintf(drives->dir[d], sizeof drives->dir[d], "%s/%d", root, d);
		drives->name[d] = drives->dir[d];
		assert_int_equal(mkdir(drives->dir[d], 0777), 0);
	}
}

/* Where files are memory, if there is such a place: quick. */
static inline void drives_make(struct drives *drives)
{
	drives_make_in(drives, check_place("build"));
}

/* Nothing was left in them. */
static inline void drives_remove(const struct drives *drives)
{
	for (int d = 0; d < DRIVES; d++)
		assert_int_equal(rmdir(drives->dir[d]), 0);
	assert_int_equal(rmdir(drives->root), 0);
}

/* Those of a whole group of tests. */
static struct drives group_drives __attribute__((unused));

static inline int group_drives_make(void **state)
{
	(void)state;
	drives_make(&group_drives);
	return 0;
}

static inline int group_drives_remove(void **state)
{
	(void)state;
	drives_remove(&group_drives);
	return 0;
}

#endif
