/* The LoRA adapter of a run: resolved from keys or from an adapter to go on from; its weights in and out. */
#ifndef RH_TRAIN_ADAPTER_H
#define RH_TRAIN_ADAPTER_H

#include "ckpt/peft.h"
#include "config/config.h"
#include "model/model.h"
#include "offload/store.h"
#include "train/tensors_out.h"

struct rh_adapter {
	struct rh_peft_config peft;
	struct rh_lora_config lora; /* what rh_model_create is given; refers to peft */
};

/* From config->adapter_name_or_path where given (keys that contradict it are -EINVAL; one made for another base is told of, and is this
 * base's when it is saved), else from the keys. *out must not move afterwards.
 */
int rh_adapter_resolve(const struct rh_config *config, const struct rh_model_config *model, struct rh_adapter *out) RH_MUST;
void rh_adapter_free(struct rh_adapter *adapter);
/* Of a new adapter: each name in lora_target_modules is one of the model's; -EINVAL names the one that is not. PEFT takes such a list as
 * long as one name of it is found. */
int rh_adapter_check_targets(const struct rh_config *config, const struct rh_model *model) RH_MUST;

/* Loads every adapter tensor of the model from dir/adapter_model.safetensors; missing, unknown or misshapen ones are -EINVAL. */
int rh_adapter_load(const char *dir, const struct rh_model *model, struct rh_store *store) RH_MUST;
/* Begins adapter_model.safetensors in dir. */
int rh_adapter_out_open(const char *dir, const struct rh_model *model, struct rh_store *store, struct rh_tensors_out **out) RH_MUST;
/* Says where the base that the adapter names is none that PEFT loads: a GGUF file. */
void rh_adapter_tell_base(const struct rh_config *config);

#endif
