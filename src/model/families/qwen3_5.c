/* Qwen3.5, text: three layers of four have the gated delta rule, the fourth has attention with gated heads, rotated in their first quarter;
 * the norms' weights are stored less one, but for the rule's own. Its larger models have experts, and beside them one that is shared, and
 * so has Qwen3-Next, which has the rule's linears in two (delta.c). */
#include "model/families/families.h"

#define COMMON_NAMES                                                                                                                       \
	.norm = {"input_layernorm", "post_attention_layernorm"}, RH_QKVO_NAMES, .conv = "linear_attn.conv1d",                              \
	.a_log = "linear_attn.A_log", .dt_bias = "linear_attn.dt_bias", .gated_norm = "linear_attn.norm"
#define LAYER_NAMES                                                                                                                        \
	COMMON_NAMES, .delta = {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b", "linear_attn.in_proj_a",      \
	                        "linear_attn.out_proj"}
#define EXPERTS_APART                                                                                                                      \
	.mlp = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj", "mlp.shared_expert_gate"},      \
	.router = "mlp.gate", .experts = "mlp.experts"
#define EXPERTS_NAMES EXPERTS_APART, .experts_gate_up = "mlp.experts.gate_up_proj", .experts_down = "mlp.experts.down_proj"

static const struct rh_family_names names = {RH_NAMES_ALONE, LAYER_NAMES, RH_GATED_NAMES};
static const struct rh_family_names wrapped_names = {RH_NAMES_INSIDE, LAYER_NAMES, RH_GATED_NAMES};
static const struct rh_family_names moe_names = {RH_NAMES_ALONE, LAYER_NAMES, EXPERTS_NAMES};
static const struct rh_family_names wrapped_moe_names = {RH_NAMES_INSIDE, LAYER_NAMES, EXPERTS_NAMES};
static const struct rh_family_names next_names = {
        RH_NAMES_ALONE, COMMON_NAMES, EXPERTS_APART,
        .delta = {"linear_attn.in_proj_qkvz", NULL, "linear_attn.in_proj_ba", NULL, "linear_attn.out_proj"}};

/* The published models also see. */
static const struct rh_family_wrapper wrapper = {"Qwen3_5ForConditionalGeneration", "qwen3_5", &wrapped_names};
static const struct rh_family_wrapper moe_wrapper = {"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", &wrapped_moe_names};

const struct rh_family family_qwen3_5 = {
        .architecture = "Qwen3_5ForCausalLM",
        .model_type = "qwen3_5_text",
        .names = &names,
        .wrapper = &wrapper,
        .silent = {.vocab_size = 248320,
                   .hidden_size = 4096,
                   .intermediate_size = 12288,
                   .layers = 32,
                   .heads = 16,
                   .key_value_heads = 4,
                   .head_dim = 256,
                   .max_position = 32768,
                   .bos = -1,
                   .eos = -1,
                   .rotary_share = 0.25,
                   .delta_period = 4},
        .norm = RH_NORM_RMS_PLUS_ONE,
        .mixer = RH_MIXER_GATED_ATTENTION,
        .attention = {.bias = RH_BIAS_AS_SAID, .qk_norm = RH_QK_NORM_HEADS, .may_rotate_part = 1},
        .gguf = {.architecture = "qwen35", .names = {{"post_attention_layernorm", "post_attention_norm"}}}};

const struct rh_family family_qwen3_5_moe = {
        .architecture = "Qwen3_5MoeForCausalLM",
        .model_type = "qwen3_5_moe_text",
        .names = &moe_names,
        .wrapper = &moe_wrapper,
        .silent = {.vocab_size = 248320,
                   .hidden_size = 2048,
                   .intermediate_size = 512,
                   .layers = 40,
                   .heads = 16,
                   .key_value_heads = 2,
                   .head_dim = 256,
                   .max_position = 32768,
                   .bos = -1,
                   .eos = -1,
                   .rotary_share = 0.25,
                   .delta_period = 4,
                   .experts = 256,
                   .experts_per_token = 8,
                   .expert_size = 512},
        .key_names = {{"intermediate_size", "shared_expert_intermediate_size"}},
        .own_key = {"num_experts", "num_local_experts"},
        .norm = RH_NORM_RMS_PLUS_ONE,
        .mixer = RH_MIXER_GATED_ATTENTION,
        .attention = {.bias = RH_BIAS_AS_SAID, .qk_norm = RH_QK_NORM_HEADS, .may_rotate_part = 1},
        .moe = {.softmax = RH_ROUTER_OVER_CHOSEN, .is_shared = 1, .may_lie_apart = 1},
        .gguf = {.architecture = "qwen35moe",
                 .names = {{"post_attention_layernorm", "post_attention_norm"}, {"mlp.gate", "ffn_gate_inp"}}}};

const struct rh_family family_qwen3_next = {
        .architecture = "Qwen3NextForCausalLM",
        .model_type = "qwen3_next",
        .names = &next_names,
        .silent = {.vocab_size = 151936,
                   .hidden_size = 2048,
                   .intermediate_size = 512,
                   .layers = 48,
                   .heads = 16,
                   .key_value_heads = 2,
                   .head_dim = 256,
                   .max_position = 32768,
                   .bos = -1,
                   .eos = -1,
                   .rotary_share = 0.25,
                   .delta_period = 4,
                   .experts = 512,
                   .experts_per_token = 10,
                   .expert_size = 512},
        .key_names = {{"intermediate_size", "shared_expert_intermediate_size"}},
        .own_key = {"num_experts", "num_local_experts"},
        .norm = RH_NORM_RMS_PLUS_ONE,
        .mixer = RH_MIXER_GATED_ATTENTION,
        .attention = {.bias = RH_BIAS_AS_SAID, .qk_norm = RH_QK_NORM_HEADS, .may_rotate_part = 1},
        .moe = {.norms = 1, .is_shared = 1},
        .gguf = {.architecture = "qwen3next", .names = {{"post_attention_layernorm", "post_attention_norm"}, {"mlp.gate", "ffn_gate_inp"}}},
        .keeps_others = 1};
