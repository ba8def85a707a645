/* Which modules are trained whole beside an adapter, PEFT's modules_to_save: the embedding, the head, a classifier. */
#include "session/adapter_internal.h"

#include "core/alloc.h"
#include "core/log.h"

#include <stdio.h>
#include <string.h>

enum { EMBEDDING = 1, HEAD = 2, CLASSIFIER = 4 };

static const char *last_part(const char *module)
{
	const char *dot = strrchr(module, '.');
	return dot ? dot + 1 : module;
}

/* Modules of the model that can be trained whole. A table that positions, types or a norm lie beside cannot, nor a matrix with a bias. */
static int savable(const struct rh_model_config *model)
{
	const struct rh_family_names *names = rh_model_names(model);
	const struct rh_family_task *task = rh_model_task(model);
	int bits = names->positions || names->types || names->embedding_norm || names->patches ? 0 : EMBEDDING;
	if (task->classifier)
		return bits | CLASSIFIER;
	return rh_model_ties(model) ? bits | (bits ? HEAD : 0) : task->bias || !names->head ? bits : bits | HEAD;
}

/* Which module `name` means; 0: the model has none of that name. PEFT names a classifier by either of two usual names. */
static int meaning(const struct rh_model_config *model, char *name)
{
	const struct rh_family_names *names = rh_model_names(model);
	const char *classifier = rh_model_task(model)->classifier;
	struct rh_peft_config one = {.saved = &name, .saves = 1};
	if (classifier)
		return rh_peft_saves(&one, classifier) || !strcmp(name, "score") ? CLASSIFIER
		                                                                 : rh_peft_saves(&one, names->embedding) * EMBEDDING;
	return rh_peft_saves(&one, names->embedding) ? EMBEDDING : names->head && rh_peft_saves(&one, names->head) ? HEAD : 0;
}

static int refuse(const struct rh_model_config *model, const char *where, const char *name)
{
	const struct rh_family_names *names = rh_model_names(model);
	int can = savable(model);
	return rh_fail(-EINVAL, "%s: '%.100s' cannot be trained whole in this model (%s%s%s%s%s)", where, name,
	               can & EMBEDDING ? last_part(names->embedding) : "", can & EMBEDDING && can & ~EMBEDDING ? ", " : "",
	               can & HEAD ? last_part(names->head) : "", can & CLASSIFIER ? rh_model_task(model)->classifier : "",
	               can ? " can" : "nothing can");
}

/* -EINVAL names the entry that is no module that can be trained whole. */
static int meanings(const struct rh_model_config *model, const char *where, char *const *names, size_t count, int *bits)
{
	for (size_t i = 0; i < count; i++) {
		int bit = meaning(model, names[i]);
		if (!(bit & savable(model)))
			return refuse(model, where, names[i]);
		*bits |= bit;
	}
	if (rh_model_ties(model) && *bits & (EMBEDDING | HEAD))
		*bits |= EMBEDDING | HEAD;
	return 0;
}

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
	int ties = rh_model_ties(model) && bits & EMBEDDING, rc = 0;
	while (peft->saves)
		rh_free(peft->saved[--peft->saves]);
	peft->ties = ties;
	if (bits & EMBEDDING)
		rc = add_saved(peft, last_part(names->embedding));
	if (!rc && bits & HEAD && !ties)
		rc = add_saved(peft, last_part(names->head));
	if (!rc && bits & CLASSIFIER)
		rc = add_saved(peft, rh_model_task(model)->classifier);
	return rc;
}

int adapter_saved(const struct rh_config *config, const struct rh_model_config *model, struct rh_peft_config *peft)
{
	const struct rh_list *given = &config->lora_modules_to_save;
	const char *dir = config->adapter_name_or_path, *key = "lora_modules_to_save";
	char where[512];
	int bits = 0, wanted = 0;
	snprintf(where, sizeof where, "%s/adapter_config.json: modules_to_save", dir ? dir : "");
	int rc = meanings(model, where, peft->saved, peft->saves, &bits);
	if (!rc)
		rc = meanings(model, key, given->item, given->count, &wanted);
	if (rc)
		return rc;
	if (rh_model_task(model)->classifier)
		bits |= CLASSIFIER, wanted |= CLASSIFIER;
	if (dir && config->lora_keys_given & RH_LORA_SAVED && wanted != bits)
		return rh_fail(-EINVAL, "%s: contradicts %s/adapter_config.json, which the run goes on from; leave the key out", key, dir);
	if (dir && rh_model_ties(model) && bits & EMBEDDING && !peft->ties)
		return rh_fail(-EINVAL,
		               "%s has two tables for the embedding and the head, which are one in this model; train the adapter with "
		               "PEFT's ensure_weight_tying",
		               where);
	return list_saved(model, dir ? bits : wanted, peft);
}
