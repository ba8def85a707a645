#include "ckpt/join.h"

#include "ckpt/model_out.h"
#include "ckpt/source.h"
#include "ckpt/verify.h"
#include "core/alloc.h"
#include "core/json.h"
#include "core/minmax.h"
#include "model/model.h"

#include <string.h>

enum { CHUNK = 1 << 20 };
/* A part's weights: one file, or the list of several. */
static const char SINGLE[] = "model.safetensors", INDEX[] = "model.safetensors.index.json";

/* Where the bytes of an entry are. */
struct origin {
	const struct rh_safetensors *file;
	const struct rh_safetensor *tensor;
	int has_copy; /* in another part */
};

struct joining {
	const struct rh_model *model; /* the whole one */
	struct rh_safetensors **file; /* of all parts */
	size_t files, file_capacity;
	struct rh_safetensors_entry *entry; /* what is written, in the order of files and their tensors */
	struct origin *origin;              /* of each entry */
	size_t entries, entry_capacity, origin_capacity;
};

/* A tensor of a table that is embedding and head, which the first and the last box both have. */
static int is_tied(const struct rh_model *model, const char *name)
{
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; model->block[b].uses == 2 && t < model->block[b].tensors; t++)
			if (!strcmp(model->block[b].tensor[t].name, name))
				return 1;
	return 0;
}

/* 1: both have the same bytes. */
static int is_same(const struct origin *one, const struct origin *two)
{
	enum { HALF = CHUNK / 2 };
	int same = one->tensor->dtype == two->tensor->dtype && one->tensor->bytes == two->tensor->bytes, rc = 0;
	char *chunk = rh_alloc(CHUNK, 1);
	if (!chunk)
		return -ENOMEM;
	for (int64_t done = 0; !rc && same && done < one->tensor->bytes; done += HALF) {
		int64_t bytes = rh_min(HALF, one->tensor->bytes - done);
		rc = rh_safetensors_read(one->file, one->tensor, done, chunk, bytes);
		if (!rc)
			rc = rh_safetensors_read(two->file, two->tensor, done, chunk + HALF, bytes);
		same = !rc && !memcmp(chunk, chunk + HALF, (size_t)bytes);
	}
	rh_free(chunk);
	return rc ? rc : same;
}

/* The entry is in another part, too: only a tied table's may be, with the same bytes. */
static int check_copy(const struct joining *at, struct origin *first, const struct origin *copy)
{
	if (first->has_copy || !is_tied(at->model, copy->tensor->name))
		return rh_fail(-EINVAL, "parts: %s is in two of them; give each box's directory once", copy->tensor->name);
	first->has_copy = 1;
	int same = is_same(first, copy);
	if (same)
		return same < 0 ? same : 0;
	return rh_fail(-EINVAL,
	               "parts: %s is not the same in the two that have it; they are of different runs, or of different steps of one",
	               copy->tensor->name);
}

static int add_tensor(struct joining *at, const struct origin *origin)
{
	const struct rh_safetensor *tensor = origin->tensor;
	struct rh_safetensors_entry entry = {.name = tensor->name, .dtype = tensor->dtype, .rank = tensor->rank};
	for (size_t k = 0; k < at->entries; k++)
		if (!strcmp(at->entry[k].name, entry.name))
			return check_copy(at, &at->origin[k], origin);
	int rc = rh_grow(&at->entry, &at->entry_capacity, at->entries + 1, sizeof *at->entry);
	if (!rc)
		rc = rh_grow(&at->origin, &at->origin_capacity, at->entries + 1, sizeof *at->origin);
	if (rc)
		return rc;
	memcpy(entry.shape, tensor->shape, sizeof entry.shape);
	at->origin[at->entries] = *origin;
	at->entry[at->entries++] = entry;
	return 0;
}

static int add_tensors(struct joining *at, const struct rh_safetensors *file)
{
	int rc = 0;
	for (int64_t i = 0; !rc && i < rh_safetensors_count(file); i++) {
		const struct origin origin = {.file = file, .tensor = rh_safetensors_at(file, i)};
		rc = add_tensor(at, &origin);
	}
	return rc;
}

static int open_file(struct joining *at, const char *part, const char *name)
{
	char *path = rh_path_join(part, name);
	int rc = path ? rh_grow(&at->file, &at->file_capacity, at->files + 1, sizeof(struct rh_safetensors *)) : -ENOMEM;
	if (!rc)
		rc = rh_safetensors_open(path, &at->file[at->files]);
	rh_free(path);
	return rc ? rc : add_tensors(at, at->file[at->files++]);
}

