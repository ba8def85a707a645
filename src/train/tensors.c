#include "train/tensors.h"

#include "ckpt/model_out.h"
#include "ckpt/safetensors.h"
#include "core/alloc.h"
#include "core/float16.h"
#include "core/minmax.h"
#include "core/text.h"

#include <string.h>

enum { PIECE = 1 << 18 }; /* elements moved at a time */

void rh_tensor_list_free(struct rh_tensor_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		rh_free(list->place[i].name);
	rh_free(list->place);
	*list = (struct rh_tensor_list){0};
}

static int is_adapter(const struct rh_tensor *tensor)
{
	return !strncmp(tensor->name, "base_model.", 11);
}

static int add_place(struct rh_tensor_list *list, const struct rh_model *model, struct rh_tensor_place place, const char *suffix)
{
	struct rh_text name = {0};
	int rc = rh_grow(&list->place, &list->capacity, list->count + 1, sizeof *list->place);
	if (!rc)
		rc = rh_text_printf(&name, "%s%s", model->block[place.block].tensor[place.tensor].name, suffix);
	if (rc)
		return rc;
	place.name = name.bytes;
	list->place[list->count++] = place;
	return 0;
}

int rh_tensor_list_add(struct rh_tensor_list *list, const struct rh_model *model, enum rh_tensor_scope scope, enum rh_dtype dtype,
                       const char *suffix)
{
	int rc = 0;
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; !rc && t < model->block[b].tensors; t++) {
			if (scope == RH_TENSORS_TRAINABLE && !model->block[b].trainable)
				continue;
			if (scope == RH_TENSORS_ADAPTERS && !is_adapter(&model->block[b].tensor[t]))
				continue;
			rc = add_place(list, model, (struct rh_tensor_place){b, t, RH_TENSOR_WEIGHT, dtype, NULL}, suffix);
		}
	return rc;
}

int rh_tensor_list_add_state(struct rh_tensor_list *list, const struct rh_model *model, const struct rh_store *store)
{
	int rc = 0;
	for (int b = 0; b < model->blocks; b++)
		for (int n = 0, found = model->block[b].trainable; !rc && found; n++) { /* in the order of rh_store_nvme */
			found = 0;
			for (int t = 0; !rc && t < model->block[b].tensors; t++) {
				struct rh_state state;
				if (!rh_store_state(store, b, t, n, &state))
					continue;
				found = 1;
				rc = add_place(list, model, (struct rh_tensor_place){b, t, RH_TENSOR_STATE + n, state.dtype, NULL},
				               state.suffix);
			}
		}
	return rc;
}

static const struct rh_tensor *tensor_of(const struct rh_model *model, const struct rh_tensor_place *place)
{
	return &model->block[place->block].tensor[place->tensor];
}

static struct rh_state state_of(const struct rh_store *store, const struct rh_tensor_place *place)
{
	struct rh_state state;
	RH_ASSERT(rh_store_state(store, place->block, place->tensor, place->part - RH_TENSOR_STATE, &state));
	return state;
}

/* Converted in place. */
static int write_values(const struct rh_tensor_place *place, float *values, int64_t count,
                        int (*write)(void *file, const void *bytes, int64_t length), void *file)
{
	if (place->dtype == RH_BF16) /* the upload copy's own rounding, so that the file holds what was trained with */
		for (int64_t i = 0; i < count; i++) {
			uint16_t half = rh_f32_to_bf16_away(values[i]);
			memcpy((char *)values + 2 * i, &half, sizeof half); /* the front of what was read */
		}
	return write(file, values, rh_dtype_bytes(place->dtype, count));
}

/* In place, from the last: `buffer` holds `count` halves at its front. */
static void widen(enum rh_dtype dtype, int64_t count, float *buffer)
{
	for (int64_t i = count; dtype != RH_F32 && i-- > 0;) {
		uint16_t half;
		memcpy(&half, (const char *)buffer + 2 * i, sizeof half);
		buffer[i] = dtype == RH_BF16 ? rh_bf16_to_f32(half) : rh_f16_to_f32(half);
	}
}

/* What files hold as one matrix whose columns are those of many of ours in turn: a band of its rows at a time, in one half of `buffer`,
 * each of our matrices' part of it in the other. `pass` moves the band to or from the file. */
