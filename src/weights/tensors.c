#include "weights/tensors_internal.h"

#include "ckpt/quantise_form.h"
#include "ckpt/safetensors.h"
#include "core/alloc.h"
#include "core/fault.h"
#include "core/float16.h"
#include "core/float8.h"
#include "core/minmax.h"
#include "core/text.h"

#include <stdio.h>
#include <string.h>

void rh_tensor_list_free(struct rh_tensor_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		rh_free(list->place[i].name);
	rh_free(list->place);
	*list = (struct rh_tensor_list){0};
}

int rh_weights_is_adapter(const struct rh_tensor *tensor)
{
	return !strncmp(tensor->name, "base_model.", 11);
}

static int add_place(struct rh_tensor_list *list, const struct rh_model *model, struct rh_tensor_place place, const char *prefix,
                     const char *suffix)
{
	struct rh_text name = {0};
	int rc = rh_grow(&list->place, &list->capacity, list->count + 1, sizeof *list->place);
	if (!rc)
		rc = rh_text_printf(&name, "%s%s%s", prefix, model->block[place.block].tensor[place.tensor].name, suffix);
	if (rc)
		return rc;
	place.name = name.bytes;
	list->place[list->count++] = place;
	return 0;
}

/* A tied table goes by both its names into an adapter's file, as PEFT writes it; so do its adapter's matrices, transposed by the other. */
static int add_tied_head(struct rh_tensor_list *list, const struct rh_model *model, struct rh_tensor_place place)
{
	struct rh_text name = {0};
	const struct rh_block *block = &model->block[place.block];
	const char *kind = block->whole ? "weight" : block->tensor[place.tensor].transposed ? "lora_B.weight" : "lora_A.weight";
	place.turned = !block->whole && !block->tensor[place.tensor].transposed;
	int rc = rh_grow(&list->place, &list->capacity, list->count + 1, sizeof *list->place);
	if (!rc)
		rc = rh_text_printf(&name, "base_model.model.%s.%s", rh_model_names(model->config)->head, kind);
	if (rc)
		return rc;
	place.name = name.bytes;
	list->place[list->count++] = place;
	return 0;
}

int rh_tensor_list_add(struct rh_tensor_list *list, const struct rh_model *model, enum rh_tensor_scope scope, enum rh_dtype dtype,
                       const char *suffix)
{
	int rc = 0, adapters = scope == RH_TENSORS_ADAPTERS;
	int part = scope == RH_TENSORS_PUBLISHED ? RH_TENSOR_PUBLISHED : RH_TENSOR_WEIGHT;
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; !rc && t < model->block[b].tensors; t++) {
			const struct rh_block *block = &model->block[b];
			struct rh_tensor_place place = {.block = b, .tensor = t, .part = part, .dtype = dtype};
			if ((scope == RH_TENSORS_TRAINABLE || scope == RH_TENSORS_PUBLISHED) && !block->trainable)
				continue;
			if (adapters && !block->whole && !rh_weights_is_adapter(&block->tensor[t]))
				continue;
			place.turned = adapters && !block->whole && block->tensor[t].transposed;
			rc = add_place(list, model, place, adapters && block->whole ? "base_model.model." : "", suffix);
			if (!rc && adapters && block->uses == 2)
				rc = add_tied_head(list, model, place);
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
				rc = add_place(list, model,
				               (struct rh_tensor_place){
				                       .block = b, .tensor = t, .part = RH_TENSOR_STATE + n, .dtype = state.dtype},
				               "", state.suffix);
			}
		}
	return rc;
}

struct rh_state tensors_state(const struct rh_store *store, const struct rh_tensor_place *place)
{
	struct rh_state state;
	RH_ASSERT(rh_store_state(store, place->block, place->tensor, place->part - RH_TENSOR_STATE, &state));
	return state;
}

int tensors_shape(const struct rh_tensor_place *place, const struct rh_model *model, const struct rh_store *store, int64_t shape[2])
{
	const struct rh_tensor *tensor = tensors_tensor(model, place);
	struct rh_state as = {.rank = tensor->rank, .rows = tensor->rows, .cols = tensor->cols};
	if (tensor->interleaved) {
		as.rows /= tensor->interleaved;
		as.cols *= tensor->interleaved;
	}
	if (place->turned)
		as = (struct rh_state){.rank = 2, .rows = tensor->cols, .cols = tensor->rows};
	if (place->part >= RH_TENSOR_STATE)
		as = tensors_state(store, place);
	shape[0] = as.rank == 2 ? as.rows : as.cols;
	shape[1] = as.cols;
	return as.rank;
}

