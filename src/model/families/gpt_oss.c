/* GPT-OSS: experts in every layer, with biases and a clamped SwiGLU of gates and ups in turn; attention with biases and sinks, with a
 * window in every second layer; YaRN. */
#include "model/families/families.h"

static const struct rh_family_names names = {
        RH_NAMES_ALONE,         .norm = {"input_layernorm", "post_attention_layernorm"}, RH_QKVO_NAMES,
        .router = "mlp.router", .experts_gate_up = "mlp.experts.gate_up_proj",           .experts_down = "mlp.experts.down_proj"};

const struct rh_family family_gpt_oss = {.architecture = "GptOssForCausalLM",
                                         .model_type = "gpt_oss",
                                         .names = &names,
                                         .silent = {.vocab_size = 201088,
                                                    .hidden_size = 2880,
                                                    .intermediate_size = 2880,
                                                    .layers = 36,
                                                    .heads = 64,
                                                    .key_value_heads = 8,
                                                    .head_dim = 64,
                                                    .max_position = 131072,
                                                    .rms_norm_eps = 1e-5,
                                                    .bos = -1,
                                                    .eos = -1,
                                                    .attention_bias = 1,
                                                    .experts = 128,
                                                    .experts_per_token = 4,
                                                    .window = 128,
                                                    .window_period = 2,
                                                    .rope_theta = 150000},
                                         .own_key = {"num_local_experts", "num_experts"},
                                         .attention = {.bias = RH_BIAS_AS_SAID, .sinks = 1, .windows = RH_WINDOWS_PERIOD},
                                         .mlp = {.activation = RH_ACT_GPT_OSS},
                                         .moe = {.softmax = RH_ROUTER_OVER_CHOSEN, .bias = 1, .reads_mxfp4 = 1, .is_transposed = 1},
                                         .gguf = {.architecture = "gpt-oss",
                                                  .yarn_plain_ramp = 1,
                                                  .names = {{"post_attention_layernorm", "post_attention_norm"},
                                                            {"mlp.router", "ffn_gate_inp"},
                                                            {"self_attn.sinks", "attn_sinks.weight"}}}};
