/* PEFT LoRA adapters: adapter_config.json + adapter_model.safetensors. */
#ifndef RH_CKPT_PEFT_H
#define RH_CKPT_PEFT_H

#include "ckpt/safetensors.h"

/* adapter_config.json as far as it matters here. More than 20 members: one a key, and the counts of its lists. */
struct rh_peft_config {
	int64_t r;
	double lora_alpha, lora_dropout;
	int use_rslora, use_dora;
	char **target; /* names, or one regular expression; none with all_linear */
	size_t targets;
	int target_is_pattern, all_linear;
	char **parameter; /* names of parameters, of experts and routers, that are targeted beside modules */
	size_t parameters;
	char **saved; /* modules_to_save: names of modules that are trained whole and go with the adapter */
	size_t saves;
	int ties;              /* ensure_weight_tying: an embedding that is saved is its head's matrix too */
	const char *task_type; /* PEFT's, static; NULL: CAUSAL_LM, "": none. Written, not read */
	int fan_in_fan_out;    /* as the base stores its matrices; the adapter's files are the same. Written, not read */
	char *base_model_name_or_path;
	struct rh_peft_override {
		char *pattern; /* PEFT's key: a module's name or suffix, may be a regular expression */
		double value;
	} * rank_override, *alpha_override;
	size_t rank_overrides, alpha_overrides;
	char **exclude; /* modules that are not targeted in spite of `target`: names, or one regular expression */
	size_t excludes;
	int exclude_is_pattern;
	int64_t *layer; /* layers_to_transform: adapters are in these layers alone; NULL: in all */
	size_t layers;
	const char *init; /* "gaussian", "false" or NULL, PEFT's default: how it began. Written, not read */
};

/* Reads dir/adapter_config.json. -EINVAL: bias other than "none", other peft_types, and every other feature that
 * would change what the adapter computes; a pattern that is no regular expression. *out is freed with rh_peft_config_free. */
int rh_peft_config_load(const char *dir, struct rh_peft_config *out) RH_MUST;
void rh_peft_config_free(struct rh_peft_config *config);
/* Writes dir/adapter_config.json: targets sorted, every key that PEFT 0.21 writes. */
int rh_peft_config_save(const struct rh_peft_config *config, const char *dir) RH_MUST;

/* Rank and alpha of one module ("model.layers.0.self_attn.q_proj"): those of the first override whose pattern, as a regular expression,
 * matches the whole name or all of it after some dot; else the adapter's own. -EINVAL if a pattern cannot be run on the name. */
int rh_peft_module(const struct rh_peft_config *config, const char *module, int64_t *r, double *alpha) RH_MUST;

/* Does the adapter target this linear module? 1 or 0; -EINVAL as above. A list: equal to an entry, or ends in "." + entry; a pattern:
 * matches the whole name; all-linear: everything but "lm_head". Then what is excluded, likewise, and other layers than those listed: of a
 * list, by the last number in the name between two dots, as PEFT has it; a name that an entry equals is of any layer. */
int rh_peft_matches(const struct rh_peft_config *config, const char *module) RH_MUST;

/* Is the module among those that are saved whole: does its name equal an entry, or end in "." + entry? */
int rh_peft_saves(const struct rh_peft_config *config, const char *module);

/* Does it target this parameter ("model.layers.0.mlp.experts.down_proj")? One that equals an entry, or ends in "." + entry. */
int rh_peft_matches_parameter(const struct rh_peft_config *config, const char *parameter);

#endif
