/* A tensor's bytes in memory, for tests, until the process ends. */
#ifndef RH_TESTS_TENSOR_BYTES_H
#define RH_TESTS_TENSOR_BYTES_H

#include "check.h"

#include "ckpt/safetensors.h"

#include <string.h>

static inline const void *bytes_at(const struct rh_file_in *file, int64_t offset, int64_t length)
{
	static struct kept {
		struct kept *next;
		char bytes[];
	} * first;
	struct kept *kept = malloc(sizeof *kept + (size_t)length + 1);
	assert_non_null(kept);
	kept->next = first;
	first = kept;
	check_ok(rh_file_read(file, offset, kept->bytes, (size_t)length));
	return kept->bytes;
}

static inline const void *tensor_bytes(const struct rh_safetensors *file, const struct rh_safetensor *tensor)
{
	return bytes_at(rh_safetensors_file(file), tensor->offset, tensor->bytes);
}

#endif
