#include "session/adapter.h"

#include "core/alloc.h"
#include "core/log.h"
#include "core/minmax.h"
#include "session/adapter_internal.h"
#include "weights/tensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static int module_rank(const void *context, const char *name, int64_t *r, double *scale)
{
	const struct rh_peft_config *peft = context;
	double alpha = 0;
	*r = 0;
	int rc = rh_peft_matches(peft, name);
	if (rc > 0)
		rc = rh_peft_module(peft, name, r, &alpha);
	if (rc < 0 || *r == 0)
		return rc;
	*scale = peft->use_rslora ? alpha / sqrt((double)*r) : alpha / (double)*r;
	return 0;
}

static int parameter_rank(const void *context, const char *name, int64_t *r, double *scale)
{
	const struct rh_peft_config *peft = context;
	double alpha = 0;
	*r = 0;
	if (!rh_peft_matches_parameter(peft, name))
		return 0;
	int rc = rh_peft_module(peft, name, r, &alpha);
	if (rc < 0 || *r == 0)
		return rc;
	*scale = peft->use_rslora ? alpha / sqrt((double)*r) : alpha / (double)*r;
	return 0;
}

static int saves_module(const void *context, const char *name)
{
	return rh_peft_saves(context, name);
}

static const char *base_of(const struct rh_config *config)
{
	return config->base_model_name_or_path ? config->base_model_name_or_path : config->model_name_or_path;
}

void rh_adapter_tell_base(const struct rh_config *config)
{
	const char *base = base_of(config);
	size_t length = base ? strlen(base) : 0;
	if (length > 5 && !strcasecmp(base + length - 5, ".gguf"))
		rh_note("adapter_config.json names %s as its base, which PEFT cannot load; base_model_name_or_path: ORG/MODEL writes the "
		        "Hugging Face model's name there",
		        base);
	if (config->rope_scaling.count)
		rh_note("adapter_config.json has no place for rope_scaling: other programs need it in the base's config.json, our own as a "
		        "key");
}

static int from_keys(const struct rh_config *config, const struct rh_model_config *model, struct rh_peft_config *peft)
{
	*peft = (struct rh_peft_config){.r = config->lora_r,
	                                .lora_alpha = config->lora_alpha,
	                                .lora_dropout = config->lora_dropout,
	                                .use_rslora = config->use_rslora,
	                                .use_dora = config->use_dora};
	const char *base = base_of(config);
	if (base && !(peft->base_model_name_or_path = rh_strdup(base)))
		return -ENOMEM;
	int rc = adapter_check_parameters(config, model);
	if (!rc)
		rc = adapter_patterns(config, peft);
	if (!rc)
		rc = adapter_targets(config, model, peft);
	if (!rc)
		rc = adapter_narrow(config, peft);
	return rc ? rc : adapter_check_dropout(config, peft);
}

/* Keys that the user wrote must say what the adapter says. */
static int contradiction(const struct rh_config *config, const struct rh_model_config *model, const struct rh_peft_config *peft)
{
	int given = config->lora_keys_given,
	    same = given & (RH_LORA_TARGETS | RH_LORA_PARAMETERS) ? adapter_same_targets(config, model, peft) : 1;
	const char *key = NULL;
	if (same < 0)
		return same;
	if (given & RH_LORA_PATTERNS)
		return rh_fail(-EINVAL,
		               "rank_pattern, alpha_pattern, exclude_modules, layers_to_transform and init_lora_weights are of a new "
		               "adapter, and this run goes on from %s; leave them out",
		               config->adapter_name_or_path);
	if ((given & RH_LORA_R) && config->lora_r != peft->r)
		key = "lora_r";
	else if ((given & RH_LORA_ALPHA) && config->lora_alpha != peft->lora_alpha)
		key = "lora_alpha";
	else if ((given & RH_LORA_RSLORA) && config->use_rslora != peft->use_rslora)
		key = "use_rslora";
	else if ((given & RH_LORA_DORA) && config->use_dora != peft->use_dora)
		key = "use_dora";
	else if (!same)
		key = given & RH_LORA_TARGETS ? "lora_target_modules" : "lora_target_parameters";
	if (key)
		return rh_fail(-EINVAL, "%s: contradicts %s/adapter_config.json, which the run goes on from; leave the key out", key,
		               config->adapter_name_or_path);
	return 0;
}

/* The name of a model in what a person wrote: "SmolLM2-135M" of "./SmolLM2-135M/", of "HuggingFaceTB/SmolLM2-135M", of
 * "models--HuggingFaceTB--SmolLM2-135M/snapshots/93ef" (a download's cache) and of "SmolLM2-135M.Q4_1.gguf". */
