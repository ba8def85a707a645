/* Qwen 2 and 3: Llama with biases on q, k and v, or with a norm on each head's q and k. */
#include "model/families/families.h"

const struct rh_family family_qwen2 = {.architecture = "Qwen2ForCausalLM",
                                       .model_type = "qwen2",
                                       .names = &family_names_llama,
                                       .vocab_size = 151936,
                                       .intermediate_size = 22016,
                                       .key_value_heads = 32,
                                       .max_position = 32768,
                                       .bos = -1,
                                       .eos = -1,
                                       .attention_bias = RH_BIAS_QKV,
                                       .windows = RH_WINDOWS_UPPER,
                                       .window = 4096};

const struct rh_family family_qwen3 = {.architecture = "Qwen3ForCausalLM",
                                       .model_type = "qwen3",
                                       .names = &family_names_llama,
                                       .vocab_size = 151936,
                                       .intermediate_size = 22016,
                                       .key_value_heads = 32,
                                       .head_dim = 128,
                                       .max_position = 32768,
                                       .bos = -1,
                                       .eos = -1,
                                       .qk_norm = 1,
                                       .windows = RH_WINDOWS_UPPER,
                                       .window = 4096};
