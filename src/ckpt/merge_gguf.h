/* The metadata of a GGUF file that a model is written as. */
#ifndef RH_CKPT_MERGE_GGUF_H
#define RH_CKPT_MERGE_GGUF_H

#include "ckpt/gguf_out.h"
#include "model/config.h"
#include "token/tokenizer.h"

/* Of a Hugging Face directory: sizes, rotary scaling, the byte-level BPE vocabulary of its tokenizer, the special tokens and the chat
 * template, which `chat` replaces where it is not NULL. eos_of: the tokenizer whose end-of-sequence token is written; NULL: the
 * directory's. *rope_freqs: the divisors that go into the tensor rope_freqs.weight (rh_free it), NULL where there are none. */
int rh_gguf_describe(struct rh_gguf_out *out, const struct rh_model_config *config, const char *dir, const char *chat,
                     const struct rh_tokenizer *eos_of, enum rh_dtype dtype, float **rope_freqs) RH_MUST;

#endif
