/* The keys of losses over preferences. */
#include "config/config_internal.h"

#include <stdlib.h>
#include <string.h>

static const char *const words[RH_PREFERENCE_LOSSES] = {
        [RH_PREFERENCE_SIGMOID] = "sigmoid",
        [RH_PREFERENCE_HINGE] = "hinge",
        [RH_PREFERENCE_IPO] = "ipo",
        [RH_PREFERENCE_SIGMOID_NORM] = "sigmoid_norm",
        [RH_PREFERENCE_ROBUST] = "robust",
        [RH_PREFERENCE_EXO_PAIR] = "exo_pair",
        [RH_PREFERENCE_APO_ZERO] = "apo_zero",
        [RH_PREFERENCE_APO_DOWN] = "apo_down",
        [RH_PREFERENCE_NCA_PAIR] = "nca_pair",
        [RH_PREFERENCE_BCO_PAIR] = "bco_pair",
        [RH_PREFERENCE_SPPO_HARD] = "sppo_hard",
        [RH_PREFERENCE_SFT] = "sft",
        [RH_PREFERENCE_SIMPO] = "simpo",
        [RH_PREFERENCE_ORPO] = "orpo",
        [RH_PREFERENCE_KTO] = "kto",
        [RH_PREFERENCE_APO_ZERO_UNPAIRED] = "apo_zero_unpaired",
};

/* Losses that stand alone: they compare with no reference, or judge answers by themselves. */
static int stands_alone(enum rh_preference_loss type)
{
	return type >= RH_PREFERENCE_SIMPO;
}

static const struct config_entry *given_of(const struct config_entry *const *given, const char *name)
{
	const struct config_entry *entry = given[config_key_find(name)];
	return entry && entry->kind != VALUE_NULL ? entry : NULL;
}

static int fail_word(const struct config_entry *entry, const char *word)
{
	struct rh_text all = {0};
	int rc = 0;
	if (!strcmp(word, "dpo"))
		return config_entry_fail(entry, "'dpo' is sigmoid here, DPO's loss");
	for (int i = 0; !rc && i < RH_PREFERENCE_LOSSES; i++)
		rc = rh_text_printf(&all, "%s%s", i ? ", " : "", words[i]);
	if (!rc)
		rc = config_entry_fail(entry, "'%s' is not allowed; expected one of %s, or a list of losses of pairs",
		                       config_show(word).text, all.bytes);
	rh_text_free(&all);
	return rc;
}

static int read_types(struct rh_config *config, const struct config_entry *entry, const struct config_entry *weights)
{
	struct rh_preference *is = &config->preference;
	const struct rh_list *types = &config->loss_type;
	if (config->loss_weights.count && config->loss_weights.count != types->count)
		return config_entry_fail(weights, "%zu numbers for %zu losses of loss_type; give one for each", config->loss_weights.count,
		                         types->count);
	for (size_t i = 0; i < types->count; i++) {
		int type = 0;
		while (type < RH_PREFERENCE_LOSSES && strcmp(words[type], types->item[i]))
			type++;
		if (type == RH_PREFERENCE_LOSSES)
			return fail_word(entry, types->item[i]);
		if (stands_alone((enum rh_preference_loss)type) && types->count > 1)
			return config_entry_fail(entry, "%s is a loss by itself, which cannot be added to others", words[type]);
		if (is->weight[type] != 0)
			return config_entry_fail(entry, "%s is named twice", words[type]);
		is->weight[type] = config->loss_weights.count ? strtof(config->loss_weights.item[i], NULL) : 1;
	}
	return 0;
}

/* Keys of losses that are not asked for: a value that is not the key's own has no effect. */
static int check_idle(const struct rh_config *config, const struct config_entry *const *given)
{
	const float *weight = config->preference.weight;
	int is_simpo = weight[RH_PREFERENCE_SIMPO] != 0, judges = weight[RH_PREFERENCE_KTO] + weight[RH_PREFERENCE_APO_ZERO_UNPAIRED] != 0;
	int smooths = weight[RH_PREFERENCE_ROBUST] + weight[RH_PREFERENCE_EXO_PAIR] + weight[RH_PREFERENCE_SIMPO] != 0;
	const struct {
		const char *key, *needs;
		int is_idle;
	} keys[] = {
	        {"loss_weights", "loss_type", !config->loss_type.count && config->loss_weights.count},
	        {"beta", "loss_type", !config->loss_type.count && config->beta != 0.1},
	        {"label_smoothing", "loss_type: robust, exo_pair or simpo", !smooths && config->label_smoothing != 0},
	        {"simpo_gamma", "loss_type: simpo", !is_simpo && config->simpo_gamma != 0.5},
	        {"cpo_alpha", "loss_type: simpo", !is_simpo && config->cpo_alpha != 1},
	        {"desirable_weight", "loss_type: kto", !judges && config->desirable_weight != 1},
	        {"undesirable_weight", "loss_type: kto", !judges && config->undesirable_weight != 1},
	};
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (given_of(given, keys[i].key) && keys[i].is_idle)
			return config_entry_fail(given_of(given, keys[i].key), "has no effect without %s; add it or remove this",
			                         keys[i].needs);
	return 0;
}

