#include "model/families/families.h"

#include <string.h>

#define ROW(name) &family_##name,
static const struct rh_family *const families[] = {RH_FAMILIES(ROW)};

const char *rh_activation_name(enum rh_activation activation)
{
	static const char *const names[RH_ACTS] = {
	        [RH_ACT_SILU] = "silu", [RH_ACT_GELU] = "gelu", [RH_ACT_GELU_TANH] = "gelu_pytorch_tanh", [RH_ACT_GPT_OSS] = "silu"};
	return names[activation];
}

const char *rh_family_activation(const struct rh_family *family)
{
	return family->mlp.activation_name ? family->mlp.activation_name : rh_activation_name(family->mlp.activation);
}

const char *rh_family_key(const struct rh_family *family, const char *key)
{
	for (int i = 0; i < RH_FAMILY_RENAMES && family->key_names[i].key; i++)
		if (!strcmp(family->key_names[i].key, key))
			return family->key_names[i].family_key;
	return key;
}

const struct rh_family *rh_family_at(size_t which)
{
	return which < sizeof families / sizeof *families ? families[which] : NULL;
}

const struct rh_family *rh_family_find(const char *model_type)
{
	for (size_t i = 0; i < sizeof families / sizeof *families; i++)
		if (!strcmp(families[i]->model_type, model_type))
			return families[i];
	return NULL;
}

const struct rh_family *rh_family_of_gguf(const char *architecture)
{
	for (size_t i = 0; i < sizeof families / sizeof *families; i++)
		if (families[i]->gguf.architecture && !strcmp(families[i]->gguf.architecture, architecture))
			return families[i];
	return NULL;
}
