#include "ckpt/source_internal.h"

#include "core/alloc.h"
#include "core/json.h"
#include "core/log.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void shape_text(const int64_t *shape, int rank, char *out, size_t size)
{
	size_t used = (size_t)snprintf(out, size, "(");
	for (int d = 0; d < rank && used < size; d++)
		used += (size_t)snprintf(out + used, size - used, d ? ", %lld" : "%lld", (long long)shape[d]);
	if (used < size)
		snprintf(out + used, size - used, ")");
}

static int same_shape(const struct source_tensor *expected, int rank, const int64_t *shape)
{
	return expected->rank == rank && !memcmp(expected->shape, shape, (size_t)rank * sizeof *shape);
}

/* Fills in where the tensor lies, once its shape is what the configuration says. `name` is the file's. */
static int settle(struct source_entry *entry, const char *where, const char *name, enum rh_dtype dtype, int rank, const int64_t *shape)
{
	if (!same_shape(&entry->tensor, rank, shape)) {
		char expected[96], found[192];
		shape_text(entry->tensor.shape, entry->tensor.rank, expected, sizeof expected);
		shape_text(shape, rank, found, sizeof found);
		return rh_fail(-EINVAL, "%s: tensor '%s' has shape %s, but the model's configuration makes it %s", where, name, found,
		               expected);
	}
	if (entry->head_dim && rank == 1 && rh_dtype_block(dtype) != 1)
		return rh_fail(-EINVAL, "%s: tensor '%s' is a bias stored as %s, whose order cannot be restored", where, name,
		               rh_dtype_name(dtype));
	entry->tensor.dtype = dtype;
	return 0;
}

static int missing(const char *where, const char *name)
{
	return rh_fail(-EINVAL, "%s: tensor '%s' is missing, but the model's configuration asks for it", where, name);
}

/* Tensors that some exporters add and no model reads. */
static int needless(const struct rh_source *source, const char *name)
{
	static const char *const suffixes[] = {"rotary_emb.inv_freq", "rope_freqs.weight", "attn.bias", "attn.masked_bias",
	                                       "attn_rot_embd.weight"};
	size_t length = strlen(name);
	for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
		size_t suffix = strlen(suffixes[i]);
		if (length >= suffix && !strcmp(name + length - suffix, suffixes[i]))
			return 1;
	}
	return source->config.tie_word_embeddings && !strcmp(name, "lm_head.weight");
}

static void note_unknown(const struct rh_source *source, int64_t unknown, const char *first)
{
	if (unknown)
		rh_note("%s: %lld tensors are not part of the model and are ignored, '%s' first", source->path, (long long)unknown, first);
}

static int open_gguf(struct rh_source *source)
{
	int rc = rh_gguf_open(source->path, &source->gguf);
	if (!rc)
		rc = gguf_model_config(source->gguf, &source->config);
	if (!rc)
		rc = source_expect(&source->config, &source->entries);
	int64_t used = 0, unknown = 0;
	for (size_t i = 0; !rc && i < source->entries.count; i++) {
		struct source_entry *entry = &source->entries.entry[i];
		const struct rh_gguf_tensor *tensor = rh_gguf_find(source->gguf, entry->stored);
		used++;
		if (!tensor)
			rc = missing(source->path, entry->stored);
		else
			rc = settle(entry, source->path, entry->stored, tensor->dtype, tensor->rank, tensor->shape);
		entry->file = rh_gguf_file(source->gguf);
		entry->offset = tensor ? tensor->offset : 0;
	}
	if (rc)
		return rc;
	for (int64_t i = 0; i < rh_gguf_count(source->gguf); i++)
		unknown += !needless(source, rh_gguf_at(source->gguf, i)->name);
	if (unknown > used)
		rh_note("%s: %lld tensors are not part of the model and are ignored", source->path, (long long)(unknown - used));
	return 0;
}

