/* A model on disk: its configuration, its tokenizer's files and its tensors by Hugging Face name and in Hugging Face order, from a
 * directory (config.json + sharded safetensors) or a GGUF file. Headers are checked whole when opened; data is mapped, not copied. */
#ifndef RH_CKPT_SOURCE_H
#define RH_CKPT_SOURCE_H

#include "core/dtype.h"
#include "model/config.h"
#include "token/tokenizer.h"

struct rh_source;

struct rh_source_tensor {
	enum rh_dtype dtype; /* as stored */
	int rank;
	int64_t shape[4]; /* outermost first; a GGUF's are turned round */
};

int rh_source_open(const char *path, struct rh_source **out) RH_MUST;
void rh_source_close(struct rh_source *source);

const char *rh_source_path(const struct rh_source *source);
const struct rh_model_config *rh_source_config(const struct rh_source *source);
int rh_source_tokenizer(const struct rh_source *source, struct rh_tokenizer **out) RH_MUST;

/* 1 and *out if the tensor exists, else 0. */
int rh_source_find(const struct rh_source *source, const char *name, struct rh_source_tensor *out);

/* Converts (dequantises, un-permutes) the tensor's elements to F32 or BF16 (nearest even) at `out`. -EINVAL if `elements` is not the
 * tensor's number of elements; -ENOENT if it is missing, with a line that says so. Elements [first, first+count) in row-major order, whole
 * rows of the last dimension. Callable from several threads. */
int rh_source_read(const struct rh_source *source, const char *name, int64_t first, int64_t count, enum rh_dtype dtype, void *out) RH_MUST;

/* Copies tokenizer and generation files of a Hugging Face directory into `dir`; from a GGUF, nothing can be copied and nothing is. */
int rh_source_copy_tokenizer(const struct rh_source *source, const char *dir) RH_MUST;

#endif
