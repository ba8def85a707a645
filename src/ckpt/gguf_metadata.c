/* A GGUF's pairs of key and value. Any length in the file may be hostile: the cursor never leaves the file, and a value is only read by
 * its type. */
#include "ckpt/gguf_internal.h"

#include "core/alloc.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { LONGEST_NAME = 1024, DEEPEST_ARRAY = 4, LEAST_PAIR_BYTES = 8 + 1 + 4 + 1 };

static const int widths[GGUF_TYPES] = {[GGUF_U8] = 1,   [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
                                       [GGUF_BOOL] = 1, [GGUF_F32] = 4, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8};

int gguf_take(struct gguf_cursor *cursor, int64_t bytes, const char **out)
{
	if (bytes > cursor->end - cursor->next && (uint64_t)bytes <= gguf_left(cursor))
		return -EAGAIN;
	if (bytes < 0 || bytes > cursor->end - cursor->next)
		return rh_fail(-EINVAL, "%s: the file ends inside its header (truncated, or a lying length)", cursor->path);
	*out = cursor->next;
	cursor->next += bytes;
	return 0;
}

int gguf_take_uint(struct gguf_cursor *cursor, int bytes, uint64_t *out)
{
	const char *at = NULL;
	int rc = gguf_take(cursor, bytes, &at);
	if (rc)
		return rc;
	*out = 0;
	for (int i = bytes - 1; i >= 0; i--)
		*out = *out << 8 | (unsigned char)at[i];
	return 0;
}

static int take_string(struct gguf_cursor *cursor, const char **text, uint64_t *bytes)
{
	int rc = gguf_take_uint(cursor, 8, bytes);
	if (!rc)
		rc = gguf_take(cursor, *bytes > INT64_MAX ? -1 : (int64_t)*bytes, text);
	return rc;
}

static char *copy_text(const char *text, uint64_t bytes)
{
	char *copy = rh_alloc(bytes + 1, 1);
	return copy ? memcpy(copy, text, bytes) : NULL;
}

int gguf_take_name(struct gguf_cursor *cursor, const char *what, char **out)
{
	const char *text = NULL;
	uint64_t bytes;
	int rc = take_string(cursor, &text, &bytes);
	if (rc)
		return rc;
	int good = bytes >= 1 && bytes <= LONGEST_NAME;
	for (uint64_t i = 0; good && i < bytes;) {
		utf8proc_int32_t point;
		utf8proc_ssize_t step = utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(bytes - i), &point);
		good = step > 0 && point >= 32 && point != 127;
		i += (uint64_t)(step > 0 ? step : 1);
	}
	if (!good)
		return rh_fail(-EINVAL, "%s: a %s is not 1 to %d bytes of printable UTF-8 (damaged file?)", cursor->path, what,
		               LONGEST_NAME);
	*out = copy_text(text, bytes);
	return *out ? 0 : -ENOMEM;
}

static int take_type(struct gguf_cursor *cursor, const char *key, enum gguf_type *out)
{
	uint64_t type;
	int rc = gguf_take_uint(cursor, 4, &type);
	if (!rc && type >= GGUF_TYPES)
		rc = rh_fail(-EINVAL, "%s: metadata '%s' has the unknown type %llu", cursor->path, key, (unsigned long long)type);
	if (!rc)
		*out = (enum gguf_type)type;
	return rc;
}

/* Steps over the elements of an array, nested ones included. */
static int skip_elements(struct gguf_cursor *cursor, const char *key, enum gguf_type element, uint64_t count, int depth)
{
	const char *ignored;
	int rc = 0;
	if (widths[element])
		return gguf_take(cursor, count > INT64_MAX / 8 ? -1 : (int64_t)count * widths[element], &ignored);
	/* The least a string or an array can take bounds the loop. */
	if (count > gguf_left(cursor) / 8)
		return gguf_take(cursor, -1, &ignored);
	if (depth >= DEEPEST_ARRAY)
		return rh_fail(-EINVAL, "%s: metadata '%s' nests arrays too deep", cursor->path, key);
	for (uint64_t i = 0; !rc && i < count; i++) {
		uint64_t inner;
		enum gguf_type type;
		if (element == GGUF_STRING) {
			rc = take_string(cursor, &ignored, &inner);
			continue;
		}
		rc = take_type(cursor, key, &type);
		if (!rc)
			rc = gguf_take_uint(cursor, 8, &inner);
		if (!rc)
			rc = skip_elements(cursor, key, type, inner, depth + 1);
	}
	return rc;
}

