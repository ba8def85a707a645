#include "ckpt/merge.h"

#include "ckpt/merge_gguf.h"
#include "ckpt/model_out.h"
#include "ckpt/peft.h"
#include "ckpt/source_internal.h"
#include "core/alloc.h"
#include "core/float16.h"
#include "core/json.h"
#include "core/minmax.h"
#include "core/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 22 }; /* elements in memory at once */

struct merger {
	const struct rh_merge *wanted;
	struct rh_source *source;
	struct source_entries target; /* its tensors as what is written has them */
	struct rh_peft_config peft;
	struct rh_safetensors *adapter; /* NULL: none */
	int64_t used;                   /* of its tensors */
	struct rh_model_out *dir;
	struct rh_gguf_out *gguf;
	float *piece, *a, *b;
	void *bytes;
	size_t a_capacity, b_capacity;
	char *chat; /* the adapter's template; NULL: the model's own stays */
};

/* A tensor of the adapter as fp32. */
static int read_factor(const struct merger *merger, const struct rh_safetensor *tensor, float *out)
{
	int64_t elements = tensor->shape[0] * tensor->shape[1];
	if (tensor->dtype != RH_F32 && tensor->dtype != RH_BF16 && tensor->dtype != RH_F16)
		return rh_fail(-EINVAL, "%s: '%s' is of type %s; F32, F16 and BF16 are read", merger->wanted->adapter, tensor->name,
		               rh_dtype_name(tensor->dtype));
	int rc = rh_safetensors_read(merger->adapter, tensor, 0, out, tensor->bytes);
	const uint16_t *half = (const uint16_t *)(const void *)out;
	for (int64_t i = elements; !rc && tensor->dtype != RH_F32 && i-- > 0;) { /* from the end: the halves lie where the floats go */
		float value = tensor->dtype == RH_BF16 ? rh_bf16_to_f32(half[i]) : rh_f16_to_f32(half[i]);
		memcpy(out + i, &value, sizeof value);
	}
	return rc;
}

/* The factors of the module that `entry` is the weight of; *rank 0 where the adapter does not touch it. */
static int find_factors(struct merger *merger, const struct source_entry *entry, int64_t *rank, float *scale)
{
	char name[512];
	size_t length = strlen(entry->name);
	*rank = 0;
	if (!merger->adapter || length < 8 || strcmp(entry->name + length - 7, ".weight"))
		return 0;
	int module = (int)length - 7;
	snprintf(name, sizeof name, "base_model.model.%.*s.lora_A.weight", module, entry->name);
	const struct rh_safetensor *a = rh_safetensors_find(merger->adapter, name);
	snprintf(name, sizeof name, "base_model.model.%.*s.lora_B.weight", module, entry->name);
	const struct rh_safetensor *b = rh_safetensors_find(merger->adapter, name);
	if (!a && !b)
		return 0;
	int64_t rows = entry->rows, cols = entry->cols;
	if (!a || !b || a->rank != 2 || b->rank != 2 || a->shape[1] != cols || b->shape[0] != rows || a->shape[0] != b->shape[1])
		return rh_fail(-EINVAL, "%s: lora_A and lora_B of %.*s do not fit its weight of (%lld, %lld)", merger->wanted->adapter,
		               module, entry->name, (long long)rows, (long long)cols);
	double alpha;
	int64_t r;
	snprintf(name, sizeof name, "%.*s", module, entry->name);
	int rc = rh_peft_module(&merger->peft, name, &r, &alpha);
	if (!rc && r != a->shape[0])
		rc = rh_fail(-EINVAL, "%s: %s has rank %lld, its tensors have %lld", merger->wanted->adapter, name, (long long)r,
		             (long long)a->shape[0]);
	if (!rc)
		rc = rh_grow(&merger->a, &merger->a_capacity, (size_t)(r * cols), sizeof(float));
	if (!rc)
		rc = rh_grow(&merger->b, &merger->b_capacity, (size_t)(r * rows), sizeof(float));
	if (!rc)
		rc = read_factor(merger, a, merger->a);
	if (!rc)
		rc = read_factor(merger, b, merger->b);
	*scale = (float)(alpha / (merger->peft.use_rslora ? sqrt((double)r) : (double)r));
	*rank = rc ? 0 : r;
	merger->used += 2;
	return rc;
}

/* values (cols) += scale * B[row] A */
static void add_row(const struct merger *merger, int64_t row, int64_t cols, int64_t rank, float scale, float *values)
{
	for (int64_t k = 0; k < rank; k++) {
		float factor = scale * merger->b[row * rank + k];
		const float *a = merger->a + k * cols;
		for (int64_t i = 0; i < cols; i++)
			values[i] += factor * a[i];
	}
}

