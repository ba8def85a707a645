/* Gemma 4, text: norms before and behind both halves of a layer, on each head's q and k, and without a weight on its
 * values; five layers of six with a window, the sixth with wider heads, of which a quarter of the pairs turn and whose values may be its
 * keys; scores that nothing divides; outputs of layers multiplied by a number each; capped logits;
 * embeddings scaled by the root of their width. Some have experts beside each layer's MLP, chosen by a linear (26B-A4B); in some the
 * uppermost layers borrow keys and values, and each layer has an input of its own (E2B, E4B). */
#include "model/families/families.h"

#define MLP_NAMES .mlp = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "router.proj"}
#define PER_LAYER_NAMES(prefix)                                                                                                            \
	.per_layer = {"per_layer_input_gate", "per_layer_projection", prefix "per_layer_model_projection"},                                \
	.inputs_table = prefix "embed_tokens_per_layer", .inputs_norm = prefix "per_layer_projection_norm"
#define FIVE_NORMS                                                                                                                         \
	.norm = {"input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm",                 \
	         "post_per_layer_input_norm"}
#define LAYER_NAMES                                                                                                                        \
	FIVE_NORMS, RH_QKVO_NAMES, MLP_NAMES, .experts = "experts", .experts_gate_up = "experts.gate_up_proj",                             \
	                                      .experts_down = "experts.down_proj", .layer_scalar = "layer_scalar"

static const struct rh_family_names names = {RH_NAMES_ALONE, LAYER_NAMES, PER_LAYER_NAMES("model.")};
static const struct rh_family_names wrapped_names = {RH_NAMES_INSIDE, LAYER_NAMES, PER_LAYER_NAMES("model.language_model.")};

/* The published models also see. */
static const struct rh_family_wrapper wrapper = {"Gemma4ForConditionalGeneration", "gemma4", &wrapped_names};

const struct rh_family family_gemma4 = {.architecture = "Gemma4ForCausalLM",
                                        .model_type = "gemma4_text",
                                        .names = &names,
                                        .wrapper = &wrapper,
                                        .silent = {.vocab_size = 262144,
                                                   .hidden_size = 2304,
                                                   .intermediate_size = 9216,
                                                   .layers = 30,
                                                   .heads = 8,
                                                   .key_value_heads = 4,
                                                   .head_dim = 256,
                                                   .max_position = 131072,
                                                   .bos = 2,
                                                   .eos = 1,
                                                   .tie_word_embeddings = 1,
                                                   .rotary_share = 0.25,
                                                   .window = 512,
                                                   .window_period = 6,
                                                   .rope_theta = 1e6,
                                                   .rope_theta_windowed = 1e4},
                                        .own_key = {"final_logit_softcapping", "use_bidirectional_attention", "num_experts"},
                                        .residual = RH_RESIDUAL_SANDWICH,
                                        .attention = {.bias = RH_BIAS_AS_SAID,
                                                      .qk_norm = RH_QK_NORM_HEADS,
                                                      .windows = RH_WINDOWS_PERIOD,
                                                      .is_unscaled = 1,
                                                      .norms_values = 1,
                                                      .splits_kinds = 1},
                                        .mlp = {.activation = RH_ACT_GELU_TANH, .activation_key = "hidden_activation"},
                                        .moe = {.is_shared = 1, .is_beside = 1},
                                        .gguf = {.architecture = "gemma4",
                                                 .joins_experts = 1,
                                                 .names = {{"post_attention_layernorm", "post_attention_norm"},
                                                           {"pre_feedforward_layernorm", "ffn_norm"},
                                                           {"post_feedforward_layernorm", "post_ffw_norm"},
                                                           {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
                                                           {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
                                                           {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
                                                           {"per_layer_input_gate", "inp_gate"},
                                                           {"per_layer_projection", "proj"},
                                                           {"post_per_layer_input_norm", "post_norm"},
                                                           {"router.proj", "ffn_gate_inp"},
                                                           {"router.scale", "ffn_gate_inp.scale"},
                                                           {"router.per_expert_scale", "ffn_down_exps.scale"},
                                                           {"layer_scalar", "layer_output_scale.weight"}}},
                                        .may_cap_logits = 1,
                                        .scales_embedding = 1};
