/* GLM-4.7-Flash: latent attention, and experts that sigmoids choose beside one MLP that all tokens share; the first layer has one MLP
 * alone. */
#include "model/families/families.h"

static const struct rh_family_names names = {
        RH_NAMES_ALONE,
        .norm = {"input_layernorm", "post_attention_layernorm"},
        .attention = {"self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.q_b_proj", "self_attn.o_proj",
                      "self_attn.kv_b_proj"},
        .mlp = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj"},
        .dense = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"},
        .router = "mlp.gate",
        .choice_bias = "mlp.gate.e_score_correction_bias",
        .experts = "mlp.experts"};

const struct rh_family family_glm4_moe_lite = {
        .architecture = "Glm4MoeLiteForCausalLM",
        .model_type = "glm4_moe_lite",
        .names = &names,
        .silent = {.vocab_size = 154880,
                   .hidden_size = 2048,
                   .intermediate_size = 10240,
                   .layers = 47,
                   .heads = 20,
                   .key_value_heads = 20,
                   .head_dim = 64,
                   .max_position = 202752,
                   .bos = 0,
                   .eos = 1,
                   .rms_norm_eps = 1e-5,
                   .latent = {.q_rank = 768, .kv_rank = 512, .own = 192, .value = 256, .rotates_adjacent = 1},
                   .experts = 64,
                   .experts_per_token = 4,
                   .expert_size = 1536},
        .key_names = {{"head_dim", "qk_rope_head_dim"}, {"num_local_experts", "n_routed_experts"}},
        .own_key = {"n_routed_experts"},
        .mixer = RH_MIXER_LATENT_ATTENTION,
        .attention = {.bias = RH_BIAS_AS_SAID},
        .moe = {.softmax = RH_ROUTER_OVER_ALL, .is_shared = 1, .norms = 1, .is_sigmoid = 1, .routed_factor = 1.8}};
