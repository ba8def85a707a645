#include "ckpt/gguf_out.h"

#include "ckpt/gguf_internal.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/text.h"

#include <string.h>

enum { VERSION = 3, ALIGNMENT = 32 };

struct rh_gguf_out {
	struct rh_file_out *file;
	struct rh_text pairs, table;
	uint64_t pair_count, tensor_count;
	int64_t data_bytes; /* bytes of data declared, each tensor's padded */
	int64_t written;    /* bytes of the current tensor */
};

static int put(struct rh_text *text, const void *bytes, size_t length)
{
	return rh_text_append(text, bytes, length);
}

static int put_u32(struct rh_text *text, uint32_t value)
{
	return put(text, &value, sizeof value); /* little-endian hosts only, as everywhere here */
}

static int put_u64(struct rh_text *text, uint64_t value)
{
	return put(text, &value, sizeof value);
}

static int put_string(struct rh_text *text, const char *bytes, size_t length)
{
	int rc = put_u64(text, length);
	return rc ? rc : put(text, bytes, length);
}

static int put_key(struct rh_gguf_out *out, const char *key, enum gguf_type type)
{
	int rc = put_string(&out->pairs, key, strlen(key));
	out->pair_count++;
	return rc ? rc : put_u32(&out->pairs, (uint32_t)type);
}

static int put_array(struct rh_gguf_out *out, const char *key, enum gguf_type element, size_t count)
{
	int rc = put_key(out, key, GGUF_ARRAY);
	if (!rc)
		rc = put_u32(&out->pairs, (uint32_t)element);
	return rc ? rc : put_u64(&out->pairs, count);
}

int rh_gguf_out_create(const char *path, struct rh_gguf_out **result)
{
	struct rh_gguf_out *out = rh_alloc(1, sizeof *out);
	int rc = out ? rh_file_create(path, &out->file) : -ENOMEM;
	if (rc)
		rh_free(out);
	else
		*result = out;
	return rc;
}

int rh_gguf_out_string(struct rh_gguf_out *out, const char *key, const char *text)
{
	int rc = put_key(out, key, GGUF_STRING);
	return rc ? rc : put_string(&out->pairs, text, strlen(text));
}

int rh_gguf_out_u32(struct rh_gguf_out *out, const char *key, int64_t value)
{
	int rc = put_key(out, key, GGUF_U32);
	return rc ? rc : put_u32(&out->pairs, (uint32_t)value);
}

int rh_gguf_out_f32(struct rh_gguf_out *out, const char *key, double value)
{
	float single = (float)value;
	int rc = put_key(out, key, GGUF_F32);
	return rc ? rc : put(&out->pairs, &single, sizeof single);
}

int rh_gguf_out_bool(struct rh_gguf_out *out, const char *key, int value)
{
	char byte = value != 0;
	int rc = put_key(out, key, GGUF_BOOL);
	return rc ? rc : put(&out->pairs, &byte, 1);
}

int rh_gguf_out_bools(struct rh_gguf_out *out, const char *key, const unsigned char *value, size_t count)
{
	int rc = put_array(out, key, GGUF_BOOL, count);
	return rc ? rc : put(&out->pairs, value, count);
}

int rh_gguf_out_strings(struct rh_gguf_out *out, const char *key, const char *const *text, const size_t *bytes, size_t count)
{
	int rc = put_array(out, key, GGUF_STRING, count);
	for (size_t i = 0; !rc && i < count; i++)
		rc = put_string(&out->pairs, text[i], bytes[i]);
	return rc;
}

int rh_gguf_out_ints(struct rh_gguf_out *out, const char *key, const int32_t *value, size_t count)
{
	int rc = put_array(out, key, GGUF_I32, count);
	return rc ? rc : put(&out->pairs, value, count * sizeof *value);
}

int rh_gguf_out_floats(struct rh_gguf_out *out, const char *key, const float *value, size_t count)
{
	int rc = put_array(out, key, GGUF_F32, count);
	return rc ? rc : put(&out->pairs, value, count * sizeof *value);
}

