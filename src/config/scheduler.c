/* lr_scheduler_kwargs: what each course of the learning rate takes, and what it does without. */
#include "config/config_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LR_NUMBER, LR_RATE, LR_STEPS, LR_DECAY }; /* RATE: a learning rate, kept as a share of learning_rate */

static const struct scheduler_word {
	const char *name;
	enum rh_scheduler of;
	int kind;
	size_t offset; /* in struct rh_lr_shape */
	double least, most;
} scheduler_words[] = {
        {"min_lr_rate", RH_LR_COSINE_WITH_MIN_LR, LR_NUMBER, offsetof(struct rh_lr_shape, min_rate), 0, 1},
        {"min_lr", RH_LR_COSINE_WITH_MIN_LR, LR_RATE, offsetof(struct rh_lr_shape, min_rate), 0, 0},
        {"num_cycles", RH_LR_COSINE_WITH_RESTARTS, LR_STEPS, offsetof(struct rh_lr_shape, cycles), 1, 1e12},
        {"lr_end", RH_LR_POLYNOMIAL, LR_RATE, offsetof(struct rh_lr_shape, min_rate), 0, 0},
        {"power", RH_LR_POLYNOMIAL, LR_NUMBER, offsetof(struct rh_lr_shape, power), 0, 1000},
        {"timescale", RH_LR_INVERSE_SQRT, LR_STEPS, offsetof(struct rh_lr_shape, timescale), 1, 1e12},
        {"num_decay_steps", RH_LR_WARMUP_STABLE_DECAY, LR_STEPS, offsetof(struct rh_lr_shape, decay_steps), 1, 1e12},
        {"num_stable_steps", RH_LR_WARMUP_STABLE_DECAY, LR_STEPS, offsetof(struct rh_lr_shape, stable_steps), 0, 1e12},
        {"min_lr_ratio", RH_LR_WARMUP_STABLE_DECAY, LR_NUMBER, offsetof(struct rh_lr_shape, min_rate), 0, 1},
        {"decay_type", RH_LR_WARMUP_STABLE_DECAY, LR_DECAY, offsetof(struct rh_lr_shape, decay), 0, 0},
};

static const struct scheduler_word *word_of(const char *pair, size_t length)
{
	for (size_t i = 0; i < sizeof scheduler_words / sizeof *scheduler_words; i++)
		if (strlen(scheduler_words[i].name) == length && !strncmp(scheduler_words[i].name, pair, length))
			return &scheduler_words[i];
	return NULL;
}

static int set_decay(const struct config_entry *entry, const char *value, enum rh_lr_decay *out)
{
	static const char *const names[] = {
	        [RH_LR_DECAY_COSINE] = "cosine", [RH_LR_DECAY_LINEAR] = "linear", [RH_LR_DECAY_1_SQRT] = "1-sqrt"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(value, names[i])) {
			*out = (enum rh_lr_decay)i;
			return 0;
		}
	return config_entry_fail(entry, "decay_type: '%s' is not allowed; expected cosine, linear or 1-sqrt", config_show(value).text);
}

static int set_word(struct rh_config *config, const struct config_entry *entry, const struct scheduler_word *word, const char *value)
{
	char *at = (char *)&config->lr_shape + word->offset;
	int is_rate = word->kind == LR_RATE, is_whole = word->kind == LR_STEPS;
	double number = 0, most = is_rate ? config->learning_rate : word->most;
	char limit[32];
	if (word->kind == LR_DECAY)
		return set_decay(entry, value, (enum rh_lr_decay *)(void *)at);
	snprintf(limit, sizeof limit, "%g", most);
	if (config_parse_real(value, &number) || !(number >= word->least && number <= most) || (is_whole && number != floor(number)))
		return config_entry_fail(entry, "%s: '%s' is not allowed; expected a %snumber from %g to %s", word->name,
		                         config_show(value).text, is_whole ? "whole " : "", word->least, is_rate ? "learning_rate" : limit);
	*(double *)(void *)at = is_rate && most > 0 ? number / most : number;
	return 0;
}

/* What transformers cannot do without, and what it takes one of two ways. */
static int check_words(const struct rh_config *config, const struct config_entry *entry)
{
	const struct rh_lr_shape *shape = &config->lr_shape;
	if (config->lr_scheduler_type == RH_LR_COSINE_WITH_MIN_LR && config->lr_scheduler_kwargs.count != 1)
		return config_entry_fail(entry,
		                         "cosine_with_min_lr needs one of lr_scheduler_kwargs: {min_lr_rate: 0.1} and {min_lr: 1e-5}");
	if (config->lr_scheduler_type == RH_LR_WARMUP_STABLE_DECAY && shape->decay_steps < 1)
		return config_entry_fail(entry, "warmup_stable_decay needs lr_scheduler_kwargs: {num_decay_steps: STEPS}");
	if (config->lr_scheduler_type == RH_LR_POLYNOMIAL && !(shape->min_rate < 1))
		return config_entry_fail(entry, "polynomial needs a learning_rate above its last, lr_scheduler_kwargs: {lr_end: 1e-7}");
	return 0;
}

int config_resolve_scheduler(struct rh_config *config, const struct config_entry *type, const struct config_entry *kwargs)
{
	const struct rh_list *pairs = &config->lr_scheduler_kwargs;
	const char *const *names = config_keys[config_key_find("lr_scheduler_type")].choices;
	config->lr_shape = (struct rh_lr_shape){.cycles = 1, .power = 1, .stable_steps = -1};
	if (config->lr_scheduler_type == RH_LR_POLYNOMIAL)
		config->lr_shape.min_rate = config->learning_rate > 0 ? 1e-7 / config->learning_rate : 1;
	for (size_t i = 0; i < pairs->count; i++) {
		const char *value = strchr(pairs->item[i], '=') + 1;
		const struct scheduler_word *word = word_of(pairs->item[i], (size_t)(value - 1 - pairs->item[i]));
		if (word->of != config->lr_scheduler_type)
			return config_entry_fail(kwargs, "'%s' has no effect without lr_scheduler_type: %s; add it or remove this",
			                         config_show(pairs->item[i]).text, names[word->of]);
		int rc = set_word(config, kwargs, word, value);
		if (rc)
			return rc;
	}
	return check_words(config, kwargs ? kwargs : type);
}
