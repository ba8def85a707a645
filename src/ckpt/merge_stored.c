/* The tensors of a merged model as a GGUF file holds them, written piece by piece: no tensor has to fit into memory. Experts that the
 * model's files have in MXFP4, and that no adapter changes, stay as they are. */
#include "ckpt/merge_internal.h"
#include "ckpt/mixture.h"
#include "core/alloc.h"
#include "core/minmax.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MXFP4_RUN = 32, MXFP4_BYTES = 17 };

static int by_name(const void *a, const void *b)
{
	const struct stored_part *x = a, *y = b;
	int order = strcmp(x->name, y->name);
	return order ? order : x->entry->slab < y->entry->slab ? -1 : x->entry->slab > y->entry->slab;
}

static int by_place(const void *a, const void *b)
{
	const struct stored *x = a, *y = b;
	return x->part->place < y->part->place ? -1 : x->part->place > y->part->place;
}

/* 1: the model's files have this part in MXFP4, and its values stay. */
static int stays_mxfp4(const struct merger *merger, const struct stored_part *part, int *rc)
{
	const struct source_entry *from = source_entries_find(&merger->source->entries, part->entry->name);
	struct lora_pair pair;
	if (!from || (!from->scale && from->tensor.dtype != RH_MXFP4) || (from->stored2 && from->dtype2 != RH_MXFP4))
		return 0;
	*rc = lora_find(&merger->lora, &merger->source->config, part->entry, &pair);
	return !*rc && !pair.rank;
}

static int choose_type(const struct merger *merger, struct stored *tensor)
{
	const struct source_entry *entry = tensor->part->entry;
	int rank = entry->tensor.rank, stays = rank == 3, rc = 0;
	tensor->dtype = RH_F32;
	if (rank > 1)
		tensor->dtype = rh_gguf_type_of(merger->wanted->dtype, &merger->config, tensor->part->name, entry->tensor.shape[rank - 1]);
	for (size_t p = 0; stays && !rc && p < tensor->parts; p++)
		stays = stays_mxfp4(merger, &tensor->part[p], &rc);
	if (stays)
		tensor->dtype = RH_MXFP4;
	return rc;
}

int merge_list_stored(struct merger *merger, struct stored_list *out)
{
	const struct source_entries *entries = &merger->target;
	size_t parts = 0;
	int rc = 0;
	*out = (struct stored_list){.tensor = rh_alloc(2 * entries->count, sizeof *out->tensor),
	                            .part = rh_alloc(2 * entries->count, sizeof *out->part)};
	if (!out->tensor || !out->part)
		return -ENOMEM;
	for (size_t i = 0; i < entries->count; i++) {
		const struct source_entry *entry = &entries->entry[i];
		out->part[parts++] = (struct stored_part){entry->stored, entry, 0, 2 * i};
		if (entry->stored2)
			out->part[parts++] = (struct stored_part){entry->stored2, entry, 1, 2 * i + 1};
	}
	qsort(out->part, parts, sizeof *out->part, by_name);
	for (size_t p = 0; p < parts; p++) {
		if (!p || strcmp(out->part[p].name, out->part[p - 1].name))
			out->tensor[out->count++].part = &out->part[p];
		out->tensor[out->count - 1].parts++;
	}
	qsort(out->tensor, out->count, sizeof *out->tensor, by_place);
	for (size_t t = 0; !rc && t < out->count; t++)
		rc = choose_type(merger, &out->tensor[t]);
	return rc;
}

void merge_free_stored(struct stored_list *list)
{
	rh_free(list->tensor);
	rh_free(list->part);
	*list = (struct stored_list){0};
}

/* Lines of the file that follow one another in the model too, `stride` rows apart. */
struct run {
	int64_t first, count, stride; /* first: the model's row */
};

/* How many lines the file's tensor has, or its part of one expert. */
static int64_t lines_of(const struct stored_part *part)
{
	const struct source_entry *entry = part->entry;
	if (entry->second)
		return part->half ? entry->rows - entry->second : entry->second;
	return entry->stored2 ? entry->rows / 2 : entry->rows;
}

