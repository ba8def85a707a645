#include "ckpt/lora.h"

#include "core/alloc.h"
#include "core/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int lora_open(const char *dir, const struct rh_model_config *model, struct lora *out)
{
	*out = (struct lora){.dir = dir};
	if (!dir)
		return 0;
	char *path = rh_path_join(dir, "adapter_model.safetensors");
	int rc = path ? rh_peft_config_load(dir, &out->peft) : -ENOMEM;
	if (!rc)
		rc = rh_safetensors_open(path, &out->file);
	if (!rc)
		rc = rh_safetensors_verify(out->file);
	rh_free(path);
	if (rc >= 0)
		rc = rh_peft_tables_open(dir, &out->peft, model, &out->tables);
	if (!rc)
		out->used = rh_peft_tables_count(out->tables);
	return rc;
}

int lora_table(const struct rh_model_config *model, const struct source_entry *entry, enum rh_table *which)
{
	const struct rh_family_names *names = rh_model_names(model);
	const char *modules[RH_TABLES] = {names->embedding, rh_model_task(model)->classifier ? NULL : names->head};
	for (int t = 0; t < RH_TABLES; t++) {
		size_t length = modules[t] ? strlen(modules[t]) : 0;
		if (length && !strncmp(entry->name, modules[t], length) && !strcmp(entry->name + length, ".weight")) {
			*which = (enum rh_table)t;
			return 1;
		}
	}
	return 0;
}

void lora_close(struct lora *lora)
{
	rh_peft_tables_close(lora->tables);
	rh_safetensors_close(lora->file);
	rh_peft_config_free(&lora->peft);
	for (int i = 0; i < 3; i++) {
		rh_free(lora->read[i].a);
		rh_free(lora->read[i].b);
		rh_free(lora->read[i].magnitude);
	}
	*lora = (struct lora){0};
}

/* The tensors of a module's factors, and their rank and scale, where there are both and they fit. `target`: what patterns of ranks name. */
static int take_pair(const struct lora *lora, const char *module, const char *target, int64_t outputs, int64_t cols, struct lora_pair *out)
{
	char name[512];
	snprintf(name, sizeof name, "base_model.model.%.400s.lora_A.weight", module);
	const struct rh_safetensor *a = rh_safetensors_find(lora->file, name);
	snprintf(name, sizeof name, "base_model.model.%.400s.lora_B.weight", module);
	const struct rh_safetensor *b = rh_safetensors_find(lora->file, name);
	if (!a && !b)
		return 0;
	if (!a || !b || a->rank != 2 || b->rank != 2 || a->shape[1] != cols || b->shape[0] != outputs || a->shape[0] != b->shape[1])
		return rh_fail(-EINVAL, "%s: lora_A and lora_B of %s do not fit its weight of (%lld, %lld)", lora->dir, module,
		               (long long)outputs, (long long)cols);
	double alpha;
	int64_t r;
	int rc = rh_peft_module(&lora->peft, target, &r, &alpha);
	if (!rc && r * out->experts != a->shape[0])
		rc = rh_fail(-EINVAL, "%s: %s has rank %lld, its tensors have %lld", lora->dir, module, (long long)r,
		             (long long)(a->shape[0] / out->experts));
	if (rc)
		return rc;
	snprintf(name, sizeof name, "base_model.model.%.400s.lora_magnitude_vector", module);
	const struct rh_safetensor *magnitude = lora->peft.use_dora ? rh_safetensors_find(lora->file, name) : NULL;
	if (lora->peft.use_dora && (!magnitude || magnitude->rank != 1 || magnitude->shape[0] != outputs))
		return rh_fail(-EINVAL, "%s: use_dora: the file lacks %s, or it is not %lld numbers long", lora->dir, name,
		               (long long)outputs);
	out->magnitude = magnitude;
	out->a = a;
	out->b = b;
	out->rank = r;
	out->scale = alpha / (lora->peft.use_rslora ? sqrt((double)r) : (double)r);
	out->outputs = outputs;
	return 0;
}

/* Is `name` a weight of a layer's experts? *prefix: how long the name of their module is. Of a weight of its own, gate and up are the two
 * halves of one matrix. */
