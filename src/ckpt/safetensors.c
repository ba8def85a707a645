#include "ckpt/safetensors_internal.h"

#include "core/alloc.h"
#include "core/json.h"
#include "core/lfs.h"

#include <stdlib.h>
#include <string.h>

/* The Python library refuses longer headers too: a length field is believed only so far. */
enum { LONGEST_HEADER = 100000000 };

struct rh_safetensors {
	struct rh_file_in *input;
	int64_t data;   /* where the tensors begin */
	json_t *header; /* owns the names */
	struct rh_safetensor *tensor;
	int64_t count;
	struct rh_safetensor **by_name;
};

static int parse_dtype(const char *name, enum rh_dtype *out)
{
	for (int type = RH_F32; type <= RH_E8M0; type++)
		if ((type <= RH_BOOL || type == RH_E4M3 || type == RH_E8M0) && !strcmp(name, rh_dtype_name((enum rh_dtype)type))) {
			*out = (enum rh_dtype)type;
			return 1;
		}
	return 0;
}

/* Fills shape and bytes; every product is checked before it is believed. */
static int parse_shape(const json_t *shape, const char *path, struct rh_safetensor *out)
{
	if (!json_is_array(shape))
		return rh_fail(-EINVAL, "%s: tensor '%s' has no 'shape' list", path, out->name);
	if (json_array_size(shape) > RH_SAFETENSORS_RANK)
		return rh_fail(-EINVAL, "%s: tensor '%s' has %zu dimensions (at most %d)", path, out->name, json_array_size(shape),
		               RH_SAFETENSORS_RANK);
	out->rank = (int)json_array_size(shape);
	int64_t bytes = rh_dtype_block_bytes(out->dtype);
	for (int d = 0; d < out->rank; d++) {
		const json_t *extent = json_array_get(shape, (size_t)d);
		if (!json_is_integer(extent) || json_integer_value(extent) < 0)
			return rh_fail(-EINVAL, "%s: tensor '%s' has a shape that is not whole numbers from 0", path, out->name);
		out->shape[d] = json_integer_value(extent);
		if (__builtin_mul_overflow(bytes, out->shape[d], &bytes))
			return rh_fail(-EINVAL, "%s: tensor '%s' has a shape whose size overflows", path, out->name);
	}
	out->bytes = bytes;
	return 0;
}

static int parse_tensor(const char *name, const json_t *json, const char *path, int64_t data, int64_t data_bytes, struct rh_safetensor *out)
{
	const char *type = json_string_value(json_object_get(json, "dtype"));
	const json_t *offsets = json_object_get(json, "data_offsets");
	out->name = name;
	if (!type)
		return rh_fail(-EINVAL, "%s: tensor '%s' has no 'dtype'", path, name);
	if (!parse_dtype(type, &out->dtype))
		return rh_fail(-EINVAL, "%s: tensor '%s' has type %.32s, which is not supported", path, name, type);
	int rc = parse_shape(json_object_get(json, "shape"), path, out);
	if (rc)
		return rc;
	const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
	if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
		return rh_fail(-EINVAL, "%s: tensor '%s' has no 'data_offsets' pair", path, name);
	int64_t begin = json_integer_value(first), end = json_integer_value(last);
	if (begin < 0 || end < begin || end > data_bytes)
		return rh_fail(-EINVAL, "%s: tensor '%s' lies at bytes %lld to %lld, but the file has %lld bytes of data (truncated?)",
		               path, name, (long long)begin, (long long)end, (long long)data_bytes);
	if (end - begin != out->bytes)
		return rh_fail(-EINVAL, "%s: tensor '%s' has %lld bytes, but its shape and type need %lld", path, name,
		               (long long)(end - begin), (long long)out->bytes);
	out->offset = data + begin;
	return 0;
}

static int compare_data(const void *a, const void *b)
{
	const struct rh_safetensor *x = a, *y = b;
	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors first: they end where they begin */
}

static int compare_name(const void *a, const void *b)
{
	const struct rh_safetensor *const *x = a, *const *y = b;
	return strcmp((*x)->name, (*y)->name);
}

static int check_tiling(struct rh_safetensors *file, const char *path, int64_t data, int64_t data_bytes)
{
	const char *before = "the header";
	int64_t end = data;
	if (file->count)
		qsort(file->tensor, (size_t)file->count, sizeof *file->tensor, compare_data);
	for (int64_t i = 0; i < file->count; i++) {
		const struct rh_safetensor *tensor = &file->tensor[i];
		if (tensor->offset != end)
			return rh_fail(-EINVAL, "%s: tensor '%s' %s '%s'", path, tensor->name,
			               tensor->offset < end ? "overlaps" : "leaves a gap after", before);
		end += tensor->bytes;
		before = tensor->name;
	}
	if (end != data + data_bytes)
		return rh_fail(-EINVAL, "%s: %lld bytes follow the last tensor", path, (long long)(data + data_bytes - end));
	return 0;
}

static int parse_metadata(const json_t *json, const char *path)
{
	const char *key;
	json_t *value;
	if (!json_is_object(json))
		return rh_fail(-EINVAL, "%s: __metadata__ must be an object", path);
	json_object_foreach((json_t *)(uintptr_t)json, key, value) if (!json_is_string(value)) return rh_fail(
	        -EINVAL, "%s: __metadata__: '%s' must be a string", path, key);
	return 0;
}

