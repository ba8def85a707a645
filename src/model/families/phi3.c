/* Phi-3 and Phi-4: Llama with q, k and v in one matrix and gate and up in another, LongRoPE, and heads that may be rotated in part. */
#include "model/families/families.h"

static const struct rh_family_names names = {RH_NAMES_ALONE, .norm = {"input_layernorm", "post_attention_layernorm"},
                                             .attention = {"self_attn.qkv_proj", NULL, NULL, "self_attn.o_proj"},
                                             .mlp = {"mlp.gate_up_proj", NULL, "mlp.down_proj"}};

const struct rh_family family_phi3 = {.architecture = "Phi3ForCausalLM",
                                      .model_type = "phi3",
                                      .names = &names,
                                      .silent = {.vocab_size = 32064,
                                                 .hidden_size = 3072,
                                                 .intermediate_size = 8192,
                                                 .max_position = 4096,
                                                 .rms_norm_eps = 1e-5,
                                                 .bos = 1,
                                                 .eos = 32000},
                                      .lora_targets = {"qkv_proj"},
                                      .attention = {.bias = RH_BIAS_NONE, .windows = RH_WINDOWS_ALL, .may_rotate_part = 1},
                                      .gguf = {.architecture = "phi3"}};
