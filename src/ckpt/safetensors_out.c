#include "ckpt/safetensors.h"

#include "core/alloc.h"
#include "core/json.h"

#include <stdlib.h>
#include <string.h>

struct rh_safetensors_out {
	struct rh_file_out *file;
	char *path;
	int64_t declared, written; /* bytes of data */
};

static int set(json_t *object, const char *key, json_t *value)
{
	return json_object_set_new(object, key, value) ? rh_fail(-ENOMEM, "safetensors header: '%s' cannot be added", key) : 0;
}

static json_t *entry_json(const struct rh_safetensors_entry *entry, int64_t *offset)
{
	RH_ASSERT(entry->rank >= 0 && entry->rank <= RH_SAFETENSORS_RANK && entry->dtype <= RH_BOOL);
	int64_t elements = 1, begin = *offset;
	json_t *shape = json_array();
	for (int d = 0; shape && d < entry->rank; d++) {
		elements *= entry->shape[d];
		if (json_array_append_new(shape, json_integer(entry->shape[d]))) {
			json_decref(shape);
			return NULL;
		}
	}
	*offset += rh_dtype_bytes(entry->dtype, elements);
	return json_pack("{s:s, s:o, s:[I, I]}", "dtype", rh_dtype_name(entry->dtype), "shape", shape, "data_offsets", (json_int_t)begin,
	                 (json_int_t)*offset);
}

/* The header's text, padded with spaces so that data starts at a multiple of 8. */
static int header_text(const struct rh_safetensors_entry *entries, int64_t count, const char *const *metadata, int64_t *data_bytes,
                       char **out)
{
	json_t *header = json_object(), *strings = json_pack("{s:s}", "format", "pt");
	int rc = header && strings ? 0 : rh_fail(-ENOMEM, "safetensors header: out of host memory");
	for (; !rc && metadata && metadata[0]; metadata += 2)
		rc = set(strings, metadata[0], json_string(metadata[1]));
	if (!rc)
		rc = set(header, "__metadata__", json_incref(strings));
	for (int64_t i = 0; !rc && i < count; i++) {
		if (json_object_get(header, entries[i].name))
			rc = rh_fail(-EINVAL, "safetensors header: tensor '%s' is declared twice", entries[i].name);
		else
			rc = set(header, entries[i].name, entry_json(&entries[i], data_bytes));
	}
	char *text = rc ? NULL : json_dumps(header, JSON_COMPACT);
	if (!rc && !text)
		rc = rh_fail(-ENOMEM, "safetensors header: out of host memory");
	if (!rc) {
		size_t length = strlen(text), padded = (length + 7) / 8 * 8;
		*out = rh_alloc(padded + 1, 1);
		if (!*out)
			rc = -ENOMEM;
		else
			memset(memcpy(*out, text, length) + length, ' ', padded - length);
	}
	free(text);
	json_decref(strings);
	json_decref(header);
	return rc;
}

int rh_safetensors_create(const char *path, const struct rh_safetensors_entry *entries, int64_t count, const char *const *metadata,
                          struct rh_safetensors_out **out)
{
	char *header = NULL;
	unsigned char prefix[8];
	struct rh_safetensors_out *file = rh_alloc(1, sizeof *file);
	int rc = file && (file->path = rh_strdup(path)) ? 0 : -ENOMEM;
	if (!rc)
		rc = header_text(entries, count, metadata, &file->declared, &header);
	if (!rc)
		rc = rh_file_create(path, &file->file);
	if (!rc) {
		size_t length = strlen(header);
		for (int i = 0; i < 8; i++)
			prefix[i] = (unsigned char)((uint64_t)length >> 8 * i);
		rc = rh_file_write(file->file, prefix, sizeof prefix);
		if (!rc)
			rc = rh_file_write(file->file, header, length);
	}
	rh_free(header);
	if (rc)
		rh_safetensors_abandon(file);
	else
		*out = file;
	return rc;
}

int rh_safetensors_write(struct rh_safetensors_out *file, const void *bytes, int64_t length)
{
	if (length < 0 || length > file->declared - file->written)
		return rh_fail(-EINVAL, "%s: more bytes were written than its header declares (%lld)", file->path,
		               (long long)file->declared);
	int rc = rh_file_write(file->file, bytes, (size_t)length);
	if (!rc)
		file->written += length;
	return rc;
}

static void out_free(struct rh_safetensors_out *file)
{
	rh_free(file->path);
	rh_free(file);
}

int rh_safetensors_commit(struct rh_safetensors_out *file)
{
	if (file->written != file->declared) {
		int rc = rh_fail(-EINVAL, "%s: %lld bytes were written, but its header declares %lld", file->path, (long long)file->written,
		                 (long long)file->declared);
		rh_safetensors_abandon(file);
		return rc;
	}
	int rc = rh_file_commit(file->file);
	out_free(file);
	return rc;
}

void rh_safetensors_abandon(struct rh_safetensors_out *file)
{
	if (!file)
		return;
	rh_file_abandon(file->file);
	out_free(file);
}
