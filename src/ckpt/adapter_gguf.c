/* Format: llama.cpp's src/llama-adapter.cpp reads general.type, general.architecture, adapter.type, adapter.lora.alpha, and tensors in
 * pairs NAME.lora_a (rank rows) and NAME.lora_b (as many rows as the weight). */
#include "ckpt/adapter_gguf.h"

#include "ckpt/gguf_out.h"
#include "ckpt/lora.h"
#include "ckpt/merge_gguf.h"
#include "core/alloc.h"

#include <stdio.h>
#include <string.h>

struct writer {
	const struct rh_adapter_gguf *wanted;
	struct rh_source *source;
	struct source_entries target; /* the weights as a GGUF of the model names and orders them, whatever the source is */
	struct lora lora;
	struct rh_gguf_out *out;
	struct rh_merged written;
	float *row; /* the widest of a factor, before and after it is quantised */
	void *bytes;
	size_t row_capacity, bytes_capacity;
};

static enum rh_dtype stored_type(const struct writer *writer, int64_t cols)
{
	return cols % rh_dtype_block(writer->wanted->dtype) ? RH_F16 : writer->wanted->dtype;
}

static int put_metadata(struct writer *writer)
{
	const struct rh_model_config *config = &writer->source->config;
	const char *architecture = writer->source->gguf ? config->family->gguf.architecture : rh_gguf_architecture(config);
	if (!architecture)
		return rh_fail(-EINVAL, "%s: models of type %s have no names in GGUF files", writer->wanted->model,
		               writer->source->config.family->model_type);
	int rc = rh_gguf_out_string(writer->out, "general.type", "adapter");
	if (!rc)
		rc = rh_gguf_out_string(writer->out, "general.architecture", architecture);
	if (!rc)
		rc = rh_gguf_out_string(writer->out, "adapter.type", "lora");
	return rc ? rc : rh_gguf_out_f32(writer->out, "adapter.lora.alpha", writer->lora.peft.lora_alpha);
}

/* One factor's entry in the table; matrices 0: it is no stack. */
static int declare(struct writer *writer, const char *stored, const char *suffix, int64_t matrices, const int64_t *shape)
{
	char name[256];
	enum rh_dtype dtype = stored_type(writer, shape[1]);
	if (!stored || snprintf(name, sizeof name, "%s.%s", stored, suffix) >= (int)sizeof name)
		return rh_fail(-EINVAL, "%s: a module of the adapter has no name in GGUF files", writer->wanted->model);
	writer->written.tensors++;
	writer->written.matrices++;
	writer->written.as_f16 += dtype != writer->wanted->dtype;
	return rh_gguf_out_stacked(writer->out, name, dtype, matrices, shape[0], shape[1]);
}

static int write_row(struct writer *writer, const float *values, int64_t cols)
{
	int64_t bytes = rh_quantise(NULL, stored_type(writer, cols), values, cols, writer->bytes);
	return rh_gguf_out_write(writer->out, writer->bytes, bytes);
}

/* Rows of B that a tensor of the file has, and which of them is its row `row`. A weight that is two tensors there has them as halves 0 and
 * 1: experts' gates and ups, which one adapter changes together, or a matrix whose last rows are a tensor of their own. */
static int64_t rows_in(const struct source_entry *entry, const struct lora_pair *pair, int half)
{
	if (pair->kind != LORA_OWN)
		return entry->slabs ? entry->rows : entry->tensor.shape[1];
	return !entry->second ? pair->b->shape[0] : half ? pair->b->shape[0] - entry->second : entry->second;
}

static int64_t output_of(const struct source_entry *entry, const struct lora_pair *pair, int half, int64_t row)
{
	int64_t run;
	if (pair->kind == LORA_OWN && entry->second)
		return rh_row_in_file(&entry->groups, half * entry->second + row, &run);
	if (pair->kind == LORA_OWN)
		return source_row_of_stored(entry, row);
	if (entry->stored2)
		return entry->are_halves ? half * entry->tensor.shape[1] + row : 2 * row + half;
	return pair->first + row;
}

static int declare_pair(struct writer *writer, const struct source_entry *entry, const struct lora_pair *pair, int half)
{
	const int64_t a[2] = {pair->rank, pair->a->shape[1]}, b[2] = {rows_in(entry, pair, half), pair->rank};
	const char *stored = half ? entry->stored2 : entry->stored;
	int64_t matrices = pair->kind == LORA_OWN ? 0 : pair->experts;
	if (!strcmp(stored, "per_layer_model_proj.weight"))
		return rh_fail(-EINVAL, "%s: adapts per_layer_model_projection, which llama.cpp would not do; merge it into the model",
		               writer->wanted->adapter);
	int rc = declare(writer, stored, "lora_a", matrices, a);
	return rc ? rc : declare(writer, stored, "lora_b", matrices, b);
}