static int check_values(const struct rh_config *config, const struct config_entry *const *given)
{
	const struct rh_preference *is = &config->preference;
	const struct config_entry *smoothing = given_of(given, "label_smoothing");
	double least = 1e-6; /* its logarithm, and that of what is left to 1, are taken of fp32 numbers */
	if (config->label_smoothing != 0 && (config->label_smoothing < least || config->label_smoothing > 1 - least))
		return config_entry_fail(smoothing, "must be 0, or between 1e-6 and 1 - 1e-6");
	if (is->weight[RH_PREFERENCE_EXO_PAIR] != 0 && is->label_smoothing == 0)
		return config_entry_fail(smoothing ? smoothing : given_of(given, "loss_type"),
		                         "exo_pair needs a label_smoothing above 0, such as 1e-3");
	if (is->weight[RH_PREFERENCE_ROBUST] != 0 && is->label_smoothing >= 0.5F)
		return config_entry_fail(smoothing, "of loss_type: robust it is below 0.5: a share of pairs that are the wrong way round");
	return 0;
}

/* What the rows are made of, and how they are run, leaves some keys without sense. */
static int check_run(const struct rh_config *config, const struct config_entry *const *given)
{
	static const char *const rows[] = {"completion_only_loss", "assistant_only_loss"};
	int is_kto = config->preference.weight[RH_PREFERENCE_KTO] != 0;
	for (size_t i = 0; i < 2; i++)
		if (given_of(given, rows[i]))
			return config_entry_fail(given_of(given, rows[i]),
			                         "has no meaning beside loss_type: answers are judged whole; remove it");
	if (config->packing)
		return config_entry_fail(given_of(given, "packing"), "has no meaning beside loss_type: rows are their answers; remove it "
		                                                     "(nothing is padded anyway)");
	if (config->mode != RH_MODE_LOCAL && config->mode != RH_MODE_SYNC_PP)
		return config_entry_fail(given_of(given, "mode"), "loss_type works in modes local and sync-pp so far");
	if (is_kto && given_of(given, "train_sampling_strategy") && config->train_sampling_strategy == RH_SAMPLING_RANDOM)
		return config_entry_fail(given_of(given, "train_sampling_strategy"),
		                         "kto compares rows that follow one another: sequential, or remove it");
	if (config->per_device_train_batch_size < rh_preference_fewest_rows(&config->preference))
		return config_entry_fail(given_of(given, "per_device_train_batch_size"),
		                         "kto compares an answer with another row's of its micro-batch: 2 or more");
	return 0;
}

int config_resolve_preference(struct config_draft *draft, const struct config_entry *const *given, int runs)
{
	struct rh_config *config = &draft->config;
	struct rh_preference *is = &config->preference;
	*is = (struct rh_preference){.beta = (float)config->beta,
	                             .label_smoothing = (float)config->label_smoothing,
	                             .simpo_gamma = (float)config->simpo_gamma,
	                             .cpo_alpha = (float)config->cpo_alpha,
	                             .desirable_weight = (float)config->desirable_weight,
	                             .undesirable_weight = (float)config->undesirable_weight};
	int rc = config->loss_type.count ? read_types(config, given_of(given, "loss_type"), given_of(given, "loss_weights")) : 0;
	if (!rc)
		rc = check_idle(config, given);
	if (rc || !config->loss_type.count)
		return rc;
	is->answers = is->weight[RH_PREFERENCE_APO_ZERO_UNPAIRED] != 0 ? 1 : 2;
	rc = check_values(config, given);
	if (!rc)
		rc = check_run(config, given);
	if (rc)
		return rc;
	if (runs && !given_of(given, "learning_rate"))
		config->learning_rate = 1e-6;
	if (is->weight[RH_PREFERENCE_KTO] != 0)
		config->train_sampling_strategy = RH_SAMPLING_SEQUENTIAL;
	config->lora_dropout = 0; /* as TRL does: policy and reference are compared without noise */
	return 0;
}