/* Which row of Hugging Face's order stands at `row` of a GGUF's: there the two of a rotated pair are neighbours. */
static int64_t row_in(const struct merger *merger, const struct source_entry *entry, int64_t row)
{
	int64_t head = entry->head_dim, within = head ? row % head : 0;
	if (!merger->gguf || !head)
		return row;
	return row - within + within % 2 * (head / 2) + within / 2;
}

static enum rh_dtype stored_type(const struct merger *merger, const struct source_entry *entry)
{
	enum rh_dtype dtype = merger->wanted->dtype;
	if (!merger->gguf)
		return dtype;
	if (entry->tensor.rank != 2)
		return RH_F32;
	return entry->cols % rh_dtype_block(dtype) ? RH_F16 : dtype;
}

static int write_bytes(struct merger *merger, const void *bytes, int64_t length)
{
	return merger->gguf ? rh_gguf_out_write(merger->gguf, bytes, length) : rh_model_out_write(merger->dir, bytes, length);
}

/* Matrices that are written transposed, one at a time. */
static int write_turned(struct merger *merger, const struct source_entry *entry)
{
	int64_t rows = entry->rows / entry->matrices, cols = entry->cols, rank, most = rh_max(1, PIECE / rows);
	enum rh_dtype dtype = stored_type(merger, entry);
	float scale = 0, *whole = rh_alloc((size_t)(rows * cols), sizeof *whole);
	int rc = whole ? find_factors(merger, entry, &rank, &scale) : -ENOMEM;
	if (!rc && rows > PIECE)
		rc = rh_fail(-EINVAL, "%s: '%s' has columns of %lld elements, which is not supported", merger->wanted->model, entry->name,
		             (long long)rows);
	for (int64_t m = 0; !rc && m < entry->matrices; m++) {
		rc = rh_source_read(merger->source, entry->name, m * rows * cols, rows * cols, RH_F32, whole);
		for (int64_t r = 0; !rc && rank && r < rows; r++)
			add_row(merger, m * rows + r, cols, rank, scale, whole + r * cols);
		for (int64_t first = 0, count; !rc && first < cols; first += count) {
			count = rh_min(most, cols - first);
			for (int64_t c = 0; c < count; c++)
				for (int64_t r = 0; r < rows; r++)
					merger->piece[c * rows + r] = whole[r * cols + first + c];
			rc = write_bytes(merger, merger->bytes, rh_quantise(dtype, merger->piece, count * rows, merger->bytes));
		}
	}
	rh_free(whole);
	return rc;
}

static int write_tensor(struct merger *merger, const struct source_entry *entry)
{
	if (entry->matrices)
		return write_turned(merger, entry);
	int is_matrix = entry->tensor.rank == 2;
	int64_t rows = is_matrix ? entry->tensor.shape[0] : 1, cols = is_matrix ? entry->tensor.shape[1] : entry->tensor.shape[0], rank;
	enum rh_dtype dtype = stored_type(merger, entry);
	/* a vector of permuted rows (a bias) is one of single elements */
	int64_t lines = is_matrix ? rows : entry->head_dim ? cols : 1, width = is_matrix ? cols : cols / lines;
	float scale = 0;
	int rc = is_matrix ? find_factors(merger, entry, &rank, &scale) : 0;
	rank = is_matrix ? rank : 0;
	if (width > PIECE)
		return rh_fail(-EINVAL, "%s: '%s' has rows of %lld elements, which is not supported", merger->wanted->model, entry->name,
		               (long long)width);
	if (!rc && lines > 1 && !is_matrix) { /* read whole: a vector has no rows of its own */
		rc = rh_source_read(merger->source, entry->name, 0, cols, RH_F32, merger->piece + cols);
		for (int64_t i = 0; !rc && i < cols; i++)
			merger->piece[i] = merger->piece[cols + row_in(merger, entry, i)];
		return rc ? rc : write_bytes(merger, merger->bytes, rh_quantise(dtype, merger->piece, cols, merger->bytes));
	}
	for (int64_t first = 0, count; !rc && first < lines; first += count) {
		count = PIECE / width < lines - first ? PIECE / width : lines - first;
		if (merger->gguf && entry->head_dim) { /* row by row, in the other order */
			for (int64_t i = 0; !rc && i < count; i++)
				rc = rh_source_read(merger->source, entry->name, row_in(merger, entry, first + i) * width, width, RH_F32,
				                    merger->piece + i * width);
		} else {
			rc = rh_source_read(merger->source, entry->name, first * width, count * width, RH_F32, merger->piece);
		}
		for (int64_t i = 0; !rc && rank && i < count; i++)
			add_row(merger, row_in(merger, entry, first + i), cols, rank, scale, merger->piece + i * width);
		if (!rc)
			rc = write_bytes(merger, merger->bytes, rh_quantise(dtype, merger->piece, count * width, merger->bytes));
	}
	return rc;
}

