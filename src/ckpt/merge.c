#include "ckpt/merge.h"

#include "ckpt/lora.h"
#include "ckpt/merge_gguf.h"
#include "ckpt/mixture.h"
#include "ckpt/model_out.h"
#include "ckpt/prompts.h"
#include "ckpt/verify.h"
#include "core/alloc.h"
#include "core/json.h"
#include "core/log.h"
#include "core/minmax.h"
#include "core/pool.h"
#include "core/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 22 }; /* elements in memory at once */

struct merger {
	const struct rh_merge *wanted;
	struct rh_source *source;
	struct rh_model_config config; /* of the model that is written: its head may be one of its own */
	struct source_entries target;  /* its tensors */
	struct lora lora;
	struct rh_model_out *dir;
	struct rh_gguf_out *gguf;
	struct rh_pool *pool; /* of wanted->threads */
	float *piece;
	void *bytes;
	char *chat;                     /* the adapter's template; NULL: the model's own stays */
	struct rh_prompts prompts;      /* of the adapter's training, else of the model's own */
	struct rh_tokenizer *tokenizer; /* with the adapter's end-of-sequence token; NULL: the model's own stays */
};

/* Reads the factors that change `entry`; pair->rank 0 where the adapter does not touch it. */
static int find_factors(struct merger *merger, const struct source_entry *entry, struct lora_pair *pair)
{
	int rc = lora_find(&merger->lora, &merger->source->config, entry, pair);
	return rc || !pair->rank ? rc : lora_read(&merger->lora, pair);
}

/* values (cols) += scale * B[row] A; with DoRA the sum gets the row's magnitude as its norm */
static void add_row(const struct merger *merger, const struct lora_pair *pair, int64_t row, int64_t cols, float *values)
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

/* Which row of Hugging Face's order is written at `row`. */
static int64_t row_in(const struct merger *merger, const struct source_entry *entry, int64_t row)
{
	return merger->gguf ? source_row_of_stored(entry, row) : row;
}

static enum rh_dtype stored_type(const struct merger *merger, const struct source_entry *entry)
{
	if (!merger->wanted->gguf)
		return rh_source_keeps_f32(merger->source, entry->name) ? RH_F32 : merger->wanted->dtype;
	if (entry->tensor.rank != 2 || strstr(entry->stored, ".ssm_conv1d."))
		return RH_F32;
	return rh_gguf_type_of(merger->wanted->dtype, &merger->config, entry->stored, entry->tensor.shape[1]);
}

static void count_matrices(const struct merger *merger, struct rh_merged *out)
{
	for (size_t i = 0; i < merger->target.count; i++) {
		const struct source_entry *entry = &merger->target.entry[i];
		out->matrices += entry->tensor.rank == 2;
		out->as_f16 += entry->tensor.rank == 2 && stored_type(merger, entry) == RH_F16 && merger->wanted->dtype != RH_F16;
	}
}

/* The first values of the piece, which are the next ones of a tensor of this type. */
static int write_piece(struct merger *merger, enum rh_dtype dtype, int64_t values)
{
	int64_t length = rh_quantise(merger->pool, dtype, merger->piece, values, merger->bytes);
	return merger->gguf ? rh_gguf_out_write(merger->gguf, merger->bytes, length)
	                    : rh_model_out_write(merger->dir, merger->bytes, length);
}

