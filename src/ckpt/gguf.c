#include "ckpt/gguf_internal.h"

#include "core/alloc.h"
#include "core/lfs.h"
#include "core/text.h"

#include <stdlib.h>
#include <string.h>

enum { DEFAULT_ALIGNMENT = 32, LARGEST_ALIGNMENT = 1 << 20, LEAST_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8, MOST_PARTS = 99999 };

/* GGML's numbers. Types that have a name but no rh_dtype here are refused by that name; gaps are types that GGML took back. */
static const struct {
	const char *name;
	int readable;
	enum rh_dtype dtype;
} ggml_types[] = {
        [0] = {"F32", 1, RH_F32},
        [1] = {"F16", 1, RH_F16},
        [2] = {"Q4_0", 1, RH_Q4_0},
        [3] = {"Q4_1", 1, RH_Q4_1},
        [6] = {"Q5_0", 1, RH_Q5_0},
        [7] = {"Q5_1", 1, RH_Q5_1},
        [8] = {"Q8_0", 1, RH_Q8_0},
        [9] = {"Q8_1", 0, 0},
        [10] = {"Q2_K", 1, RH_Q2_K},
        [11] = {"Q3_K", 1, RH_Q3_K},
        [12] = {"Q4_K", 1, RH_Q4_K},
        [13] = {"Q5_K", 1, RH_Q5_K},
        [14] = {"Q6_K", 1, RH_Q6_K},
        [15] = {"Q8_K", 0, 0},
        [16] = {"IQ2_XXS", 0, 0},
        [17] = {"IQ2_XS", 0, 0},
        [18] = {"IQ3_XXS", 0, 0},
        [19] = {"IQ1_S", 0, 0},
        [20] = {"IQ4_NL", 1, RH_IQ4_NL},
        [21] = {"IQ3_S", 0, 0},
        [22] = {"IQ2_S", 0, 0},
        [23] = {"IQ4_XS", 1, RH_IQ4_XS},
        [24] = {"I8", 0, 0},
        [25] = {"I16", 0, 0},
        [26] = {"I32", 0, 0},
        [27] = {"I64", 0, 0},
        [28] = {"F64", 0, 0},
        [29] = {"IQ1_M", 0, 0},
        [30] = {"BF16", 1, RH_BF16},
        [34] = {"TQ1_0", 0, 0},
        [35] = {"TQ2_0", 0, 0},
        [39] = {"MXFP4", 1, RH_MXFP4},
        [40] = {"NVFP4", 1, RH_NVFP4},
        [41] = {"Q1_0", 0, 0},
};

uint32_t gguf_type_number(enum rh_dtype dtype)
{
	uint32_t number = 0;
	while (number < sizeof ggml_types / sizeof *ggml_types && !(ggml_types[number].readable && ggml_types[number].dtype == dtype))
		number++;
	RH_ASSERT(number < sizeof ggml_types / sizeof *ggml_types);
	return number;
}

static int take_dtype(struct gguf_cursor *cursor, const char *name, enum rh_dtype *out)
{
	uint64_t type;
	int rc = gguf_take_uint(cursor, 4, &type);
	if (rc)
		return rc;
	if (type >= sizeof ggml_types / sizeof *ggml_types || !ggml_types[type].name)
		return rh_fail(-EINVAL, "%s: tensor '%s' has the unknown type %llu", cursor->path, name, (unsigned long long)type);
	if (!ggml_types[type].readable)
		return rh_fail(-EINVAL,
		               "%s: tensor '%s' has type %s, which is not supported (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to "
		               "Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4 are)",
		               cursor->path, name, ggml_types[type].name);
	*out = ggml_types[type].dtype;
	return 0;
}

