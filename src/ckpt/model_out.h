/* The weights of a Hugging Face model directory, written as they come: model.safetensors, or shards and model.safetensors.index.json when
 * there are more bytes than one shard may hold. config.json and the tokenizer's files are others' to write. */
#ifndef RH_CKPT_MODEL_OUT_H
#define RH_CKPT_MODEL_OUT_H

#include "ckpt/safetensors.h"

#define RH_SHARD_BYTES 5000000000 /* transformers' "5GB" */

struct rh_model_out;

/* The entries say what will come, in this order; leave lm_head.weight out where it is tied. They and their names are borrowed until
 * commit or abandon. A tensor that is larger than shard_bytes gets a shard of its own. `dir` exists. */
int rh_model_out_create(const char *dir, const struct rh_safetensors_entry *entries, int64_t count, int64_t shard_bytes,
                        struct rh_model_out **out) RH_MUST;
/* The next bytes, in any cut. */
int rh_model_out_write(struct rh_model_out *out, const void *bytes, int64_t length) RH_MUST;
/* Frees either way. Files get their names when all are whole, and an earlier model's in the same directory stand until then; from the first
 * name to the last, which is the index's, there is no model to be seen. -EINVAL if fewer bytes came than were declared. On failure every
 * file written is gone. */
int rh_model_out_commit(struct rh_model_out *out) RH_MUST;
/* Removes what was written. NULL is legal. */
void rh_model_out_abandon(struct rh_model_out *out);

#endif