/* Matrices that are written transposed, one at a time. */
static int write_turned(struct merger *merger, const struct source_entry *entry)
{
	int64_t rows = entry->rows / entry->matrices, cols = entry->cols, most = rh_max(1, PIECE / rows);
	enum rh_dtype dtype = stored_type(merger, entry);
	struct lora_pair pair;
	float *whole = rh_alloc((size_t)(rows * cols), sizeof *whole);
	int rc = whole ? find_factors(merger, entry, &pair) : -ENOMEM;
	if (!rc && rows > PIECE)
		rc = rh_fail(-EINVAL, "%s: '%s' has columns of %lld elements, which is not supported", merger->wanted->model, entry->name,
		             (long long)rows);
	for (int64_t m = 0; !rc && m < entry->matrices; m++) {
		rc = rh_source_read(merger->source, entry->name, m * rows * cols, rows * cols, RH_F32, whole);
		for (int64_t r = 0; !rc && pair.rank && r < rows; r++)
			add_row(merger, &pair, m * rows + r, cols, whole + r * cols);
		for (int64_t first = 0, count; !rc && first < cols; first += count) {
			count = rh_min(most, cols - first);
			for (int64_t c = 0; c < count; c++)
				for (int64_t r = 0; r < rows; r++)
					merger->piece[c * rows + r] = whole[r * cols + first + c];
			rc = write_piece(merger, dtype, count * rows);
		}
	}
	rh_free(whole);
	return rc;
}

/* The embedding's table or the head's, as the adapter makes it. */
static int write_table(struct merger *merger, const struct source_entry *entry, enum rh_table which)
{
	int64_t rows = entry->rows, cols = entry->cols, most = PIECE / cols;
	int rc = most ? 0
	              : rh_fail(-EINVAL, "%s: '%s' has rows of %lld elements, which is not supported", merger->wanted->model, entry->name,
	                        (long long)cols);
	for (int64_t first = 0, count; !rc && first < rows; first += count) {
		count = rh_min(most, rows - first);
		rc = rh_peft_tables_read(merger->lora.tables, merger->source, which, first, count, merger->piece);
		if (!rc)
			rc = write_piece(merger, stored_type(merger, entry), count * cols);
	}
	return rc;
}

/* `rows` rows of a piece, as a GGUF of the family has them. */
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