/* The file lists extents innermost first. */
static int take_shape(struct gguf_cursor *cursor, struct rh_gguf_tensor *tensor)
{
	uint64_t rank, extent;
	int rc = gguf_take_uint(cursor, 4, &rank);
	if (rc)
		return rc;
	if (rank > 4)
		return rh_fail(-EINVAL, "%s: tensor '%s' has %llu dimensions (at most 4)", cursor->path, tensor->name,
		               (unsigned long long)rank);
	tensor->rank = (int)rank;
	for (int d = tensor->rank - 1; !rc && d >= 0; d--) {
		rc = gguf_take_uint(cursor, 8, &extent);
		if (!rc && (extent == 0 || extent > INT64_MAX))
			rc = rh_fail(-EINVAL, "%s: tensor '%s' has a dimension of %llu", cursor->path, tensor->name,
			             (unsigned long long)extent);
		tensor->shape[d] = rc ? 0 : (int64_t)extent;
	}
	return rc;
}

static int check_bytes(struct gguf_cursor *cursor, struct rh_gguf_tensor *tensor)
{
	int64_t block = rh_dtype_block(tensor->dtype), row = tensor->rank ? tensor->shape[tensor->rank - 1] : 1;
	if (row % block)
		return rh_fail(-EINVAL, "%s: tensor '%s' has rows of %lld elements, no multiple of %s's block of %lld", cursor->path,
		               tensor->name, (long long)row, rh_dtype_name(tensor->dtype), (long long)block);
	int64_t elements = row / block, bytes;
	int overflow = 0;
	for (int d = 0; d + 1 < tensor->rank; d++)
		overflow |= __builtin_mul_overflow(elements, tensor->shape[d], &elements);
	overflow |= __builtin_mul_overflow(elements, rh_dtype_block_bytes(tensor->dtype), &bytes);
	if (overflow)
		return rh_fail(-EINVAL, "%s: tensor '%s' has a shape whose size overflows", cursor->path, tensor->name);
	tensor->bytes = bytes;
	return 0;
}

/* The offset is relative to the data, whose start is known only after the last tensor: place_tensors(). */
static int take_tensor(struct gguf_cursor *cursor, struct rh_gguf_tensor *tensor, uint64_t *offset)
{
	char *name = NULL;
	int rc = gguf_take_name(cursor, "tensor name", &name);
	tensor->name = name;
	if (!rc)
		rc = take_shape(cursor, tensor);
	if (!rc)
		rc = take_dtype(cursor, tensor->name, &tensor->dtype);
	if (!rc)
		rc = gguf_take_uint(cursor, 8, offset);
	return rc ? rc : check_bytes(cursor, tensor);
}

static int compare_name(const void *a, const void *b)
{
	const struct rh_gguf_tensor *const *x = a, *const *y = b;
	return strcmp((*x)->name, (*y)->name);
}

static int compare_data(const void *a, const void *b)
{
	const struct rh_gguf_tensor *const *x = a, *const *y = b;
	return ((*x)->offset > (*y)->offset) - ((*x)->offset < (*y)->offset);
}

/* Sorts the tensors by name, each of which may be there once. */
static int sort_by_name(const struct rh_gguf *gguf)
{
	if (gguf->in_parts)
		qsort(gguf->by_name, (size_t)gguf->in_parts, sizeof *gguf->by_name, compare_name);
	for (int64_t i = 1; i < gguf->in_parts; i++)
		if (!strcmp(gguf->by_name[i - 1]->name, gguf->by_name[i]->name))
			return rh_fail(-EINVAL, "%s: tensor '%s' is listed twice", gguf->path, gguf->by_name[i]->name);
	return 0;
}

