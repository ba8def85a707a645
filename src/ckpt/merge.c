#include "ckpt/merge_gguf.h"
#include "ckpt/merge_internal.h"
#include "ckpt/mixture.h"
#include "ckpt/verify.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/minmax.h"
#include "core/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int merge_find_factors(struct merger *merger, const struct source_entry *entry, struct lora_pair *pair)
{
	int rc = lora_find(&merger->lora, &merger->source->config, entry, pair);
	return rc || !pair->rank ? rc : lora_read(&merger->lora, pair);
}

void merge_add_row(const struct merger *merger, const struct lora_pair *pair, int64_t row, int64_t cols, float *values)
{
	const struct lora_factors *factors = &merger->lora.read[pair->kind];
	int64_t expert = pair->expert < 0 ? row / pair->outputs : pair->expert;
	int64_t output = pair->first + (pair->expert < 0 ? row % pair->outputs : row);
	for (int64_t k = 0; k < pair->rank; k++) {
		float factor = (float)pair->scale * factors->b[(output * pair->rank + k) * pair->experts + expert];
		const float *a = factors->a + (expert * pair->rank + k) * cols;
		for (int64_t i = 0; i < cols; i++)
			values[i] += factor * a[i];
	}
	if (!pair->magnitude)
		return;
	double squares = 0;
	for (int64_t i = 0; i < cols; i++)
		squares += (double)values[i] * (double)values[i];
	float factor = (float)((double)factors->magnitude[output] / sqrt(squares));
	for (int64_t i = 0; i < cols; i++)
		values[i] *= factor;
}

int merge_write_piece(struct merger *merger, enum rh_dtype dtype, int64_t values)
{
	int64_t length = rh_quantise(merger->pool, dtype, merger->piece, values, merger->bytes);
	return merger->gguf ? rh_gguf_out_write(merger->gguf, merger->bytes, length)
	                    : rh_model_out_write(merger->dir, merger->bytes, length);
}

int merge_find_whole(struct merger *merger, const struct source_entry *entry, const struct rh_safetensor **out)
{
	int rc = lora_find_whole(&merger->lora, entry, out);
	if (!rc && !*out && !rh_source_has(merger->source, entry->name))
		rc = rh_fail(-EINVAL, "%s: '%s' is neither in the model nor in the adapter, whose training began it at random",
		             merger->wanted->model, entry->name);
	return rc;
}

int merge_read(struct merger *merger, const struct source_entry *entry, const struct rh_safetensor *whole, int64_t first, int64_t count,
               float *out)
{
	return whole ? lora_read_whole(&merger->lora, whole, first, count, out)
	             : rh_source_read(merger->source, entry->name, first, count, RH_F32, out);
}

int merge_too_wide(const struct merger *merger, const struct source_entry *entry, int64_t width)
{
	return rh_fail(-EINVAL, "%s: '%s' has rows of %lld elements, which is not supported", merger->wanted->model, entry->name,
	               (long long)width);
}

int merge_write_table(struct merger *merger, const struct source_entry *entry, enum rh_dtype dtype)
{
	int64_t rows = entry->rows, cols = entry->cols, most = MERGE_PIECE / cols;
	enum rh_table which;
	if (!lora_table(&merger->config, entry, &which) ||
	    !(rh_peft_tables_change(merger->lora.tables, which) || rh_peft_tables_untie(merger->lora.tables)))
		return 0;
	int rc = most ? 0 : merge_too_wide(merger, entry, cols);
	for (int64_t first = 0, count; !rc && first < rows; first += count) {
		count = rh_min(most, rows - first);
		rc = rh_peft_tables_read(merger->lora.tables, merger->source, which, first, count, merger->piece);
		if (!rc)
			rc = merge_write_piece(merger, dtype, count * cols);
	}
	return rc ? rc : 1;
}

static enum rh_dtype type_in_dir(const struct merger *merger, const struct source_entry *entry)
{
	return rh_source_keeps_f32(merger->source, entry->name) ? RH_F32 : merger->wanted->dtype;
}

