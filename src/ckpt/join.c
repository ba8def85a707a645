#include "ckpt/join.h"

#include "ckpt/model_out.h"
#include "ckpt/source.h"
#include "core/alloc.h"
#include "core/json.h"
#include "core/minmax.h"
#include "model/model.h"

#include <string.h>

enum { CHUNK = 1 << 20 };

struct joining {
	struct rh_safetensors **file; /* of all parts */
	size_t files, file_capacity;
	struct rh_safetensors_entry *entry; /* what is written, in the order of files and their tensors */
	size_t entries, entry_capacity;
};

static int add_tensors(struct joining *at, struct rh_safetensors *file)
{
	int64_t count = rh_safetensors_count(file);
	int rc = rh_grow(&at->entry, &at->entry_capacity, at->entries + (size_t)count, sizeof *at->entry);
	for (int64_t i = 0; !rc && i < count; i++) {
		const struct rh_safetensor *tensor = rh_safetensors_at(file, i);
		struct rh_safetensors_entry entry = {.name = tensor->name, .dtype = tensor->dtype, .rank = tensor->rank};
		memcpy(entry.shape, tensor->shape, sizeof entry.shape);
		for (size_t k = 0; !rc && k < at->entries; k++)
			if (!strcmp(at->entry[k].name, entry.name))
				rc = rh_fail(-EINVAL, "parts: %s is in two of them; give each box's directory once", entry.name);
		at->entry[at->entries++] = entry;
	}
	return rc;
}

static int open_file(struct joining *at, const char *part, const char *name)
{
	char *path = rh_path_join(part, name);
	int rc = path ? rh_grow(&at->file, &at->file_capacity, at->files + 1, sizeof(struct rh_safetensors *)) : -ENOMEM;
	rc = rc ? rc : rh_safetensors_open(path, &at->file[at->files]);
	rh_free(path);
	return rc ? rc : add_tensors(at, at->file[at->files++]);
}

/* Each shard that the index names, once. */
static int open_shards(struct joining *at, const char *part, const json_t *map)
{
	const char *tensor, *name;
	json_t *value, *seen = json_object();
	int rc = seen ? 0 : -ENOMEM;
	json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
	{
		name = json_string_value(value);
		if (rc || !name || json_object_get(seen, name))
			continue;
		rc = json_object_set_new(seen, name, json_true()) ? -ENOMEM : open_file(at, part, name);
	}
	json_decref(seen);
	return rc;
}

static int open_part(struct joining *at, const char *part)
{
	json_t *index = NULL;
	char *single = rh_path_join(part, "model.safetensors"), *path = rh_path_join(part, "model.safetensors.index.json");
	int rc = single && path ? 0 : -ENOMEM;
	if (!rc && rh_file_exists(single))
		rc = open_file(at, part, "model.safetensors");
	else if (!rc && rh_file_exists(path)) {
		rc = rh_json_load(path, &index);
		rc = rc ? rc : open_shards(at, part, json_object_get(index, "weight_map"));
	} else if (!rc)
		rc = rh_fail(-ENOENT, "parts: %s holds no model.safetensors; it is what a box of mode sync-pp wrote as output_dir", part);
	json_decref(index);
	rh_free(single);
	rh_free(path);
	return rc;
}

/* All that the model needs is there. */
static int check_whole(const struct joining *at, const char *part, const struct rh_model_config *config)
{
	struct rh_model *model;
	int rc = rh_model_create(config, RH_F32, NULL, &model);
	if (rc)
		return rc;
	for (int b = 0; !rc && b < model->blocks; b++)
		for (int t = 0; !rc && t < model->block[b].tensors; t++) {
			int found = 0;
			for (size_t i = 0; !found && i < at->entries; i++)
				found = !strcmp(at->entry[i].name, model->block[b].tensor[t].name);
			if (!found)
				rc = rh_fail(-EINVAL, "parts: none holds %s, which %s/config.json asks for; give all boxes' directories",
				             model->block[b].tensor[t].name, part);
		}
	rh_model_destroy(model);
	return rc;
}

static int copy_tensors(const struct joining *at, struct rh_model_out *out)
{
	char *chunk = rh_alloc(CHUNK, 1);
	int rc = chunk ? 0 : -ENOMEM;
	for (size_t f = 0; !rc && f < at->files; f++)
		for (int64_t i = 0; !rc && i < rh_safetensors_count(at->file[f]); i++) {
			const struct rh_safetensor *tensor = rh_safetensors_at(at->file[f], i);
			for (int64_t done = 0; !rc && done < tensor->bytes; done += CHUNK) {
				int64_t bytes = rh_min(CHUNK, tensor->bytes - done);
				rc = rh_safetensors_read(at->file[f], tensor, done, chunk, bytes);
				rc = rc ? rc : rh_model_out_write(out, chunk, bytes);
			}
		}
	rh_free(chunk);
	return rc;
}

static int write_model(const struct joining *at, const char *part, const char *dir)
{
	struct rh_model_out *out = NULL;
	char *from = rh_path_join(part, "config.json"), *to = rh_path_join(dir, "config.json");
	struct rh_bytes config = {0};
	int rc = from && to ? rh_file_load(from, &config) : -ENOMEM;
	rc = rc ? rc : rh_dir_make(dir);
	rc = rc ? rc : rh_model_out_create(dir, at->entry, (int64_t)at->entries, RH_SHARD_BYTES, &out);
	rc = rc ? rc : copy_tensors(at, out);
	if (!rc)
		rc = rh_model_out_commit(out);
	else
		rh_model_out_abandon(out);
	rc = rc ? rc : rh_file_write_whole(to, config.bytes, config.length);
	rh_bytes_free(&config);
	rh_free(from);
	rh_free(to);
	return rc ? rc : rh_source_copy_tokenizer(part, dir);
}

int rh_join(const char *const *part, int parts, const char *dir, int64_t *tensors)
{
	struct joining at = {0};
	struct rh_model_config config = {0};
	int rc = rh_model_config_load(part[0], &config);
	for (int i = 0; !rc && i < parts; i++)
		rc = open_part(&at, part[i]);
	for (size_t f = 0; !rc && f < at.files; f++) {
		rc = rh_safetensors_verify(at.file[f]);
		rc = rc > 0 ? 0 : rc;
	}
	rc = rc ? rc : check_whole(&at, part[0], &config);
	rc = rc ? rc : write_model(&at, part[0], dir);
	*tensors = (int64_t)at.entries;
	for (size_t f = 0; f < at.files; f++)
		rh_safetensors_close(at.file[f]);
	rh_free(at.file);
	rh_free(at.entry);
	rh_model_config_free(&config);
	return rc;
}