static struct run run_at(const struct stored_part *part, int64_t line, int64_t lines)
{
	const struct source_entry *entry = part->entry;
	if (entry->second) {
		int64_t run, row = rh_row_in_file(&entry->groups, part->half * entry->second + line, &run);
		return (struct run){row, rh_min(run, lines - line), 1};
	}
	if (entry->stored2) { /* of each expert's rows a half */
		int64_t half = entry->tensor.shape[1], expert = line / half, row = line % half;
		if (entry->are_halves)
			return (struct run){2 * expert * half + part->half * half + row, half - row, 1};
		return (struct run){2 * (expert * half + row) + part->half, half - row, 2};
	}
	if (source_is_permuted(entry))
		return (struct run){source_row_of_stored(entry, line), 1, 1};
	return (struct run){line, lines - line, 1};
}

int merge_declare_stored(struct merger *merger, const struct stored *tensor)
{
	const struct source_tensor *in_file = &tensor->part->entry->tensor;
	const int64_t *shape = in_file->shape;
	int rank = in_file->rank;
	int64_t rows = rank < 2 ? 0 : tensor->part->entry->second ? lines_of(tensor->part) : shape[rank - 2];
	return rh_gguf_out_stacked(merger->gguf, tensor->part->name, tensor->dtype, rank > 2 ? shape[rank - 3] : 0, rows, shape[rank - 1]);
}

/* The model's row that the file has as line `line`. */
static int64_t row_of(const struct stored_part *part, int64_t line)
{
	return run_at(part, line, line + 1).first;
}

/* `count` lines into the piece. Of every second row the ones between are read along: rows that a file holds transposed are slow to read
 * one by one. */
static int read_lines(struct merger *merger, const struct stored_part *part, const struct rh_safetensor *whole, int64_t first,
                      int64_t count)
{
	const struct source_entry *entry = part->entry;
	int64_t cols = entry->cols;
	for (int64_t done = 0, now; done < count; done += now) {
		struct run run = run_at(part, first + done, first + count);
		float *to = merger->piece + done * cols;
		now = rh_min(run.count, count - done);
		int rc = merge_read(merger, entry, whole, run.first * cols, ((now - 1) * run.stride + 1) * cols, to);
		if (rc)
			return rc;
		for (int64_t i = 1; run.stride > 1 && i < now; i++)
			memcpy(to + i * cols, to + i * run.stride * cols, (size_t)cols * sizeof *to);
	}
	return 0;
}

/* `rows` rows of a piece, as a GGUF of the family has their values. */
static int make_stored(const struct merger *merger, const struct source_entry *entry, int64_t rows, int64_t cols)
{
	float *row = entry->tiles.are_columns ? rh_alloc((size_t)cols, sizeof *row) : NULL;
	if (entry->tiles.are_columns && !row)
		return -ENOMEM;
	for (int64_t i = 0; i < rows * cols && entry->has_one_added; i++)
		merger->piece[i] += 1;
	for (int64_t i = 0; i < rows * cols && entry->is_minus_exp; i++)
		merger->piece[i] = -expf(merger->piece[i]);
	for (int64_t r = 0; row && r < rows; r++) {
		memcpy(row, merger->piece + r * cols, (size_t)cols * sizeof *row);
		for (int64_t c = 0; c < cols; c++)
			merger->piece[r * cols + c] = row[source_column_of_stored(entry, c)];
	}
	rh_free(row);
	return 0;
}

static int write_matrix(struct merger *merger, const struct stored_part *part, const struct rh_safetensor *whole, enum rh_dtype dtype)
{
	const struct source_entry *entry = part->entry;
	int64_t cols = entry->cols, lines = lines_of(part), most = MERGE_PIECE / cols;
	struct lora_pair pair;
	int rc = most ? merge_find_factors(merger, entry, &pair) : merge_too_wide(merger, entry, cols);
	for (int64_t first = 0, count; !rc && first < lines; first += count) {
		count = rh_min(most, lines - first);
		rc = read_lines(merger, part, whole, first, count);
		for (int64_t i = 0; !rc && pair.rank && i < count; i++)
			merge_add_row(merger, &pair, row_of(part, first + i), cols, merger->piece + i * cols);
		if (!rc)
			rc = make_stored(merger, entry, count, cols);
		if (!rc)
			rc = merge_write_piece(merger, dtype, count * cols);
	}
	return rc;
}

