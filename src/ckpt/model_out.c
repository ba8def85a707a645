#include "ckpt/model_out.h"

#include "core/alloc.h"
#include "core/json.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct shard {
	int64_t first, count; /* entries */
	int64_t bytes;
};

struct rh_model_out {
	char *dir;
	const struct rh_safetensors_entry *entries;
	int64_t count;
	struct shard *shard;
	size_t shards, capacity;
	struct rh_safetensors_out *file; /* of shard[done], NULL before its first byte */
	size_t done;                     /* files written whole, under temporary names: the shards, then their index if there are several */
	size_t placed;                   /* how many of them are renamed */
	int64_t written;                 /* bytes of shard[done] */
};

static int64_t entry_bytes(const struct rh_safetensors_entry *entry)
{
	int64_t elements = 1;
	for (int d = 0; d < entry->rank; d++)
		elements *= entry->shape[d];
	return rh_dtype_bytes(entry->dtype, elements);
}

static int cut_shards(struct rh_model_out *out, int64_t shard_bytes)
{
	struct shard *last = NULL;
	for (int64_t i = 0; i < out->count || !out->shards; i++) {
		int64_t bytes = i < out->count ? entry_bytes(&out->entries[i]) : 0;
		if (!last || (last->count && bytes > shard_bytes - last->bytes)) {
			int rc = rh_grow(&out->shard, &out->capacity, out->shards + 1, sizeof *out->shard);
			if (rc)
				return rc;
			last = &out->shard[out->shards++];
			*last = (struct shard){.first = i};
		}
		last->count += i < out->count;
		last->bytes += bytes;
	}
	return 0;
}

/* The name of a shard or, after the shards, of the index. */
static void file_name(const struct rh_model_out *out, size_t file, char *name, size_t size)
{
	if (file == out->shards)
		snprintf(name, size, "model.safetensors.index.json");
	else if (out->shards == 1)
		snprintf(name, size, "model.safetensors");
	else
		snprintf(name, size, "model-%05zu-of-%05zu.safetensors", file + 1, out->shards);
}

static char *file_path(const struct rh_model_out *out, size_t file)
{
	char name[64];
	file_name(out, file, name, sizeof name);
	return rh_path_join(out->dir, name);
}

/* Files have temporary names until all are complete. By such a name a killed run's leftovers are recognised, as those of core/file.h. */
static char *temporary_path(const struct rh_model_out *out, size_t file)
{
	struct rh_text path = {0};
	char name[64];
	file_name(out, file, name, sizeof name);
	return rh_text_printf(&path, "%s/%s.tmp.%ld", out->dir, name, (long)getpid()) ? NULL : path.bytes;
}

static int open_shard(struct rh_model_out *out)
{
	const struct shard *shard = &out->shard[out->done];
	char *path = temporary_path(out, out->done);
	int rc = path ? rh_safetensors_create(path, out->entries + shard->first, shard->count, &out->file) : -ENOMEM;
	rh_free(path);
	out->written = 0;
	return rc;
}

static void remove_file(char *path)
{
	if (path)
		rh_file_discard(path);
	rh_free(path);
}

static int close_shard(struct rh_model_out *out)
{
	struct rh_safetensors_out *file = out->file;
	out->file = NULL;
	int rc = rh_safetensors_commit(file);
	if (rc)
		remove_file(temporary_path(out, out->done)); /* it may be there already: only its directory could not be flushed */
	else
		out->done++;
	return rc;
}

int rh_model_out_create(const char *dir, const struct rh_safetensors_entry *entries, int64_t count, int64_t shard_bytes,
                        struct rh_model_out **result)
{
	RH_ASSERT(shard_bytes > 0);
	struct rh_model_out *out = rh_alloc(1, sizeof *out);
	int rc = out && (out->dir = rh_strdup(dir)) ? 0 : -ENOMEM;
	if (!rc) {
		out->entries = entries;
		out->count = count;
		rc = cut_shards(out, shard_bytes);
	}
	for (size_t i = 0; !rc && i <= out->shards; i++) {
		char *path = file_path(out, i);
		rc = path ? rh_file_check_replaceable(path) : -ENOMEM;
		rh_free(path);
	}
	if (!rc)
		rc = open_shard(out);
	if (rc)
		rh_model_out_abandon(out);
	else
		*result = out;
	return rc;
}

