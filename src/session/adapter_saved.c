/* Which modules are trained whole beside an adapter, PEFT's modules_to_save: the embedding, the head, a classifier. */
#include "session/adapter_internal.h"

#include "core/alloc.h"
#include "core/log.h"

#include <stdio.h>
#include <string.h>

static int add_saved(struct rh_peft_config *peft, const char *name)
{
	size_t room = peft->saves;
	int rc = rh_grow(&peft->saved, &room, peft->saves + 1, sizeof *peft->saved);
	if (!rc)
		rc = (peft->saved[peft->saves] = rh_strdup(name)) ? 0 : -ENOMEM;
	peft->saves += !rc;
	return rc;
}

/* Each module once, by the name that PEFT's users write; of a tied table that of the embedding alone. */
static int list_saved(const struct rh_model_config *model, int bits, struct rh_peft_config *peft)
{
	const struct rh_family_names *names = rh_model_names(model);
	int ties = rh_model_ties(model) && bits & RH_SAVED_EMBEDDING, rc = 0;
	while (peft->saves)
		rh_free(peft->saved[--peft->saves]);
	peft->ties = ties; /* of targets: adapter_tie */
	if (bits & RH_SAVED_EMBEDDING)
		rc = add_saved(peft, rh_last_part(names->embedding));
	if (!rc && bits & RH_SAVED_HEAD && !ties)
		rc = add_saved(peft, rh_last_part(names->head));
	if (!rc && bits & RH_SAVED_CLASSIFIER)
		rc = add_saved(peft, rh_model_task(model)->classifier);
	return rc;
}

/* Either name of a tied table means both. */
static int tied_bits(const struct rh_model_config *model, int bits)
{
	int both = RH_SAVED_EMBEDDING | RH_SAVED_HEAD;
	return rh_model_ties(model) && bits & both ? both : 0;
}

int adapter_saved(const struct rh_config *config, const struct rh_model_config *model, struct rh_peft_config *peft)
{
	const struct rh_list *given = &config->lora_modules_to_save;
	const char *dir = config->adapter_name_or_path, *key = "lora_modules_to_save";
	char where[512];
	int bits = 0, wanted = 0;
	snprintf(where, sizeof where, "%s/adapter_config.json: modules_to_save", dir ? dir : "");
	int rc = rh_peft_saved(model, RH_SAVED_TRAINED, where, peft->saved, peft->saves, &bits);
	if (!rc)
		rc = rh_peft_saved(model, RH_SAVED_TRAINED, key, given->item, given->count, &wanted);
	if (rc)
		return rc;
	bits |= tied_bits(model, bits);
	wanted |= tied_bits(model, wanted);
	if (rh_model_task(model)->classifier)
		bits |= RH_SAVED_CLASSIFIER, wanted |= RH_SAVED_CLASSIFIER;
	if (dir && config->lora_keys_given & RH_LORA_SAVED && wanted != bits)
		return rh_fail(-EINVAL, "%s: contradicts %s/adapter_config.json, which the run goes on from; leave the key out", key, dir);
	return list_saved(model, dir ? bits : wanted, peft);
}