int64_t tensors_run(const struct rh_tensor *tensor, int64_t first, int64_t total, int64_t *here)
{
	int64_t width = tensor->rank == 1 ? 1 : tensor->cols, run, most = rh_min(PIECE, total - first);
	int64_t row = rh_row_of_file(&tensor->groups, first / width, &run);
	*here = row * width + first % width;
	return run > most ? most : rh_min(most, run * width - first % width);
}

int tensors_each_band(const struct rh_tensor *tensor, float *buffer, int (*pass)(void *user, const struct tensors_band *band), void *user)
{
	int64_t rows = tensor->rows / tensor->interleaved, wide = tensor->cols * tensor->interleaved, most = PIECE / 2 / wide;
	int rc = most ? 0 : rh_fail(-EINVAL, "%s: rows of %lld elements are too long", tensor->name, (long long)wide);
	for (int64_t first = 0; !rc && first < rows; first += most) {
		struct tensors_band band = {buffer, buffer + PIECE / 2, first, rh_min(most, rows - first)};
		rc = pass(user, &band);
	}
	return rc;
}

struct band_in {
	struct rh_store *store;
	const struct rh_tensor *tensor;
	const struct rh_tensor_place *place;
	const struct rh_safetensors *file;
	const struct rh_safetensor *found;
};

static int read_band(void *user, const struct tensors_band *band)
{
	const struct band_in *move = user;
	int64_t n = move->tensor->interleaved, cols = move->tensor->cols, rows = move->tensor->rows / n;
	enum rh_dtype dtype = move->found->dtype;
	int64_t wide = cols * n;
	int rc = rh_safetensors_read(move->file, move->found, rh_dtype_bytes(dtype, band->first * wide), band->rows,
	                             rh_dtype_bytes(dtype, band->count * wide));
	if (rc)
		return rc;
	rh_widen(dtype, band->count * wide, band->rows);
	for (int64_t m = 0; !rc && m < n; m++) {
		for (int64_t i = 0; i < band->count * cols; i++)
			band->part[i] = band->rows[i * n + m];
		rc = rh_store_set(move->store, move->place->block, move->place->tensor, (m * rows + band->first) * cols, band->count * cols,
		                  band->part);
	}
	return rc;
}

/* A strip of our rows at a time, of each of the file's rows its part. */
static int load_turned(const struct rh_safetensors *file, const struct rh_safetensor *found, const struct rh_tensor_place *place,
                       const struct rh_tensor *tensor, struct rh_store *store, float *buffer)
{
	int64_t cols = tensor->cols, most = rh_max(PIECE / 2 / cols, 1);
	float *part = buffer, *turned = buffer + PIECE / 2;
	int rc = cols > PIECE / 2 ? rh_fail(-EINVAL, "%s: rows of %lld elements are too long", tensor->name, (long long)cols) : 0;
	for (int64_t first = 0, count; !rc && first < tensor->rows; first += count) {
		count = rh_min(most, tensor->rows - first);
		for (int64_t c = 0; !rc && c < cols; c++) {
			rc = rh_safetensors_read(file, found, rh_dtype_bytes(found->dtype, c * tensor->rows + first), part,
			                         rh_dtype_bytes(found->dtype, count));
			rh_widen(found->dtype, count, part);
			for (int64_t i = 0; i < count; i++)
				turned[i * cols + c] = part[i];
		}
		if (!rc)
			rc = rh_store_set(store, place->block, place->tensor, first * cols, count * cols, turned);
	}
	return rc;
}

static int load_weights(const struct rh_safetensors *file, const struct rh_safetensor *found, const struct rh_tensor_place *place,
                        const struct rh_tensor *tensor, struct rh_store *store, int64_t total, float *buffer)
{
	const char *path = rh_file_path(rh_safetensors_file(file));
	if (found->dtype != RH_F32 && found->dtype != RH_BF16 && found->dtype != RH_F16)
		return rh_fail(-EINVAL, "%s: tensor %s has dtype %s; F32, BF16 or F16 can be read", path, place->name,
		               rh_dtype_name(found->dtype));
	if (place->turned)
		return load_turned(file, found, place, tensor, store, buffer);
	if (tensor->interleaved)
		return tensors_each_band(tensor, buffer, read_band,
		                         &(struct band_in){.store = store, .tensor = tensor, .place = place, .file = file, .found = found});
	for (int64_t first = 0, count, here; first < total; first += count) {
		count = tensors_run(tensor, first, total, &here);
		int rc = rh_safetensors_read(file, found, rh_dtype_bytes(found->dtype, first), buffer, rh_dtype_bytes(found->dtype, count));
		if (rc)
			return rc;
		rh_widen(found->dtype, count, buffer);
		rc = rh_store_set(store, place->block, place->tensor, here, count, buffer);
		if (rc)
			return rh_fail_in(rc, "%s", path);
	}
	return 0;
}