/* A vector, or experts' biases, of whose elements the file may have another order, or a half. They are read whole. */
static int write_elements(struct merger *merger, const struct stored_part *part, const struct rh_safetensor *whole, enum rh_dtype dtype)
{
	const struct source_entry *entry = part->entry;
	int64_t rows = entry->cols == 1 ? 1 : entry->rows, width = entry->cols == 1 ? entry->rows : entry->cols;
	int64_t kept = entry->stored2 ? width / 2 : width, all = rows * width;
	float *from = merger->piece + MERGE_PIECE;
	int rc = all > MERGE_PIECE ? merge_too_wide(merger, entry, all) : merge_read(merger, entry, whole, 0, all, from);
	for (int64_t i = 0; !rc && i < rows * kept; i++) {
		int64_t row = i / kept, at = i % kept;
		if (entry->stored2)
			at = entry->are_halves ? part->half * kept + at : 2 * at + part->half;
		else if (source_is_permuted(entry))
			at = source_row_of_stored(entry, at);
		merger->piece[i] = from[row * width + at];
	}
	if (!rc)
		rc = make_stored(merger, entry, 1, rows * kept);
	return rc ? rc : merge_write_piece(merger, dtype, rows * kept);
}

/* A row's runs of 32 values: a scale and 16 bytes, which have value i and value i + 16 together, where the model's files may have i and
 * i + 1, and the scales apart. */
static int read_mxfp4(const struct merger *merger, const struct source_entry *from, int64_t row, unsigned char *out)
{
	int64_t runs = from->cols / MXFP4_RUN;
	unsigned char *pairs = out + runs * MXFP4_BYTES, *scale = pairs + runs * (MXFP4_RUN / 2); /* the second half of the room */
	if (!from->scale)
		return rh_source_read_packed(merger->source, from->name, row, 1, out);
	int rc = rh_file_read(from->file, from->offset + row * from->cols / 2, pairs, (size_t)from->cols / 2);
	if (!rc)
		rc = rh_file_read(from->scale, from->scale_offset + row * runs, scale, (size_t)runs);
	for (int64_t r = 0; !rc && r < runs; r++) {
		const unsigned char *pair = pairs + r * (MXFP4_RUN / 2);
		unsigned char *to = out + r * MXFP4_BYTES;
		*to++ = scale[r];
		for (int i = 0; i < MXFP4_RUN / 2; i++) {
			int low = pair[i / 2] >> (i % 2 * 4) & 15, high = pair[8 + i / 2] >> (i % 2 * 4) & 15;
			to[i] = (unsigned char)(low | high << 4);
		}
	}
	return rc;
}

static int write_mxfp4(struct merger *merger, const struct stored_part *part)
{
	const struct source_entry *from = source_entries_find(&merger->source->entries, part->entry->name);
	int64_t lines = from->rows / (part->entry->stored2 ? 2 : 1), bytes = from->cols / MXFP4_RUN * MXFP4_BYTES;
	unsigned char *row = rh_alloc(2 * (size_t)bytes, 1);
	int rc = row ? 0 : -ENOMEM;
	for (int64_t line = 0; !rc && line < lines; line++) {
		rc = read_mxfp4(merger, from, row_of(part, line), row);
		if (!rc)
			rc = rh_gguf_out_write(merger->gguf, row, bytes);
	}
	rh_free(row);
	return rc;
}

static int write_part(struct merger *merger, const struct stored_part *part, enum rh_dtype dtype)
{
	const struct source_entry *entry = part->entry;
	const struct rh_safetensor *whole;
	if (dtype == RH_MXFP4)
		return write_mxfp4(merger, part);
	int rc = merge_write_table(merger, entry, dtype);
	if (rc)
		return rc < 0 ? rc : 0;
	rc = merge_find_whole(merger, entry, &whole);
	if (rc)
		return rc;
	int is_bias = entry->stored2 && !entry->second && entry->tensor.rank == 2;
	return entry->cols == 1 || is_bias ? write_elements(merger, part, whole, dtype) : write_matrix(merger, part, whole, dtype);
}

int merge_write_stored(struct merger *merger, const struct stored *tensor)
{
	int rc = 0;
	for (size_t p = 0; !rc && p < tensor->parts; p++)
		rc = write_part(merger, &tensor->part[p], tensor->dtype);
	return rc ? rc : rh_gguf_out_end(merger->gguf);
}
