/* safetensors files: an 8-byte length, a JSON header, raw tensors. */
#ifndef RH_CKPT_SAFETENSORS_H
#define RH_CKPT_SAFETENSORS_H

#include "core/dtype.h"
#include "core/file.h"

enum { RH_SAFETENSORS_RANK = 8 };

struct rh_safetensor {
	const char *name;
	enum rh_dtype dtype;
	int rank;
	int64_t shape[RH_SAFETENSORS_RANK];
	int64_t offset, bytes; /* in the file */
};

struct rh_safetensors;
/* Checks the whole header: offsets inside the file, no overlap, no gap, sizes equal to shape x dtype. */
int rh_safetensors_open(const char *path, struct rh_safetensors **out) RH_MUST;
void rh_safetensors_close(struct rh_safetensors *file);
/* `bytes` of the tensor from `first` on. Errors name the file. */
int rh_safetensors_read(const struct rh_safetensors *file, const struct rh_safetensor *tensor, int64_t first, void *out,
                        int64_t bytes) RH_MUST;
/* The tensors' bytes against the XXH3-128 that this program writes into the header: 1: they match, 0: the header has none, -EINVAL. */
int rh_safetensors_verify(const struct rh_safetensors *file) RH_MUST;
#define RH_SAFETENSORS_SUM "roundhouse_xxh3_128"
const struct rh_file_in *rh_safetensors_file(const struct rh_safetensors *file); /* borrowed until it is closed */
int64_t rh_safetensors_count(const struct rh_safetensors *file);
/* In the order of their data. */
const struct rh_safetensor *rh_safetensors_at(const struct rh_safetensors *file, int64_t index);
/* NULL if there is none of that name. */
const struct rh_safetensor *rh_safetensors_find(const struct rh_safetensors *file, const char *name);

/* Writing: all tensors are declared first, then their bytes follow in the order declared. The file appears whole or not at all. */
struct rh_safetensors_out;
struct rh_safetensors_entry {
	const char *name;
	enum rh_dtype dtype; /* a plain one */
	int rank;
	int64_t shape[RH_SAFETENSORS_RANK];
};
int rh_safetensors_create(const char *path, const struct rh_safetensors_entry *entries, int64_t count,
                          struct rh_safetensors_out **out) RH_MUST;
/* Writes the next bytes, cut in any way; -EINVAL if more come than were declared. */
int rh_safetensors_write(struct rh_safetensors_out *file, const void *bytes, int64_t length) RH_MUST;
/* Frees either way; -EINVAL if fewer bytes came than were declared. */
int rh_safetensors_commit(struct rh_safetensors_out *file) RH_MUST;
/* Gives up: nothing appears. NULL is legal. */
void rh_safetensors_abandon(struct rh_safetensors_out *file);

#endif