/* Loads tensors whose bytes are the same in file and memory: optimizer state, published weights. */
static int load_stored(const struct rh_safetensors *file, const struct rh_safetensor *found, const struct rh_tensor_place *place,
                       struct rh_store *store, int64_t total, float *buffer)
{
	int rc = 0;
	if (found->dtype != place->dtype)
		return rh_fail(-EINVAL, "%s: tensor %s has dtype %s, not %s; it was saved by another optimizer, state_layout or dtype",
		               rh_file_path(rh_safetensors_file(file)), place->name, rh_dtype_name(found->dtype),
		               rh_dtype_name(place->dtype));
	for (int64_t first = 0; !rc && first < total; first += PIECE) {
		int64_t count = total - first < PIECE ? total - first : PIECE;
		rc = rh_safetensors_read(file, found, rh_dtype_bytes(found->dtype, first), buffer, rh_dtype_bytes(found->dtype, count));
		if (rc)
			return rc;
		rc = place->part == RH_TENSOR_PUBLISHED
		             ? rh_store_published_set(store, place->block, place->tensor, first, count, buffer)
		             : rh_store_state_set(store, place->block, place->tensor, place->part - RH_TENSOR_STATE, first, count, buffer);
	}
	return rc;
}

static int load_one(const struct rh_safetensors *file, const struct rh_safetensor *found, const struct rh_tensor_place *place,
                    const struct rh_model *model, struct rh_store *store, float *buffer)
{
	const char *path = rh_file_path(rh_safetensors_file(file));
	int64_t shape[2];
	int rank = tensors_shape(place, model, store, shape);
	int fits = found->rank == rank && found->shape[0] == shape[0] && (rank == 1 || found->shape[1] == shape[1]);
	if (!fits && found->rank == 2 && rank == 2)
		return rh_fail(-EINVAL, "%s: tensor %s has the shape (%lld, %lld), this model needs (%lld, %lld); it is of another model",
		               path, place->name, (long long)found->shape[0], (long long)found->shape[1], (long long)shape[0],
		               (long long)shape[1]);
	if (!fits)
		return rh_fail(-EINVAL, "%s: tensor %s has %d dimension%s with %lld elements first, this model needs %d with %lld", path,
		               place->name, found->rank, found->rank == 1 ? "" : "s", found->rank ? (long long)found->shape[0] : 0, rank,
		               (long long)shape[0]);
	int64_t total = rank == 2 ? shape[0] * shape[1] : shape[0];
	return place->part == RH_TENSOR_WEIGHT ? load_weights(file, found, place, tensors_tensor(model, place), store, total, buffer)
	                                       : load_stored(file, found, place, store, total, buffer);
}

int rh_tensors_load(const char *path, const struct rh_tensor_list *list, int64_t others, const struct rh_model *model,
                    struct rh_store *store)
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
	if (!rc && rh_safetensors_count(file) != (int64_t)list->count + others)
		rc = rh_fail(-EINVAL, "%s: holds %lld tensors, this model and these targets have %zu; it does not belong to them", path,
		             (long long)(rh_safetensors_count(file) - others), list->count);
	rh_safetensors_close(file);
	rh_free(buffer);
	return rc;
}

/* A head that is a matrix of its own here, and the embedding's in the source: of the upper of two boxes. */
static int is_untied_head(const struct rh_source *source, const struct rh_model *model, const struct rh_tensor *tensor)
{
	const char *head = rh_model_names(model->config)->head;
	if (!rh_model_ties(rh_source_config(source)) || rh_model_ties(model->config))
		return 0;
	size_t length = strlen(head);
	return !strncmp(tensor->name, head, length) && !strcmp(tensor->name + length, ".weight");
}

