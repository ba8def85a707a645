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
	ROW(qwen3_next)                                                                                                                    \
	ROW(qwen3_moe)                                                                                                                     \
	ROW(glm4_moe_lite)                                                                                                                 \
	ROW(deepseek_v3)                                                                                                                   \
	ROW(gpt_oss)                                                                                                                       \
	ROW(gpt2)                                                                                                                          \
	ROW(bert)                                                                                                                          \
	ROW(vit)

#define RH_FAMILY_DECLARE(name) extern const struct rh_family family_##name;
RH_FAMILIES(RH_FAMILY_DECLARE)
#undef RH_FAMILY_DECLARE

/* Parts of rh_family_names that families share: a model's own modules, where it stands alone or inside a larger one; linears of attention
 * and of a gated MLP; norms. */
#define RH_NAMES_BEHIND(prefix)                                                                                                            \
	.embedding = prefix "embed_tokens", .layers = prefix "layers.", .final_norm = prefix "norm", .head = "lm_head"
#define RH_NAMES_ALONE  RH_NAMES_BEHIND("model.")
#define RH_NAMES_INSIDE RH_NAMES_BEHIND("model.language_model.")
#define RH_QKVO_NAMES   .attention = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}
#define RH_GATED_NAMES  .mlp = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
#define RH_FOUR_NORMS   .norm = {"input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"}

/* Llama's names, which many others took over. */
extern const struct rh_family_names family_names_llama;

#endif