struct band {
	float *rows, *part;
	int64_t first, count; /* rows */
};

static int each_band(const struct rh_tensor *tensor, float *buffer, int (*pass)(void *user, const struct band *band), void *user)
{
	int64_t rows = tensor->rows / tensor->interleaved, wide = tensor->cols * tensor->interleaved, most = PIECE / 2 / wide;
	int rc = most ? 0 : rh_fail(-EINVAL, "%s: rows of %lld elements are too long", tensor->name, (long long)wide);
	for (int64_t first = 0; !rc && first < rows; first += most) {
		struct band band = {buffer, buffer + PIECE / 2, first, rh_min(most, rows - first)};
		rc = pass(user, &band);
	}
	return rc;
}

/* Of `move`'s fields those of one direction are used. */
struct interleaved_move {
	struct rh_store *store;
	const struct rh_tensor *tensor;
	const struct rh_tensor_place *place;
	int (*write)(void *file, const void *bytes, int64_t length);
	void *out;
	const struct rh_safetensors *in;
	const struct rh_safetensor *found;
};

static int write_band(void *user, const struct band *band)
{
	const struct interleaved_move *move = user;
	int64_t n = move->tensor->interleaved, cols = move->tensor->cols, rows = move->tensor->rows / n;
	for (int64_t m = 0; m < n; m++) {
		int rc = rh_store_get(move->store, move->place->block, move->place->tensor, (m * rows + band->first) * cols,
		                      band->count * cols, band->part);
		if (rc)
			return rc;
		for (int64_t i = 0; i < band->count * cols; i++)
			band->rows[i * n + m] = band->part[i];
	}
	return write_values(move->place, band->rows, band->count * cols * n, move->write, move->out);
}

static int read_band(void *user, const struct band *band)
{
	const struct interleaved_move *move = user;
	int64_t n = move->tensor->interleaved, cols = move->tensor->cols, rows = move->tensor->rows / n;
	enum rh_dtype dtype = move->found->dtype;
	int64_t wide = cols * n;
	int rc = rh_safetensors_read(move->in, move->found, rh_dtype_bytes(dtype, band->first * wide), band->rows,
	                             rh_dtype_bytes(dtype, band->count * wide));
	if (rc)
		return rc;
	widen(dtype, band->count * wide, band->rows);
	for (int64_t m = 0; !rc && m < n; m++) {
		for (int64_t i = 0; i < band->count * cols; i++)
			band->part[i] = band->rows[i * n + m];
		rc = rh_store_set(move->store, move->place->block, move->place->tensor, (m * rows + band->first) * cols, band->count * cols,
		                  band->part);
	}
	return rc;
}

/* A tensor's elements handed to `write` in the model's order, converted; `buffer` holds PIECE floats. */
static int stream_out(struct rh_store *store, const struct rh_model *model, const struct rh_tensor_place *place, float *buffer,
                      int (*write)(void *file, const void *bytes, int64_t length), void *file)
{
	const struct rh_tensor *tensor = tensor_of(model, place);
	int64_t total = tensor->rows * tensor->cols;
	int rc = 0;
	if (place->part == RH_TENSOR_WEIGHT && tensor->interleaved)
		return each_band(tensor, buffer, write_band,
		                 &(struct interleaved_move){.store = store, .tensor = tensor, .place = place, .write = write, .out = file});
	if (place->part != RH_TENSOR_WEIGHT) {
		struct rh_state state = state_of(store, place);
		total = state.rows * state.cols;
		for (int64_t first = 0; !rc && first < total; first += PIECE) {
			int64_t count = total - first < PIECE ? total - first : PIECE;
			rc = rh_store_state_get(store, place->block, place->tensor, place->part - RH_TENSOR_STATE, first, count, buffer);
			if (!rc)
				rc = write(file, buffer, rh_dtype_bytes(state.dtype, count));
		}
		return rc;
	}
	for (int64_t first = 0; !rc && first < total; first += PIECE) {
		int64_t count = total - first < PIECE ? total - first : PIECE;
		rc = rh_store_get(store, place->block, place->tensor, first, count, buffer);
		if (rc)
			return rc;
		rc = write_values(place, buffer, count, write, file);
	}
	return rc;
}