const char *rh_weights_source_name(const struct rh_source *source, const struct rh_model *model, const struct rh_tensor *tensor,
                                   char room[RH_SOURCE_NAME])
{
	if (!source || rh_weights_is_adapter(tensor))
		return NULL;
	if (rh_source_has(source, tensor->name))
		return tensor->name;
	if (!is_untied_head(source, model, tensor))
		return NULL;
	snprintf(room, RH_SOURCE_NAME, "%s.weight", rh_model_names(model->config)->embedding);
	return room;
}

enum { APART = PIECE / 4 }; /* elements of a piece that one thread has, so that many threads take little memory */

/* A tensor that is being filled: pieces of whole rows, each read or drawn, and set, apart from all others. */
struct filling {
	const struct rh_source *source;
	const char *name; /* in the source; NULL: the initial value */
	const struct rh_model *model;
	struct rh_store *store;
	uint64_t seed;
	int block, tensor;
	int is_stored;        /* packed as the file has it */
	float *scale;         /* made packed here: the numbers of its scales, where they lie apart */
	float joint;          /* FP8_JOINT: the scale of all tensors that one product reads */
	float *largest;       /* magnitude in bf16 of each piece, where that is to be found */
	int64_t piece, total; /* elements */
	struct rh_fault fault;
};

static const struct rh_tensor *tensor_of(const struct filling *f)
{
	return &f->model->block[f->block].tensor[f->tensor];
}

/* Rows [first, first + count) here, of the file's rows in runs. `read` takes those of one run: `at` is its first row in the file, `done`
 * how many of all are before it. */
static int each_run(const struct filling *f, int64_t first, int64_t count,
                    int (*read)(const struct filling *f, int64_t at, int64_t count, int64_t done, void *out), void *out)
{
	int rc = 0;
	for (int64_t done = 0, run; !rc && done < count; done += run) {
		int64_t at = rh_row_in_file(&tensor_of(f)->groups, first + done, &run);
		run = rh_min(run, count - done);
		rc = read(f, at, run, done, out);
	}
	return rc;
}

static int read_packed_run(const struct filling *f, int64_t at, int64_t count, int64_t done, void *out)
{
	int64_t before = rh_form_element_bytes(tensor_of(f)->form, done, tensor_of(f)->cols);
	return rh_source_read_packed(f->source, f->name, at, count, (char *)out + before);
}

static int read_run(const struct filling *f, int64_t at, int64_t count, int64_t done, void *out)
{
	int64_t cols = tensor_of(f)->cols;
	return rh_source_read(f->source, f->name, at * cols, count * cols, RH_F32, (float *)out + done * cols);
}

/* Rows that stay as the file has them, or become packed. Their values tell whether all are numbers. */
static int fill_packed(const struct filling *f, int64_t first, int64_t count, const float *values)
{
	const struct rh_tensor *tensor = tensor_of(f);
	enum rh_form form = tensor->form;
	int64_t cols = tensor->cols, before = first / cols, rows = count / cols, bytes = rh_form_element_bytes(form, rows, cols);
	char *packed = rh_alloc((size_t)bytes, 1);
	int rc = packed ? rh_store_check_finite(f->store, f->block, f->tensor, first, count, values) : -ENOMEM;
	if (rc)
		goto out;
	if (f->is_stored)
		rc = each_run(f, before, rows, read_packed_run, packed);
	else if (form == RH_FORM_FP8_JOINT)
		rh_form_quantise_joint(values, count, f->joint, (uint8_t *)packed);
	else
		rh_form_quantise(form, values, rows, cols, packed,
		                 f->scale ? f->scale + rh_form_scale_rows(form, before) * rh_form_runs(form, cols) : NULL);
	if (rc)
		goto out;
	rc = rh_store_set_packed(f->store, f->block, f->tensor, rh_form_element_bytes(form, before, cols), bytes, packed);
out:
	rh_free(packed);
	return rc;
}

/* Of what is no number the magnitude is none either; infinity is above all others. */
static float largest_in_bf16(const float *values, int64_t count)
{
	uint32_t most = 0;
	for (int64_t i = 0; i < count; i++) {
		uint32_t bits = rh_f32_bits(rh_bf16_to_f32(rh_f32_to_bf16(values[i]))) & 0x7fffffffu;
		most = bits > most ? bits : most;
	}
	return rh_bits_f32(most);
}

