/* Inside train/: which modules a new adapter has. */
#ifndef RH_TRAIN_ADAPTER_INTERNAL_H
#define RH_TRAIN_ADAPTER_INTERNAL_H

#include "ckpt/peft.h"
#include "config/config.h"
#include "model/model.h"

/* Fills in *peft's targets as the run's keys have them. */
int adapter_targets(const struct rh_config *config, const struct rh_model_config *model, struct rh_peft_config *peft) RH_MUST;
/* 1 if the keys mean what *peft targets, 0 or negative errno. */
int adapter_same_targets(const struct rh_config *config, const struct rh_model_config *model, const struct rh_peft_config *peft) RH_MUST;

#endif