/* What the files hold transposed: rows of theirs, each of columns of ours, a strip of columns at a time. */
static int stream_transposed(struct rh_store *store, const struct rh_tensor *tensor, const struct rh_tensor_place *place, float *buffer,
                             int (*write)(void *file, const void *bytes, int64_t length), void *file)
{
	int64_t of_one = tensor->rows / tensor->transposed, strip = rh_max(1, PIECE / 2 / of_one);
	float *turned = buffer + PIECE / 2;
	int rc = of_one > PIECE / 2
	                 ? rh_fail(-EINVAL, "%s: matrices of %lld rows are too long to be turned", tensor->name, (long long)of_one)
	                 : 0;
	for (int64_t m = 0; !rc && m < tensor->transposed; m++)
		for (int64_t c = 0; !rc && c < tensor->cols; c += strip) {
			int64_t wide = rh_min(strip, tensor->cols - c);
			for (int64_t r = 0; !rc && r < of_one; r++)
				rc = rh_store_get(store, place->block, place->tensor, (m * of_one + r) * tensor->cols + c, wide,
				                  buffer + r * wide);
			for (int64_t i = 0; !rc && i < wide; i++)
				for (int64_t r = 0; r < of_one; r++)
					turned[i * of_one + r] = buffer[r * wide + i];
			if (!rc)
				rc = write_values(place, turned, wide * of_one, write, file);
		}
	return rc;
}

static int write_safetensors(void *file, const void *bytes, int64_t length)
{
	return rh_safetensors_write(file, bytes, length);
}

static int write_model(void *file, const void *bytes, int64_t length)
{
	return rh_model_out_write(file, bytes, length);
}

/* Shape in the file. Returns the rank. */
static int shape_of(const struct rh_tensor_place *place, const struct rh_model *model, const struct rh_store *store, int64_t shape[2])
{
	const struct rh_tensor *tensor = tensor_of(model, place);
	struct rh_state as = {.rank = tensor->rank, .rows = tensor->rows, .cols = tensor->cols};
	if (tensor->interleaved) {
		as.rows /= tensor->interleaved;
		as.cols *= tensor->interleaved;
	}
	if (place->part != RH_TENSOR_WEIGHT)
		as = state_of(store, place);
	shape[0] = as.rank == 2 ? as.rows : as.cols;
	shape[1] = as.cols;
	return as.rank;
}

/* With room for `others` behind them. */
static struct rh_safetensors_entry *entries_of(const struct rh_tensor_list *list, int64_t others, const struct rh_model *model,
                                               const struct rh_store *store)
{
	struct rh_safetensors_entry *entry = rh_alloc(list->count + (size_t)others, sizeof *entry);
	for (size_t i = 0; entry && i < list->count; i++) {
		entry[i] = (struct rh_safetensors_entry){.name = list->place[i].name, .dtype = list->place[i].dtype};
		entry[i].rank = shape_of(&list->place[i], model, store, entry[i].shape);
	}
	return entry;
}

int rh_tensors_save(const char *path, const struct rh_tensor_list *list, const struct rh_model *model, struct rh_store *store)
{
	struct rh_safetensors_entry *entry = entries_of(list, 0, model, store);
	float *buffer = rh_alloc(PIECE, sizeof *buffer);
	struct rh_safetensors_out *file = NULL;
	int rc = entry && buffer ? rh_safetensors_create(path, entry, (int64_t)list->count, &file) : -ENOMEM;
	for (size_t i = 0; !rc && i < list->count; i++)
		rc = stream_out(store, model, &list->place[i], buffer, write_safetensors, file);
	if (!rc)
		rc = rh_safetensors_commit(file);
	else
		rh_safetensors_abandon(file);
	rh_free(entry);
	rh_free(buffer);
	return rc;
}

