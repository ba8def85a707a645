/* Checksums of files. */
#ifndef RH_CORE_HASH_H
#define RH_CORE_HASH_H

#include "core/error.h"

enum { RH_FILE_HASH = 33 };

/* XXH3-128 of a file, as 32 digits. */
int rh_file_hash(const char *path, char hex[RH_FILE_HASH]) RH_MUST;

#endif