static int take_value(struct gguf_cursor *cursor, struct gguf_pair *pair)
{
	int rc = take_type(cursor, pair->key, &pair->type);
	if (rc)
		return rc;
	if (pair->type == GGUF_STRING) {
		rc = take_string(cursor, &pair->value, &pair->count);
		if (!rc && !(pair->text = copy_text(pair->value, pair->count)))
			rc = -ENOMEM;
	} else if (pair->type == GGUF_ARRAY) {
		rc = take_type(cursor, pair->key, &pair->element);
		if (!rc)
			rc = gguf_take_uint(cursor, 8, &pair->count);
		pair->value = cursor->next;
		if (!rc)
			rc = skip_elements(cursor, pair->key, pair->element, pair->count, 1);
	} else {
		rc = gguf_take(cursor, widths[pair->type], &pair->value);
	}
	return rc;
}

static int compare_key(const void *a, const void *b)
{
	const struct gguf_pair *x = a, *y = b;
	return strcmp(x->key, y->key);
}

int gguf_read_pairs(struct rh_gguf *gguf, struct gguf_cursor *cursor)
{
	uint64_t count = gguf->pairs;
	gguf->pairs = 0;
	if (count > gguf_left(cursor) / LEAST_PAIR_BYTES)
		return rh_fail(-EINVAL, "%s: the header claims %llu metadata entries, more than the file can hold", cursor->path,
		               (unsigned long long)count);
	gguf->pair = rh_alloc(count, sizeof *gguf->pair);
	int rc = gguf->pair ? 0 : -ENOMEM;
	while (!rc && gguf->pairs < count) {
		struct gguf_pair *pair = &gguf->pair[gguf->pairs++];
		rc = gguf_take_name(cursor, "metadata key", &pair->key);
		if (!rc)
			rc = take_value(cursor, pair);
	}
	if (rc || !count)
		return rc;
	qsort(gguf->pair, count, sizeof *gguf->pair, compare_key);
	for (uint64_t i = 1; i < count; i++)
		if (!strcmp(gguf->pair[i - 1].key, gguf->pair[i].key))
			return rh_fail(-EINVAL, "%s: metadata '%s' is given twice", cursor->path, gguf->pair[i].key);
	return 0;
}

static const struct gguf_pair *find(const struct rh_gguf *gguf, const char *key)
{
	const struct gguf_pair wanted = {.key = (char *)(uintptr_t)key};
	return gguf->pairs ? bsearch(&wanted, gguf->pair, gguf->pairs, sizeof wanted, compare_key) : NULL;
}

static int wrong_type(const struct rh_gguf *gguf, const char *key, const char *expected)
{
	return rh_fail(-EINVAL, "%s: metadata '%s' must be %s", gguf->path, key, expected);
}

/* 1 and *out if the number is whole and fits, else 0. */
static int number_int(enum gguf_type type, const char *at, int64_t *out)
{
	union {
		int8_t i8;
		int16_t i16;
		int32_t i32;
		int64_t i64;
	} value = {.i64 = 0};
	if (type == GGUF_F32 || type == GGUF_F64 || type == GGUF_BOOL || !widths[type])
		return 0;
	memcpy(&value, at, (size_t)widths[type]); /* little-endian hosts only, as everywhere here */
	switch (type) {
	case GGUF_I8:
		*out = value.i8;
		return 1;
	case GGUF_I16:
		*out = value.i16;
		return 1;
	case GGUF_I32:
		*out = value.i32;
		return 1;
	default: /* unsigned ones are zero-extended by the union; U64 above INT64_MAX does not fit */
		*out = value.i64;
		return type == GGUF_I64 || value.i64 >= 0;
	}
}

static int number_real(enum gguf_type type, const char *at, double *out)
{
	int64_t whole;
	float single;
	if (type == GGUF_F64) {
		memcpy(out, at, sizeof *out);
	} else if (type == GGUF_F32) {
		memcpy(&single, at, sizeof single);
		*out = single;
	} else if (number_int(type, at, &whole)) {
		*out = (double)whole;
	} else {
		return 0;
	}
	return 1;
}

int rh_gguf_int(const struct rh_gguf *gguf, const char *key, int64_t *out)
{
	const struct gguf_pair *pair = find(gguf, key);
	if (!pair)
		return 0;
	return number_int(pair->type, pair->value, out) ? 1 : wrong_type(gguf, key, "a whole number");
}

int rh_gguf_real(const struct rh_gguf *gguf, const char *key, double *out)
{
	const struct gguf_pair *pair = find(gguf, key);
	if (!pair)
		return 0;
	return number_real(pair->type, pair->value, out) ? 1 : wrong_type(gguf, key, "a number");
}