/* Opens `name` within the directory unless it is open already. */
static int open_shard(struct rh_source *source, const char *name, struct rh_safetensors **out)
{
	for (size_t i = source->shards; i-- > 0;)
		if (!strcmp(source->shard_name[i], name)) {
			*out = source->shard[i];
			return 0;
		}
	if (!*name || strchr(name, '/') || *name == '.')
		return rh_fail(-EINVAL, "%s: model.safetensors.index.json names the shard '%.200s', which is no plain file name",
		               source->path, name);
	char *path = rh_path_join(source->path, name), *copy = rh_strdup(name);
	size_t i = source->shards, room = i, names_room = i;
	int rc = path && copy ? rh_grow(&source->shard, &room, i + 1, sizeof *source->shard) : -ENOMEM;
	if (!rc)
		rc = rh_grow(&source->shard_name, &names_room, i + 1, sizeof *source->shard_name);
	if (!rc && !rh_file_exists(path))
		rc = rh_fail(-ENOENT, "%s: the shard is missing, though model.safetensors.index.json names it; download it again", path);
	if (!rc)
		rc = rh_safetensors_open(path, &source->shard[i]);
	if (!rc) {
		*out = source->shard[i];
		source->shard_name[i] = copy;
		source->shards++;
		copy = NULL;
	}
	rh_free(copy);
	rh_free(path);
	return rc;
}

/* weight_map of model.safetensors.index.json; *out is the caller's. Opens every shard it names, so that a missing one shows. */
static int load_index(struct rh_source *source, const char *path, json_t **out)
{
	int rc = rh_json_load(path, out);
	if (rc)
		return rc;
	json_t *map = json_object_get(*out, "weight_map"), *file;
	const char *name;
	if (!json_is_object(map))
		return rh_fail(-EINVAL, "%s: there is no 'weight_map' object", path);
	json_object_foreach(map, name, file)
	{
		struct rh_safetensors *shard;
		if (!json_is_string(file) || strlen(json_string_value(file)) != json_string_length(file))
			return rh_fail(-EINVAL, "%s: weight_map['%s'] must be a file name", path, name);
		rc = open_shard(source, json_string_value(file), &shard);
		if (rc)
			return rc;
	}
	return 0;
}

/* The tensor's shard: the one that the index names, else the only one. */
static int settle_in_shard(struct rh_source *source, struct source_entry *entry, const json_t *map)
{
	struct rh_safetensors *shard = NULL;
	const char *file = "model.safetensors";
	if (map && !(file = json_string_value(json_object_get(map, entry->name))))
		return missing(source->path, entry->name);
	int rc = open_shard(source, file, &shard);
	if (rc)
		return rc;
	const struct rh_safetensor *tensor = rh_safetensors_find(shard, entry->name);
	if (!tensor && map)
		return rh_fail(-EINVAL, "%s: tensor '%s' is not in %s, where model.safetensors.index.json puts it", source->path,
		               entry->name, file);
	if (!tensor)
		return missing(source->path, entry->name);
	if (tensor->dtype != RH_F32 && tensor->dtype != RH_F16 && tensor->dtype != RH_BF16)
		return rh_fail(-EINVAL, "%s: tensor '%s' in %s has type %s, which is not supported (F32, F16, BF16 are)", source->path,
		               entry->name, file, rh_dtype_name(tensor->dtype));
	entry->file = rh_safetensors_file(shard);
	entry->offset = tensor->offset;
	return settle(entry, source->path, entry->name, tensor->dtype, tensor->rank, tensor->shape);
}

static int read_directory(struct rh_source *source, const char *single, const char *index)
{
	json_t *root = NULL;
	int rc = rh_model_config_load(source->path, &source->config);
	if (!rc)
		rc = source_expect(&source->config, &source->entries);
	if (!rc && !rh_file_exists(single)) {
		if (rh_file_exists(index))
			rc = load_index(source, index, &root);
		else
			rc = rh_fail(-ENOENT,
			             "%s: there is neither model.safetensors nor model.safetensors.index.json; other weight files "
			             "(pytorch_model.bin) must be converted to safetensors first",
			             source->path);
	}
	for (size_t i = 0; !rc && i < source->entries.count; i++)
		rc = settle_in_shard(source, &source->entries.entry[i], json_object_get(root, "weight_map"));
	json_decref(root);
	if (rc)
		return rc;
	int64_t unknown = 0;
	const char *first = NULL;
	for (size_t s = 0; s < source->shards; s++)
		for (int64_t i = 0; i < rh_safetensors_count(source->shard[s]); i++) {
			const char *name = rh_safetensors_at(source->shard[s], i)->name;
			if (source_entries_find(&source->entries, name) || needless(source, name))
				continue;
			unknown++;
			first = first ? first : name;
		}
	note_unknown(source, unknown, first);
	return 0;
}

