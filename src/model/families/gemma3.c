/* Gemma 3, text: norms before and behind both halves of a layer, on each head's q and k, their weights stored less one; five layers of
 * six with a window and a rotary table of their own; embeddings scaled by the root of their width, and tied. */
#include "model/families/families.h"

#define LAYER_NAMES RH_FOUR_NORMS, RH_QKVO_NAMES, RH_GATED_NAMES

static const struct rh_family_names names = {RH_NAMES_ALONE, LAYER_NAMES};
static const struct rh_family_names wrapped_names = {RH_NAMES_INSIDE, LAYER_NAMES};

/* The models of 4B and more also see. */
static const struct rh_family_wrapper wrapper = {"Gemma3ForConditionalGeneration", "gemma3", &wrapped_names};

const struct rh_family family_gemma3 = {.architecture = "Gemma3ForCausalLM",
                                        .model_type = "gemma3_text",
                                        .names = &names,
                                        .wrapper = &wrapper,
                                        .silent = {.vocab_size = 262208,
                                                   .hidden_size = 2304,
                                                   .intermediate_size = 9216,
                                                   .layers = 26,
                                                   .heads = 8,
                                                   .key_value_heads = 4,
                                                   .head_dim = 256,
                                                   .max_position = 131072,
                                                   .bos = 2,
                                                   .eos = 1,
                                                   .attention_scalar = 256,
                                                   .tie_word_embeddings = 1,
                                                   .window = 4096,
                                                   .window_period = 6,
                                                   .rope_theta = 1e6,
                                                   .rope_theta_windowed = 1e4},
                                        .own_key = {"query_pre_attn_scalar"},
                                        .norm = RH_NORM_RMS_PLUS_ONE,
                                        .residual = RH_RESIDUAL_SANDWICH,
                                        .attention = {.scalar_key = "query_pre_attn_scalar",
                                                      .bias = RH_BIAS_AS_SAID,
                                                      .qk_norm = RH_QK_NORM_HEADS,
                                                      .windows = RH_WINDOWS_PERIOD},
                                        .mlp = {.activation = RH_ACT_GELU_TANH, .activation_key = "hidden_activation"},
                                        .gguf = {.architecture = "gemma3",
                                                 .only_read = 1,
                                                 .names = {{"post_attention_layernorm", "post_attention_norm"},
                                                           {"pre_feedforward_layernorm", "ffn_norm"},
                                                           {"post_feedforward_layernorm", "post_ffw_norm"}}},
                                        .scales_embedding = 1};