static int check_all_used(const struct merger *merger)
{
	if (!merger->adapter || merger->used == rh_safetensors_count(merger->adapter))
		return 0;
	for (int64_t i = 0; i < rh_safetensors_count(merger->adapter); i++) {
		const char *name = rh_safetensors_at(merger->adapter, i)->name, *end = strstr(name, ".lora_");
		char module[512];
		int length = end && !strncmp(name, "base_model.model.", 17) ? (int)(end - name) - 17 : 0;
		snprintf(module, sizeof module, "%.*s.weight", length, name + 17);
		if (!length || !source_entries_find(&merger->source->entries, module))
			return rh_fail(-EINVAL, "%s: '%s' belongs to no weight of %s%s", merger->wanted->adapter, name,
			               merger->wanted->model,
			               strstr(name, "lm_head") ? "; a head that is tied to the embedding cannot be merged alone" : "");
	}
	return rh_fail(-EINVAL, "%s: some of its tensors are in pairs that are not whole", merger->wanted->adapter);
}

static int write_dir(struct merger *merger)
{
	const struct source_entries *entries = &merger->target;
	size_t others = (size_t)rh_source_others(merger->source);
	struct rh_safetensors_entry *list = rh_alloc(entries->count + others, sizeof *list);
	char *path = rh_path_join(merger->wanted->dir, "config.json"), *text = NULL;
	json_t *config = NULL;
	int rc = list && path ? rh_dir_make(merger->wanted->dir) : -ENOMEM;
	for (size_t i = 0; !rc && i < entries->count; i++) {
		const struct source_tensor *tensor = &entries->entry[i].tensor;
		const char *name = rh_source_file_name(merger->source, entries->entry[i].name);
		list[i] = (struct rh_safetensors_entry){name, merger->wanted->dtype, tensor->rank, {0}};
		memcpy(list[i].shape, tensor->shape, (size_t)tensor->rank * sizeof *tensor->shape);
	}
	if (!rc) {
		rh_source_others_declare(merger->source, list + entries->count);
		rc = rh_model_out_create(merger->wanted->dir, list, (int64_t)(entries->count + others), RH_SHARD_BYTES, &merger->dir);
	}
	for (size_t i = 0; !rc && i < entries->count; i++)
		rc = write_tensor(merger, &entries->entry[i]);
	if (!rc)
		rc = rh_source_others_write(merger->source, merger->dir);
	if (!rc)
		rc = check_all_used(merger);
	if (!rc) {
		rc = rh_model_out_commit(merger->dir);
		merger->dir = NULL;
	}
	if (!rc)
		rc = rh_model_config_write(&merger->source->config, merger->wanted->dtype == RH_F32 ? "float32" : "bfloat16", &config);
	if (!rc && merger->wanted->dtype == RH_F16)
		json_object_set_new(config, json_object_get(config, "dtype") ? "dtype" : "torch_dtype", json_string("float16"));
	if (!rc)
		rc = (text = json_dumps(config, JSON_INDENT(2))) ? rh_file_write_whole(path, text, strlen(text)) : -ENOMEM;
	if (!rc)
		rc = rh_source_copy_tokenizer(merger->wanted->model, merger->wanted->dir);
	if (!rc && merger->chat)
		rc = rh_source_set_chat_template(merger->wanted->dir, merger->chat);
	free(text);
	json_decref(config);
	rh_free(list);
	rh_free(path);
	return rc;
}

/* llama.cpp's number of a file's type. */
static int64_t file_type(enum rh_dtype dtype)
{
	return dtype == RH_F32 ? 0 : dtype == RH_F16 ? 1 : dtype == RH_Q4_0 ? 2 : dtype == RH_Q8_0 ? 7 : 32;
}

/* A GGUF's own metadata stays, but for what is written anew. */
static int copy_metadata(struct merger *merger)
{
	const char *without[] = {"general.file_type", "general.quantization_version", merger->chat ? "tokenizer.chat_template" : NULL,
	                         NULL};
	struct rh_gguf *from = NULL;
	int rc = rh_gguf_open(merger->wanted->model, &from);
	if (!rc)
		rc = rh_gguf_out_copy(merger->gguf, from, without);
	if (!rc)
		rc = rh_gguf_out_u32(merger->gguf, "general.file_type", file_type(merger->wanted->dtype));
	if (!rc && merger->chat)
		rc = rh_gguf_out_string(merger->gguf, "tokenizer.chat_template", merger->chat);
	rh_gguf_close(from);
	return rc;
}

