/* Llama: RMSNorm, rotary attention, SwiGLU. */
#include "model/families/families.h"

const struct rh_family_names family_names_llama = {
        .embedding = "model.embed_tokens",
        .layers = "model.layers.",
        .final_norm = "model.norm",
        .head = "lm_head",
        .norm = {"input_layernorm", "post_attention_layernorm"},
        .attention = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"},
        .mlp = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"},
        .router = "mlp.gate",
        .experts = "mlp.experts"};

const struct rh_family family_llama = {
        .architecture = "LlamaForCausalLM",
        .model_type = "llama",
        .names = &family_names_llama,
        .silent = {.vocab_size = 32000, .intermediate_size = 11008, .max_position = 2048, .bos = 1, .eos = 2},
        .mlp = {.may_have_bias = 1},
        .gguf = {.architecture = "llama", .permuted = 1}};
