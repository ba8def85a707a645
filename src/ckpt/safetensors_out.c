/* Writes a safetensors file: first the whole header, then exactly the declared bytes, in the declared order. */
#include "ckpt/safetensors_internal.h"

#include "core/alloc.h"
#include "core/json.h"
#include "core/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct rh_safetensors_out {
	struct rh_file_out *file;
	char *path;
	int64_t declared, written; /* bytes of data */
	XXH3_state_t *sum;
	int64_t sum_at; /* where it stands in the file: zeros until the commit */
};

#define HEADER_BEGIN "{\"__metadata__\":{\"format\":\"pt\",\"" RH_SAFETENSORS_SUM "\":\""

static int put_string(struct rh_text *text, const char *string)
{
	json_t *json = json_string(string);
	char *dumped = json ? json_dumps(json, JSON_ENCODE_ANY) : NULL;
	int rc = json ? 0 : rh_fail(-EINVAL, "safetensors header: '%s' is no UTF-8", string);
	if (!rc)
		rc = dumped ? rh_text_append(text, dumped, strlen(dumped)) : rh_fail(-ENOMEM, "safetensors header: out of host memory");
	free(dumped);
	json_decref(json);
	return rc;
}

/* Writes an entry's line. Its data begin at *offset, which advances to their end. */
static int put_entry(struct rh_text *text, const struct rh_safetensors_entry *entry, int64_t *offset)
{
	RH_ASSERT(entry->rank >= 0 && entry->rank <= RH_SAFETENSORS_RANK && entry->dtype <= RH_BOOL);
	int64_t elements = 1, begin = *offset;
	int rc = rh_text_printf(text, ",");
	if (rc)
		return rc;
	rc = put_string(text, entry->name);
	if (rc)
		return rc;
	rc = rh_text_printf(text, ":{\"dtype\":\"%s\",\"shape\":[", rh_dtype_name(entry->dtype));
	for (int d = 0; !rc && d < entry->rank; d++) {
		elements *= entry->shape[d];
		rc = rh_text_printf(text, "%s%" PRId64, d ? "," : "", entry->shape[d]);
	}
	*offset += rh_dtype_bytes(entry->dtype, elements);
	return rc ? rc : rh_text_printf(text, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", begin, *offset);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const struct rh_safetensors_entry *entries, int64_t count)
{
	const char **name = rh_alloc((size_t)count, sizeof *name);
	int rc = name ? 0 : -ENOMEM;
	for (int64_t i = 0; !rc && i < count; i++)
		name[i] = entries[i].name;
	if (!rc)
		qsort(name, (size_t)count, sizeof *name, by_name);
	for (int64_t i = 0; !rc && i < count; i++)
		if (!strcmp(name[i], "__metadata__") || (i && !strcmp(name[i], name[i - 1])))
			rc = rh_fail(-EINVAL, "safetensors header: tensor '%s' is declared twice", name[i]);
	rh_free(name);
	return rc;
}

/* The header, padded with spaces so that data starts at a multiple of 8. Written as text: a tree of thousands of tensors would be the
 * largest thing that a run allocates. */
static int header_text(const struct rh_safetensors_entry *entries, int64_t count, int64_t *data_bytes, struct rh_text *out)
{
	int rc = check_names(entries, count);
	if (rc)
		return rc;
	rc = rh_text_printf(out, HEADER_BEGIN "%0*d\"}", SAFETENSORS_SUM_DIGITS, 0);
	for (int64_t i = 0; !rc && i < count; i++)
		rc = put_entry(out, &entries[i], data_bytes);
	if (rc)
		return rc;
	rc = rh_text_printf(out, "}");
	while (!rc && out->length % 8)
		rc = rh_text_printf(out, " ");
	return rc;
}

int rh_safetensors_create(const char *path, const struct rh_safetensors_entry *entries, int64_t count, struct rh_safetensors_out **out)
{
	struct rh_text header = {0};
	unsigned char prefix[8];
	struct rh_safetensors_out *file = rh_alloc(1, sizeof *file);
	int rc = file && (file->path = rh_strdup(path)) && (file->sum = XXH3_createState()) ? 0 : -ENOMEM;
	if (!rc)
		rc = header_text(entries, count, &file->declared, &header);
	if (!rc)
		rc = rh_file_create(path, &file->file);
	if (!rc) {
		XXH3_128bits_reset(file->sum);
		file->sum_at = (int64_t)(sizeof prefix + strlen(HEADER_BEGIN));
		for (int i = 0; i < 8; i++)
			prefix[i] = (unsigned char)((uint64_t)header.length >> 8 * i);
		rc = rh_file_write(file->file, prefix, sizeof prefix);
		if (!rc)
			rc = rh_file_write(file->file, header.bytes, header.length);
	}
	rh_text_free(&header);
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
	if (!rc) {
		file->written += length;
		XXH3_128bits_update(file->sum, bytes, (size_t)length);
	}
	return rc;
}

static void out_free(struct rh_safetensors_out *file)
{
	XXH3_freeState(file->sum);
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
	char hex[SAFETENSORS_SUM_DIGITS + 1];
	safetensors_sum(file->sum, hex);
	int rc = rh_file_patch(file->file, file->sum_at, hex, SAFETENSORS_SUM_DIGITS);
	if (rc) {
		rh_safetensors_abandon(file);
		return rc;
	}
	rc = rh_file_commit(file->file);
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