/* Bytes of a value in the header of the file it was read from. */
static int value_bytes(const struct rh_gguf *from, const struct gguf_pair *pair, const char **end)
{
	static const int widths[GGUF_TYPES] = {
	        [GGUF_U8] = 1,   [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
	        [GGUF_BOOL] = 1, [GGUF_F32] = 4, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8};
	if (pair->type != GGUF_ARRAY) {
		*end = pair->value + (pair->type == GGUF_STRING ? pair->count : (uint64_t)widths[pair->type]);
		return 0;
	}
	if (widths[pair->element]) {
		*end = pair->value + pair->count * (uint64_t)widths[pair->element];
		return 0;
	}
	if (pair->element != GGUF_STRING)
		return rh_fail(-EINVAL, "%s: metadata '%s' is a list of lists, which is not copied", from->path, pair->key);
	struct gguf_cursor cursor = {pair->value, from->header + from->header_bytes, from->path, 0};
	int rc = 0;
	for (uint64_t i = 0; !rc && i < pair->count; i++) {
		uint64_t length = 0;
		const char *ignored;
		rc = gguf_take_uint(&cursor, 8, &length);
		if (!rc)
			rc = gguf_take(&cursor, (int64_t)length, &ignored);
	}
	*end = cursor.next;
	return rc;
}

int rh_gguf_out_copy(struct rh_gguf_out *out, const struct rh_gguf *from, const char *const *without)
{
	int rc = 0;
	for (uint64_t i = 0; !rc && i < from->pairs; i++) {
		const struct gguf_pair *pair = &from->pair[i];
		const char *end = pair->value;
		int is_left_out = !strcmp(pair->key, RH_GGUF_WRITTEN);
		for (const char *const *key = without; *key; key++)
			is_left_out |= !strcmp(*key, pair->key);
		if (is_left_out)
			continue;
		rc = value_bytes(from, pair, &end);
		if (!rc)
			rc = put_key(out, pair->key, pair->type);
		if (!rc && pair->type == GGUF_ARRAY)
			rc = put_u32(&out->pairs, (uint32_t)pair->element);
		if (!rc && (pair->type == GGUF_ARRAY || pair->type == GGUF_STRING))
			rc = put_u64(&out->pairs, pair->count);
		if (!rc)
			rc = put(&out->pairs, pair->value, (size_t)(end - pair->value));
	}
	return rc;
}

int rh_gguf_out_stacked(struct rh_gguf_out *out, const char *name, enum rh_dtype dtype, int64_t matrices, int64_t rows, int64_t cols)
{
	int rc = put_string(&out->table, name, strlen(name));
	if (!rc)
		rc = put_u32(&out->table, matrices ? 3 : rows ? 2 : 1);
	if (!rc)
		rc = put_u64(&out->table, (uint64_t)cols); /* innermost first */
	if (!rc && rows)
		rc = put_u64(&out->table, (uint64_t)rows);
	if (!rc && matrices)
		rc = put_u64(&out->table, (uint64_t)matrices);
	if (!rc)
		rc = put_u32(&out->table, gguf_type_number(dtype));
	if (!rc)
		rc = put_u64(&out->table, (uint64_t)out->data_bytes);
	out->tensor_count++;
	int64_t bytes = rh_dtype_bytes(dtype, cols * (rows ? rows : 1) * (matrices ? matrices : 1));
	out->data_bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	return rc;
}

int rh_gguf_out_tensor(struct rh_gguf_out *out, const char *name, enum rh_dtype dtype, int64_t rows, int64_t cols)
{
	return rh_gguf_out_stacked(out, name, dtype, 0, rows, cols);
}

static int pad(struct rh_gguf_out *out, int64_t bytes)
{
	static const char zeros[ALIGNMENT];
	int64_t missing = (ALIGNMENT - bytes % ALIGNMENT) % ALIGNMENT;
	return missing ? rh_file_write(out->file, zeros, (size_t)missing) : 0;
}

int rh_gguf_out_begin(struct rh_gguf_out *out)
{
	struct rh_text head = {0};
	int rc = rh_gguf_out_bool(out, RH_GGUF_WRITTEN, 1);
	if (!rc)
		rc = put(&head, "GGUF", 4);
	if (!rc)
		rc = put_u32(&head, VERSION);
	if (!rc)
		rc = put_u64(&head, out->tensor_count);
	if (!rc)
		rc = put_u64(&head, out->pair_count);
	if (!rc)
		rc = rh_file_write(out->file, head.bytes, head.length);
	if (!rc)
		rc = rh_file_write(out->file, out->pairs.bytes, out->pairs.length);
	if (!rc)
		rc = rh_file_write(out->file, out->table.bytes, out->table.length);
	if (!rc)
		rc = pad(out, (int64_t)(head.length + out->pairs.length + out->table.length));
	rh_text_free(&head);
	rh_text_free(&out->pairs);
	rh_text_free(&out->table);
	return rc;
}

int rh_gguf_out_write(struct rh_gguf_out *out, const void *bytes, int64_t length)
{
	out->written += length;
	return rh_file_write(out->file, bytes, (size_t)length);
}

int rh_gguf_out_end(struct rh_gguf_out *out)
{
	int rc = pad(out, out->written);
	out->written = 0;
	return rc;
}

static void out_free(struct rh_gguf_out *out)
{
	rh_text_free(&out->pairs);
	rh_text_free(&out->table);
	rh_free(out);
}

int rh_gguf_out_commit(struct rh_gguf_out *out)
{
	int rc = rh_file_commit(out->file);
	out_free(out);
	return rc;
}

void rh_gguf_out_abandon(struct rh_gguf_out *out)
{
	if (!out)
		return;
	rh_file_abandon(out->file);
	out_free(out);
}