static void model_name_in(const char *path, char *out, size_t bytes)
{
	size_t length = strlen(path);
	while (length > 1 && path[length - 1] == '/')
		length--;
	size_t first = length;
	while (first && path[first - 1] != '/')
		first--;
	static const char cache[] = "/snapshots/";
	const char *snapshot = first > sizeof cache - 1 ? path + first - (sizeof cache - 1) : NULL;
	if (snapshot && !strncmp(snapshot, cache, sizeof cache - 1)) {
		length = (size_t)(snapshot - path);
		for (first = length; first && path[first - 1] != '/' && strncmp(path + first - 1, "--", 2);)
			first--;
		first += path[first] == '-';
	}
	snprintf(out, bytes, "%.*s", (int)(length - first), path + first);
	size_t end = strlen(out);
	if (end < 6 || strcasecmp(out + end - 5, ".gguf"))
		return;
	out[end - 5] = 0;
	char *kind = strrchr(out, '.'), *dash = strrchr(out, '-');
	kind = dash > kind ? dash : kind; /* "Q4_K_M", "IQ4_NL", "BF16", "f32" */
	if (kind && kind != out && kind[1] && strpbrk(kind + 1, "0123456789") && strspn(kind + 1, "iqfbIQFB") > 0)
		*kind = 0;
}

/* An adapter computes nothing of sense on another base, which nothing but its own word can tell. A base that goes by another name is
 * common too: so it is said and not refused. */
static int tell_base(const struct rh_config *config, struct rh_peft_config *peft)
{
	char made_for[256], now[256];
	const char *base = peft->base_model_name_or_path;
	if (!config->model_name_or_path)
		return 0;
	model_name_in(config->model_name_or_path, now, sizeof now);
	if (base && *base) {
		model_name_in(base, made_for, sizeof made_for);
		if (strcasecmp(made_for, now))
			rh_note("%s: the adapter says it was made for %s; running on %s", config->adapter_name_or_path, base,
			        config->model_name_or_path);
	}
	char *present = rh_strdup(base_of(config));
	if (!present)
		return -ENOMEM;
	rh_free(peft->base_model_name_or_path);
	peft->base_model_name_or_path = present;
	return 0;
}

/* The tables that the adapter's file changes. Training knows those that are trained whole, and adapters; so does inference where an adapter
 * is no part of its table. */
static int open_tables(const struct rh_config *config, const struct rh_model_config *model, enum rh_adapter_use use, struct rh_adapter *out)
{
	if (use == RH_ADAPTER_PLANS)
		return 0;
	int rc = rh_peft_tables_open(config->adapter_name_or_path, &out->peft, model, &out->tables);
	if (rc || (use == RH_ADAPTER_INFERS && rh_peft_tables_can_merge(out->tables)))
		return rc;
	rc = rh_peft_tables_check_trainable(out->tables);
	rh_peft_tables_close(out->tables);
	out->tables = NULL;
	return rc;
}

int rh_adapter_resolve(const struct rh_config *config, const struct rh_model_config *model, enum rh_adapter_use use, struct rh_adapter *out)
{
	*out = (struct rh_adapter){0};
	int rc;
	if (config->adapter_name_or_path) {
		rc = rh_peft_config_load(config->adapter_name_or_path, &out->peft);
		if (!rc)
			rc = contradiction(config, model, &out->peft);
		if (!rc && (config->lora_keys_given & RH_LORA_DROPOUT))
			out->peft.lora_dropout = config->lora_dropout; /* how one trains, not what the adapter is */
		if (!rc)
			rc = adapter_check_dropout(config, &out->peft);
		if (!rc)
			rc = open_tables(config, model, use, out);
		if (!rc)
			rc = tell_base(config, &out->peft);
	} else {
		rc = from_keys(config, model, &out->peft);
	}
	int apart = !out->tables; /* else who loads the weights adds what the adapter makes of the tables */
	if (!rc && apart)
		rc = adapter_saved(config, model, &out->peft);
	if (!rc && apart)
		rc = adapter_tie(config, model, &out->peft);
	if (rc) {
		rh_adapter_free(out);
		return rc;
	}
	out->peft.fan_in_fan_out = model->family->transposes_linears;
	out->lora = (struct rh_lora_config){.dropout = out->peft.lora_dropout,
	                                    .module = module_rank,
	                                    .parameter = parameter_rank,
	                                    .saves = apart ? saves_module : NULL,
	                                    .adapts_tables = apart,
	                                    .context = &out->peft,
	                                    .dora = out->peft.use_dora};
	return 0;
}

void rh_adapter_free(struct rh_adapter *adapter)
{
	rh_peft_tables_close(adapter->tables);
	rh_peft_config_free(&adapter->peft);
	*adapter = (struct rh_adapter){0};
}