int rh_gguf_bool(const struct rh_gguf *gguf, const char *key, int *out)
{
	const struct gguf_pair *pair = find(gguf, key);
	if (!pair)
		return 0;
	if (pair->type != GGUF_BOOL)
		return wrong_type(gguf, key, "true or false");
	*out = *pair->value != 0;
	return 1;
}

int rh_gguf_string(const struct rh_gguf *gguf, const char *key, const char **out)
{
	const struct gguf_pair *pair = find(gguf, key);
	if (!pair)
		return 0;
	if (pair->type != GGUF_STRING || strlen(pair->text) != pair->count)
		return wrong_type(gguf, key, "a string without NUL");
	*out = pair->text;
	return 1;
}

int rh_gguf_strings(const struct rh_gguf *gguf, const char *key, size_t *count, const char ***text, size_t **bytes)
{
	const struct gguf_pair *pair = find(gguf, key);
	if (!pair)
		return 0;
	if (pair->type != GGUF_ARRAY || pair->element != GGUF_STRING)
		return wrong_type(gguf, key, "a list of strings");
	const char **texts = rh_alloc(pair->count, sizeof *texts);
	size_t *lengths = rh_alloc(pair->count, sizeof *lengths);
	struct gguf_cursor cursor = {pair->value, gguf->header + gguf->header_bytes, gguf->path, 0};
	int rc = texts && lengths ? 0 : -ENOMEM;
	for (uint64_t i = 0; !rc && i < pair->count; i++) {
		uint64_t length = 0;
		rc = take_string(&cursor, &texts[i], &length);
		lengths[i] = length;
	}
	if (rc) {
		rh_free(texts);
		rh_free(lengths);
		return rc;
	}
	*count = pair->count;
	*text = texts;
	*bytes = lengths;
	return 1;
}

int rh_gguf_floats(const struct rh_gguf *gguf, const char *key, size_t *count, float **out)
{
	const struct gguf_pair *pair = find(gguf, key);
	if (!pair)
		return 0;
	if (pair->type != GGUF_ARRAY)
		return wrong_type(gguf, key, "a list of numbers");
	float *values = rh_alloc(pair->count, sizeof *values);
	if (!values)
		return -ENOMEM;
	for (uint64_t i = 0; i < pair->count; i++) {
		double value;
		if (!number_real(pair->element, pair->value + i * (uint64_t)widths[pair->element], &value)) {
			rh_free(values);
			return wrong_type(gguf, key, "a list of numbers");
		}
		values[i] = (float)value;
	}
	*count = pair->count;
	*out = values;
	return 1;
}

int rh_gguf_ints(const struct rh_gguf *gguf, const char *key, size_t *count, int32_t **out)
{
	const struct gguf_pair *pair = find(gguf, key);
	if (!pair)
		return 0;
	if (pair->type != GGUF_ARRAY)
		return wrong_type(gguf, key, "a list of whole numbers");
	int32_t *values = rh_alloc(pair->count, sizeof *values);
	if (!values)
		return -ENOMEM;
	for (uint64_t i = 0; i < pair->count; i++) {
		int64_t value;
		if (!number_int(pair->element, pair->value + i * (uint64_t)widths[pair->element], &value) || value != (int32_t)value) {
			rh_free(values);
			return wrong_type(gguf, key, "a list of 32-bit whole numbers");
		}
		values[i] = (int32_t)value;
	}
	*count = pair->count;
	*out = values;
	return 1;
}

int rh_gguf_is_array(const struct rh_gguf *gguf, const char *key)
{
	const struct gguf_pair *pair = find(gguf, key);
	return pair && pair->type == GGUF_ARRAY;
}

int rh_gguf_flags(const struct rh_gguf *gguf, const char *key, size_t *count, unsigned char **out)
{
	const struct gguf_pair *pair = find(gguf, key);
	if (!pair)
		return 0;
	if (pair->type != GGUF_ARRAY || !widths[pair->element])
		return wrong_type(gguf, key, "a list of truths");
	unsigned char *values = rh_alloc(pair->count + 1, sizeof *values);
	int64_t value = 0;
	if (!values)
		return -ENOMEM;
	for (uint64_t i = 0; i < pair->count; i++) {
		const char *at = pair->value + i * (uint64_t)widths[pair->element];
		if (pair->element == GGUF_BOOL)
			value = *at;
		else if (!number_int(pair->element, at, &value)) {
			rh_free(values);
			return wrong_type(gguf, key, "a list of truths");
		}
		values[i] = value != 0;
	}
	*count = pair->count;
	*out = values;
	return 1;
}