static int is_of_experts(const struct rh_model_config *config, const struct source_entry *entry, int *prefix, struct lora_pair *out)
{
	const struct rh_family_names *names = rh_model_names(config);
	const char *whole[] = {names->experts_gate_up, names->experts_down};
	size_t length = strlen(entry->name);
	out->experts = config->experts;
	for (int i = 0; i < 2; i++) {
		size_t suffix = whole[i] ? strlen(whole[i]) : length;
		if (suffix >= length || strcmp(entry->name + length - suffix, whole[i]))
			continue;
		out->kind = i ? LORA_DOWN : LORA_GATE_UP;
		out->expert = -1;
		*prefix = (int)(strrchr(entry->name, '.') - entry->name);
		return 1;
	}
	const char *at = names->experts ? strstr(entry->name, names->experts) : NULL;
	char *end;
	if (!at || at[strlen(names->experts)] != '.')
		return 0;
	at += strlen(names->experts);
	out->expert = strtol(at + 1, &end, 10);
	out->kind = strstr(end, ".down_proj") ? LORA_DOWN : LORA_GATE_UP;
	out->first = strstr(end, ".up_proj") ? entry->rows : 0;
	*prefix = (int)(at - entry->name);
	return 1;
}

/* PEFT wraps the experts once for each of their parameters: where both are adapted, the inner one's tensors are behind "base_layer". */
static int find_of_experts(const struct lora *lora, const struct rh_model_config *config, const struct source_entry *entry,
                           struct lora_pair *out)
{
	char module[512], target[512], down[512];
	int prefix;
	if (!config->experts || !is_of_experts(config, entry, &prefix, out))
		return 0;
	snprintf(target, sizeof target, "%.*s.%s", prefix, entry->name, out->kind == LORA_DOWN ? "down_proj" : "gate_up_proj");
	snprintf(down, sizeof down, "%.*s.down_proj", prefix, entry->name);
	if (!rh_peft_matches_parameter(&lora->peft, target))
		return 0;
	int is_inner = out->kind == LORA_GATE_UP && rh_peft_matches_parameter(&lora->peft, down);
	snprintf(module, sizeof module, "%.*s%s", prefix, entry->name, is_inner ? ".base_layer" : "");
	int64_t rows = out->expert < 0 ? entry->rows / config->experts : entry->rows;
	return take_pair(lora, module, target, out->expert >= 0 && out->kind == LORA_GATE_UP ? 2 * rows : rows, entry->cols, out);
}

/* The file and the configuration name the same modules: PEFT would leave out factors that no target means, and begin missing ones anew. */
static int check_target(const struct lora *lora, const struct rh_model_config *config, const struct source_entry *entry, const char *module,
                        int has_factors)
{
	const char *layers = rh_model_names(config)->layers;
	if (!has_factors && (config->experts || entry->cols == 1 || strncmp(entry->name, layers, strlen(layers))))
		return 0; /* no linear of a layer, or perhaps one that has no module of its own */
	int targeted = rh_peft_matches(&lora->peft, module);
	if (targeted < 0)
		return targeted;
	if (has_factors && !targeted && !rh_peft_matches_parameter(&lora->peft, entry->name))
		return rh_fail(-EINVAL,
		               "%s: 'base_model.model.%s.lora_A.weight' is in the file, but adapter_config.json does not target it",
		               lora->dir, module);
	if (!has_factors && targeted)
		return rh_fail(-EINVAL, "%s: adapter_config.json targets %s, but the file lacks its factors", lora->dir, module);
	return 0;
}

int lora_find(const struct lora *lora, const struct rh_model_config *config, const struct source_entry *entry, struct lora_pair *out)
{
	char module[512];
	size_t length = strlen(entry->name);
	enum rh_table table;
	*out = (struct lora_pair){.experts = 1};
	if (!lora->file || lora_table(config, entry, &table))
		return 0;
	if (length >= 8 && !strcmp(entry->name + length - 7, ".weight")) {
		if (entry->module)
			snprintf(module, sizeof module, "%s", entry->module);
		else
			snprintf(module, sizeof module, "%.*s", (int)length - 7, entry->name);
		int rc = take_pair(lora, module, module, entry->rows, entry->cols, out);
		if (!rc)
			rc = check_target(lora, config, entry, module, out->rank > 0);
		if (rc || out->rank)
			return rc;
	}
	return find_of_experts(lora, config, entry, out);
}

