#include "weights/digest.h"

#include "core/alloc.h"
#include "weights/tensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { ROWS = 4 }; /* of a tensor: the first, the last, and two between them */

static int add_tensor(const struct rh_source *source, const struct rh_model *model, const struct rh_tensor *tensor, enum rh_dtype dtype,
                      uint64_t *hash)
{
	char room[RH_SOURCE_NAME];
	const char *name = rh_weights_source_name(source, model, tensor, room);
	*hash = XXH3_64bits_withSeed(tensor->name, strlen(tensor->name), *hash);
	/* made packed here: other values than the file's; those of FP8_JOINT are the way of the products, not of the base */
	if (tensor->form && tensor->form != RH_FORM_FP8_JOINT && name && tensor->form != rh_source_form(source, tensor)) {
		const char *form = rh_form_traits(tensor->form)->name;
		*hash = XXH3_64bits_withSeed(form, strlen(form), *hash);
	}
	void *row = name ? rh_alloc((size_t)tensor->cols, sizeof(float)) : NULL;
	if (!row)
		return name ? -ENOMEM : 0;
	int64_t rows = tensor->parts ? 1 : tensor->rows; /* of the file's */
	int rc = 0;
	for (int64_t i = 0, before = -1; !rc && i < ROWS; i++) {
		int64_t at = (rows - 1) * i / (ROWS - 1);
		if (at == before)
			continue;
		before = at;
		rc = rh_source_read(source, name, at * tensor->cols, tensor->cols, dtype, row);
		*hash = XXH3_64bits_withSeed(row, (size_t)rh_dtype_bytes(dtype, tensor->cols), *hash);
	}
	rh_free(row);
	return rc;
}

int rh_base_digest(const struct rh_source *source, const struct rh_model *model, enum rh_dtype dtype, char digest[RH_DIGEST])
{
	uint64_t hash = 0;
	int rc = 0;
	for (int b = 0; !rc && b < model->blocks; b++)
		for (int t = 0; !rc && t < model->block[b].tensors; t++)
			if (!rh_weights_is_adapter(&model->block[b].tensor[t]))
				rc = add_tensor(source, model, &model->block[b].tensor[t], dtype, &hash);
	snprintf(digest, RH_DIGEST, "%016" PRIx64, hash);
	return rc;
}
