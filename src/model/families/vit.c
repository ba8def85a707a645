/* ViT: an image's patches and a class token, attention in both directions, norms before the halves; a head for classes of images. */
#include "model/families/families.h"

/* A token is the class token or a patch: a vocabulary of two. Its rows are the class token and the bias of the patches' linear. */
enum { KINDS_OF_TOKENS = 2 };

static const struct rh_family_names names = {
        .embedding = "vit.embeddings.cls_token",
        .positions = "vit.embeddings.position_embeddings",
        .patches = "vit.embeddings.patch_embeddings.projection",
        .layers = "vit.encoder.layer.",
        .final_norm = "vit.layernorm",
        .head = "classifier",
        .base = "vit.",
        .norm = {"layernorm_before", "layernorm_after", NULL, NULL},
        .attention = {"attention.attention.query", "attention.attention.key", "attention.attention.value", "attention.output.dense"},
        .mlp = {"intermediate.dense", NULL, "output.dense"}};

static const struct rh_family_names modules = {
        .layers = "vit.layers.",
        .attention = {"attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj"},
        .mlp = {"mlp.fc1", NULL, "mlp.fc2"}};

const struct rh_family family_vit = {
        .architecture = "ViTForImageClassification",
        .bare = "ViTModel",
        .model_type = "vit",
        .task = {[RH_TASK_IMAGE_CLASSIFICATION] = {.architecture = "ViTForImageClassification", .classifier = "classifier"}},
        .names = &names,
        .modules = &modules,
        .silent = {.vocab_size = KINDS_OF_TOKENS,
                   .hidden_size = 768,
                   .intermediate_size = 3072,
                   .layers = 12,
                   .heads = 12,
                   .image_size = 224,
                   .patch_size = 16,
                   .num_channels = 3,
                   .rms_norm_eps = 1e-12,
                   .bos = -1,
                   .eos = -1,
                   .attention_bias = 1},
        .key_names = {{"vocab_size", NULL},
                      {"num_key_value_heads", NULL},
                      {"head_dim", NULL},
                      {"max_position_embeddings", NULL},
                      {"tie_word_embeddings", NULL},
                      {"bos_token_id", NULL},
                      {"eos_token_id", NULL},
                      {"attention_bias", "qkv_bias"},
                      {"rms_norm_eps", "layer_norm_eps"},
                      {"attention_dropout", "attention_probs_dropout_prob"},
                      {"hidden_dropout", "hidden_dropout_prob"}},
        .embedding_dropout = "hidden_dropout_prob",
        .norm = RH_NORM_LAYER,
        .attention = {.direction = RH_ATTENTION_BOTH, .bias = RH_BIAS_ALL_BUT_QKV_AS_SAID},
        .mlp = {.activation = RH_ACT_GELU, .kind = RH_MLP_PLAIN}};
