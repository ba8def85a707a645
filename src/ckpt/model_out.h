/* Writes the weights of a Hugging Face model directory as their bytes arrive: model.safetensors, or shards and
 * model.safetensors.index.json when there are more bytes than one shard may hold. config.json and the tokenizer's files are the caller's
 * to write. */
#ifndef RH_CKPT_MODEL_OUT_H
#define RH_CKPT_MODEL_OUT_H

#include "ckpt/safetensors.h"

#define RH_SHARD_BYTES 5000000000 /* transformers' "5GB" */

struct rh_model_out;

/* The entries describe the tensors that will be written, in this order; leave lm_head.weight out where it is tied. They and their names
 * are borrowed until commit or abandon. A tensor larger than shard_bytes gets a shard of its own. `dir` must exist. */
int rh_model_out_create(const char *dir, const struct rh_safetensors_entry *entries, int64_t count, int64_t shard_bytes,
                        struct rh_model_out **out) RH_MUST;
/* Writes the next bytes, cut in any way. */
int rh_model_out_write(struct rh_model_out *out, const void *bytes, int64_t length) RH_MUST;
/* Gives the files their names, once all are whole; an earlier model's files in the directory stay until then. While files are renamed,
 * the index last, the directory holds no complete model. -EINVAL: fewer bytes were written than declared. On failure every written file
 * is removed. Frees `out` in any case. */
int rh_model_out_commit(struct rh_model_out *out) RH_MUST;
/* Removes what was written. NULL is legal. */
void rh_model_out_abandon(struct rh_model_out *out);

#endif