static int write_tensor(struct merger *merger, const struct source_entry *entry)
{
	const struct rh_safetensor *whole;
	enum rh_table table;
	if (entry->matrices)
		return write_turned(merger, entry);
	if (lora_table(&merger->config, entry, &table) &&
	    (rh_peft_tables_change(merger->lora.tables, table) || rh_peft_tables_untie(merger->lora.tables)))
		return write_table(merger, entry, table);
	int rc = lora_find_whole(&merger->lora, entry, &whole);
	if (rc)
		return rc;
	if (!whole && !rh_source_has(merger->source, entry->name))
		return rh_fail(-EINVAL, "%s: '%s' is neither in the model nor in the adapter, whose training began it at random",
		               merger->wanted->model, entry->name);
	int is_matrix = entry->tensor.rank != 1, is_plain = entry->tensor.rank == 2; /* others are matrices with more sizes in files */
	int64_t rows = !is_matrix ? 1 : is_plain ? entry->tensor.shape[0] : entry->rows;
	int64_t cols = !is_matrix ? entry->tensor.shape[0] : is_plain ? entry->tensor.shape[1] : entry->cols;
	enum rh_dtype dtype = stored_type(merger, entry);
	/* a vector of permuted rows (a bias) is one of single elements */
	int64_t lines = is_matrix ? rows : source_is_permuted(entry) ? cols : 1, width = is_matrix ? cols : cols / lines;
	struct lora_pair pair = {0};
	rc = is_matrix ? find_factors(merger, entry, &pair) : 0;
	if (width > PIECE)
		return rh_fail(-EINVAL, "%s: '%s' has rows of %lld elements, which is not supported", merger->wanted->model, entry->name,
		               (long long)width);
	if (!rc && lines > 1 && !is_matrix) { /* read whole: a vector has no rows of its own */
		rc = rh_source_read(merger->source, entry->name, 0, cols, RH_F32, merger->piece + cols);
		for (int64_t i = 0; !rc && i < cols; i++)
			merger->piece[i] = merger->piece[cols + row_in(merger, entry, i)];
		if (!rc)
			rc = make_stored(merger, entry, 1, cols);
		return rc ? rc : write_piece(merger, dtype, cols);
	}
	for (int64_t first = 0, count; !rc && first < lines; first += count) {
		count = PIECE / width < lines - first ? PIECE / width : lines - first;
		if (merger->gguf && source_is_permuted(entry)) { /* row by row, in the other order */
			for (int64_t i = 0; !rc && i < count; i++)
				rc = rh_source_read(merger->source, entry->name, row_in(merger, entry, first + i) * width, width, RH_F32,
				                    merger->piece + i * width);
		} else if (whole) {
			rc = lora_read_whole(&merger->lora, whole, first * width, count * width, merger->piece);
		} else {
			rc = rh_source_read(merger->source, entry->name, first * width, count * width, RH_F32, merger->piece);
		}
		for (int64_t i = 0; !rc && pair.rank && i < count; i++)
			add_row(merger, &pair, row_in(merger, entry, first + i), cols, merger->piece + i * width);
		if (!rc)
			rc = make_stored(merger, entry, count, width);
		if (!rc)
			rc = write_piece(merger, dtype, count * width);
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
		list[i] = (struct rh_safetensors_entry){name, stored_type(merger, &entries->entry[i]), tensor->rank, {0}};
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
static int copy_metadata(struct merger *merger)
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
		rc = rh_gguf_out_u32(merger->gguf, "general.file_type", rh_gguf_file_type(merger->wanted->dtype));
	if (!rc && merger->chat)
		rc = rh_gguf_out_string(merger->gguf, "tokenizer.chat_template", merger->chat);
	if (!rc && merger->tokenizer)
		rc = rh_gguf_out_u32(merger->gguf, "tokenizer.ggml.eos_token_id", rh_tokenizer_eos(merger->tokenizer));
	rh_gguf_close(from);
	return rc;
}

static int write_gguf(struct merger *merger)
{
	const struct source_entries *entries = &merger->target;
	const struct rh_model_config *config = &merger->config;
	float *freqs = NULL;
	int64_t half = config->head_dim / 2;
	if (config->family->gguf.only_read)
		return rh_fail(-EINVAL, "%s: models of type %s are not written to GGUF; llama.cpp's convert_hf_to_gguf.py does it",
		               merger->wanted->model, config->family->model_type);
	int64_t behind = 0;
	char key[96];
	snprintf(key, sizeof key, "%s.nextn_predict_layers", config->family->gguf.architecture);
	if (merger->source->gguf && rh_gguf_int(merger->source->gguf, key, &behind) > 0 && behind)
		return rh_fail(-EINVAL,
		               "%s: has layers that predict further tokens, which are not copied into another GGUF file; merge into a "
		               "directory from the original model, or export the adapter alone",
		               merger->wanted->model);
	if (merger->source->gguf && merger->wanted->rope_scaling)
		return rh_fail(-EINVAL, "rope_scaling: a GGUF file that is made of another one keeps its metadata, and so its scaling");
	int rc = rh_gguf_out_create(merger->wanted->gguf, &merger->gguf);
	if (!rc && merger->source->gguf)
		rc = copy_metadata(merger);
	else if (!rc)
		rc = rh_gguf_describe(merger->gguf, config, merger->wanted->model, merger->chat, merger->tokenizer, merger->wanted->dtype,
		                      &freqs);
	if (!rc)
		rc = rh_prompts_write_gguf(&merger->prompts, merger->gguf);
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
		rc = lora_check_all_used(&merger->lora, merger->source);
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
		merger.piece = rh_alloc(2 * (size_t)PIECE, sizeof *merger.piece);
		merger.bytes = rh_alloc(PIECE, sizeof(float));
		rc = merger.piece && merger.bytes ? rh_pool_create(wanted->threads ? wanted->threads : 1, &merger.pool) : -ENOMEM;
	}
	if (!rc)
		rc = wanted->gguf ? write_gguf(&merger) : write_dir(&merger);
	*out = (struct rh_merged){.tensors = (int64_t)merger.target.count, .dtype = wanted->dtype};
	if (!rc)
		count_matrices(&merger, out);
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