static int place_tensors(struct rh_gguf *gguf, const struct gguf_cursor *cursor, const uint64_t *offsets, int64_t alignment)
{
	int64_t header = cursor->next - gguf->header, length = rh_file_length(gguf->input);
	int64_t start = header + (alignment - header % alignment) % alignment;
	int64_t data_bytes = start < length ? length - start : 0;
	for (int64_t i = 0; i < gguf->tensors; i++) {
		struct rh_gguf_tensor *tensor = &gguf->tensor[i];
		if (offsets[i] % (uint64_t)alignment)
			return rh_fail(-EINVAL, "%s: tensor '%s' lies at offset %llu, no multiple of the alignment %lld", gguf->path,
			               tensor->name, (unsigned long long)offsets[i], (long long)alignment);
		if (tensor->bytes > data_bytes || offsets[i] > (uint64_t)(data_bytes - tensor->bytes))
			return rh_fail(-EINVAL,
			               "%s: tensor '%s' needs %lld bytes from offset %llu, but the file has %lld bytes of data "
			               "(truncated download?)",
			               gguf->path, tensor->name, (long long)tensor->bytes, (unsigned long long)offsets[i],
			               (long long)data_bytes);
		tensor->file = gguf->input;
		tensor->offset = start + (int64_t)offsets[i];
		gguf->by_name[i] = tensor;
	}
	gguf->in_parts = gguf->tensors;
	if (!gguf->tensors)
		return 0;
	qsort(gguf->by_name, (size_t)gguf->tensors, sizeof *gguf->by_name, compare_data);
	for (int64_t i = 1; i < gguf->tensors; i++) {
		const struct rh_gguf_tensor *before = gguf->by_name[i - 1], *tensor = gguf->by_name[i];
		if (tensor->offset < before->offset + before->bytes)
			return rh_fail(-EINVAL, "%s: tensor '%s' overlaps '%s'", gguf->path, tensor->name, before->name);
	}
	return sort_by_name(gguf);
}

static int read_tensors(struct rh_gguf *gguf, struct gguf_cursor *cursor, uint64_t count)
{
	int64_t alignment = DEFAULT_ALIGNMENT;
	int rc = rh_gguf_int(gguf, "general.alignment", &alignment);
	if (rc >= 0 && (alignment < 1 || alignment > LARGEST_ALIGNMENT || (alignment & (alignment - 1))))
		rc = rh_fail(-EINVAL, "%s: general.alignment is %lld; it must be a power of two up to %d", gguf->path, (long long)alignment,
		             LARGEST_ALIGNMENT);
	if (rc < 0)
		return rc;
	if (count > gguf_left(cursor) / LEAST_TENSOR_BYTES)
		return rh_fail(-EINVAL, "%s: the header claims %llu tensors, more than the file can hold", gguf->path,
		               (unsigned long long)count);
	uint64_t *offsets = rh_alloc(count, sizeof *offsets);
	gguf->tensor = rh_alloc(count, sizeof *gguf->tensor);
	gguf->by_name = rh_alloc(count, sizeof *gguf->by_name);
	rc = offsets && gguf->tensor && gguf->by_name ? 0 : -ENOMEM;
	while (!rc && (uint64_t)gguf->tensors < count) {
		int64_t i = gguf->tensors++;
		rc = take_tensor(cursor, &gguf->tensor[i], &offsets[i]);
	}
	if (!rc)
		rc = place_tensors(gguf, cursor, offsets, alignment);
	rh_free(offsets);
	return rc;
}

static int parse_header(struct rh_gguf *gguf)
{
	struct gguf_cursor cursor = {gguf->header, gguf->header + gguf->header_bytes, gguf->path,
	                             rh_file_length(gguf->input) - (int64_t)gguf->header_bytes};
	const char *magic;
	uint64_t version, tensors;
	if (gguf->header_bytes < 4 || memcmp(gguf->header, "GGUF", 4))
		return rh_fail(-EINVAL, "%s: not a GGUF file (it does not start with \"GGUF\")", gguf->path);
	int rc = gguf_take(&cursor, 4, &magic);
	if (!rc)
		rc = gguf_take_uint(&cursor, 4, &version);
	if (!rc && version != 2 && version != 3)
		rc = rh_fail(-EINVAL, "%s: GGUF version %llu is not supported (2 and 3 are)%s", gguf->path, (unsigned long long)version,
		             version && version % 65536 == 0 ? "; the file is big-endian: convert it with gguf-convert-endian" : "");
	if (!rc)
		rc = gguf_take_uint(&cursor, 8, &tensors);
	if (!rc)
		rc = gguf_take_uint(&cursor, 8, &gguf->pairs);
	if (rc) {
		gguf->pairs = 0;
		return rc;
	}
	rc = gguf_read_pairs(gguf, &cursor);
	return rc ? rc : read_tensors(gguf, &cursor, tensors);
}