static int load_weights(const struct rh_safetensors *file, const struct rh_safetensor *found, const struct rh_tensor_place *place,
                        const struct rh_tensor *tensor, struct rh_store *store, int64_t total, float *buffer)
{
	const char *path = rh_file_path(rh_safetensors_file(file));
	if (found->dtype != RH_F32 && found->dtype != RH_BF16 && found->dtype != RH_F16)
		return rh_fail(-EINVAL, "%s: tensor %s has dtype %s; F32, BF16 or F16 can be read", path, place->name,
		               rh_dtype_name(found->dtype));
	if (tensor->interleaved)
		return each_band(tensor, buffer, read_band,
		                 &(struct interleaved_move){.store = store, .tensor = tensor, .place = place, .in = file, .found = found});
	for (int64_t first = 0; first < total; first += PIECE) {
		int64_t count = total - first < PIECE ? total - first : PIECE;
		int rc = rh_safetensors_read(file, found, rh_dtype_bytes(found->dtype, first), buffer, rh_dtype_bytes(found->dtype, count));
		if (rc)
			return rc;
		widen(found->dtype, count, buffer);
		rc = rh_store_set(store, place->block, place->tensor, first, count, buffer);
		if (rc)
			return rh_fail_in(rc, "%s", path);
	}
	return 0;
}

static int load_state(const struct rh_safetensors *file, const struct rh_safetensor *found, const struct rh_tensor_place *place,
                      struct rh_store *store, float *buffer)
{
	struct rh_state state = state_of(store, place);
	int64_t total = state.rows * state.cols;
	if (found->dtype != state.dtype)
		return rh_fail(-EINVAL, "%s: tensor %s has dtype %s, not %s; it was saved by another optimizer or state_layout",
		               rh_file_path(rh_safetensors_file(file)), place->name, rh_dtype_name(found->dtype),
		               rh_dtype_name(state.dtype));
	int rc = 0;
	for (int64_t first = 0; !rc && first < total; first += PIECE) {
		int64_t count = total - first < PIECE ? total - first : PIECE;
		rc = rh_safetensors_read(file, found, rh_dtype_bytes(state.dtype, first), buffer, rh_dtype_bytes(state.dtype, count));
		if (!rc)
			rc = rh_store_state_set(store, place->block, place->tensor, place->part - RH_TENSOR_STATE, first, count, buffer);
	}
	return rc;
}

static int load_one(const struct rh_safetensors *file, const struct rh_safetensor *found, const struct rh_tensor_place *place,
                    const struct rh_model *model, struct rh_store *store, float *buffer)
{
	const char *path = rh_file_path(rh_safetensors_file(file));
	int64_t shape[2];
	int rank = shape_of(place, model, store, shape);
	int fits = found->rank == rank && found->shape[0] == shape[0] && (rank == 1 || found->shape[1] == shape[1]);
	if (!fits && found->rank == 2 && rank == 2)
		return rh_fail(-EINVAL, "%s: tensor %s has the shape (%lld, %lld), this model needs (%lld, %lld); it is of another model",
		               path, place->name, (long long)found->shape[0], (long long)found->shape[1], (long long)shape[0],
		               (long long)shape[1]);
	if (!fits)
		return rh_fail(-EINVAL, "%s: tensor %s has %d dimension%s with %lld elements first, this model needs %d with %lld", path,
		               place->name, found->rank, found->rank == 1 ? "" : "s", found->rank ? (long long)found->shape[0] : 0, rank,
		               (long long)shape[0]);
	return place->part == RH_TENSOR_WEIGHT ? load_weights(file, found, place, tensor_of(model, place), store,
	                                                      rank == 2 ? shape[0] * shape[1] : shape[0], buffer)
	                                       : load_state(file, found, place, store, buffer);
}

int rh_tensors_load(const char *path, const struct rh_tensor_list *list, const struct rh_model *model, struct rh_store *store)
{
	struct rh_safetensors *file = NULL;
	float *buffer = rh_alloc(PIECE, sizeof *buffer);
	int rc = buffer ? rh_safetensors_open(path, &file) : -ENOMEM;
	for (size_t i = 0; !rc && i < list->count; i++) {
		const struct rh_safetensor *found = rh_safetensors_find(file, list->place[i].name);
		if (!found)
			rc = rh_fail(-EINVAL, "%s: tensor %s is missing; the file does not belong to this model and these targets", path,
			             list->place[i].name);
		else
			rc = load_one(file, found, &list->place[i], model, store, buffer);
	}
	if (!rc && rh_safetensors_count(file) != (int64_t)list->count)
		rc = rh_fail(-EINVAL, "%s: holds %lld tensors, this model and these targets have %zu; it does not belong to them", path,
		             (long long)rh_safetensors_count(file), list->count);
	rh_safetensors_close(file);
	rh_free(buffer);
	return rc;
}

