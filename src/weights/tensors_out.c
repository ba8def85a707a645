/* Tensors from a store into files, one block after the other. */
#include "weights/tensors_out.h"

#include "ckpt/model_out.h"
#include "ckpt/safetensors.h"
#include "core/alloc.h"
#include "core/float16.h"
#include "core/minmax.h"
#include "weights/tensors_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct rh_tensors_out {
	const struct rh_source *source; /* whose tensors beside the model come last, as they are; NULL: none do */
	const struct rh_model *model;
	struct rh_store *store;
	struct rh_tensor_list list;
	struct rh_safetensors_entry *entry; /* of each place */
	size_t next;                        /* the first place that is not written */
	float *buffer;                      /* PIECE floats */
	struct rh_safetensors_out *file;    /* one file; else NULL */
	struct rh_model_out *shards;        /* a model's files; else NULL */
	struct rh_write_ring *ring;         /* on the way there; NULL: none */
};

static int write_to_file(void *user, const void *bytes, int64_t length)
{
	struct rh_tensors_out *out = user;
	return out->file ? rh_safetensors_write(out->file, bytes, length) : rh_model_out_write(out->shards, bytes, length);
}

static int write_bytes(struct rh_tensors_out *out, const void *bytes, int64_t length)
{
	return out->ring ? rh_write_ring_put(out->ring, write_to_file, out, bytes, length) : write_to_file(out, bytes, length);
}

/* Weights, converted in place. */
static int write_values(struct rh_tensors_out *out, const struct rh_tensor_place *place, float *values, int64_t count)
{
	if (place->dtype == RH_BF16) /* the upload form's own rounding, so that the file holds what was trained with */
		for (int64_t i = 0; i < count; i++) {
			uint16_t half = rh_f32_to_bf16_away(values[i]);
			memcpy((char *)values + 2 * i, &half, sizeof half); /* the front of what was read */
		}
	return write_bytes(out, values, rh_dtype_bytes(place->dtype, count));
}

/* Writes tensors whose bytes are the same in file and memory: optimizer state, published weights. `stored`: where they lie; NULL: on
 * NVMe, or unknown. */
static int write_stored(struct rh_tensors_out *out, const struct rh_tensor_place *place, int64_t total, const char *stored)
{
	int rc = 0;
	for (int64_t first = 0; !rc && first < total; first += PIECE) {
		int64_t count = rh_min(PIECE, total - first);
		if (place->part == RH_TENSOR_PUBLISHED)
			rc = rh_store_published_get(out->store, place->block, place->tensor, first, count, out->buffer);
		else if (!stored)
			rc = rh_store_state_get(out->store, place->block, place->tensor, place->part - RH_TENSOR_STATE, first, count,
			                        out->buffer);
		if (!rc)
			rc = write_bytes(out, stored ? stored + rh_dtype_bytes(place->dtype, first) : (const char *)out->buffer,
			                 rh_dtype_bytes(place->dtype, count));
	}
	return rc;
}

static int write_weights(struct rh_tensors_out *out, const struct rh_tensor_place *place, int64_t total)
{
	int rc = 0;
	for (int64_t first = 0, count, here; !rc && first < total; first += count) {
		count = tensors_run(tensors_tensor(out->model, place), first, total, &here);
		rc = rh_store_get(out->store, place->block, place->tensor, here, count, out->buffer);
		if (!rc)
			rc = write_values(out, place, out->buffer, count);
	}
	return rc;
}

struct band_out {
	struct rh_tensors_out *out;
	const struct rh_tensor *tensor;
	const struct rh_tensor_place *place;
};

static int write_band(void *user, const struct tensors_band *band)
{
	const struct band_out *to = user;
	int64_t n = to->tensor->interleaved, cols = to->tensor->cols, rows = to->tensor->rows / n;
	for (int64_t m = 0; m < n; m++) {
		int rc = rh_store_get(to->out->store, to->place->block, to->place->tensor, (m * rows + band->first) * cols,
		                      band->count * cols, band->part);
		if (rc)
			return rc;
		for (int64_t i = 0; i < band->count * cols; i++)
			band->rows[i * n + m] = band->part[i];
	}
	return write_values(to->out, to->place, band->rows, band->count * cols * n);
}

/* Weights that the files hold transposed: rows of theirs, each of columns of ours, a strip of columns at a time. */
static int write_transposed(struct rh_tensors_out *out, const struct rh_tensor *tensor, const struct rh_tensor_place *place)
{
	int64_t of_one = tensor->rows / tensor->transposed, strip = rh_max(1, PIECE / 2 / of_one);
	float *buffer = out->buffer, *turned = buffer + PIECE / 2;
	int rc = of_one > PIECE / 2
	                 ? rh_fail(-EINVAL, "%s: matrices of %lld rows are too long to be turned", tensor->name, (long long)of_one)
	                 : 0;
	for (int64_t m = 0; !rc && m < tensor->transposed; m++)
		for (int64_t c = 0; !rc && c < tensor->cols; c += strip) {
			int64_t wide = rh_min(strip, tensor->cols - c);
			for (int64_t r = 0; !rc && r < of_one; r++)
				rc = rh_store_get(out->store, place->block, place->tensor, (m * of_one + r) * tensor->cols + c, wide,
				                  buffer + r * wide);
			for (int64_t i = 0; !rc && i < wide; i++)
				for (int64_t r = 0; r < of_one; r++)
					turned[i * of_one + r] = buffer[r * wide + i];
			if (!rc)
				rc = write_values(out, place, turned, wide * of_one);
		}
	return rc;
}

