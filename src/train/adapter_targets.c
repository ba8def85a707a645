/* What the run's keys say an adapter targets, in PEFT's words. */
#include "train/adapter_internal.h"

#include "core/alloc.h"
#include "core/text.h"

#include <string.h>

/* The names that "all-linear" stands for. */
static size_t every_linear(const struct rh_family *family, const char *names[RH_PROJS])
{
	size_t count = 0;
	for (int p = 0; p < RH_PROJS; p++)
		if (family->names->proj[p])
			names[count++] = strrchr(family->names->proj[p], '.') + 1;
	return count;
}

static size_t own_targets(const struct rh_family *family)
{
	size_t count = 0;
	while (count < RH_FAMILY_KEYS && family->lora_targets[count])
		count++;
	return count;
}

static int copy_names(const char *const *names, size_t count, struct rh_peft_config *peft)
{
	peft->target = rh_alloc(count, sizeof *peft->target);
	int rc = peft->target ? 0 : -ENOMEM;
	for (; !rc && peft->targets < count; peft->targets += !rc)
		if (!(peft->target[peft->targets] = rh_strdup(names[peft->targets])))
			rc = -ENOMEM;
	return rc;
}

/* PEFT itself writes "all-linear" as the list of the names it found; so do we. */
static int list_targets(const struct rh_config *config, const struct rh_family *family, struct rh_peft_config *peft)
{
	const struct rh_list *given = &config->lora_target_modules;
	const char *every[RH_PROJS];
	peft->target_is_pattern = config->lora_targets_pattern;
	if (!config->lora_targets_given && own_targets(family))
		return copy_names(family->lora_targets, own_targets(family), peft);
	if (given->count == 1 && !strcmp(given->item[0], "all-linear"))
		return copy_names(every, every_linear(family, every), peft);
	return copy_names((const char *const *)given->item, given->count, peft);
}

/* A larger model's other parts have modules of the same names, which PEFT would adapt too: so the list becomes one expression. */
static int keep_to_text_model(struct rh_peft_config *peft)
{
	struct rh_text text = {0};
	int rc = rh_text_printf(&text, "model\\.language_model\\..*\\.(?:");
	for (size_t i = 0; !rc && i < peft->targets; i++) {
		rc = i ? rh_text_printf(&text, "|") : 0;
		for (const char *at = peft->target[i]; !rc && *at; at++)
			rc = rh_text_printf(&text, *at == '.' ? "\\%c" : "%c", *at);
	}
	if (!rc)
		rc = rh_text_printf(&text, ")");
	if (rc) {
		rh_text_free(&text);
		return rc;
	}
	for (size_t i = 0; i < peft->targets; i++)
		rh_free(peft->target[i]);
	peft->target[0] = text.bytes;
	peft->targets = 1;
	peft->target_is_pattern = 1;
	return 0;
}

int adapter_targets(const struct rh_config *config, const struct rh_model_config *model, struct rh_peft_config *peft)
{
	int rc = list_targets(config, model->family, peft);
	return rc || !model->wrapped || peft->target_is_pattern ? rc : keep_to_text_model(peft);
}

static int has_target(const struct rh_peft_config *peft, const char *name)
{
	for (size_t i = 0; i < peft->targets; i++)
		if (!strcmp(peft->target[i], name))
			return 1;
	return 0;
}

int adapter_same_targets(const struct rh_config *config, const struct rh_model_config *model, const struct rh_peft_config *peft)
{
	const struct rh_list *given = &config->lora_target_modules;
	struct rh_peft_config own = {.r = peft->r, .lora_alpha = peft->lora_alpha};
	if (given->count == 1 && !strcmp(given->item[0], "all-linear") && peft->all_linear)
		return 1;
	int rc = adapter_targets(config, model, &own), same = !rc && own.target_is_pattern == peft->target_is_pattern;
	for (size_t i = 0; same && i < own.targets; i++)
		same = has_target(peft, own.target[i]);
	for (size_t i = 0; same && i < peft->targets; i++)
		same = has_target(&own, peft->target[i]);
	rh_peft_config_free(&own);
	return rc < 0 ? rc : same;
}