static int write_gguf(struct merger *merger)
{
	const struct source_entries *entries = &merger->target;
	const struct rh_model_config *config = &merger->source->config;
	float *freqs = NULL;
	int64_t half = config->head_dim / 2;
	int rc = rh_gguf_out_create(merger->wanted->gguf, &merger->gguf);
	if (!rc && merger->source->gguf)
		rc = copy_metadata(merger);
	else if (!rc)
		rc = rh_gguf_describe(merger->gguf, config, merger->wanted->model, merger->chat, merger->wanted->dtype, &freqs);
	if (!rc && merger->source->gguf && config->rope[0].divisor) {
		freqs = rh_alloc((size_t)half, sizeof *freqs);
		rc = freqs ? 0 : -ENOMEM;
		if (!rc)
			memcpy(freqs, config->rope[0].divisor, (size_t)half * sizeof *freqs);
	}
	for (size_t i = 0; !rc && i < entries->count; i++) {
		const struct source_entry *entry = &entries->entry[i];
		int is_matrix = entry->tensor.rank == 2;
		rc = rh_gguf_out_tensor(merger->gguf, entry->stored, stored_type(merger, entry), is_matrix ? entry->tensor.shape[0] : 0,
		                        entry->tensor.shape[is_matrix]);
	}
	if (!rc && freqs)
		rc = rh_gguf_out_tensor(merger->gguf, "rope_freqs.weight", RH_F32, 0, half);
	if (!rc)
		rc = rh_gguf_out_begin(merger->gguf);
	for (size_t i = 0; !rc && i < entries->count; i++) {
		rc = write_tensor(merger, &entries->entry[i]);
		if (!rc)
			rc = rh_gguf_out_end(merger->gguf);
	}
	if (!rc && freqs)
		rc = rh_gguf_out_write(merger->gguf, freqs, half * (int64_t)sizeof *freqs);
	if (!rc && freqs)
		rc = rh_gguf_out_end(merger->gguf);
	if (!rc)
		rc = check_all_used(merger);
	if (!rc) {
		rc = rh_gguf_out_commit(merger->gguf);
		merger->gguf = NULL;
	}
	rh_free(freqs);
	return rc;
}

/* The template that the adapter was trained with. */
static int read_chat(struct merger *merger)
{
	char *path = rh_path_join(merger->wanted->adapter, "chat_template.jinja");
	struct rh_bytes file = {0};
	int rc = path ? 0 : -ENOMEM;
	if (!rc && rh_file_exists(path)) {
		rc = rh_file_load(path, &file);
		if (!rc)
			rc = (merger->chat = rh_alloc(file.length + 1, 1)) ? 0 : -ENOMEM;
		if (!rc)
			memcpy(merger->chat, file.bytes, file.length);
		rh_bytes_free(&file);
	}
	rh_free(path);
	return rc;
}

static int open_adapter(struct merger *merger)
{
	if (!merger->wanted->adapter)
		return 0;
	char *path = rh_path_join(merger->wanted->adapter, "adapter_model.safetensors");
	int rc = path ? rh_peft_config_load(merger->wanted->adapter, &merger->peft) : -ENOMEM;
	if (!rc)
		rc = rh_safetensors_open(path, &merger->adapter);
	rh_free(path);
	return rc ? rc : read_chat(merger);
}

int rh_merge(const struct rh_merge *wanted, int64_t *tensors)
{
	struct merger merger = {.wanted = wanted};
	int rc = rh_source_open(wanted->model, &merger.source);
	if (!rc)
		rc = source_expect(rh_source_config(merger.source), wanted->gguf ? SOURCE_GGUF : SOURCE_SAFETENSORS, &merger.target);
	if (!rc)
		rc = open_adapter(&merger);
	if (!rc) {
		merger.piece = rh_alloc(2 * (size_t)PIECE, sizeof *merger.piece);
		merger.bytes = rh_alloc(PIECE, sizeof(float));
		rc = merger.piece && merger.bytes ? 0 : -ENOMEM;
	}
	if (!rc)
		rc = wanted->gguf ? write_gguf(&merger) : write_dir(&merger);
	if (!rc)
		*tensors = (int64_t)merger.source->entries.count;
	rh_model_out_abandon(merger.dir);
	rh_gguf_out_abandon(merger.gguf);
	rh_free(merger.piece);
	rh_free(merger.bytes);
	rh_free(merger.a);
	rh_free(merger.b);
	rh_free(merger.chat);
	rh_safetensors_close(merger.adapter);
	rh_peft_config_free(&merger.peft);
	source_entries_free(&merger.target);
	rh_source_close(merger.source);
	return rc;
}
