#include "core/hash.h"

#include "core/alloc.h"
#include "core/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <xxhash.h>

int rh_file_hash(const char *path, char hex[RH_FILE_HASH])
{
	enum { PIECE = 1 << 18 };
	struct rh_file_in *file = NULL;
	XXH3_state_t *state = XXH3_createState();
	char *piece = rh_alloc(PIECE, 1);
	int rc = state && piece ? rh_file_open(path, &file) : -ENOMEM;
	if (!rc)
		XXH3_128bits_reset(state);
	for (int64_t at = 0; !rc && at < rh_file_length(file); at += PIECE) {
		size_t length = rh_file_length(file) - at < PIECE ? (size_t)(rh_file_length(file) - at) : PIECE;
		rc = rh_file_read(file, at, piece, length);
		if (!rc)
			XXH3_128bits_update(state, piece, length);
	}
	if (!rc) {
		XXH128_hash_t hash = XXH3_128bits_digest(state);
		snprintf(hex, RH_FILE_HASH, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64, (uint64_t)hash.low64);
	}
	rh_file_close(file);
	XXH3_freeState(state);
	rh_free(piece);
	return rc;
}