/* A matrix of any height: of a column of ours at a time a strip of rows. */
static int write_turned(struct rh_tensors_out *out, const struct rh_tensor *tensor, const struct rh_tensor_place *place)
{
	int64_t cols = tensor->cols, most = rh_max(PIECE / 2 / cols, 1);
	float *buffer = out->buffer, *column = buffer + PIECE / 2;
	int rc = cols > PIECE / 2 ? rh_fail(-EINVAL, "%s: rows of %lld elements are too long", tensor->name, (long long)cols) : 0;
	for (int64_t c = 0; !rc && c < cols; c++)
		for (int64_t first = 0, count; !rc && first < tensor->rows; first += count) {
			count = rh_min(most, tensor->rows - first);
			rc = rh_store_get(out->store, place->block, place->tensor, first * cols, count * cols, buffer);
			for (int64_t i = 0; i < count; i++)
				column[i] = buffer[i * cols + c];
			if (!rc)
				rc = write_values(out, place, column, count);
		}
	return rc;
}

/* Rows that add up to the file's vector. */
static int write_sum(struct rh_tensors_out *out, const struct rh_tensor *tensor, const struct rh_tensor_place *place)
{
	float *sum = out->buffer, *row = out->buffer + PIECE / 2;
	int rc = tensor->cols > PIECE / 2 ? rh_fail(-EINVAL, "%s: it is too long", tensor->name) : 0;
	memset(sum, 0, rc ? 0 : (size_t)tensor->cols * sizeof *sum);
	for (int64_t p = 0; !rc && p < tensor->rows; p++) {
		rc = rh_store_get(out->store, place->block, place->tensor, p * tensor->cols, tensor->cols, row);
		for (int64_t i = 0; i < tensor->cols; i++)
			sum[i] += row[i];
	}
	return rc ? rc : write_values(out, place, sum, tensor->cols);
}

static int write_place(struct rh_tensors_out *out, const struct rh_tensor_place *place)
{
	const struct rh_tensor *tensor = tensors_tensor(out->model, place);
	int64_t total = tensor->rows * tensor->cols;
	if (place->part == RH_TENSOR_PUBLISHED)
		return write_stored(out, place, total, NULL);
	if (place->part != RH_TENSOR_WEIGHT) {
		struct rh_state state = tensors_state(out->store, place);
		return write_stored(out, place, state.rows * state.cols, state.data);
	}
	if (place->turned)
		return write_turned(out, tensor, place);
	if (tensor->interleaved)
		return tensors_each_band(tensor, out->buffer, write_band, &(struct band_out){out, tensor, place});
	if (out->shards && tensor->parts)
		return write_sum(out, tensor, place);
	return out->shards && tensor->transposed ? write_transposed(out, tensor, place) : write_weights(out, place, total);
}

static int by_block(const void *left, const void *right)
{
	const struct rh_tensor_place *a = left, *b = right;
	return a->block != b->block ? (a->block > b->block) - (a->block < b->block) : (a->order > b->order) - (a->order < b->order);
}

/* One block after the other; those of one in the list's order. */
static void sort_by_block(struct rh_tensor_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		list->place[i].order = i;
	if (list->count)
		qsort(list->place, list->count, sizeof *list->place, by_block);
}

/* The shape that Hugging Face's files have. */
static void turn_entry(const struct rh_tensor *tensor, struct rh_safetensors_entry *entry)
{
	for (int d = 0; d < 4 && tensor->file_shape[d]; d++) {
		entry->shape[d] = tensor->file_shape[d];
		entry->rank = d + 1;
	}
	if (!tensor->transposed)
		return;
	int64_t rows = tensor->rows / tensor->transposed;
	*entry = (struct rh_safetensors_entry){entry->name, entry->dtype, 2, {tensor->cols, rows}};
	if (tensor->stacked)
		*entry = (struct rh_safetensors_entry){entry->name, entry->dtype, 3, {tensor->transposed, tensor->cols, rows}};
}