/* Matrices that are written transposed, one at a time. */
static int write_turned(struct merger *merger, const struct source_entry *entry)
{
	int64_t rows = entry->rows / entry->matrices, cols = entry->cols, most = rh_max(1, MERGE_PIECE / rows);
	enum rh_dtype dtype = type_in_dir(merger, entry);
	struct lora_pair pair;
	float *whole = rh_alloc((size_t)(rows * cols), sizeof *whole);
	int rc = whole ? merge_find_factors(merger, entry, &pair) : -ENOMEM;
	if (!rc && rows > MERGE_PIECE)
		rc = rh_fail(-EINVAL, "%s: '%s' has columns of %lld elements, which is not supported", merger->wanted->model, entry->name,
		             (long long)rows);
	for (int64_t m = 0; !rc && m < entry->matrices; m++) {
		rc = rh_source_read(merger->source, entry->name, m * rows * cols, rows * cols, RH_F32, whole);
		for (int64_t r = 0; !rc && pair.rank && r < rows; r++)
			merge_add_row(merger, &pair, m * rows + r, cols, whole + r * cols);
		for (int64_t first = 0, count; !rc && first < cols; first += count) {
			count = rh_min(most, cols - first);
			for (int64_t c = 0; c < count; c++)
				for (int64_t r = 0; r < rows; r++)
					merger->piece[c * rows + r] = whole[r * cols + first + c];
			rc = merge_write_piece(merger, dtype, count * rows);
		}
	}
	rh_free(whole);
	return rc;
}

static int write_tensor(struct merger *merger, const struct source_entry *entry)
{
	const struct rh_safetensor *whole;
	struct lora_pair pair = {0};
	enum rh_dtype dtype = type_in_dir(merger, entry);
	if (entry->matrices)
		return write_turned(merger, entry);
	int rc = merge_write_table(merger, entry, dtype);
	if (rc)
		return rc < 0 ? rc : 0;
	int is_matrix = entry->tensor.rank != 1; /* files may have more sizes of it than two */
	int64_t rows = is_matrix ? entry->rows : 1, cols = is_matrix ? entry->cols : entry->rows, most = MERGE_PIECE / cols;
	rc = most ? merge_find_whole(merger, entry, &whole) : merge_too_wide(merger, entry, cols);
	if (!rc && is_matrix)
		rc = merge_find_factors(merger, entry, &pair);
	for (int64_t first = 0, count; !rc && first < rows; first += count) {
		count = rh_min(most, rows - first);
		rc = merge_read(merger, entry, whole, first * cols, count * cols, merger->piece);
		for (int64_t i = 0; !rc && pair.rank && i < count; i++)
			merge_add_row(merger, &pair, first + i, cols, merger->piece + i * cols);
		if (!rc)
			rc = merge_write_piece(merger, dtype, count * cols);
	}
	return rc;
}

/* The config.json of the merged model: *text (free). It cannot be made from a GGUF's metadata for every family. */
static int make_config(const struct merger *merger, char **text)
{
	enum rh_dtype dtype = merger->wanted->dtype;
	const char *torch_dtype = dtype == RH_F32 ? "float32" : dtype == RH_F16 ? "float16" : "bfloat16";
	json_t *config = NULL;
	int rc = rh_model_config_write(&merger->config, torch_dtype, &config);
	if (!rc && !(*text = json_dumps(config, JSON_INDENT(2))))
		rc = -ENOMEM;
	json_decref(config);
	return rc;
}

