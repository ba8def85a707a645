/* Inside the space: directories and their files (space_file.c). */
#ifndef RH_OFFLOAD_SPACE_INTERNAL_H
#define RH_OFFLOAD_SPACE_INTERNAL_H

#include "offload/space.h"

struct space_file {
	const char *dir; /* borrowed */
	int directory;   /* descriptor, locked; -1: none */
	int file;
	int direct;       /* O_DIRECT */
	int64_t unit;     /* of offsets and addresses */
	int64_t reserved; /* bytes on the drive */
};

/* Opens and locks the directory, makes the nameless file in it, and asks for its alignment. On failure nothing is open. */
int space_file_open(const char *dir, struct space_file *out) RH_MUST;
void space_file_close(struct space_file *file);
/* Makes the file `bytes` long, and has the file system allocate all of them. */
int space_file_reserve(struct space_file *file, int64_t bytes) RH_MUST;

#endif