static int parse_tensors(struct rh_safetensors *file, const char *path, int64_t data, int64_t data_bytes)
{
	const char *name;
	json_t *value;
	json_object_foreach(file->header, name, value)
	{
		int rc;
		if (!strcmp(name, "__metadata__"))
			rc = parse_metadata(value, path);
		else if (!json_is_object(value))
			rc = rh_fail(-EINVAL, "%s: header entry '%s' must be an object", path, name);
		else
			rc = parse_tensor(name, value, path, data, data_bytes, &file->tensor[file->count++]);
		if (rc)
			return rc;
	}
	return check_tiling(file, path, data, data_bytes);
}

static int read_header(struct rh_safetensors *file, const char *path, int64_t *data)
{
	unsigned char prefix[8];
	uint64_t length = 0;
	int64_t all = rh_file_length(file->input);
	if (all < 8)
		return rh_fail(-EINVAL, "%s: %lld bytes are too few for a safetensors file (truncated?)", path, (long long)all);
	int rc = rh_file_read(file->input, 0, prefix, sizeof prefix);
	if (rc)
		return rc;
	for (int i = 7; i >= 0; i--)
		length = length << 8 | prefix[i];
	if (length > LONGEST_HEADER || length > (uint64_t)all - 8)
		return rh_fail(-EINVAL, "%s: the header claims %llu bytes, but the file has %lld (truncated, or not a safetensors file?)",
		               path, (unsigned long long)length, (long long)all);
	char *header = rh_alloc((size_t)length + 1, 1);
	rc = header ? rh_file_read(file->input, 8, header, (size_t)length) : -ENOMEM;
	if (!rc && *header != '{')
		rc = rh_fail(-EINVAL, "%s: the header is no JSON object; this is not a safetensors file", path);
	if (!rc)
		rc = rh_json_parse(header, (size_t)length, path, &file->header);
	rh_free(header);
	*data = 8 + (int64_t)length;
	return rc;
}

static int parse_header(struct rh_safetensors *file, const char *path)
{
	int64_t data = 0;
	int rc = read_header(file, path, &data);
	if (rc)
		return rc;
	file->data = data;
	size_t entries = json_object_size(file->header);
	file->tensor = rh_alloc(entries, sizeof *file->tensor);
	file->by_name = rh_alloc(entries, sizeof *file->by_name);
	if (!file->tensor || !file->by_name)
		return -ENOMEM;
	rc = parse_tensors(file, path, data, rh_file_length(file->input) - data);
	if (rc)
		return rc;
	for (int64_t i = 0; i < file->count; i++)
		file->by_name[i] = &file->tensor[i];
	if (file->count)
		qsort(file->by_name, (size_t)file->count, sizeof *file->by_name, compare_name);
	return 0;
}

int rh_safetensors_open(const char *path, struct rh_safetensors **out)
{
	struct rh_safetensors *file = rh_alloc(1, sizeof *file);
	int rc = file ? rh_file_open(path, &file->input) : -ENOMEM;
	if (!rc)
		rc = rh_lfs_refuse_file(file->input);
	if (!rc)
		rc = parse_header(file, path);
	if (rc)
		rh_safetensors_close(file);
	else
		*out = file;
	return rc;
}

int rh_safetensors_read(const struct rh_safetensors *file, const struct rh_safetensor *tensor, int64_t first, void *out, int64_t bytes)
{
	RH_ASSERT(first >= 0 && bytes >= 0 && bytes <= tensor->bytes - first);
	return rh_file_read(file->input, tensor->offset + first, out, (size_t)bytes);
}

int rh_safetensors_verify(const struct rh_safetensors *file)
{
	enum { PIECE = 1 << 18 };
	const char *recorded = json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), RH_SAFETENSORS_SUM));
	if (!recorded)
		return 0;
	XXH3_state_t *state = XXH3_createState();
	char *piece = rh_alloc(PIECE, 1), hex[33];
	int rc = state && piece ? 0 : -ENOMEM;
	if (!rc)
		XXH3_128bits_reset(state);
	for (int64_t at = file->data, end = rh_file_length(file->input); !rc && at < end; at += PIECE) {
		size_t now = end - at < PIECE ? (size_t)(end - at) : PIECE;
		rc = rh_file_read(file->input, at, piece, now);
		if (!rc)
			XXH3_128bits_update(state, piece, now);
	}
	if (!rc) {
		safetensors_sum(state, hex);
		if (strcmp(hex, recorded))
			rc = rh_fail(-EINVAL, "%s: its tensors do not match the checksum in its header: the file was damaged or changed",
			             rh_file_path(file->input));
	}
	XXH3_freeState(state);
	rh_free(piece);
	return rc ? rc : 1;
}

const struct rh_file_in *rh_safetensors_file(const struct rh_safetensors *file)
{
	return file->input;
}

void rh_safetensors_close(struct rh_safetensors *file)
{
	if (!file)
		return;
	rh_free(file->by_name);
	rh_free(file->tensor);
	json_decref(file->header);
	rh_file_close(file->input);
	rh_free(file);
}

int64_t rh_safetensors_count(const struct rh_safetensors *file)
{
	return file->count;
}

const struct rh_safetensor *rh_safetensors_at(const struct rh_safetensors *file, int64_t index)
{
	RH_ASSERT(index >= 0 && index < file->count);
	return &file->tensor[index];
}

const struct rh_safetensor *rh_safetensors_find(const struct rh_safetensors *file, const char *name)
{
	const struct rh_safetensor key = {.name = name}, *wanted = &key;
	if (!file->count)
		return NULL;
	struct rh_safetensor **found = bsearch(&wanted, file->by_name, (size_t)file->count, sizeof *file->by_name, compare_name);
	return found ? *found : NULL;
}
