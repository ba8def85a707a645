/* GGUF files, versions 2 and 3: metadata, tensor table, data. Everything is checked before anything is believed. */
#ifndef RH_CKPT_GGUF_H
#define RH_CKPT_GGUF_H

#include "core/dtype.h"
#include "core/file.h"

struct rh_gguf;
struct rh_gguf_tensor {
	const char *name;
	enum rh_dtype dtype;
	int rank;
	int64_t shape[4];              /* outermost first (the file has them innermost first) */
	const struct rh_file_in *file; /* that of its part; borrowed until the GGUF is closed */
	int64_t offset, bytes;         /* in the file */
};

/* Refused, each with its line: truncated or lying headers, repeated keys or tensor names, element types that cannot be read, tensors
 * that overlap or leave the file, big-endian files, version 1. A model split into parts,
 * NAME-00001-of-00003.gguf and so on, is opened by its first one, which has the metadata; the tensors are those of all parts. */
int rh_gguf_open(const char *path, struct rh_gguf **out) RH_MUST;
void rh_gguf_close(struct rh_gguf *gguf);
/* Frees the metadata: from now on its keys are absent; tensors stay. */
void rh_gguf_forget(struct rh_gguf *gguf);
const struct rh_gguf_tensor *rh_gguf_find(const struct rh_gguf *gguf, const char *name);
int64_t rh_gguf_count(const struct rh_gguf *gguf);
const struct rh_gguf_tensor *rh_gguf_at(const struct rh_gguf *gguf, int64_t index);

/* Metadata. 1 and *out when the key is there with a fitting type, 0 when it is absent, -EINVAL when its type is wrong. */
int rh_gguf_int(const struct rh_gguf *gguf, const char *key, int64_t *out) RH_MUST;
int rh_gguf_real(const struct rh_gguf *gguf, const char *key, double *out) RH_MUST;
int rh_gguf_bool(const struct rh_gguf *gguf, const char *key, int *out) RH_MUST;
/* Not NUL-terminated in the file; copies here are, and live as long as the file. */
int rh_gguf_string(const struct rh_gguf *gguf, const char *key, const char **out) RH_MUST;
/* Arrays. Strings: freshly allocated lists (rh_free both) of pointers into the header, not NUL-terminated. Numbers: converted. */
int rh_gguf_strings(const struct rh_gguf *gguf, const char *key, size_t *count, const char ***text, size_t **bytes) RH_MUST;
int rh_gguf_floats(const struct rh_gguf *gguf, const char *key, size_t *count, float **out) RH_MUST;
int rh_gguf_ints(const struct rh_gguf *gguf, const char *key, size_t *count, int32_t **out) RH_MUST;
/* Truths or whole numbers: 0 or 1 for each. */
int rh_gguf_flags(const struct rh_gguf *gguf, const char *key, size_t *count, unsigned char **out) RH_MUST;
/* 1: the value is an array. */
int rh_gguf_is_array(const struct rh_gguf *gguf, const char *key);
const char *rh_gguf_path(const struct rh_gguf *gguf);

/* Dequantises `elements` (a multiple of the block) to fp32, bit-equal to gguf.quants.dequantize. */
int rh_dequantise(enum rh_dtype dtype, const void *blocks, int64_t elements, float *out) RH_MUST;

#endif
