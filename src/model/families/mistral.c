/* Mistral: Llama with an attention window in every layer. Ministral 3: queries that grow with their positions, and mostly no window. */
#include "model/families/families.h"

static const struct rh_family_names wrapped_names = {RH_NAMES_INSIDE, .norm = {"input_layernorm", "post_attention_layernorm"},
                                                     RH_QKVO_NAMES, RH_GATED_NAMES};

/* Mistral Small 3.1 and later, and Ministral 3, also see. */
static const struct rh_family_wrapper wrapper = {"Mistral3ForConditionalGeneration", "mistral3", &wrapped_names};

const struct rh_family family_mistral = {.architecture = "MistralForCausalLM",
                                         .model_type = "mistral",
                                         .names = &family_names_llama,
                                         .wrapper = &wrapper,
                                         .silent = {.vocab_size = 32000,
                                                    .intermediate_size = 14336,
                                                    .key_value_heads = 8,
                                                    .max_position = 131072,
                                                    .bos = 1,
                                                    .eos = 2,
                                                    .window = 4096},
                                         .attention = {.bias = RH_BIAS_NONE, .windows = RH_WINDOWS_ALL},
                                         .gguf = {.architecture = "mistral3", .converted_as = "llama", .permuted = 1}};

const struct rh_family family_ministral3 = {.architecture = "Ministral3ForCausalLM",
                                            .model_type = "ministral3",
                                            .names = &family_names_llama,
                                            .wrapper = &wrapper,
                                            .silent = {.vocab_size = 131072,
                                                       .intermediate_size = 14336,
                                                       .layers = 34,
                                                       .key_value_heads = 8,
                                                       .head_dim = 128,
                                                       .max_position = 262144,
                                                       .rms_norm_eps = 1e-5,
                                                       .bos = 1,
                                                       .eos = 2,
                                                       .rope_theta = 1000000},
                                            .attention = {.bias = RH_BIAS_NONE, .windows = RH_WINDOWS_ALL, .grows_queries = 1},
                                            .gguf = {.architecture = "mistral3", .permuted = 1}};