static void free_pairs(struct rh_gguf *gguf)
{
	for (uint64_t i = 0; i < gguf->pairs; i++) {
		rh_free(gguf->pair[i].key);
		rh_free(gguf->pair[i].text);
	}
	rh_free(gguf->pair);
	gguf->pair = NULL;
	gguf->pairs = 0;
	rh_free(gguf->header);
	gguf->header = NULL;
}

static void free_tensors(struct rh_gguf *gguf)
{
	for (int64_t i = 0; i < gguf->tensors; i++)
		rh_free((char *)(uintptr_t)gguf->tensor[i].name);
	rh_free(gguf->tensor);
	rh_free(gguf->by_name);
	gguf->tensor = NULL;
	gguf->by_name = NULL;
	gguf->tensors = gguf->in_parts = 0;
}

/* The header's length is not stored: parses the first bytes, and four times as many while the header is cut off. */
static int read_header(struct rh_gguf *gguf)
{
	enum { FIRST = 1 << 20 };
	int64_t all = rh_file_length(gguf->input), bytes = FIRST;
	for (;; bytes *= 4) {
		gguf->header_bytes = (size_t)(bytes < all ? bytes : all);
		gguf->header = rh_alloc(gguf->header_bytes + 1, 1);
		int rc = gguf->header ? rh_file_read(gguf->input, 0, gguf->header, gguf->header_bytes) : -ENOMEM;
		if (!rc)
			rc = parse_header(gguf);
		if (rc != -EAGAIN)
			return rc;
		if (bytes >= RH_FILE_LOAD_MOST)
			return rh_fail(-EINVAL, "%s: its header is longer than %lld bytes", gguf->path, (long long)bytes);
		free_pairs(gguf);
		free_tensors(gguf);
	}
}

static int open_part(const char *path, struct rh_gguf **out)
{
	struct rh_gguf *gguf = rh_alloc(1, sizeof *gguf);
	int rc = gguf && (gguf->path = rh_strdup(path)) ? 0 : -ENOMEM;
	if (!rc)
		rc = rh_file_open(path, &gguf->input);
	if (!rc)
		rc = rh_lfs_refuse_file(gguf->input);
	if (!rc)
		rc = read_header(gguf);
	if (rc)
		rh_gguf_close(gguf);
	else
		*out = gguf;
	return rc;
}

/* Which part of how many a file is; 1 of 1: it is whole. */
static int number_of(const struct rh_gguf *gguf, int64_t *number, int64_t *count)
{
	int64_t before = 0;
	*count = 1;
	int rc = rh_gguf_int(gguf, "split.count", count);
	if (rc >= 0)
		rc = rh_gguf_int(gguf, "split.no", &before);
	if (rc >= 0 && *count > 1 && (*count > MOST_PARTS || before < 0 || before >= *count))
		rc = rh_fail(-EINVAL, "%s: split.no is %lld and split.count is %lld; no such part can be", gguf->path, (long long)before,
		             (long long)*count);
	*number = before + 1;
	return rc < 0 ? rc : 0;
}

/* The path of part `number`, rh_free'd by the caller, which differs from another part's in the number alone; NULL in *out where the other
 * does not end as a part does. */
static int path_of_part(const char *path, int64_t from, int64_t number, int64_t count, char **out)
{
	struct rh_text end = {0}, text = {0};
	size_t length = strlen(path);
	*out = NULL;
	int rc = rh_text_printf(&end, "-%05lld-of-%05lld.gguf", (long long)from, (long long)count);
	if (!rc && length >= end.length && !strcmp(path + length - end.length, end.bytes))
		rc = rh_text_printf(&text, "%.*s-%05lld-of-%05lld.gguf", (int)(length - end.length), path, (long long)number,
		                    (long long)count);
	rh_text_free(&end);
	*out = text.bytes;
	return rc;
}