static int write_dir(struct merger *merger)
{
	const struct source_entries *entries = &merger->target;
	size_t others = (size_t)rh_source_others(merger->source);
	struct rh_safetensors_entry *list = rh_alloc(entries->count + others, sizeof *list);
	char *path = rh_path_join(merger->wanted->dir, "config.json"), *text = NULL;
	int rc = list && path ? make_config(merger, &text) : -ENOMEM; /* first: a refusal leaves nothing behind */
	if (!rc)
		rc = rh_dir_make(merger->wanted->dir);
	for (size_t i = 0; !rc && i < entries->count; i++) {
		const struct source_tensor *tensor = &entries->entry[i].tensor;
		const char *name = rh_source_file_name(merger->source, entries->entry[i].name);
		list[i] = (struct rh_safetensors_entry){name, type_in_dir(merger, &entries->entry[i]), tensor->rank, {0}};
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
		rc = lora_check_all_used(&merger->lora, merger->source);
	if (!rc) {
		rc = rh_model_out_commit(merger->dir);
		merger->dir = NULL;
	}
	if (!rc)
		rc = rh_file_write_whole(path, text, strlen(text));
	if (!rc)
		rc = rh_source_copy_tokenizer(merger->wanted->model, merger->wanted->dir);
	if (!rc && merger->chat)
		rc = rh_source_set_chat_template(merger->wanted->dir, merger->chat);
	if (!rc && merger->tokenizer)
		rc = rh_source_set_eos(merger->wanted->dir, &merger->source->config, merger->tokenizer);
	if (!rc)
		rc = rh_prompts_write(&merger->prompts, merger->wanted->dir);
	if (!rc)
		rc = rh_verify_write_sums(merger->wanted->dir);
	free(text);
	rh_free(list);
	rh_free(path);
	return rc;
}

/* A GGUF's own metadata stays, but for what is written anew. */
static int copy_metadata(struct merger *merger, int64_t file_type)
{
	const char *without[10] = {"general.file_type", "general.quantization_version", "split.no", "split.count", "split.tensors.count"};
	struct rh_gguf *from = NULL;
	int names = 5;
	if (merger->chat)
		without[names++] = "tokenizer.chat_template";
	if (merger->tokenizer)
		without[names++] = "tokenizer.ggml.eos_token_id";
	if (merger->prompts.is_told) {
		without[names++] = RH_GGUF_PROMPTS;
		without[names++] = RH_GGUF_PROMPTS_DATE;
	}
	int rc = rh_gguf_open(merger->wanted->model, &from);
	if (!rc)
		rc = rh_gguf_out_copy(merger->gguf, from, without);
	if (!rc)
		rc = rh_gguf_out_u32(merger->gguf, "general.file_type", file_type);
	if (!rc && merger->chat)
		rc = rh_gguf_out_string(merger->gguf, "tokenizer.chat_template", merger->chat);
	if (!rc && merger->tokenizer)
		rc = rh_gguf_out_u32(merger->gguf, "tokenizer.ggml.eos_token_id", rh_tokenizer_eos(merger->tokenizer));
	rh_gguf_close(from);
	return rc;
}

/* Nothing of the family, or of this model, stands against a GGUF file. */
static int check_gguf(const struct merger *merger)
{
	const struct rh_model_config *config = &merger->config;
	const char *model = merger->wanted->model;
	int64_t behind = 0;
	char key[96];
	if (config->family->gguf.only_read)
		return rh_fail(-EINVAL, "%s: models of type %s are not written to GGUF; llama.cpp's convert_hf_to_gguf.py does it", model,
		               config->family->model_type);
	snprintf(key, sizeof key, "%s.nextn_predict_layers", config->family->gguf.architecture);
	if (merger->source->gguf && rh_gguf_int(merger->source->gguf, key, &behind) > 0 && behind)
		return rh_fail(-EINVAL,
		               "%s: has layers that predict further tokens, which are not copied into another GGUF file; merge into a "
		               "directory from the original model, or export the adapter alone",
		               model);
	if (merger->source->gguf && merger->wanted->rope_scaling)
		return rh_fail(-EINVAL, "rope_scaling: a GGUF file that is made of another one keeps its metadata, and so its scaling");
	return 0;
}

static int put_metadata(struct merger *merger, const struct stored_list *list)
{
	enum rh_dtype dtype = merger->wanted->dtype;
	int has_mxfp4 = 0;
	for (size_t t = 0; t < list->count; t++)
		has_mxfp4 |= list->tensor[t].dtype == RH_MXFP4;
	int64_t file_type = rh_gguf_file_type(has_mxfp4 && rh_dtype_block(dtype) == 1 ? RH_MXFP4 : dtype);
	int rc = merger->source->gguf ? copy_metadata(merger, file_type)
	                              : rh_gguf_describe(merger->gguf, &merger->config, merger->wanted->model, merger->chat,
	                                                 merger->tokenizer, file_type);
	return rc ? rc : rh_prompts_write_gguf(&merger->prompts, merger->gguf);
}

static int write_gguf(struct merger *merger, struct rh_merged *out)
{
	struct stored_list list = {0};
	struct rh_gguf_extras extras = {0};
	int rc = check_gguf(merger);
	if (!rc)
		rc = merge_list_stored(merger, &list);
	if (!rc)
		rc = rh_gguf_extras_make(&merger->config, &extras);
	if (!rc)
		rc = rh_gguf_out_create(merger->wanted->gguf, &merger->gguf);
	if (!rc)
		rc = put_metadata(merger, &list);
	for (size_t t = 0; !rc && t < list.count; t++)
		rc = merge_declare_stored(merger, &list.tensor[t]);
	for (size_t e = 0; !rc && e < extras.count; e++)
		rc = rh_gguf_out_tensor(merger->gguf, extras.extra[e].name, RH_F32, 0, extras.extra[e].values);
	if (!rc)
		rc = rh_gguf_out_begin(merger->gguf);
	for (size_t t = 0; !rc && t < list.count; t++)
		rc = merge_write_stored(merger, &list.tensor[t]);
	for (size_t e = 0; !rc && e < extras.count; e++)
		rc = rh_gguf_extra_write(merger->gguf, &extras.extra[e]);
	if (!rc)
		rc = lora_check_all_used(&merger->lora, merger->source);
	if (!rc) {
		rc = rh_gguf_out_commit(merger->gguf);
		merger->gguf = NULL;
	}
	for (size_t t = 0; t < list.count; t++) {
		out->matrices += list.tensor[t].part->entry->tensor.rank > 1;
		out->as_f16 += list.tensor[t].dtype == RH_F16 && merger->wanted->dtype != RH_F16;
		out->as_mxfp4 += list.tensor[t].dtype == RH_MXFP4;
	}
	out->tensors = (int64_t)list.count;
	rh_gguf_extras_free(&extras);
	merge_free_stored(&list);
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

/* Loads a tokenizer only where the adapter's end-of-sequence token may be another than the model's own. */
static int read_eos(struct merger *merger)
{
	const struct rh_merge *wanted = merger->wanted;
	char *trained, *own = NULL;
	int32_t before = -1;
	int rc = source_eos_token(wanted->adapter, &trained);
	if (!rc && !merger->source->gguf)
		rc = source_eos_token(wanted->model, &own);
	if (!rc && trained && (!own || strcmp(trained, own)))
		rc = rh_source_tokenizer(merger->source, &merger->tokenizer);
	if (!rc && merger->tokenizer) {
		before = rh_tokenizer_eos(merger->tokenizer);
		rc = rh_source_take_eos(wanted->adapter, merger->tokenizer);
	}
	if (merger->tokenizer && rh_tokenizer_eos(merger->tokenizer) == before) {
		rh_tokenizer_destroy(merger->tokenizer);
		merger->tokenizer = NULL;
	}
	rh_free(trained);
	rh_free(own);
	return rc;
}

/* How the model wants to be prompted (session/prompting.h). */
static int read_prompts(struct merger *merger)
{
	int rc = merger->wanted->adapter ? rh_prompts_read(merger->wanted->adapter, &merger->prompts) : 0;
	return rc || merger->prompts.is_told ? rc : rh_prompts_read(merger->wanted->model, &merger->prompts);
}

/* The type that most of the model's elements in matrices have: F32 or F16, else BF16. */
static enum rh_dtype type_of(const struct rh_source *source)
{
	int64_t elements[3] = {0};
	for (size_t i = 0; i < source->entries.count; i++) {
		const struct source_entry *entry = &source->entries.entry[i];
		enum rh_dtype dtype = entry->tensor.dtype;
		if (entry->file && entry->tensor.rank > 1)
			elements[dtype == RH_F32 ? 0 : dtype == RH_F16 ? 1 : 2] += entry->rows * entry->cols;
	}
	return elements[0] > elements[1] + elements[2] ? RH_F32 : elements[1] > elements[0] + elements[2] ? RH_F16 : RH_BF16;
}

int rh_merge(const struct rh_merge *asked, struct rh_merged *out)
{
	struct rh_merge settled = *asked;
	const struct rh_merge *wanted = &settled;
	struct merger merger = {.wanted = wanted};
	int rc = rh_source_open_for(wanted->model, wanted->task, wanted->num_labels, &merger.source);
	if (!rc && wanted->as_model)
		settled.dtype = type_of(merger.source);
	if (!rc && wanted->rope_scaling)
		rc = rh_source_scale_rope(merger.source, wanted->rope_scaling);
	if (!rc)
		rc = lora_open(wanted->adapter, rh_source_config(merger.source), &merger.lora);
	if (!rc)
		rc = rh_model_config_copy(rh_source_config(merger.source), &merger.config);
	if (!rc && rh_peft_tables_untie(merger.lora.tables)) {
		merger.config.tie_word_embeddings = 0;
		rh_note("%s: the adapter changes the embedding and the head apart, which are one table in this model: the result has two",
		        wanted->adapter);
	}
	if (!rc)
		rc = source_expect(&merger.config, wanted->gguf ? SOURCE_GGUF : SOURCE_SAFETENSORS, &merger.target);
	if (!rc && wanted->adapter)
		rc = read_chat(&merger);
	if (!rc && wanted->adapter)
		rc = read_eos(&merger);
	if (!rc)
		rc = read_prompts(&merger);
	if (!rc) {
		merger.piece = rh_alloc(2 * (size_t)MERGE_PIECE, sizeof *merger.piece);
		merger.bytes = rh_alloc(MERGE_PIECE, sizeof(float));
		rc = merger.piece && merger.bytes ? rh_pool_create(wanted->threads ? wanted->threads : 1, &merger.pool) : -ENOMEM;
	}
	*out = (struct rh_merged){.tensors = (int64_t)merger.target.count, .dtype = wanted->dtype};
	if (!rc)
		rc = wanted->gguf ? write_gguf(&merger, out) : write_dir(&merger);
	rh_model_out_abandon(merger.dir);
	rh_gguf_out_abandon(merger.gguf);
	rh_pool_destroy(merger.pool);
	rh_free(merger.piece);
	rh_free(merger.bytes);
	rh_free(merger.chat);
	rh_prompts_free(&merger.prompts);
	rh_tokenizer_destroy(merger.tokenizer);
	lora_close(&merger.lora);
	source_entries_free(&merger.target);
	rh_model_config_free(&merger.config);
	rh_source_close(merger.source);
	return rc;
}
