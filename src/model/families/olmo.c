/* OLMo 2 and 3: norms behind the halves instead of before them, and over all heads' queries or keys at once; 3 has attention windows in
 * three layers of four, in which rotary positions are not scaled. */
#include "model/families/families.h"

static const struct rh_family_names names = {
        RH_NAMES_ALONE,
        .norm = {[2] = "post_attention_layernorm", [3] = "post_feedforward_layernorm"}, /* RH_NORM_AFTER_MIXER and AFTER_MLP */
        RH_QKVO_NAMES, RH_GATED_NAMES};

const struct rh_family family_olmo2 = {
        .architecture = "Olmo2ForCausalLM",
        .model_type = "olmo2",
        .names = &names,
        .silent = {.vocab_size = 50304, .intermediate_size = 11008, .max_position = 2048, .rms_norm_eps = 1e-5, .bos = -1, .eos = 50279},
        .residual = RH_RESIDUAL_BEHIND,
        .attention = {.bias = RH_BIAS_AS_SAID, .qk_norm = RH_QK_NORM_ALL},
        .gguf = {.architecture = "olmo2",
                 .names = {{"post_attention_layernorm", "post_attention_norm"}, {"post_feedforward_layernorm", "post_ffw_norm"}}}};

const struct rh_family family_olmo3 = {
        .architecture = "Olmo3ForCausalLM",
        .model_type = "olmo3",
        .names = &names,
        .silent = {.vocab_size = 50304,
                   .intermediate_size = 11008,
                   .max_position = 2048,
                   .rms_norm_eps = 1e-5,
                   .bos = -1,
                   .eos = 50279,
                   .window = 4096,
                   .window_period = 4,
                   .rope_theta_windowed = -1},
        .residual = RH_RESIDUAL_BEHIND,
        .attention = {.bias = RH_BIAS_AS_SAID, .qk_norm = RH_QK_NORM_ALL, .windows = RH_WINDOWS_PERIOD},
        .gguf = {.architecture = "olmo2",
                 .names = {{"post_attention_layernorm", "post_attention_norm"}, {"post_feedforward_layernorm", "post_ffw_norm"}}}};