/* Elements of a tensor whose rows are parts of the file's: each row has what bf16 holds of what the rows before it have left. */
static int read_parts(const struct filling *f, int64_t first, int64_t count, float *out)
{
	int64_t cols = tensor_of(f)->cols;
	float *whole = rh_alloc((size_t)cols, sizeof *whole);
	int rc = whole ? rh_source_read(f->source, f->name, 0, cols, RH_F32, whole) : -ENOMEM;
	for (int64_t i = first; !rc && i < first + count; i++) {
		float left = whole[i % cols], part = 0;
		for (int64_t p = 0; p <= i / cols; p++) {
			left -= part;
			part = rh_bf16_to_f32(rh_f32_to_bf16(left));
		}
		out[i - first] = part;
	}
	rh_free(whole);
	return rc;
}

static void fill_piece(void *context, int64_t i)
{
	struct filling *f = context;
	int64_t first = i * f->piece, count = rh_min(f->piece, f->total - first);
	if (rh_fault_code(&f->fault))
		return;
	float *buffer = rh_alloc((size_t)count, sizeof *buffer);
	int rc = buffer ? 0 : -ENOMEM;
	if (!rc && f->name && tensor_of(f)->parts)
		rc = read_parts(f, first, count, buffer);
	else if (!rc && f->name && tensor_of(f)->groups.count)
		rc = each_run(f, first / tensor_of(f)->cols, count / tensor_of(f)->cols, read_run, buffer);
	else if (!rc && f->name) /* of a vector any part */
		rc = rh_source_read(f->source, f->name, first, count, RH_F32, buffer);
	else if (!rc)
		rh_model_initial(f->model, f->seed, f->block, f->tensor, first, count, buffer);
	if (!rc && f->largest)
		f->largest[i] = largest_in_bf16(buffer, count);
	else if (!rc && tensor_of(f)->form)
		rc = fill_packed(f, first, count, buffer);
	else if (!rc)
		rc = rh_store_set(f->store, f->block, f->tensor, first, count, buffer);
	rh_free(buffer);
	rh_fault_keep(&f->fault, rc);
}

static int fill_all(struct filling *f, struct rh_pool *pool)
{
	int64_t pieces = (f->total + f->piece - 1) / f->piece;
	if (rh_store_can_set_concurrently(f->store))
		rh_pool_run(pool, fill_piece, f, pieces);
	else
		for (int64_t i = 0; i < pieces; i++)
			fill_piece(f, i);
	return rh_fault_get(&f->fault);
}

/* The file's scales, whose rows follow those of the matrix. */
static int read_scales(const struct filling *f, char *scales, char *tail)
{
	const struct rh_tensor *tensor = tensor_of(f);
	enum rh_form form = tensor->form;
	int64_t tall = rh_min(rh_form_traits(form)->tall, tensor->rows), rows = rh_form_scale_rows(form, tensor->rows), run;
	int64_t row_bytes = rh_form_scale_bytes(form, tall, tensor->cols);
	if (!tensor->groups.count || rows == 1)
		return rh_source_read_scales(f->source, f->name, scales, tail);
	char *stored = rh_alloc((size_t)(rows * row_bytes), 1);
	int rc = stored ? rh_source_read_scales(f->source, f->name, stored, tail) : -ENOMEM;
	for (int64_t r = 0; !rc && r < rows; r++)
		memcpy(scales + r * row_bytes, stored + rh_row_in_file(&tensor->groups, r * tall, &run) / tall * row_bytes,
		       (size_t)row_bytes);
	rh_free(stored);
	return rc;
}

/* A packed matrix whose scales lie apart: they are stored once all are known. */
static int fill_with_scales(struct filling *f, struct rh_pool *pool)
{
	const struct rh_tensor *tensor = tensor_of(f);
	enum rh_form form = tensor->form;
	int64_t rows = tensor->rows, cols = tensor->cols, at = rh_form_scales_at(form, rows, cols);
	int64_t bytes = rh_form_bytes(form, rows, cols) - at, tail = rh_form_tail_at(form, rows, cols) - at;
	char *stored = rh_alloc((size_t)bytes, 1);
	f->scale = rh_alloc((size_t)(rh_form_scale_rows(form, rows) * rh_form_runs(form, cols)), sizeof *f->scale);
	int rc = stored && f->scale ? fill_all(f, pool) : -ENOMEM;
	if (rc)
		goto out;
	if (f->is_stored)
		rc = read_scales(f, stored, stored + tail);
	else
		rh_form_store_scales(form, rows, cols, f->scale, stored, stored + tail);
	if (!rc)
		rc = rh_store_set_packed(f->store, f->block, f->tensor, at, bytes, stored);
out:
	rh_free(stored);
	rh_free(f->scale);
	return rc;
}

