/* The parts of reading a config.json that have files of their own. */
#ifndef RH_MODEL_CONFIG_INTERNAL_H
#define RH_MODEL_CONFIG_INTERNAL_H

#include "model/config.h"

/* config_rope.c: the rotary parameters, in any of their three spellings. */
int config_parse_rope(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;
/* Checks table `which`; -EINVAL if its numbers make no sense. */
int config_check_rope(const struct rh_model_config *config, int which, const char *where) RH_MUST;

/* config_layers.c: which layers have attention windows, as the family has it. */
int config_parse_windows(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;

/* For a family in which some layers do not rotate: which. */
int config_parse_unrotated(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;

/* config_factors.c: for a family that has them: factors of queries and logits, the epsilon behind halves. */
int config_parse_factors(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;

/* For a family with the gated delta rule: its sizes, and which layers have it. */
int config_parse_delta(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;

/* For a family whose layers without a window have heads of their own: their sizes; and that a model has nothing else that is not built. */
int config_parse_kinds(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;

/* config_latent.c: for a family with latent attention: its sizes; for one whose routers are sigmoids: how they choose, and in which layers.
 * Of the first, after the rotary parameters. */
int config_parse_latent(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;
int config_parse_sigmoids(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;

/* Of a model whose uppermost layers borrow keys and values: that one below lends to each. */
int config_check_lenders(const struct rh_model_config *config, const char *where) RH_MUST;

/* For a family with multipliers: those. For one whose models may have other layers: that this one has none. */
int config_parse_scales(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;
int config_parse_hybrid(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;

/* For a family with experts: how many, how large, in which layers. */
int config_parse_experts(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;

/* config_image.c: for a family that reads images: their sizes, which give the number of tokens. */
int config_parse_images(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;

/* config_task.c: is an architecture one of the family's, and of which task? And the number of labels. */
int config_is_architecture(const struct rh_family *family, const char *name, enum rh_task_kind *task);
int config_parse_labels(const json_t *json, const char *where, struct rh_model_config *out) RH_MUST;

#endif