/* A factor of each expert's output that the base's file has beside the matrix: llama.cpp multiplies by it before it adds the adapter, so B
 * carries it. *out: the caller's (rh_free); NULL where there is none. */
static int read_scales(const struct writer *writer, const struct source_entry *entry, const struct lora_pair *pair, float **out)
{
	static const char weight[] = ".weight";
	const struct source_entries *entries = &writer->target;
	size_t stem = strlen(entry->stored) - strlen(weight);
	*out = NULL;
	for (size_t i = 0; pair->kind == LORA_DOWN && i < entries->count; i++) {
		const struct source_entry *scale = &entries->entry[i];
		if (strncmp(scale->stored, entry->stored, stem) || strcmp(scale->stored + stem, ".scale"))
			continue;
		*out = rh_alloc((size_t)pair->experts, sizeof **out);
		return *out ? rh_source_read(writer->source, scale->name, 0, pair->experts, RH_F32, *out) : -ENOMEM;
	}
	return 0;
}

/* Of experts, one factor behind the other. */
static int write_pair(struct writer *writer, const struct source_entry *entry, const struct lora_pair *pair, int half)
{
	float *scale = NULL;
	struct lora *lora = &writer->lora;
	const struct lora_factors *factors = &lora->read[pair->kind];
	int64_t rank = pair->rank, cols = pair->a->shape[1], rows = rows_in(entry, pair, half), widest = rank > cols ? rank : cols;
	double carried = pair->scale * (double)rank / lora->peft.lora_alpha;
	int rc = lora_read(lora, pair);
	if (!rc)
		rc = read_scales(writer, entry, pair, &scale);
	if (!rc)
		rc = rh_grow(&writer->row, &writer->row_capacity, (size_t)widest, sizeof *writer->row);
	if (!rc)
		rc = rh_grow(&writer->bytes, &writer->bytes_capacity, (size_t)widest, sizeof(float));
	for (int64_t i = 0; !rc && i < pair->experts * rank; i++) {
		for (int64_t c = 0; c < cols; c++)
			writer->row[c] = factors->a[i * cols + source_column_of_stored(entry, c)];
		rc = write_row(writer, writer->row, cols);
	}
	if (!rc)
		rc = rh_gguf_out_end(writer->out);
	for (int64_t i = 0; !rc && i < pair->experts * rows; i++) {
		const float *b = factors->b + output_of(entry, pair, half, i % rows) * rank * pair->experts + i / rows;
		double factor = scale ? carried * (double)scale[i / rows] : carried;
		for (int64_t k = 0; k < rank; k++) {
			float value = b[k * pair->experts];
			writer->row[k] = factor == 1 ? value : (float)(factor * (double)value);
		}
		rc = write_row(writer, writer->row, rank);
	}
	rh_free(scale);
	return rc ? rc : rh_gguf_out_end(writer->out);
}

/* The factors of the embedding's table or the head's, where the entry is one that the adapter changes; else factors->a is NULL. */
static int find_table(struct writer *writer, const struct source_entry *entry, struct rh_table_factors *out)
{
	enum rh_table which;
	*out = (struct rh_table_factors){0};
	if (!lora_table(&writer->source->config, entry, &which))
		return 0;
	return rh_peft_tables_factors(writer->lora.tables, writer->source, which, out);
}

/* Of an embedding llama.cpp takes rows of A, so A lies with a row for each token. */
static int declare_table(struct writer *writer, const struct source_entry *entry, const struct rh_table_factors *factors)
{
	int64_t a[2] = {factors->a->shape[factors->is_embedding], factors->a->shape[!factors->is_embedding]};
	int rc = declare(writer, entry->stored, "lora_a", 0, a);
	return rc ? rc : declare(writer, entry->stored, "lora_b", 0, factors->b->shape);
}

