/* GGUF files written: metadata, then the tensors' table, then their data, each tensor on a border of 32 bytes. */
#ifndef RH_CKPT_GGUF_OUT_H
#define RH_CKPT_GGUF_OUT_H

#include "core/dtype.h"
#include "core/error.h"

#include <stddef.h>

/* `elements` (a multiple of the block) in a type that llama.cpp reads: F32, F16, BF16, Q8_0 or Q4_0, bit-equal to gguf.quants.quantize;
 * Q5_0, Q5_1, Q4_K, Q5_K or Q6_K, bit-equal to ggml's own quantiser. On the pool's threads; NULL: the caller's alone. Returns the bytes
 * written. */
struct rh_pool;
int64_t rh_quantise(struct rh_pool *pool, enum rh_dtype dtype, const float *values, int64_t elements, void *out);

/* The key by which a file that this program wrote is known; true. */
#define RH_GGUF_WRITTEN "roundhouse.written"

struct rh_gguf_out;
/* The file appears under its name when committed. */
int rh_gguf_out_create(const char *path, struct rh_gguf_out **out) RH_MUST;

/* Metadata. */
int rh_gguf_out_string(struct rh_gguf_out *out, const char *key, const char *text) RH_MUST;
int rh_gguf_out_u32(struct rh_gguf_out *out, const char *key, int64_t value) RH_MUST;
int rh_gguf_out_f32(struct rh_gguf_out *out, const char *key, double value) RH_MUST;
int rh_gguf_out_bool(struct rh_gguf_out *out, const char *key, int value) RH_MUST;
int rh_gguf_out_bools(struct rh_gguf_out *out, const char *key, const unsigned char *value, size_t count) RH_MUST;
int rh_gguf_out_strings(struct rh_gguf_out *out, const char *key, const char *const *text, const size_t *bytes, size_t count) RH_MUST;
int rh_gguf_out_ints(struct rh_gguf_out *out, const char *key, const int32_t *value, size_t count) RH_MUST;
int rh_gguf_out_floats(struct rh_gguf_out *out, const char *key, const float *value, size_t count) RH_MUST;
/* All pairs of another file but RH_GGUF_WRITTEN and those whose keys are in `without` (NULL-terminated). */
struct rh_gguf;
int rh_gguf_out_copy(struct rh_gguf_out *out, const struct rh_gguf *from, const char *const *without) RH_MUST;

/* Tensors, in the order of their data; `cols` elements a row, `rows` 0: a vector. Stacked: so many matrices one behind the other, 0: one
 * tensor as above. */
int rh_gguf_out_tensor(struct rh_gguf_out *out, const char *name, enum rh_dtype dtype, int64_t rows, int64_t cols) RH_MUST;
int rh_gguf_out_stacked(struct rh_gguf_out *out, const char *name, enum rh_dtype dtype, int64_t matrices, int64_t rows,
                        int64_t cols) RH_MUST;

/* Writes header and metadata; then the tensors' bytes follow, cut in any way. rh_gguf_out_end ends each tensor. */
int rh_gguf_out_begin(struct rh_gguf_out *out) RH_MUST;
int rh_gguf_out_write(struct rh_gguf_out *out, const void *bytes, int64_t length) RH_MUST;
int rh_gguf_out_end(struct rh_gguf_out *out) RH_MUST;
/* Frees either way. */
int rh_gguf_out_commit(struct rh_gguf_out *out) RH_MUST;
void rh_gguf_out_abandon(struct rh_gguf_out *out);

#endif
