/* Granite: Llama with multipliers of the embedding, of scores, of what each half adds to the residual, and of the logits. Of Granite 4.0
 * and 4.1, which have gate and up in one matrix, only dense models: no recurrent layers, no experts. */
#include "model/families/families.h"

#define MULTIPLIERS "attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"

static const struct rh_family_names names = {RH_NAMES_ALONE, .norm = {"input_layernorm", "post_attention_layernorm"}, RH_QKVO_NAMES,
                                             .mlp = {"shared_mlp.input_linear", NULL, "shared_mlp.output_linear"}};

const struct rh_family family_granite = {
        .architecture = "GraniteForCausalLM",
        .model_type = "granite",
        .names = &family_names_llama,
        .silent = {.vocab_size = 32000, .intermediate_size = 11008, .max_position = 2048, .bos = 1, .eos = 2},
        .own_key = {MULTIPLIERS},
        .attention = {.bias = RH_BIAS_AS_SAID},
        .mlp = {.may_have_bias = 1},
        .gguf = {.architecture = "granite", .permuted = 1},
        .is_scaled = 1};

const struct rh_family family_granite_hybrid = {
        .architecture = "GraniteMoeHybridForCausalLM",
        .model_type = "granitemoehybrid",
        .names = &names,
        .silent = {.vocab_size = 32000, .intermediate_size = 1024, .max_position = 2048, .bos = 1, .eos = 2},
        .key_names = {{"intermediate_size", "shared_intermediate_size"}},
        .own_key = {MULTIPLIERS},
        .attention = {.bias = RH_BIAS_AS_SAID},
        .is_scaled = 1,
        .is_hybrid = 1};
