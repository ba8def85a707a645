/* Inside train/: which modules a new adapter has. */
#ifndef RH_SESSION_ADAPTER_INTERNAL_H
#define RH_SESSION_ADAPTER_INTERNAL_H

#include "ckpt/peft_tables.h"
#include "config/config.h"
#include "model/model.h"

/* Sets the target modules in *peft from the run's keys. */
int adapter_targets(const struct rh_config *config, const struct rh_model_config *model, struct rh_peft_config *peft) RH_MUST;
/* 1: the keys name the same targets as *peft; 0: others. Or negative errno. */
int adapter_same_targets(const struct rh_config *config, const struct rh_model_config *model, const struct rh_peft_config *peft) RH_MUST;

/* Resolves which modules are trained whole, from the keys or from what *peft was read with; a classifier always is. -EINVAL names one that
 * cannot be. */
int adapter_saved(const struct rh_config *config, const struct rh_model_config *model, struct rh_peft_config *peft) RH_MUST;

/* Is it the name of a head that is the embedding's table? And where an adapter targets that table: one for both; -EINVAL where the keys
 * mean two. */
int adapter_is_tied_head(const struct rh_model_config *model, const char *name);
int adapter_tie(const struct rh_config *config, const struct rh_model_config *model, struct rh_peft_config *peft) RH_MUST;

/* Does a name of lora_target_modules mean the experts or the router of this model? transformers keeps them as parameters, and PEFT turns
 * the names that they had as modules into those. */
int adapter_is_of_experts(const struct rh_model_config *model, const char *name);
/* rank_pattern and alpha_pattern, before what adapter_targets adds to them. */
int adapter_patterns(const struct rh_config *config, struct rh_peft_config *peft) RH_MUST;
/* exclude_modules, layers_to_transform and init_lora_weights; -EINVAL: what they cannot be combined with. */
int adapter_narrow(const struct rh_config *config, struct rh_peft_config *peft) RH_MUST;
/* Each of lora_target_parameters is a parameter of the model's experts or routers. */
int adapter_check_parameters(const struct rh_config *config, const struct rh_model_config *model) RH_MUST;
/* Adapters of parameters have no dropout: unset it is 0, and above 0 an error, as in PEFT. */
int adapter_check_dropout(const struct rh_config *config, struct rh_peft_config *peft) RH_MUST;

#endif
