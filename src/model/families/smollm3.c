/* SmolLM3: Llama with layers that do not rotate, each fourth as published. */
#include "model/families/families.h"

const struct rh_family family_smollm3 = {.architecture = "SmolLM3ForCausalLM",
                                         .model_type = "smollm3",
                                         .names = &family_names_llama,
                                         .silent = {.vocab_size = 128256,
                                                    .hidden_size = 2048,
                                                    .intermediate_size = 11008,
                                                    .layers = 36,
                                                    .heads = 16,
                                                    .key_value_heads = 4,
                                                    .max_position = 32768,
                                                    .bos = 128000,
                                                    .eos = 128001,
                                                    .tie_word_embeddings = 1},
                                         .own_key = {"no_rope_layers", "no_rope_layer_interval"},
                                         .attention = {.bias = RH_BIAS_AS_SAID, .unrotated_period = 4},
                                         .mlp = {.may_have_bias = 1},
                                         .gguf = {.architecture = "smollm3", .permuted = 1}};
