/* Muse Glimmer, text: norms before and behind both halves of a layer, (1 + w) with an epsilon of their own behind; scaleless norms of each
 * token's embedding and of each head's q and k; attention whose output is gated by a linear of its own; three layers of four with a window,
 * and the fourth, counted from the last, without rotation; logits times a number, then capped. */
#include "model/families/families.h"

static const struct rh_family_names names = {
        RH_NAMES_INSIDE, RH_FOUR_NORMS,
        .attention = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.gate_proj"},
        RH_GATED_NAMES};

/* There is no class of the text model alone that has a head. */
#define ARCHITECTURE "MuseGlimmerForConditionalGeneration"
static const struct rh_family_wrapper wrapper = {ARCHITECTURE, "muse_glimmer", &names};

const struct rh_family family_muse_glimmer = {.architecture = ARCHITECTURE,
                                              .model_type = "muse_glimmer_text",
                                              .names = &names,
                                              .wrapper = &wrapper,
                                              .silent = {.vocab_size = 202048,
                                                         .hidden_size = 6656,
                                                         .intermediate_size = 19968,
                                                         .layers = 52,
                                                         .heads = 32,
                                                         .key_value_heads = 2,
                                                         .head_dim = 128,
                                                         .max_position = 131072,
                                                         .bos = 200000,
                                                         .eos = 200001,
                                                         .rms_norm_eps = 1e-5,
                                                         .post_norm_eps = 1e-8,
                                                         .window = 2048,
                                                         .window_period = 4,
                                                         .qk_scale_factor = 3.87,
                                                         .output_multiplier = 0.19611613513818404,
                                                         .logits_cap = 20},
                                              .own_key = {"final_logit_softcapping"},
                                              .norm = RH_NORM_RMS_PLUS_ONE,
                                              .residual = RH_RESIDUAL_SANDWICH,
                                              .mixer = RH_MIXER_SIDE_GATED_ATTENTION,
                                              .attention = {.bias = RH_BIAS_AS_SAID,
                                                            .windows = RH_WINDOWS_FROM_LAST,
                                                            .qk_norm = RH_QK_NORM_HEADS,
                                                            .qk_norm_is_plain = 1,
                                                            .reads_thetas = 1},
                                              .mlp = {.activation_key = "hidden_activation"},
                                              .gguf = {.architecture = "muse-glimmer",
                                                       .permuted = 1,
                                                       .turn_end = "<|eot|>",
                                                       .names = {{"post_attention_layernorm", "post_attention_norm"},
                                                                 {"pre_feedforward_layernorm", "ffn_norm"},
                                                                 {"post_feedforward_layernorm", "post_ffw_norm"}}},
                                              .may_cap_logits = 1,
                                              .norms_embedding = 1,
                                              .has_plain_final_norm = 1};