static int has_file(const char *part, const char *name)
{
	char *path = rh_path_join(part, name);
	int has = path && rh_file_exists(path);
	rh_free(path);
	return has;
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
	if (has_file(part, SINGLE))
		return open_file(at, part, SINGLE);
	json_t *index = NULL;
	char *path = rh_path_join(part, INDEX);
	int rc = path ? rh_json_load(path, &index) : -ENOMEM;
	if (!rc)
		rc = open_shards(at, part, json_object_get(index, "weight_map"));
	json_decref(index);
	rh_free(path);
	return rc;
}

/* Checks that the parts have all tensors of the model. */
static int check_whole(const struct joining *at, const char *part)
{
	const struct rh_model *model = at->model;
	int rc = 0;
	for (int b = 0; !rc && b < model->blocks; b++)
		for (int t = 0; !rc && t < model->block[b].tensors; t++) {
			int found = 0;
			for (size_t i = 0; !found && i < at->entries; i++)
				found = !strcmp(at->entry[i].name, model->block[b].tensor[t].name);
			if (!found)
				rc = rh_fail(-EINVAL, "parts: none holds %s, which %s/config.json asks for; give all boxes' directories",
				             model->block[b].tensor[t].name, part);
		}
	return rc;
}

static int copy_tensors(const struct joining *at, struct rh_model_out *out)
{
	char *chunk = rh_alloc(CHUNK, 1);
	int rc = chunk ? 0 : -ENOMEM;
	for (size_t k = 0; !rc && k < at->entries; k++) {
		const struct origin *from = &at->origin[k];
		for (int64_t done = 0; !rc && done < from->tensor->bytes; done += CHUNK) {
			int64_t bytes = rh_min(CHUNK, from->tensor->bytes - done);
			rc = rh_safetensors_read(from->file, from->tensor, done, chunk, bytes);
			if (!rc)
				rc = rh_model_out_write(out, chunk, bytes);
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
	if (!rc)
		rc = rh_dir_make(dir);
	if (!rc)
		rc = rh_model_out_create(dir, at->entry, (int64_t)at->entries, RH_SHARD_BYTES, &out);
	if (!rc)
		rc = copy_tensors(at, out);
	if (!rc)
		rc = rh_model_out_commit(out);
	else
		rh_model_out_abandon(out);
	if (!rc)
		rc = rh_file_write_whole(to, config.bytes, config.length);
	rh_bytes_free(&config);
	rh_free(from);
	rh_free(to);
	if (!rc)
		rc = rh_source_copy_tokenizer(part, dir);
	return rc ? rc : rh_verify_write_sums(dir);
}

/* Before the first is read. */
static int find_parts(const char *const *part, int parts)
{
	for (int i = 0; i < parts; i++) {
		if (!rh_dir_exists(part[i]))
			return rh_fail(-ENOENT, "parts: there is no directory %s; copy the output_dir of each box to this machine",
			               part[i]);
		const char *missing = !has_file(part[i], SINGLE) && !has_file(part[i], INDEX) ? SINGLE
		                      : i == 0 && !has_file(part[i], "config.json")           ? "config.json"
		                                                                              : NULL;
		if (missing)
			return rh_fail(-ENOENT,
			               "parts: %s holds no %s; give the output_dir of a box whose run has ended, with all its files",
			               part[i], missing);
	}
	return 0;
}

int rh_join(const char *const *part, int parts, const char *dir, int64_t *tensors)
{
	struct joining at = {0};
	struct rh_model_config config = {0};
	struct rh_model *model = NULL;
	int rc = find_parts(part, parts);
	if (!rc)
		rc = rh_model_config_load(part[0], &config);
	if (!rc)
		rc = rh_model_create(&config, RH_F32, NULL, &model);
	at.model = model;
	for (int i = 0; !rc && i < parts; i++)
		rc = open_part(&at, part[i]);
	for (size_t f = 0; !rc && f < at.files; f++) {
		rc = rh_safetensors_verify(at.file[f]);
		rc = rc > 0 ? 0 : rc;
	}
	if (!rc)
		rc = check_whole(&at, part[0]);
	if (!rc)
		rc = write_model(&at, part[0], dir);
	*tensors = (int64_t)at.entries;
	for (size_t f = 0; f < at.files; f++)
		rh_safetensors_close(at.file[f]);
	rh_free(at.file);
	rh_free(at.entry);
	rh_free(at.origin);
	rh_model_destroy(model);
	rh_model_config_free(&config);
	return rc;
}
