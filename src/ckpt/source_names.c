/* The tensors that a model of a configuration has: Hugging Face's names and shapes, and the names that a GGUF file has for them. */
#include "ckpt/source_internal.h"

#include "core/alloc.h"
#include "core/text.h"
#include "model/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A layer's modules as most architectures name them; a family's own (rh_family.gguf.names) come first. */
static const struct rh_gguf_name modules[] = {
        {"input_layernorm", "attn_norm"},
        {"self_attn.q_proj", "attn_q"},
        {"self_attn.k_proj", "attn_k"},
        {"self_attn.v_proj", "attn_v"},
        {"self_attn.o_proj", "attn_output"},
        {"post_attention_layernorm", "ffn_norm"},
        {"mlp.gate_proj", "ffn_gate"},
        {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},
        {"self_attn.q_norm", "attn_q_norm"},
        {"self_attn.k_norm", "attn_k_norm"},
        {"self_attn.qkv_proj", "attn_qkv"},
        {"mlp.gate_up_proj", "ffn_up"},
        {"self_attn.gate_proj", "attn_gate"},
        {"linear_attn.in_proj_qkv", "attn_qkv"},
        {"linear_attn.in_proj_z", "attn_gate"},
        {"linear_attn.in_proj_b", "ssm_beta"},
        {"linear_attn.in_proj_a", "ssm_alpha"},
        {"linear_attn.in_proj_qkvz", "attn_qkv"},
        {"linear_attn.in_proj_ba", "ssm_ba"},
        {"linear_attn.out_proj", "ssm_out"},
        {"linear_attn.conv1d", "ssm_conv1d"},
        {"linear_attn.norm", "ssm_norm"},
        {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
        {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
        {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
        {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
        {"per_layer_input_gate", "inp_gate"},
        {"per_layer_projection", "proj"},
        {"post_per_layer_input_norm", "post_norm"},
};

/* Tensors that are no module's. */
static const struct rh_gguf_name specials[] = {{"linear_attn.A_log", "ssm_a"}, {"linear_attn.dt_bias", "ssm_dt.bias"}};

static const char *module_in_gguf(const struct rh_family *family, const char *module, size_t length)
{
	for (int i = 0; i < RH_FAMILY_RENAMES && family->gguf.names[i].module; i++)
		if (strlen(family->gguf.names[i].module) == length && !strncmp(family->gguf.names[i].module, module, length))
			return family->gguf.names[i].stored;
	for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
		if (strlen(modules[i].module) == length && !strncmp(modules[i].module, module, length))
			return modules[i].stored;
	return NULL;
}

static char *printed(const char *format, ...)
{
	char text[96];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	return rh_strdup(text);
}

/* A tensor of layer `layer` that is no module's weight or bias, or one expert's: what it is called, and of which part. 0: it is none. */
static int gguf_special(const struct rh_model_config *config, long layer, const char *rest, struct source_entry *out)
{
	const struct rh_family_names *names = rh_model_names(config);
	static const char *const kinds[] = {"gate", "up", "down"};
	size_t length = names->experts ? strlen(names->experts) : 0;
	char *end;
	for (int i = 0; i < RH_FAMILY_RENAMES && config->family->gguf.names[i].module; i++)
		if (!strcmp(config->family->gguf.names[i].module, rest)) {
			out->stored = printed("blk.%ld.%s", layer, config->family->gguf.names[i].stored);
			return 1;
		}
	for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
		if (!strcmp(specials[i].module, rest)) {
			out->stored = printed("blk.%ld.%s", layer, specials[i].stored);
			return 1;
		}
	if (length && !strncmp(rest, names->experts, length) && rest[length] == '.' && rest[length + 1] >= '0' && rest[length + 1] <= '9') {
		out->slab = strtol(rest + length + 1, &end, 10);
		out->slabs = config->experts;
		for (int k = 0; k < 3; k++)
			if (!strncmp(end + 1, kinds[k], strlen(kinds[k])))
				out->stored = printed("blk.%ld.ffn_%s_exps.weight", layer, kinds[k]);
		return 1;
	}
	const char *both[] = {names->experts_gate_up, names->experts_down};
	for (int i = 0; i < 2; i++) {
		size_t whole = both[i] ? strlen(both[i]) : 0;
		if (!whole || strncmp(rest, both[i], whole))
			continue;
		const char *kind = strcmp(rest + whole, "_bias") ? "weight" : "bias";
		int is_joint = i == 0 && config->family->gguf.joins_experts;
		out->stored = printed("blk.%ld.ffn_%s_exps.%s", layer, is_joint ? "gate_up" : kinds[2 * i], kind);
		if (i == 0 && !is_joint && !(out->stored2 = printed("blk.%ld.ffn_up_exps.%s", layer, kind)))
			return -ENOMEM;
		return 1;
	}
	return 0;
}

/* "model.layers.3.self_attn.q_proj.weight" as a GGUF names it; NULL when out of memory. What no GGUF has keeps its name. */
static char *gguf_name(const struct rh_model_config *config, const char *name)
{
	const struct rh_family_names *names = rh_model_names(config);
	const char *kind = strrchr(name, '.'), *stored = NULL;
	size_t length = (size_t)(kind - name), prefix = strlen(names->layers);
	struct rh_text text = {0};
	if (!strncmp(name, names->layers, prefix)) {
		char *module;
		long layer = strtol(name + prefix, &module, 10);
		stored = module_in_gguf(config->family, module + 1, (size_t)(kind - module - 1));
		if (stored)
			return rh_text_printf(&text, "blk.%ld.%s%s", layer, stored, kind) ? NULL : text.bytes;
	} else {
		const struct rh_gguf_name ends[] = {{names->embedding, "token_embd"},
		                                    {names->final_norm, "output_norm"},
		                                    {names->head, "output"},
		                                    {names->positions, "position_embd"},
		                                    {names->inputs_table, "per_layer_token_embd"},
		                                    {names->inputs_norm, "per_layer_proj_norm"},
		                                    {names->per_layer[2], "per_layer_model_proj"}};
		for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
			if (ends[i].module && strlen(ends[i].module) == length && !strncmp(ends[i].module, name, length))
				stored = ends[i].stored;
	}
	return rh_text_printf(&text, "%s%s", stored ? stored : name, stored ? kind : "") ? NULL : text.bytes;
}

static struct source_tensor in_files(const struct rh_tensor *tensor, int64_t transposed)
{
	int64_t rows = tensor->rows, cols = tensor->cols;
	struct source_tensor out = {0};
	for (int d = 0; d < 4 && tensor->file_shape[d]; d++)
		out.shape[out.rank++] = tensor->file_shape[d];
	if (out.rank)
		return out;
	if (tensor->rank == 1)
		return (struct source_tensor){.rank = 1, .shape = {cols}};
	if (tensor->stacked && transposed)
		return (struct source_tensor){.rank = 3, .shape = {transposed, cols, rows / transposed}};
	return (struct source_tensor){.rank = tensor->rank, .shape = {transposed ? cols : rows, transposed ? rows : cols}};
}

char *source_wrapped_name(const char *name)
{
	static const char inside[] = "model.language_model.";
	struct rh_text text = {0};
	int is_inside = !strncmp(name, inside, sizeof inside - 1);
	return rh_text_printf(&text, is_inside ? "language_model.model.%s" : "language_model.%s",
	                      name + (is_inside ? sizeof inside - 1 : 0))
	               ? NULL
	               : text.bytes;
}

static int is_module(const char *rest, const char *module)
{
	size_t length = module ? strlen(module) : 0;
	return length && !strncmp(rest, module, length) && (!rest[length] || rest[length] == '.');
}

/* Of a layer with the gated delta rule: what a GGUF has otherwise. rest: behind the layer's number. */
static int describe_delta(const struct rh_model_config *config, const struct rh_tensor *tensor, const char *rest, struct source_entry *out)
{
	const struct rh_family_names *names = rh_model_names(config);
	const struct rh_delta_config *delta = &config->delta;
	struct source_tiles tiles = {0, 1, delta->key_heads, delta->key_heads ? delta->heads / delta->key_heads : 0, 0};
	int of_channels = is_module(rest, names->delta[0]) || is_module(rest, names->conv), is_out = is_module(rest, names->delta[4]);
	int is_a_log = is_module(rest, names->a_log), is_z = is_module(rest, names->delta[1]);
	int of_heads = is_module(rest, names->delta[2]) || is_module(rest, names->delta[3]) || is_a_log || is_module(rest, names->dt_bias);
	if (of_channels)
		tiles.first = 2 * delta->key_heads * delta->key;
	if (of_channels || is_z || is_out)
		tiles.size = delta->value;
	tiles.are_columns = is_out;
	out->is_minus_exp = is_a_log;
	if (tiles.per_key > 1 && (of_channels || is_z || is_out || of_heads) && names->delta[1])
		out->tiles = tiles;
	if (is_module(rest, names->gated_norm))
		out->has_one_added = 0;
	if (is_module(rest, names->conv)) /* without the convolution's middle size, which is 1 */
		out->tensor = (struct source_tensor){.rank = 2, .shape = {out->rows, out->cols}};
	if (names->delta[1] || !is_module(rest, names->delta[0]))
		return 0;
	/* z, which files have in one matrix with q, k and v, is a tensor of its own; value heads lie by key head there too */
	out->groups = tensor->groups;
	out->second = out->tensor.shape[0] = tiles.first + delta->heads * delta->value;
	out->stored2 = printed("%.*s.attn_gate.weight", (int)(strstr(out->stored, ".attn_qkv") - out->stored), out->stored);
	return out->stored2 ? 0 : -ENOMEM;
}

/* How a GGUF holds a tensor: its name there, and its shape. Experts are one tensor, each matrix as the model has it. */
static int describe_in_gguf(const struct rh_model_config *config, const struct rh_tensor *tensor, struct source_entry *out)
{
	const char *layers = rh_model_names(config)->layers;
	char *rest = NULL;
	long layer = strncmp(tensor->name, layers, strlen(layers)) ? -1 : strtol(tensor->name + strlen(layers), &rest, 10);
	int found = layer < 0 ? 0 : gguf_special(config, layer, rest + 1, out);
	if (found < 0)
		return found;
	if (!found)
		out->stored = gguf_name(config, tensor->name);
	out->tensor = in_files(tensor, 0);
	int64_t matrices = tensor->stacked ? tensor->transposed : out->slabs;
	if (tensor->stacked)
		out->tensor = (struct source_tensor){.rank = 3, .shape = {matrices, tensor->rows / matrices, tensor->cols}};
	else if (out->slabs)
		out->tensor = (struct source_tensor){.rank = 3, .shape = {matrices, tensor->rows, tensor->cols}};
	if (out->stored2)
		out->tensor.shape[1] /= 2; /* gates' and ups' rows, or a bias's elements, are two tensors there */
	out->are_halves = out->stored2 && config->family->mlp.activation != RH_ACT_GPT_OSS;
	out->has_one_added = config->family->norm == RH_NORM_RMS_PLUS_ONE && tensor->rank == 1 && strstr(tensor->name, "norm") &&
	                     (layer >= 0 || !config->family->has_plain_final_norm);
	if (layer >= 0 && config->delta.heads && out->stored && (found = describe_delta(config, tensor, rest + 1, out)))
		return found;
	return out->stored ? 0 : -ENOMEM;
}

static void free_entry(struct source_entry *entry)
{
	rh_free(entry->name);
	rh_free(entry->module);
	rh_free(entry->stored);
	rh_free(entry->stored2);
	if (entry->scaled)
		rh_free(entry->scaled->map);
	rh_free(entry->scaled);
}

/* The name by which adapters call the linear whose weights the tensor is, where a family's files name it otherwise. */
static int name_module(const struct rh_model *model, int layer, int tensor, char **out)
{
	const struct rh_family_names *names = model->config->family->modules;
	const struct rh_layer *of = &model->layer[layer];
	struct rh_text text = {0};
	for (int p = 0; names && of->kind == RH_LAYER_BLOCK && p < RH_PROJS; p++)
		if (of->proj[p].weight == tensor && rh_proj_name(names, of->traits.mixer, of->traits.mlp, p)) {
			int rc = rh_text_printf(&text, "%s%d.%s", names->layers, layer - 1,
			                        rh_proj_name(names, of->traits.mixer, of->traits.mlp, p));
			*out = text.bytes;
			return rc;
		}
	return 0;
}

static int add(struct source_entries *list, const struct rh_model *model, const struct rh_tensor *tensor, enum source_form form)
{
	const struct rh_model_config *config = model->config;
	int64_t transposed = form == SOURCE_GGUF ? 0 : tensor->transposed; /* a GGUF has each matrix as the model has it */
	int is_vector = tensor->rank == 1 || tensor->parts;
	struct source_entry entry = {.name = rh_strdup(tensor->name),
	                             .tensor = in_files(tensor, transposed),
	                             .head_dim = config->family->gguf.permuted ? tensor->head_dim : 0,
	                             .rows = is_vector ? tensor->cols : tensor->rows,
	                             .cols = is_vector ? 1 : tensor->cols,
	                             .matrices = transposed};
	int rc = entry.name ? 0 : -ENOMEM;
	if (!rc && form == SOURCE_GGUF)
		rc = describe_in_gguf(config, tensor, &entry);
	else if (!rc)
		rc = (entry.stored = config->wrapped ? source_wrapped_name(tensor->name) : rh_strdup(tensor->name)) ? 0 : -ENOMEM;
	if (!rc)
		rc = rh_grow(&list->entry, &list->capacity, list->count + 1, sizeof *list->entry);
	if (rc) {
		free_entry(&entry);
		return rc;
	}
	list->entry[list->count++] = entry;
	return 0;
}

static int compare(const void *a, const void *b)
{
	const struct source_entry *x = a, *y = b;
	return strcmp(x->name, y->name);
}

int source_expect(const struct rh_model_config *config, enum source_form form, struct source_entries *out)
{
	struct rh_model *model = NULL;
	*out = (struct source_entries){0};
	int rc = rh_model_create(config, RH_F32, NULL, &model);
	for (int l = 0; !rc && l < model->layers; l++) {
		const struct rh_layer *layer = &model->layer[l];
		int has_classifier = layer->kind == RH_LAYER_HEAD && layer->bias_table == RH_BLOCK_TABLE;
		int has_inputs = layer->kind == RH_LAYER_EMBEDDING && layer->block[RH_BLOCK_TABLE] >= 0;
		for (int which = 0; which <= (has_classifier || has_inputs); which++) {
			const struct rh_block *block = &model->block[layer->block[which ? RH_BLOCK_TABLE : RH_BLOCK_BASE]];
			for (int t = 0; !rc && t < block->tensors; t++) {
				rc = add(out, model, &block->tensor[t], form);
				if (!rc && !which)
					rc = name_module(model, l, t, &out->entry[out->count - 1].module);
			}
		}
	}
	rh_model_destroy(model);
	if (rc)
		source_entries_free(out);
	else
		qsort(out->entry, out->count, sizeof *out->entry, compare);
	return rc;
}

static int is_of(const struct rh_model *part, const char *name)
{
	for (int b = 0; b < part->blocks; b++)
		for (int t = 0; t < part->block[b].tensors; t++)
			if (!strcmp(part->block[b].tensor[t].name, name))
				return 1;
	return 0;
}

void source_entries_keep(struct source_entries *entries, const struct rh_model *part)
{
	size_t kept = 0;
	for (size_t i = 0; i < entries->count; i++) {
		if (is_of(part, entries->entry[i].name)) {
			entries->entry[kept++] = entries->entry[i];
			continue;
		}
		free_entry(&entries->entry[i]);
	}
	entries->count = kept;
}

void source_entries_free(struct source_entries *entries)
{
	for (size_t i = 0; i < entries->count; i++)
		free_entry(&entries->entry[i]);
	rh_free(entries->entry);
	*entries = (struct source_entries){0};
}

struct source_entry *source_entries_find(const struct source_entries *entries, const char *name)
{
	const struct source_entry key = {.name = (char *)(uintptr_t)name};
	return entries->count ? bsearch(&key, entries->entry, entries->count, sizeof key, compare) : NULL;
}
