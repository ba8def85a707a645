/* Where a path leads: shared by file.c and dir.c. */
#ifndef RH_CORE_FILE_INTERNAL_H
#define RH_CORE_FILE_INTERNAL_H

#include "core/file.h"
#include "core/fs.h"

enum place_use {
	PLACE_READ,  /* links are followed */
	PLACE_CHANGE /* below the bound directory no link is followed */
};

/* A directory and a name in it, as the file layer takes them. */
struct place {
	int dir;
	const char *name; /* into the path that was given */
	int opened;       /* `dir` is this place's own and closed by place_close */
	int bound;        /* it lies below the bound directory */
};

/* -ENOTDIR, with a line, where a link or a file is in the way of a change. */
int place_of(const char *path, enum place_use use, struct place *out) RH_MUST;
void place_close(struct place *place);

#endif