int rh_model_out_write(struct rh_model_out *out, const void *bytes, int64_t length)
{
	const char *at = bytes;
	int rc = 0;
	while (!rc && length > 0) {
		if (out->file && out->written == out->shard[out->done].bytes)
			rc = close_shard(out);
		if (!rc && out->done == out->shards)
			rc = rh_fail(-EINVAL, "%s: more bytes were written than the model declares", out->dir);
		if (!rc && !out->file)
			rc = open_shard(out);
		if (rc)
			break;
		int64_t left = out->shard[out->done].bytes - out->written, now = length < left ? length : left;
		rc = rh_safetensors_write(out->file, at, now);
		out->written += now;
		at += now;
		length -= now;
	}
	return rc;
}

static int write_index(struct rh_model_out *out)
{
	int64_t total = 0;
	char name[64];
	json_t *map = json_object();
	int failed = !map;
	for (size_t s = 0; !failed && s < out->shards; s++) {
		file_name(out, s, name, sizeof name);
		total += out->shard[s].bytes;
		for (int64_t i = 0; !failed && i < out->shard[s].count; i++)
			failed = json_object_set_new(map, out->entries[out->shard[s].first + i].name, json_string(name));
	}
	json_t *index = failed ? NULL : json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
	char *text = index ? json_dumps(index, JSON_INDENT(2)) : NULL, *path = temporary_path(out, out->shards);
	int rc = path ? 0 : -ENOMEM;
	if (!rc && !text)
		rc = rh_fail(-ENOMEM, "%s: out of host memory", path);
	if (!rc)
		rc = rh_file_write_whole(path, text, strlen(text));
	if (rc && path)
		rh_file_discard(path);
	out->done += !rc;
	rh_free(path);
	free(text);
	json_decref(index);
	json_decref(map);
	return rc;
}

/* A file of an earlier model that must not be seen beside this one's. */
static int remove_earlier(const struct rh_model_out *out, const char *name)
{
	char *path = rh_path_join(out->dir, name);
	int rc = path ? 0 : -ENOMEM;
	if (!rc)
		rc = rh_file_remove(path);
	if (rc == -ENOENT)
		rc = 0;
	rh_free(path);
	return rc;
}

/* Gives all files their names. An earlier model's index goes first and this one's comes last: in between no index names shards of both. */
static int place(struct rh_model_out *out)
{
	int rc = remove_earlier(out, "model.safetensors.index.json");
	if (!rc && out->shards > 1)
		rc = remove_earlier(out, "model.safetensors");
	if (!rc)
		rc = rh_dir_sync(out->dir);
	while (!rc && out->placed < out->done) {
		char *from = temporary_path(out, out->placed), *to = file_path(out, out->placed);
		rc = from && to ? 0 : -ENOMEM;
		if (!rc)
			rc = rh_path_move(from, to);
		rh_free(from);
		rh_free(to);
		out->placed += !rc;
	}
	return rc ? rc : rh_dir_sync(out->dir);
}

static void out_free(struct rh_model_out *out)
{
	rh_free(out->shard);
	rh_free(out->dir);
	rh_free(out);
}

int rh_model_out_commit(struct rh_model_out *out)
{
	int rc = out->file ? close_shard(out) : 0; /* complains if it is not full; no file: a write failed before */
	if (!rc && out->done != out->shards)
		rc = rh_fail(-EINVAL, "%s: only %zu of %zu shards were filled", out->dir, out->done, out->shards);
	if (!rc && out->shards > 1)
		rc = write_index(out);
	if (!rc)
		rc = place(out);
	if (rc)
		rh_model_out_abandon(out);
	else
		out_free(out);
	return rc;
}

void rh_model_out_abandon(struct rh_model_out *out)
{
	if (!out)
		return;
	rh_safetensors_abandon(out->file);
	if (out->placed < out->done) /* else all have their names, and only the directory could not be flushed */
		for (size_t i = 0; i < out->done; i++)
			remove_file(i < out->placed ? file_path(out, i) : temporary_path(out, i));
	out_free(out);
}
