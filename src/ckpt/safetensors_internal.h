/* What reader and writer of safetensors share. */
#ifndef RH_CKPT_SAFETENSORS_INTERNAL_H
#define RH_CKPT_SAFETENSORS_INTERNAL_H

#include "ckpt/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <xxhash.h>

enum { SAFETENSORS_SUM_DIGITS = 32 };

/* The sum of what was added, as it stands in the header. */
static inline void safetensors_sum(const XXH3_state_t *state, char hex[SAFETENSORS_SUM_DIGITS + 1])
{
	XXH128_hash_t hash = XXH3_128bits_digest(state);
	snprintf(hex, SAFETENSORS_SUM_DIGITS + 1, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64, (uint64_t)hash.low64);
}

#endif
