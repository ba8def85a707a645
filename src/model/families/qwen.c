/* Qwen 2 and 3: Llama with biases on q, k and v, or with a norm on each head's q and k. */
#include "model/families/families.h"

const struct rh_family family_qwen2 = {.architecture = "Qwen2ForCausalLM",
                                       .model_type = "qwen2",
                                       .names = &family_names_llama,
                                       .silent = {.vocab_size = 151936,
                                                  .intermediate_size = 22016,
                                                  .key_value_heads = 32,
                                                  .max_position = 32768,
                                                  .bos = -1,
                                                  .eos = -1,
                                                  .window = 4096},
                                       .attention = {.bias = RH_BIAS_QKV, .windows = RH_WINDOWS_UPPER},
                                       .gguf = {.architecture = "qwen2"}};

const struct rh_family family_qwen3 = {.architecture = "Qwen3ForCausalLM",
                                       .model_type = "qwen3",
                                       .names = &family_names_llama,
                                       .silent = {.vocab_size = 151936,
                                                  .intermediate_size = 22016,
                                                  .key_value_heads = 32,
                                                  .head_dim = 128,
                                                  .max_position = 32768,
                                                  .bos = -1,
                                                  .eos = -1,
                                                  .window = 4096},
                                       .attention = {.qk_norm = RH_QK_NORM_HEADS, .windows = RH_WINDOWS_UPPER},
                                       .gguf = {.architecture = "qwen3"}};

/* Qwen3 with experts in place of the MLP, but in some layers. */
const struct rh_family family_qwen3_moe = {.architecture = "Qwen3MoeForCausalLM",
                                           .model_type = "qwen3_moe",
                                           .names = &family_names_llama,
                                           .silent = {.vocab_size = 151936,
                                                      .hidden_size = 2048,
                                                      .intermediate_size = 6144,
                                                      .layers = 24,
                                                      .key_value_heads = 4,
                                                      .max_position = 32768,
                                                      .bos = -1,
                                                      .eos = -1,
                                                      .window = 4096,
                                                      .experts = 128,
                                                      .experts_per_token = 8,
                                                      .expert_size = 768},
                                           .own_key = {"num_experts", "num_local_experts"},
                                           .attention = {.qk_norm = RH_QK_NORM_HEADS, .windows = RH_WINDOWS_USED},
                                           .gguf = {.architecture = "qwen3moe", .names = {{"mlp.gate", "ffn_gate_inp"}}}};
