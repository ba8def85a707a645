/* The metadata of a GGUF file that a model is written as. */
#ifndef RH_CKPT_MERGE_GGUF_H
#define RH_CKPT_MERGE_GGUF_H

#include "ckpt/gguf_out.h"
#include "model/config.h"
#include "token/tokenizer.h"

/* Of a Hugging Face directory: sizes, what its layers have of their own, rotary scaling, the vocabulary of its tokenizer, the special
 * tokens and the chat template, which `chat` replaces where it is not NULL. eos_of: the tokenizer whose end-of-sequence token is written;
 * NULL: the directory's. -EINVAL: what llama.cpp does not run, or not as the model is. */
int rh_gguf_describe(struct rh_gguf_out *out, const struct rh_model_config *config, const char *dir, const char *chat,
                     const struct rh_tokenizer *eos_of, int64_t file_type) RH_MUST;

/* The architecture that a GGUF of the model names. */
const char *rh_gguf_architecture(const struct rh_model_config *config);

/* merge_gguf_layers.c, of rh_gguf_describe's: windows, experts, the gated delta rule, heads by kind of layer, factors. */
int merge_gguf_layers(struct rh_gguf_out *out, const struct rh_model_config *config, const char *dir) RH_MUST;
/* A number under "<architecture>.<key>". */
int merge_gguf_int(struct rh_gguf_out *out, const struct rh_model_config *config, const char *key, int64_t value) RH_MUST;
int merge_gguf_real(struct rh_gguf_out *out, const struct rh_model_config *config, const char *key, double value) RH_MUST;

/* Vectors that are in the file and not in the model: the rotary divisors of each pair, and weights of norms that have none. */
struct rh_gguf_extra {
	char name[48];
	float *value;
	int64_t values;
};
struct rh_gguf_extras {
	struct rh_gguf_extra *extra;
	size_t count, capacity;
};
int rh_gguf_extras_make(const struct rh_model_config *config, struct rh_gguf_extras *out) RH_MUST;
void rh_gguf_extras_free(struct rh_gguf_extras *extras);
int rh_gguf_extra_write(struct rh_gguf_out *out, const struct rh_gguf_extra *extra) RH_MUST;

#endif
