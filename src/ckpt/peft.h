/* PEFT LoRA adapters: adapter_config.json + adapter_model.safetensors. SEMANTICS.md 6. */
#ifndef RH_CKPT_PEFT_H
#define RH_CKPT_PEFT_H

#include "ckpt/safetensors.h"

/* adapter_config.json as far as it matters here. */
struct rh_peft_config {
	int64_t r;
	double lora_alpha, lora_dropout;
	int use_rslora;
	char **target; /* names, or one regular expression */
	size_t targets;
	int target_is_pattern, all_linear;
	char *base_model_name_or_path;
	struct rh_peft_override {
		char *pattern; /* PEFT's key: a module's name or suffix, may be a regular expression */
		double value;
	} * rank_override, *alpha_override;
	size_t rank_overrides, alpha_overrides;
};

/* Reads dir/adapter_config.json; use_dora, modules_to_save, bias other than "none" and other peft_types are -EINVAL. */
int rh_peft_config_load(const char *dir, struct rh_peft_config *out) RH_MUST;
void rh_peft_config_free(struct rh_peft_config *config);
/* Writes dir/adapter_config.json: targets sorted, every key that PEFT 0.21 needs. */
int rh_peft_config_save(const struct rh_peft_config *config, const char *dir) RH_MUST;

/* Rank and alpha of one module ("model.layers.0.self_attn.q_proj"), overrides applied as PEFT does. */
void rh_peft_module(const struct rh_peft_config *config, const char *module, int64_t *r, double *alpha);

#endif
