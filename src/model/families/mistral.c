/* Mistral: Llama with an attention window in every layer. */
#include "model/families/families.h"

const struct rh_family family_mistral = {.architecture = "MistralForCausalLM",
                                         .model_type = "mistral",
                                         .names = &family_names_llama,
                                         .vocab_size = 32000,
                                         .intermediate_size = 14336,
                                         .key_value_heads = 8,
                                         .max_position = 131072,
                                         .bos = 1,
                                         .eos = 2,
                                         .attention_bias = RH_BIAS_NONE,
                                         .windows = RH_WINDOWS_ALL,
                                         .window = 4096};