/* The module whose adapter's A the tensor is, and *end behind its name; NULL: it is none. */
static const char *module_of(const struct rh_tensor *tensor, const char **end)
{
	static const char before[] = "base_model.model.";
	const char *linear = strstr(tensor->name, ".lora_A.weight");
	*end = linear ? linear : strstr(tensor->name, ".lora_embedding_A");
	return *end && !strncmp(tensor->name, before, sizeof before - 1) ? tensor->name + sizeof before - 1 : NULL;
}

static int has_module(const struct rh_model *model, const char *target)
{
	size_t wanted = strlen(target);
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; t < model->block[b].tensors; t++) {
			const char *end, *name = module_of(&model->block[b].tensor[t], &end);
			if (!name)
				continue;
			size_t length = (size_t)(end - name);
			if (length >= wanted && !strncmp(end - wanted, target, wanted) &&
			    (length == wanted || end[-(ptrdiff_t)wanted - 1] == '.'))
				return 1;
		}
	return 0;
}

/* 1: the pattern matches a module that has an adapter. */
static int has_pattern(const struct rh_model *model, const char *pattern)
{
	struct rh_peft_override override = {(char *)(uintptr_t)pattern, 2};
	const struct rh_peft_config one = {.r = 1, .rank_override = &override, .rank_overrides = 1};
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; t < model->block[b].tensors; t++) {
			const char *end, *name = module_of(&model->block[b].tensor[t], &end);
			char module[512];
			int64_t r = 1;
			double alpha;
			if (!name)
				continue;
			snprintf(module, sizeof module, "%.*s", (int)(end - name), name);
			int rc = rh_peft_module(&one, module, &r, &alpha);
			if (rc < 0 || r == 2)
				return rc < 0 ? rc : 1;
		}
	return 0;
}

/* A pattern that is mistyped would change nothing, and nobody would know. */
static int check_patterns(const struct rh_model *model, const char *key, const struct rh_list *pairs)
{
	for (size_t i = 0; i < pairs->count; i++) {
		char pattern[256];
		snprintf(pattern, sizeof pattern, "%.*s", (int)(strrchr(pairs->item[i], '=') - pairs->item[i]), pairs->item[i]);
		int found = has_pattern(model, pattern);
		if (found < 0)
			return rh_fail_in(found, "%s", key);
		if (!found)
			return rh_fail(-EINVAL, "%s: '%.100s' matches no module that gets an adapter; correct it or leave it out", key,
			               pattern);
	}
	return 0;
}

static int check_names(const struct rh_config *config, const struct rh_model *model)
{
	const struct rh_list *given = &config->lora_target_modules;
	if (config->exclude_modules.count || config->layers_to_transform.count) /* of a name that is there nothing may be left */
		return 0;
	if (config->adapter_name_or_path || config->lora_targets_pattern || !config->lora_targets_given ||
	    (given->count == 1 && !strcmp(given->item[0], "all-linear")))
		return 0;
	for (size_t i = 0; i < given->count; i++) {
		const char *name = given->item[i];
		if (!adapter_is_of_experts(model->config, name) && !has_module(model, name) && !adapter_is_tied_head(model->config, name))
			return rh_fail(
			        -EINVAL,
			        "lora_target_modules: '%.100s' names no linear module of this model, nor its embedding; leave it out "
			        "(all-linear is all linear modules of layers)",
			        name);
	}
	return 0;
}

int rh_adapter_check_targets(const struct rh_config *config, const struct rh_model *model)
{
	int rc = check_names(config, model), adapts_embedding = rh_model_has_embedding(model) && model->layer[0].on_table.r;
	if (!rc && adapts_embedding && config->loraplus_lr_ratio != 0 && config->loraplus_lr_ratio != 1)
		rc = rh_fail(-EINVAL,
		             "loraplus_lr_ratio: an embedding's adapter would have a rate of its own (PEFT's loraplus_lr_embedding), "
		             "which is not built; leave %s out of lora_target_modules, or the ratio",
		             rh_last_part(rh_model_names(model->config)->embedding));
	if (!rc && !config->adapter_name_or_path)
		rc = check_patterns(model, "rank_pattern", &config->rank_pattern);
	return rc || config->adapter_name_or_path ? rc : check_patterns(model, "alpha_pattern", &config->alpha_pattern);
}

/* As PEFT's begin: other than by default an embedding's matrices are normal, both or neither, but for a head's that it is tied to. */
static void start_embedding(enum rh_lora_init init, int is_tied, struct rh_tensor *tensor)
{
	int is_b = strstr(tensor->name, ".lora_embedding_B") != NULL;
	if (init == RH_LORA_INIT_FALSE)
		tensor->initial = (struct rh_initial){RH_INITIAL_NORMAL, 1};
	else if (is_b && is_tied)
		tensor->initial = (struct rh_initial){RH_INITIAL_NORMAL, 1 / (float)tensor->cols};
}

