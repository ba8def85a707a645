/* safetensors: the header, and every byte that it promises. */
#include "fuzz/fuzz.h"

#include "ckpt/safetensors.h"

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	struct rh_safetensors *file;
	int rc = rh_safetensors_open(fuzz_file(bytes, length), &file);
	if (rc) {
		fuzz_refused(rc);
		return 0;
	}
	for (int64_t i = 0; i < rh_safetensors_count(file); i++) {
		const struct rh_safetensor *tensor = rh_safetensors_at(file, i);
		char ends[2];
		if (rh_safetensors_find(file, tensor->name) == NULL)
			abort();
		if (tensor->bytes && (rh_safetensors_read(file, tensor, 0, &ends[0], 1) ||
		                      rh_safetensors_read(file, tensor, tensor->bytes - 1, &ends[1], 1)))
			abort();
	}
	rh_safetensors_close(file);
	return 0;
}

FUZZ_MAIN("safetensors")