/* What all of a block's tensors are filled from. */
struct loader {
	const struct rh_source *source;
	uint64_t seed;
	const struct rh_model *model;
	struct rh_store *store;
	struct rh_pool *pool;
};

/* In pieces of whole rows, as many as `tall` goes into. */
static struct filling filling_of(const struct loader *from, int b, int t, int64_t tall, char room[RH_SOURCE_NAME])
{
	const struct rh_tensor *tensor = &from->model->block[b].tensor[t];
	int64_t rows = (rh_max(APART / tensor->cols, 1) + tall - 1) / tall * tall;
	return (struct filling){.source = from->source,
	                        .name = rh_weights_source_name(from->source, from->model, tensor, room),
	                        .model = from->model,
	                        .store = from->store,
	                        .seed = from->seed,
	                        .block = b,
	                        .tensor = t,
	                        .piece = rows * tensor->cols,
	                        .total = tensor->rows * tensor->cols};
}

/* The largest magnitude of a tensor in bf16. */
static int find_largest(struct filling *f, struct rh_pool *pool, float *most)
{
	int64_t pieces = (f->total + f->piece - 1) / f->piece;
	f->largest = rh_alloc((size_t)pieces, sizeof *f->largest);
	if (!f->largest)
		return -ENOMEM;
	int rc = fill_all(f, pool);
	*most = largest_in_bf16(f->largest, rc ? 0 : pieces);
	rh_free(f->largest);
	f->largest = NULL;
	return rc;
}

/* Tensors that one product reads, from t on: each is read twice, as their scale is the largest's. */
static int load_joint(const struct loader *from, int b, int t)
{
	const struct rh_block *block = &from->model->block[b];
	char room[RH_SOURCE_NAME];
	int end = t + 1, rc = 0;
	float most[2] = {0, 0};
	while (end < block->tensors && block->tensor[end].joins)
		end++;
	for (int i = t; !rc && i < end; i++) {
		struct filling filling = filling_of(from, b, i, 1, room);
		rc = find_largest(&filling, from->pool, &most[1]);
		most[0] = largest_in_bf16(most, 2);
	}
	const float scale = rh_power_scale(most[0], RH_E4M3_LARGEST);
	for (int i = t; !rc && i < end; i++) {
		struct filling filling = filling_of(from, b, i, 1, room);
		filling.joint = scale;
		rc = fill_all(&filling, from->pool);
	}
	const struct rh_tensor *last = &block->tensor[end - 1];
	int64_t at = rh_form_scales_at(last->form, last->rows, last->cols);
	return rc ? rc : rh_store_set_packed(from->store, b, end - 1, at, (int64_t)sizeof scale, &scale);
}

static int load_tensor(const struct loader *from, int b, int t)
{
	const struct rh_tensor *tensor = &from->model->block[b].tensor[t];
	char room[RH_SOURCE_NAME];
	if (tensor->form == RH_FORM_FP8_JOINT)
		return tensor->joins ? 0 : load_joint(from, b, t);
	int is_stored = tensor->form && from->source && rh_source_form(from->source, tensor) == tensor->form;
	struct filling filling = filling_of(from, b, t, tensor->form && !is_stored ? rh_form_traits(tensor->form)->tall : 1, room);
	filling.is_stored = is_stored;
	if (tensor->form && rh_form_traits(tensor->form)->run)
		return fill_with_scales(&filling, from->pool);
	return fill_all(&filling, from->pool);
}

int rh_weights_load(const struct rh_source *source, uint64_t seed, const struct rh_model *model, struct rh_store *store,
                    struct rh_pool *pool, const struct rh_loading *loading)
{
	const struct loader from = {source, seed, model, store, pool};
	int rc = 0;
	int64_t done = 0, all = 0;
	for (int b = 0; b < model->blocks; b++)
		all += rh_block_bytes(&model->block[b], model->dtype);
	for (int b = 0; !rc && b < model->blocks; b++) {
		for (int t = 0; !rc && t < model->block[b].tensors; t++)
			rc = load_tensor(&from, b, t);
		done += rh_block_bytes(&model->block[b], model->dtype);
		if (!rc && loading)
			loading->tell(loading->context, done, all);
	}
	return rc;
}