static int write_table(struct writer *writer, const struct rh_table_factors *factors)
{
	int64_t rank = factors->rank, width = factors->a->shape[1], rows = factors->b->shape[0], most = rank > width ? rank : width;
	double carried = factors->scale * (double)rank / writer->lora.peft.lora_alpha;
	float *a = rh_alloc((size_t)(rank * width), sizeof *a), *b = rh_alloc((size_t)(rows * rank), sizeof *b);
	int rc = a && b ? rh_grow(&writer->row, &writer->row_capacity, (size_t)most, sizeof *writer->row) : -ENOMEM;
	if (!rc)
		rc = rh_grow(&writer->bytes, &writer->bytes_capacity, (size_t)most, sizeof(float));
	if (!rc)
		rc = lora_read_whole(&writer->lora, factors->a, 0, rank * width, a);
	if (!rc)
		rc = lora_read_whole(&writer->lora, factors->b, 0, rows * rank, b);
	for (int64_t i = 0; !rc && !factors->is_embedding && i < rank; i++)
		rc = write_row(writer, a + i * width, width);
	for (int64_t i = 0; !rc && factors->is_embedding && i < width; i++) {
		for (int64_t k = 0; k < rank; k++)
			writer->row[k] = a[k * width + i];
		rc = write_row(writer, writer->row, rank);
	}
	if (!rc)
		rc = rh_gguf_out_end(writer->out);
	for (int64_t i = 0; !rc && i < rows; i++) {
		for (int64_t k = 0; k < rank; k++)
			writer->row[k] = (float)(carried * (double)b[i * rank + k]);
		rc = write_row(writer, writer->row, rank);
	}
	rh_free(a);
	rh_free(b);
	return rc ? rc : rh_gguf_out_end(writer->out);
}

/* pair->rank 0: there are none, or they are written with the first expert's. */
static int find_pair(const struct writer *writer, const struct source_entry *entry, struct lora_pair *pair)
{
	int rc = lora_find(&writer->lora, &writer->source->config, entry, pair);
	if (!rc && entry->slab)
		pair->rank = 0;
	return rc;
}

static int write_all(struct writer *writer)
{
	const struct source_entries *entries = &writer->target;
	struct rh_table_factors factors;
	struct lora_pair pair;
	int rc = put_metadata(writer);
	if (!rc && writer->lora.peft.saves)
		rc = rh_fail(-EINVAL, "%s: has %s whole, which a GGUF adapter cannot hold; merge it into the model",
		             writer->wanted->adapter, writer->lora.peft.saved[0]);
	if (!rc && !(writer->lora.peft.lora_alpha > 0))
		rc = rh_fail(-EINVAL, "%s: lora_alpha is %g; llama.cpp needs one above 0", writer->wanted->adapter,
		             writer->lora.peft.lora_alpha);
	if (!rc && writer->lora.peft.use_dora)
		rc = rh_fail(-EINVAL, "%s: use_dora: a GGUF adapter cannot hold its lora_magnitude_vector; merge it into the model",
		             writer->wanted->adapter);
	for (size_t i = 0; !rc && i < entries->count; i++) {
		const struct source_entry *entry = &entries->entry[i];
		rc = find_pair(writer, entry, &pair);
		if (!rc && pair.rank)
			rc = declare_pair(writer, entry, &pair, 0);
		if (!rc && pair.rank && entry->stored2)
			rc = declare_pair(writer, entry, &pair, 1);
		if (!rc)
			rc = find_table(writer, &entries->entry[i], &factors);
		if (!rc && factors.a)
			rc = declare_table(writer, &entries->entry[i], &factors);
	}
	if (!rc)
		rc = rh_gguf_out_begin(writer->out);
	for (size_t i = 0; !rc && i < entries->count; i++) {
		rc = find_pair(writer, &entries->entry[i], &pair);
		for (int half = 0; !rc && pair.rank && half < 1 + (entries->entry[i].stored2 != NULL); half++)
			rc = write_pair(writer, &entries->entry[i], &pair, half);
		if (!rc)
			rc = find_table(writer, &entries->entry[i], &factors);
		if (!rc && factors.a)
			rc = write_table(writer, &factors);
	}
	return rc ? rc : lora_check_all_used(&writer->lora, writer->source);
}

int rh_adapter_gguf_write(const struct rh_adapter_gguf *wanted, struct rh_merged *out)
{
	struct writer writer = {.wanted = wanted, .written.dtype = wanted->dtype};
	int rc = rh_source_open(wanted->model, &writer.source);
	if (!rc)
		rc = source_expect(rh_source_config(writer.source), SOURCE_GGUF, &writer.target);
	if (!rc)
		rc = lora_open(wanted->adapter, rh_source_config(writer.source), &writer.lora);
	if (!rc)
		rc = rh_gguf_out_create(wanted->path, &writer.out);
	if (!rc)
		rc = write_all(&writer);
	if (!rc) {
		rc = rh_gguf_out_commit(writer.out);
		writer.out = NULL;
	}
	*out = writer.written;
	rh_gguf_out_abandon(writer.out);
	lora_close(&writer.lora);
	source_entries_free(&writer.target);
	rh_source_close(writer.source);
	rh_free(writer.row);
	rh_free(writer.bytes);
	return rc;
}
