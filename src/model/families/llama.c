/* Llama: RMSNorm, rotary attention, SwiGLU. */
#include "model/families/families.h"

const struct rh_family_names family_names_llama = {RH_NAMES_ALONE,       .norm = {"input_layernorm", "post_attention_layernorm"},
                                                   RH_QKVO_NAMES,        RH_GATED_NAMES,
                                                   .router = "mlp.gate", .experts = "mlp.experts"};

const struct rh_family family_llama = {
        .architecture = "LlamaForCausalLM",
        .model_type = "llama",
        .names = &family_names_llama,
        .silent = {.vocab_size = 32000, .intermediate_size = 11008, .max_position = 2048, .bos = 1, .eos = 2},
        .mlp = {.may_have_bias = 1},
        .gguf = {.architecture = "llama", .permuted = 1}};
