/* What a folder holds, for tests that leave nothing behind. */
#ifndef RH_TESTS_FOLDER_H
#define RH_TESTS_FOLDER_H

#include "check.h"

#include <dirent.h>
#include <string.h>

/* Fails where it holds anything; one that is not there holds nothing. */
static inline void check_folder_is_empty(const char *path)
{
	DIR *dir = opendir(path);
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			fail_msg("%s holds %s", path, entry->d_name);
	if (dir)
		closedir(dir);
}

#endif
