/* A run's LoRA adapter: made from the keys, or read from an adapter that the run continues; loading and saving of its weights. */
#ifndef RH_SESSION_ADAPTER_H
#define RH_SESSION_ADAPTER_H

#include "ckpt/peft_tables.h"
#include "config/config.h"
#include "model/model.h"
#include "offload/store.h"
#include "weights/tensors_out.h"

struct rh_adapter {
	struct rh_peft_config peft;
	struct rh_lora_config lora;    /* what rh_model_create is given; refers to peft */
	struct rh_peft_tables *tables; /* of an adapter that is only run: the tables as it makes them; NULL: they are the base's */
};

/* What an adapter is resolved for: to be trained, to be run as it is, or to be planned, for which its weights need not be there. */
enum rh_adapter_use { RH_ADAPTER_TRAINS, RH_ADAPTER_INFERS, RH_ADAPTER_PLANS };
/* Resolves the adapter from config->adapter_name_or_path where that is given, else from the keys. Keys that contradict a given adapter
 * are -EINVAL. If it was made for another base, a line says so, and it is saved as this base's. *out must not move afterwards. */
int rh_adapter_resolve(const struct rh_config *config, const struct rh_model_config *model, enum rh_adapter_use use,
                       struct rh_adapter *out) RH_MUST;
void rh_adapter_free(struct rh_adapter *adapter);
/* For a new adapter: each name in lora_target_modules must be one of the model's modules; -EINVAL names one that is not. PEFT accepts
 * the list as soon as one name is found. */
int rh_adapter_check_targets(const struct rh_config *config, const struct rh_model *model) RH_MUST;

/* How a new adapter's matrices begin (init_lora_weights): after the model's creation. */
void rh_adapter_start(const struct rh_config *config, struct rh_model *model);
/* dora.c. Once a model is packed: -EINVAL, DoRA of matrices that are. And the magnitudes of a new adapter, once the store has all else. */
int rh_adapter_check_dora(const struct rh_model *model) RH_MUST;
int rh_adapter_measure(const struct rh_model *model, struct rh_store *store) RH_MUST;

/* Loads every adapter tensor of the model from dir/adapter_model.safetensors; missing, unknown or misshapen ones are -EINVAL. `tables`:
 * those that are read apart by rh_adapter_load_tables; NULL: none. */
int rh_adapter_load(const char *dir, const struct rh_peft_tables *tables, const struct rh_model *model, struct rh_store *store) RH_MUST;
/* Puts the embedding's table and the head's into the store as the adapter makes them of the source's. */
int rh_adapter_load_tables(struct rh_peft_tables *tables, const struct rh_source *source, const struct rh_model *model,
                           struct rh_store *store) RH_MUST;
/* Begins adapter_model.safetensors in dir. */
int rh_adapter_out_open(const char *dir, const struct rh_model *model, struct rh_store *store, struct rh_tensors_out **out) RH_MUST;
/* What adapter_config.json cannot say of the base, or says in vain: a GGUF file, which PEFT cannot load; rope_scaling. */
void rh_adapter_tell_base(const struct rh_config *config);

#endif
