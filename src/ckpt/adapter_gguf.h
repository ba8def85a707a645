/* An adapter as a GGUF file that llama.cpp takes beside a GGUF of its base (--lora). */
#ifndef RH_CKPT_ADAPTER_GGUF_H
#define RH_CKPT_ADAPTER_GGUF_H

#include "ckpt/merge.h"

struct rh_adapter_gguf {
	const char *model;   /* the base: a Hugging Face directory or a .gguf file */
	const char *adapter; /* a PEFT directory */
	const char *path;    /* to write */
	enum rh_dtype dtype; /* of the factors; rows that a block type cannot hold are F16 */
};
/* Names and order of rows are those of GGUFs, as llama.cpp's convert_lora_to_gguf.py writes them. The file has one alpha, and llama.cpp
 * divides it by each pair's rank: where PEFT scales a module otherwise (use_rslora, alpha_pattern), its B carries the difference.
 * -EINVAL: adapter tensors that fit no module, models that GGUFs have no names for. */
int rh_adapter_gguf_write(const struct rh_adapter_gguf *wanted, struct rh_merged *out) RH_MUST;

#endif