/* Elements [first, first + count) as fp32. */
static int read_elements(const struct lora *lora, const struct rh_safetensor *tensor, int64_t first, int64_t count, float *out)
{
	if (tensor->dtype != RH_F32 && tensor->dtype != RH_BF16 && tensor->dtype != RH_F16)
		return rh_fail(-EINVAL, "%s: '%s' is of type %s; F32, F16 and BF16 are read", lora->dir, tensor->name,
		               rh_dtype_name(tensor->dtype));
	int64_t at = rh_dtype_bytes(tensor->dtype, first);
	int rc = rh_safetensors_read(lora->file, tensor, at, out, rh_dtype_bytes(tensor->dtype, count));
	if (!rc)
		rh_widen(tensor->dtype, count, out);
	return rc;
}

static int read_factor(const struct lora *lora, const struct rh_safetensor *tensor, float *out)
{
	return read_elements(lora, tensor, 0, tensor->shape[0] * tensor->shape[1], out);
}

int lora_find_whole(struct lora *lora, const struct source_entry *entry, const struct rh_safetensor **out)
{
	char name[512];
	snprintf(name, sizeof name, "base_model.model.%.400s", entry->name);
	*out = lora->file ? rh_safetensors_find(lora->file, name) : NULL;
	if (!*out)
		return 0;
	if ((*out)->rank != entry->tensor.rank || memcmp((*out)->shape, entry->tensor.shape, (size_t)(*out)->rank * sizeof *(*out)->shape))
		return rh_fail(-EINVAL, "%s: '%s' has another shape than the weight that it takes the place of", lora->dir, name);
	lora->used++;
	return 0;
}

int lora_read_whole(const struct lora *lora, const struct rh_safetensor *whole, int64_t first, int64_t count, float *out)
{
	return read_elements(lora, whole, first, count, out);
}

int lora_read(struct lora *lora, const struct lora_pair *pair)
{
	struct lora_factors *to = &lora->read[pair->kind];
	if (to->of == pair->a)
		return 0;
	int rc = rh_grow(&to->a, &to->a_capacity, (size_t)(pair->a->shape[0] * pair->a->shape[1]), sizeof(float));
	if (!rc)
		rc = rh_grow(&to->b, &to->b_capacity, (size_t)(pair->b->shape[0] * pair->b->shape[1]), sizeof(float));
	if (!rc)
		rc = read_factor(lora, pair->a, to->a);
	if (!rc)
		rc = read_factor(lora, pair->b, to->b);
	if (!rc && pair->magnitude)
		rc = rh_grow(&to->magnitude, &to->magnitude_capacity, (size_t)pair->outputs, sizeof(float));
	if (!rc && pair->magnitude)
		rc = read_elements(lora, pair->magnitude, 0, pair->outputs, to->magnitude);
	to->of = rc ? NULL : pair->a;
	lora->used += 2 + (pair->magnitude != NULL);
	return rc;
}

int lora_check_all_used(const struct lora *lora, const struct rh_source *source)
{
	if (!lora->file || lora->used == rh_safetensors_count(lora->file))
		return 0;
	for (int64_t i = 0; i < rh_safetensors_count(lora->file); i++) {
		const char *name = rh_safetensors_at(lora->file, i)->name, *end = strstr(name, ".lora_");
		char module[512];
		int length = end && !strncmp(name, "base_model.model.", 17) ? (int)(end - name) - 17 : 0;
		snprintf(module, sizeof module, "%.*s.weight", length, name + 17);
		if (!length || !source_entries_find(&source->entries, module))
			return rh_fail(-EINVAL, "%s: '%s' belongs to no weight of %s", lora->dir, name, source->path);
	}
	return rh_fail(-EINVAL, "%s: some of its tensors are in pairs that are not whole", lora->dir);
}