void rh_adapter_start(const struct rh_config *config, struct rh_model *model)
{
	enum rh_lora_init init = config->init_lora_weights;
	for (int b = 0; b < model->blocks && init != RH_LORA_INIT_TRUE && !config->adapter_name_or_path; b++)
		for (int t = 0; t < model->block[b].tensors; t++) {
			struct rh_tensor *tensor = &model->block[b].tensor[t];
			int is_a = strstr(tensor->name, ".lora_A.") != NULL;
			if (strstr(tensor->name, ".lora_embedding_"))
				start_embedding(init, model->block[b].uses == 2, tensor);
			else if (is_a && init == RH_LORA_INIT_GAUSSIAN)
				tensor->initial = (struct rh_initial){RH_INITIAL_NORMAL, 1 / (float)tensor->rows};
			else if (tensor->is_lora_b && tensor->rank == 2 && init == RH_LORA_INIT_FALSE)
				tensor->initial = (struct rh_initial){RH_INITIAL_UNIFORM, 1 / sqrtf((float)tensor->cols)};
		}
}

static int adapter_file(const char *dir, const struct rh_model *model, struct rh_tensor_list *list, char **path)
{
	*path = rh_path_join(dir, "adapter_model.safetensors");
	if (!*path)
		return -ENOMEM;
	return rh_tensor_list_add(list, model, RH_TENSORS_ADAPTERS, RH_F32, "");
}

/* Against the checksum that this program writes into the header; other programs' files have none. */
static int verify(const char *path)
{
	struct rh_safetensors *file;
	int rc = rh_safetensors_open(path, &file);
	if (rc)
		return rc;
	rc = rh_safetensors_verify(file);
	rh_safetensors_close(file);
	return rc < 0 ? rc : 0;
}

int rh_adapter_load(const char *dir, const struct rh_peft_tables *tables, const struct rh_model *model, struct rh_store *store)
{
	struct rh_tensor_list list = {0};
	char *path;
	int rc = adapter_file(dir, model, &list, &path);
	if (!rc)
		rc = verify(path);
	if (!rc)
		rc = rh_tensors_load(path, &list, rh_peft_tables_count(tables), model, store);
	rh_tensor_list_free(&list);
	rh_free(path);
	return rc;
}

static int load_table(struct rh_peft_tables *tables, const struct rh_source *source, enum rh_table which, const struct rh_model *model,
                      int block, int index, struct rh_store *store)
{
	enum { PIECE = 1 << 18 }; /* elements */
	const struct rh_tensor *tensor = &model->block[block].tensor[index];
	int64_t rows = tensor->rows, cols = tensor->cols, most = rh_max(PIECE / cols, 1);
	float *piece = rh_alloc((size_t)(most * cols), sizeof *piece);
	int rc = piece ? 0 : -ENOMEM;
	for (int64_t first = 0, count; !rc && first < rows; first += count) {
		count = rh_min(most, rows - first);
		rc = rh_peft_tables_read(tables, source, which, first, count, piece);
		if (!rc)
			rc = rh_store_set(store, block, index, first * cols, count * cols, piece);
	}
	rh_free(piece);
	return rc;
}

int rh_adapter_load_tables(struct rh_peft_tables *tables, const struct rh_source *source, const struct rh_model *model,
                           struct rh_store *store)
{
	const struct rh_family_names *names = rh_model_names(model->config);
	const char *modules[RH_TABLES] = {names->embedding, names->head};
	int rc = 0;
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; !rc && t < model->block[b].tensors; t++)
			for (int which = 0; !rc && which < RH_TABLES; which++) {
				const struct rh_tensor *tensor = &model->block[b].tensor[t];
				size_t length = modules[which] ? strlen(modules[which]) : 0;
				if (length && rh_peft_tables_change(tables, (enum rh_table)which) &&
				    !strncmp(tensor->name, modules[which], length) && !strcmp(tensor->name + length, ".weight"))
					rc = load_table(tables, source, (enum rh_table)which, model, b, t, store);
			}
	return rc;
}

int rh_adapter_out_open(const char *dir, const struct rh_model *model, struct rh_store *store, struct rh_tensors_out **out)
{
	struct rh_tensor_list list = {0};
	char *path;
	int rc = adapter_file(dir, model, &list, &path);
	if (!rc)
		rc = rh_tensors_out_open(path, &list, model, store, out);
	rh_tensor_list_free(&list);
	rh_free(path);
	return rc;
}