static int add_part(struct rh_gguf *first, int64_t number, int64_t count)
{
	char *path;
	int64_t own, of;
	int rc = path_of_part(first->path, 1, number, count, &path);
	if (rc)
		return rc;
	if (!path)
		return rh_fail(-EINVAL,
		               "%s: this is the first of %lld parts of a split model, whose name must end in -00001-of-%05lld.gguf",
		               first->path, (long long)count, (long long)count);
	if (!rh_file_exists(path)) {
		rc = rh_fail(-ENOENT, "%s: this part of a split model is missing; download it again", path);
		goto out;
	}
	rc = open_part(path, &first->part[first->parts]);
	if (rc)
		goto out;
	const struct rh_gguf *part = first->part[first->parts++];
	rc = number_of(part, &own, &of);
	if (!rc && (own != number || of != count))
		rc = rh_fail(-EINVAL, "%s: it says that it is part %lld of %lld, not %lld of %lld as its name does", path, (long long)own,
		             (long long)of, (long long)number, (long long)count);
out:
	rh_free(path);
	return rc;
}

/* Opens the parts behind the first, and puts the tensors of all into one table. */
static int open_parts(struct rh_gguf *first)
{
	int64_t number, count, all = first->tensors, at = 0;
	char *path = NULL;
	int rc = number_of(first, &number, &count);
	if (rc || count == 1)
		return rc;
	if (number != 1) {
		rc = path_of_part(first->path, number, 1, count, &path);
		if (!rc)
			rc = rh_fail(-EINVAL, "%s: this is part %lld of %lld of a split model; name the first%s%s", first->path,
			             (long long)number, (long long)count, path ? ", " : "", path ? path : "");
		rh_free(path);
		return rc;
	}
	first->part = rh_alloc((size_t)count - 1, sizeof(struct rh_gguf *));
	if (!first->part)
		return -ENOMEM;
	for (int64_t i = 2; i <= count; i++) {
		rc = add_part(first, i, count);
		if (rc)
			return rc;
		rh_gguf_forget(first->part[i - 2]);
		all += first->part[i - 2]->tensors;
	}
	rh_free(first->by_name);
	first->in_parts = 0;
	first->by_name = rh_alloc((size_t)all, sizeof(struct rh_gguf_tensor *));
	if (!first->by_name)
		return -ENOMEM;
	for (int64_t p = -1; p < first->parts; p++) {
		const struct rh_gguf *part = p < 0 ? first : first->part[p];
		for (int64_t i = 0; i < part->tensors; i++)
			first->by_name[at++] = &part->tensor[i];
	}
	first->in_parts = all;
	return sort_by_name(first);
}

int rh_gguf_open(const char *path, struct rh_gguf **out)
{
	struct rh_gguf *gguf;
	int rc = open_part(path, &gguf);
	if (rc)
		return rc;
	rc = open_parts(gguf);
	if (rc)
		rh_gguf_close(gguf);
	else
		*out = gguf;
	return rc;
}

void rh_gguf_forget(struct rh_gguf *gguf)
{
	free_pairs(gguf);
}

void rh_gguf_close(struct rh_gguf *gguf)
{
	if (!gguf)
		return;
	for (int64_t p = 0; p < gguf->parts; p++)
		rh_gguf_close(gguf->part[p]);
	rh_free(gguf->part);
	free_pairs(gguf);
	free_tensors(gguf);
	rh_free(gguf->path);
	rh_file_close(gguf->input);
	rh_free(gguf);
}

const struct rh_gguf_tensor *rh_gguf_find(const struct rh_gguf *gguf, const char *name)
{
	const struct rh_gguf_tensor key = {.name = name}, *wanted = &key;
	if (!gguf->in_parts)
		return NULL;
	struct rh_gguf_tensor **found = bsearch(&wanted, gguf->by_name, (size_t)gguf->in_parts, sizeof *gguf->by_name, compare_name);
	return found ? *found : NULL;
}

int64_t rh_gguf_count(const struct rh_gguf *gguf)
{
	return gguf->in_parts;
}

const struct rh_gguf_tensor *rh_gguf_at(const struct rh_gguf *gguf, int64_t index)
{
	RH_ASSERT(index >= 0 && index < gguf->in_parts);
	return gguf->by_name[index];
}

const char *rh_gguf_path(const struct rh_gguf *gguf)
{
	return gguf->path;
}