static int load_tensor(const struct rh_source *source, uint64_t seed, const struct rh_model *model, struct rh_store *store, int b, int t,
                       float *buffer)
{
	const struct rh_tensor *tensor = &model->block[b].tensor[t];
	int rc = 0;
	/* whole rows; a row is never as long as PIECE in practice, but let it be */
	int64_t rows = PIECE / tensor->cols < 1 ? 1 : PIECE / tensor->cols, total = tensor->rows * tensor->cols;
	for (int64_t first = 0; !rc && first < total; first += rows * tensor->cols) {
		int64_t count = total - first < rows * tensor->cols ? total - first : rows * tensor->cols;
		if (source && !is_adapter(tensor))
			rc = rh_source_read(source, tensor->name, first, count, RH_F32, buffer);
		else
			rh_model_initial(model, seed, b, t, first, count, buffer);
		if (!rc)
			rc = rh_store_set(store, b, t, first, count, buffer);
	}
	return rc;
}

int rh_weights_load(const struct rh_source *source, uint64_t seed, const struct rh_model *model, struct rh_store *store)
{
	int64_t longest = PIECE;
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; t < model->block[b].tensors; t++)
			longest = model->block[b].tensor[t].cols > longest ? model->block[b].tensor[t].cols : longest;
	float *buffer = rh_alloc((size_t)longest, sizeof *buffer);
	int rc = buffer ? 0 : -ENOMEM;
	for (int b = 0; !rc && b < model->blocks; b++)
		for (int t = 0; !rc && t < model->block[b].tensors; t++)
			rc = load_tensor(source, seed, model, store, b, t, buffer);
	rh_free(buffer);
	return rc;
}

static int save_config(const char *dir, const struct rh_model *model)
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

/* The shape that Hugging Face's files have. */
static void turn_entry(const struct rh_tensor *tensor, struct rh_safetensors_entry *entry)
{
	if (!tensor->transposed)
		return;
	int64_t rows = tensor->rows / tensor->transposed;
	*entry = (struct rh_safetensors_entry){entry->name, entry->dtype, 2, {tensor->cols, rows}};
	if (tensor->stacked)
		*entry = (struct rh_safetensors_entry){entry->name, entry->dtype, 3, {tensor->transposed, tensor->cols, rows}};
}

int rh_weights_save(const char *dir, const struct rh_source *source, const struct rh_model *model, struct rh_store *store)
{
	struct rh_tensor_list list = {0};
	struct rh_model_out *file = NULL;
	int64_t others = source ? rh_source_others(source) : 0;
	float *buffer = rh_alloc(PIECE, sizeof *buffer);
	int rc = buffer ? rh_tensor_list_add(&list, model, RH_TENSORS_ALL, model->dtype, "") : -ENOMEM;
	struct rh_safetensors_entry *entry = rc ? NULL : entries_of(&list, others, model, store);
	for (size_t i = 0; entry && i < list.count; i++) {
		turn_entry(tensor_of(model, &list.place[i]), &entry[i]);
		if (source)
			entry[i].name = rh_source_file_name(source, entry[i].name);
	}
	if (entry && others)
		rh_source_others_declare(source, entry + list.count);
	if (!rc)
		rc = entry ? rh_model_out_create(dir, entry, (int64_t)list.count + others, RH_SHARD_BYTES, &file) : -ENOMEM;
	for (size_t i = 0; !rc && i < list.count; i++)
		rc = tensor_of(model, &list.place[i])->transposed
		             ? stream_transposed(store, tensor_of(model, &list.place[i]), &list.place[i], buffer, write_model, file)
		             : stream_out(store, model, &list.place[i], buffer, write_model, file);
	if (!rc && others)
		rc = rh_source_others_write(source, file);
	if (!rc)
		rc = rh_model_out_commit(file);
	else
		rh_model_out_abandon(file);
	if (!rc)
		rc = save_config(dir, model);
	rh_tensor_list_free(&list);
	rh_free(entry);
	rh_free(buffer);
	return rc;
}
