/* The families of this folder. To add one: a file here, and its rows below. */
#ifndef RH_MODEL_FAMILIES_H
#define RH_MODEL_FAMILIES_H

#include "model/family.h"

#define RH_FAMILIES(ROW)                                                                                                                   \
	ROW(llama)                                                                                                                         \
	ROW(qwen2)                                                                                                                         \
	ROW(qwen3)                                                                                                                         \
	ROW(smollm3)                                                                                                                       \
	ROW(olmo2)                                                                                                                         \
	ROW(olmo3)                                                                                                                         \
	ROW(granite)                                                                                                                       \
	ROW(granite_hybrid)                                                                                                                \
	ROW(mistral)                                                                                                                       \
	ROW(ministral3)                                                                                                                    \
	ROW(phi3)                                                                                                                          \
	ROW(gemma3)                                                                                                                        \
	ROW(gemma4)                                                                                                                        \
	ROW(muse_glimmer)                                                                                                                  \
	ROW(qwen3_5)                                                                                                                       \
	ROW(qwen3_5_moe)                                                                                                                   \
	ROW(qwen3_moe)                                                                                                                     \
	ROW(gpt_oss)                                                                                                                       \
	ROW(gpt2)                                                                                                                          \
	ROW(bert)                                                                                                                          \
	ROW(vit)

#define RH_FAMILY_DECLARE(name) extern const struct rh_family family_##name;
RH_FAMILIES(RH_FAMILY_DECLARE)
#undef RH_FAMILY_DECLARE

/* Llama's names, which many others took over. */
extern const struct rh_family_names family_names_llama;

#endif