/* Takes the list; with room for `others` entries behind its own. */
static int make_out(struct rh_tensor_list *list, int64_t others, const struct rh_model *model, struct rh_store *store,
                    struct rh_tensors_out **out)
{
	struct rh_tensors_out *made = rh_alloc(1, sizeof *made);
	if (!made) {
		rh_tensor_list_free(list);
		return -ENOMEM;
	}
	*made = (struct rh_tensors_out){.model = model, .store = store, .list = *list};
	*list = (struct rh_tensor_list){0};
	sort_by_block(&made->list);
	made->entry = rh_alloc(made->list.count + (size_t)others, sizeof *made->entry);
	made->buffer = rh_alloc(RH_TENSORS_BUFFER_BYTES, 1);
	if (!made->entry || !made->buffer) {
		rh_tensors_out_abandon(made);
		return -ENOMEM;
	}
	for (size_t i = 0; i < made->list.count; i++) {
		const struct rh_tensor_place *place = &made->list.place[i];
		made->entry[i] = (struct rh_safetensors_entry){.name = place->name, .dtype = place->dtype};
		made->entry[i].rank = tensors_shape(place, model, store, made->entry[i].shape);
	}
	*out = made;
	return 0;
}

int rh_tensors_out_open(const char *path, struct rh_tensor_list *list, const struct rh_model *model, struct rh_store *store,
                        struct rh_tensors_out **out)
{
	struct rh_tensors_out *made = NULL;
	int rc = make_out(list, 0, model, store, &made);
	if (!rc)
		rc = rh_safetensors_create(path, made->entry, (int64_t)made->list.count, &made->file);
	if (rc)
		rh_tensors_out_abandon(made);
	else
		*out = made;
	return rc;
}

int rh_tensors_out_open_model(const char *dir, const struct rh_source *source, const struct rh_model *model, struct rh_store *store,
                              struct rh_tensors_out **out)
{
	struct rh_tensor_list list = {0};
	struct rh_tensors_out *made = NULL;
	int64_t others = source && rh_model_has_head(model) ? rh_source_others(source) : 0; /* of several boxes the one with the head */
	int rc = rh_tensor_list_add(&list, model, RH_TENSORS_ALL, model->dtype, "");
	for (size_t i = 0; !rc && source && i < list.count; i++)
		if (rh_source_keeps_f32(source, list.place[i].name))
			list.place[i].dtype = RH_F32;
	if (rc)
		rh_tensor_list_free(&list);
	else
		rc = make_out(&list, others, model, store, &made);
	for (size_t i = 0; !rc && i < made->list.count; i++) {
		turn_entry(tensors_tensor(model, &made->list.place[i]), &made->entry[i]);
		if (source)
			made->entry[i].name = rh_source_file_name(source, made->entry[i].name);
	}
	if (!rc && others) {
		made->source = source;
		rh_source_others_declare(source, made->entry + made->list.count);
	}
	if (!rc)
		rc = rh_model_out_create(dir, made->entry, (int64_t)made->list.count + others, RH_SHARD_BYTES, &made->shards);
	if (rc)
		rh_tensors_out_abandon(made);
	else
		*out = made;
	return rc;
}

void rh_tensors_out_through(struct rh_tensors_out *out, struct rh_write_ring *ring)
{
	out->ring = ring;
}

int rh_tensors_out_block(struct rh_tensors_out *out, int block)
{
	int rc = 0;
	for (; !rc && out->next < out->list.count && out->list.place[out->next].block <= block; out->next++)
		rc = write_place(out, &out->list.place[out->next]);
	return rc;
}

static void free_out(struct rh_tensors_out *out)
{
	rh_tensor_list_free(&out->list);
	rh_free(out->entry);
	rh_free(out->buffer);
	rh_free(out);
}

int rh_tensors_out_commit(struct rh_tensors_out *out)
{
	int rc = rh_tensors_out_block(out, INT_MAX);
	if (!rc && out->ring)
		rc = rh_write_ring_drain(out->ring);
	if (!rc && out->source)
		rc = rh_source_others_write(out->source, out->shards);
	if (rc) {
		rh_tensors_out_abandon(out);
		return rc;
	}
	rc = out->file ? rh_safetensors_commit(out->file) : rh_model_out_commit(out->shards);
	free_out(out);
	return rc;
}

void rh_tensors_out_abandon(struct rh_tensors_out *out)
{
	if (!out)
		return;
	if (out->ring)
		rh_write_ring_clear(out->ring);
	rh_safetensors_abandon(out->file);
	rh_model_out_abandon(out->shards);
	free_out(out);
}

int rh_weights_config_save(const char *dir, const struct rh_model *model)
{
	char *path = rh_path_join(dir, "config.json"), *text = NULL;
	json_t *json = NULL;
	int rc = path ? rh_model_config_write(model->config, model->dtype == RH_F32 ? "float32" : "bfloat16", &json) : -ENOMEM;
	if (!rc && !(text = json_dumps(json, JSON_INDENT(2))))
		rc = rh_fail(-ENOMEM, "out of host memory while writing %s", path);
	if (!rc)
		rc = rh_file_write_whole(path, text, strlen(text));
	free(text);
	json_decref(json);
	rh_free(path);
	return rc;
}

int rh_weights_save(const char *dir, const struct rh_source *source, const struct rh_model *model, struct rh_store *store)
{
	struct rh_tensors_out *out;
	int rc = rh_tensors_out_open_model(dir, source, model, store, &out);
	if (!rc)
		rc = rh_tensors_out_commit(out);
	return rc ? rc : rh_weights_config_save(dir, model);
}