static int open_directory(struct rh_source *source)
{
	char *single = rh_path_join(source->path, "model.safetensors");
	char *index = rh_path_join(source->path, "model.safetensors.index.json");
	int rc = single && index ? read_directory(source, single, index) : -ENOMEM;
	rh_free(single);
	rh_free(index);
	return rc;
}

int rh_source_open(const char *path, struct rh_source **out)
{
	struct rh_source *source = rh_alloc(1, sizeof *source);
	int rc = source && (source->path = rh_strdup(path)) ? 0 : -ENOMEM;
	if (!rc && rh_dir_exists(path))
		rc = open_directory(source);
	else if (!rc && rh_file_exists(path))
		rc = open_gguf(source);
	else if (!rc)
		rc = rh_fail(-ENOENT, "%s: no such model; give a Hugging Face directory or a .gguf file", path);
	if (rc)
		rh_source_close(source);
	else
		*out = source;
	return rc;
}

void rh_source_close(struct rh_source *source)
{
	if (!source)
		return;
	for (size_t i = 0; i < source->shards; i++) {
		rh_safetensors_close(source->shard[i]);
		rh_free(source->shard_name[i]);
	}
	rh_free(source->shard);
	rh_free(source->shard_name);
	rh_gguf_close(source->gguf);
	source_entries_free(&source->entries);
	rh_model_config_free(&source->config);
	rh_free(source->path);
	rh_free(source);
}

void rh_source_forget(const struct rh_source *source)
{
	if (source->gguf)
		rh_gguf_forget(source->gguf);
}

const struct rh_model_config *rh_source_config(const struct rh_source *source)
{
	return &source->config;
}

int rh_source_copy_tokenizer(const char *model, const char *dir)
{
	static const char *const names[] = {
	        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",  "vocab.json",
	        "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "chat_template.json", "generation_config.json"};
	int rc = 0;
	if (!rh_dir_exists(model))
		return gguf_save_tokenizer(model, dir);
	for (size_t i = 0; !rc && i < sizeof names / sizeof *names; i++) {
		char *from = rh_path_join(model, names[i]), *to = rh_path_join(dir, names[i]);
		rc = from && to ? 0 : -ENOMEM;
		if (!rc && rh_file_exists(from))
			rc = rh_file_copy(from, to);
		rh_free(from);
		rh_free(to);
	}
	return rc;
}

/* Only where the key is there. */
static int replace_config_template(const char *path, const char *jinja)
{
	json_t *config = NULL;
	int rc = rh_json_load(path, &config);
	if (rc || !json_object_get(config, "chat_template")) {
		json_decref(config);
		return rc;
	}
	char *text = json_object_set_new(config, "chat_template", json_string(jinja)) ? NULL : json_dumps(config, JSON_INDENT(2));
	json_decref(config);
	rc = text ? rh_file_write_whole(path, text, strlen(text)) : -ENOMEM;
	free(text);
	return rc;
}

int rh_source_set_chat_template(const char *dir, const char *jinja)
{
	char *own = rh_path_join(dir, "chat_template.jinja"), *config = rh_path_join(dir, "tokenizer_config.json");
	char *old = rh_path_join(dir, "chat_template.json");
	int rc = own && config && old ? 0 : -ENOMEM;
	if (!rc)
		rc = rh_file_write_whole(own, jinja, strlen(jinja));
	if (!rc && rh_file_exists(config))
		rc = replace_config_template(config, jinja);
	if (!rc)
		rc = rh_file_remove(old);
	if (rc == -ENOENT)
		rc = 0;
	rh_free(own);
	rh_free(config);
	rh_free(old);
	return rc;
}
