#include "ckpt/peft_tables.h"

#include "core/alloc.h"
#include "core/float16.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct table {
	const char *module;               /* NULL: the model has no such table */
	const struct rh_safetensor *copy; /* in place of the base's table, in whatever shares it */
	const struct rh_safetensor *whole;
	const struct rh_safetensor *a, *b;
	int is_embedding;
	int64_t rank;
	double scale;
	float *read_a, *read_b; /* (rank, width of A) and (rows of B, rank); NULL until they are wanted */
};

struct rh_peft_tables {
	const char *dir;
	const struct rh_peft_config *peft;
	const struct rh_model_config *model;
	struct rh_safetensors *file;
	struct table table[RH_TABLES];
	int64_t count;
	int is_one; /* PEFT trained the embedding's table and the head's as one (ensure_weight_tying), and the file has both */
};

/* ---- modules_to_save ---- */

/* Modules of the model that can be trained whole. A table that positions, types or a norm lie beside cannot, nor a matrix with a bias. */
static int savable(const struct rh_model_config *model)
{
	const struct rh_family_names *names = rh_model_names(model);
	const struct rh_family_task *task = rh_model_task(model);
	int bits = names->positions || names->types || names->embedding_norm || names->patches ? 0 : RH_SAVED_EMBEDDING;
	if (task->classifier)
		return bits | RH_SAVED_CLASSIFIER;
	return rh_model_ties(model) ? bits | (bits ? RH_SAVED_HEAD : 0) : task->bias || !names->head ? bits : bits | RH_SAVED_HEAD;
}

/* Which module `name` means; 0: the model has none of that name. PEFT names a classifier by either of two usual names. */
static int meaning(const struct rh_model_config *model, char *name)
{
	const struct rh_family_names *names = rh_model_names(model);
	const char *classifier = rh_model_task(model)->classifier;
	struct rh_peft_config one = {.saved = &name, .saves = 1};
	if (classifier)
		return rh_peft_saves(&one, classifier) || !strcmp(name, "score")
		               ? RH_SAVED_CLASSIFIER
		               : rh_peft_saves(&one, names->embedding) * RH_SAVED_EMBEDDING;
	return rh_peft_saves(&one, names->embedding)             ? RH_SAVED_EMBEDDING
	       : names->head && rh_peft_saves(&one, names->head) ? RH_SAVED_HEAD
	                                                         : 0;
}

static int refuse(const struct rh_model_config *model, const char *where, const char *name)
{
	const struct rh_family_names *names = rh_model_names(model);
	int can = savable(model);
	return rh_fail(-EINVAL, "%s: '%.100s' cannot be trained whole in this model (%s%s%s%s%s)", where, name,
	               can & RH_SAVED_EMBEDDING ? rh_last_part(names->embedding) : "",
	               can & RH_SAVED_EMBEDDING && can & ~RH_SAVED_EMBEDDING ? ", " : "",
	               can & RH_SAVED_HEAD ? rh_last_part(names->head) : "",
	               can & RH_SAVED_CLASSIFIER ? rh_model_task(model)->classifier : "", can ? " can" : "nothing can");
}

int rh_peft_saved(const struct rh_model_config *model, enum rh_saved_use use, const char *where, char *const *names, size_t count,
                  int *bits)
{
	for (size_t i = 0; i < count; i++) {
		int bit = meaning(model, names[i]);
		if (!bit || (use == RH_SAVED_TRAINED && !(bit & savable(model))))
			return refuse(model, where, names[i]);
		*bits |= bit;
	}
	return 0;
}

/* ---- the tensors of the tables ---- */

static const struct rh_safetensor *find(const struct rh_peft_tables *tables, const char *module, const char *suffix)
{
	char name[512];
	snprintf(name, sizeof name, "base_model.model.%.400s.%s", module, suffix);
	return rh_safetensors_find(tables->file, name);
}

static int check_shape(const struct rh_peft_tables *tables, const struct rh_safetensor *tensor, int64_t rows, int64_t cols)
{
	if (!tensor || (tensor->rank == 2 && tensor->shape[0] == rows && tensor->shape[1] == cols))
		return 0;
	return rh_fail(-EINVAL, "%s: '%s' does not have the shape (%lld, %lld) that this model gives it", tables->dir, tensor->name,
	               (long long)rows, (long long)cols);
}

/* PEFT makes one table of the two where ensure_weight_tying says so and it finds them tied, and then writes both. It finds a head's factors
 * beside an embedding of another name than embed_tokens tied when it writes them, but not when it reads them. */
static int find_one(struct rh_peft_tables *tables)
{
	const char *head = tables->table[RH_TABLE_HEAD].module, *embedding = tables->table[RH_TABLE_EMBEDDING].module;
	if (!tables->peft->ties || !rh_model_ties(tables->model) || !head || !embedding)
		return 0;
	const struct rh_safetensor *factors = find(tables, head, "lora_A.weight");
	tables->is_one = (factors && find(tables, embedding, "lora_embedding_A")) ||
	                 (find(tables, head, "weight") && find(tables, embedding, "weight"));
	if (tables->is_one && factors && strcmp(rh_last_part(embedding), "embed_tokens"))
		return rh_fail(-EINVAL,
		               "%s: '%s' is of one table that is embedding and head (ensure_weight_tying), which PEFT writes of this "
		               "model, but does not read",
		               tables->dir, factors->name);
	return 0;
}

static int is_saved(const struct rh_peft_tables *tables, const struct table *table)
{
	int saved = rh_peft_saves(tables->peft, table->module);
	for (int t = 0; tables->is_one && t < RH_TABLES; t++)
		saved |= rh_peft_saves(tables->peft, tables->table[t].module);
	return saved;
}

/* The module that target_modules and the patterns of ranks name for this table: its own or, of one that is both, the embedding. NULL: they
 * name none; modules_to_save counts before them. */
static int find_target(const struct rh_peft_tables *tables, const struct table *table, const char **out)
{
	const char *module = table->module;
	int rc = tables->peft->all_linear || is_saved(tables, table) ? 0 : rh_peft_matches(tables->peft, module);
	if (!rc && tables->is_one && !tables->peft->all_linear && !is_saved(tables, table)) {
		module = tables->table[RH_TABLE_EMBEDDING].module;
		rc = rh_peft_matches(tables->peft, module);
	}
	*out = rc > 0 ? module : NULL;
	return rc < 0 ? rc : 0;
}

/* Factors are in the file where the configuration targets the module, and only there. */
static int take_factors(struct rh_peft_tables *tables, struct table *table, int64_t rows, int64_t cols)
{
	const char *target;
	double alpha;
	table->a = find(tables, table->module, table->is_embedding ? "lora_embedding_A" : "lora_A.weight");
	table->b = find(tables, table->module, table->is_embedding ? "lora_embedding_B" : "lora_B.weight");
	int rc = find_target(tables, table, &target);
	if (rc)
		return rc;
	if (!table->a != !table->b || (target && !table->a))
		return rh_fail(-EINVAL, "%s: adapter_config.json targets %s, but the file lacks its factors", tables->dir, table->module);
	if (table->a && !target)
		return rh_fail(-EINVAL, "%s: '%s' is in the file, but adapter_config.json targets no %s", tables->dir, table->a->name,
		               table->module);
	if (!table->a)
		return 0;
	if (tables->peft->use_dora)
		return rh_fail(-EINVAL, "%s: use_dora with factors on %s is not supported", tables->dir, table->module);
	int64_t divisor; /* of the head's own name, also where its factors are as many as the embedding's */
	rc = rh_peft_module(tables->peft, target, &table->rank, &alpha);
	if (!rc)
		rc = rh_peft_module(tables->peft, table->module, &divisor, &alpha);
	if (!rc)
		rc = check_shape(tables, table->a, table->rank, table->is_embedding ? rows : cols);
	if (!rc)
		rc = check_shape(tables, table->b, table->is_embedding ? cols : rows, table->rank);
	if (rc)
		return rc;
	table->scale = alpha / (tables->peft->use_rslora ? sqrt((double)divisor) : (double)divisor);
	tables->count += 2;
	return 0;
}

/* Where PEFT was asked to save the tables, the base's stand in the file too: behind `base_layer`, behind `original_module`, or plainly; and
 * one that is saved whole stands there twice. */
static int take_table(struct rh_peft_tables *tables, struct table *table)
{
	static const char *const suffixes[] = {"weight", "base_layer.weight", "original_module.weight", "modules_to_save.weight"};
	enum { PLAIN, BEHIND, ORIGINAL, TWICE, FORMS };
	int64_t rows = tables->model->vocab_size, cols = tables->model->hidden_size;
	const struct rh_safetensor *found[FORMS];
	int rc = take_factors(tables, table, rows, cols), saved = is_saved(tables, table);
	for (int f = 0; !rc && f < FORMS; f++) {
		found[f] = find(tables, table->module, suffixes[f]);
		tables->count += found[f] != NULL;
		rc = check_shape(tables, found[f], rows, cols);
		if (!rc && found[f] && ((f == BEHIND && !table->a) || (f > BEHIND && !saved) || (f == PLAIN && table->a)))
			rc = rh_fail(-EINVAL, "%s: '%s' is in the file, which does not fit what adapter_config.json says of %s",
			             tables->dir, found[f]->name, table->module);
	}
	if (rc)
		return rc;
	table->whole = saved ? found[PLAIN] : NULL;
	table->copy = found[BEHIND] ? found[BEHIND] : saved ? found[ORIGINAL] : found[PLAIN];
	return 0;
}

static int read_rows(const struct rh_peft_tables *tables, const struct rh_safetensor *tensor, int64_t first, int64_t count, float *out)
{
	int64_t elements = count * tensor->shape[1];
	if (tensor->dtype != RH_F32 && tensor->dtype != RH_BF16 && tensor->dtype != RH_F16)
		return rh_fail(-EINVAL, "%s: '%s' is of type %s; F32, F16 and BF16 are read", tables->dir, tensor->name,
		               rh_dtype_name(tensor->dtype));
	int rc = rh_safetensors_read(tables->file, tensor, rh_dtype_bytes(tensor->dtype, first * tensor->shape[1]), out,
	                             rh_dtype_bytes(tensor->dtype, elements));
	if (!rc)
		rh_widen(tensor->dtype, elements, out);
	return rc;
}

/* A tied table that goes by both its names, as PEFT writes it: the two must be one. */
static int check_same(const struct rh_peft_tables *tables, const struct rh_safetensor *one, const struct rh_safetensor *two)
{
	enum { ROWS = 64 };
	int64_t rows = one && two ? one->shape[0] : 0, cols = tables->model->hidden_size;
	float *read = rh_alloc((size_t)(2 * ROWS * cols), sizeof *read);
	int rc = read ? 0 : -ENOMEM;
	for (int64_t first = 0, count; !rc && first < rows; first += count) {
		count = rows - first < ROWS ? rows - first : ROWS;
		rc = read_rows(tables, one, first, count, read);
		if (!rc)
			rc = read_rows(tables, two, first, count, read + ROWS * cols);
		if (!rc && memcmp(read, read + ROWS * cols, (size_t)(count * cols) * sizeof *read))
			rc = rh_fail(-EINVAL, "%s: '%s' and '%s' differ, but are one table in this model", tables->dir, one->name,
			             two->name);
	}
	rh_free(read);
	return rc;
}

static int take_tables(struct rh_peft_tables *tables)
{
	const struct rh_family_names *names = rh_model_names(tables->model);
	struct table *embedding = &tables->table[RH_TABLE_EMBEDDING], *head = &tables->table[RH_TABLE_HEAD];
	if (!names->patches)
		*embedding = (struct table){.module = names->embedding, .is_embedding = 1};
	if (!rh_model_task(tables->model)->classifier)
		head->module = names->head;
	int rc = find_one(tables);
	for (int t = 0; !rc && t < RH_TABLES; t++)
		rc = tables->table[t].module ? take_table(tables, &tables->table[t]) : 0;
	if (rc || !rh_model_ties(tables->model) || !head->module)
		return rc;
	rc = check_same(tables, embedding->copy, head->copy);
	if (!rc && tables->is_one)
		rc = check_same(tables, embedding->whole, head->whole);
	if (rc)
		return rc;
	embedding->copy = head->copy = embedding->copy ? embedding->copy : head->copy;
	if (tables->is_one)
		embedding->whole = head->whole = embedding->whole ? embedding->whole : head->whole;
	return 0;
}

/* Each module that modules_to_save names has its tensor. */
static int check_saved(const struct rh_peft_tables *tables)
{
	char where[512];
	int bits = 0;
	snprintf(where, sizeof where, "%s/adapter_config.json: modules_to_save", tables->dir);
	int rc = rh_peft_saved(tables->model, RH_SAVED_FOUND, where, tables->peft->saved, tables->peft->saves, &bits);
	for (int t = 0; !rc && t < RH_TABLES; t++) {
		const struct table *table = &tables->table[t];
		if (table->module && !table->whole && rh_peft_saves(tables->peft, table->module))
			rc = rh_fail(-EINVAL, "%s: modules_to_save has %s, but the file lacks it", tables->dir, table->module);
	}
	return rc;
}

int rh_peft_tables_open(const char *dir, const struct rh_peft_config *peft, const struct rh_model_config *model,
                        struct rh_peft_tables **out)
{
	struct rh_peft_tables *tables = rh_alloc(1, sizeof *tables);
	if (!tables)
		return -ENOMEM;
	*tables = (struct rh_peft_tables){.dir = dir, .peft = peft, .model = model};
	char *path = rh_path_join(dir, "adapter_model.safetensors");
	int rc = path ? rh_safetensors_open(path, &tables->file) : -ENOMEM;
	if (!rc)
		rc = take_tables(tables);
	if (!rc)
		rc = check_saved(tables);
	rh_free(path);
	if (rc)
		rh_peft_tables_close(tables);
	else
		*out = tables;
	return rc;
}

void rh_peft_tables_close(struct rh_peft_tables *tables)
{
	if (!tables)
		return;
	rh_safetensors_close(tables->file);
	for (int t = 0; t < RH_TABLES; t++) {
		rh_free(tables->table[t].read_a);
		rh_free(tables->table[t].read_b);
	}
	rh_free(tables);
}

int rh_peft_tables_change(const struct rh_peft_tables *tables, enum rh_table which)
{
	const struct table *table = tables ? &tables->table[which] : NULL;
	return table && (table->whole || table->copy || table->a);
}

int rh_peft_tables_untie(const struct rh_peft_tables *tables)
{
	if (!tables || !rh_model_ties(tables->model))
		return 0;
	const struct table *one = &tables->table[RH_TABLE_EMBEDDING], *two = &tables->table[RH_TABLE_HEAD];
	return one->a || two->a || one->whole != two->whole;
}

int rh_peft_tables_can_merge(const struct rh_peft_tables *tables)
{
	return !tables->table[RH_TABLE_EMBEDDING].a || !tables->model->family->norms_embedding;
}

static int check_merge(const struct rh_peft_tables *tables)
{
	if (rh_peft_tables_can_merge(tables))
		return 0;
	return rh_fail(-EINVAL,
	               "%s: '%s' cannot be added to its table: this model normalises the table's rows, and adds the adapter behind that; "
	               "use the adapter as it is",
	               tables->dir, tables->table[RH_TABLE_EMBEDDING].a->name);
}

int64_t rh_peft_tables_count(const struct rh_peft_tables *tables)
{
	return tables ? tables->count : 0;
}

int rh_peft_tables_check_trainable(const struct rh_peft_tables *tables)
{
	for (int t = 0; t < RH_TABLES; t++) {
		const struct table *table = &tables->table[t];
		if (table->copy)
			return rh_fail(
			        -EINVAL,
			        "%s: '%s' is a copy of the base's table, beside which training does not go on; save the adapter with "
			        "PEFT's save_embedding_layers=False, or merge it first and train a new one",
			        tables->dir, table->copy->name);
	}
	if (rh_peft_tables_untie(tables) && !tables->is_one)
		return rh_fail(-EINVAL,
		               "%s/adapter_config.json: the adapter has two tables for the embedding and the head, which are one in this "
		               "model; train it with PEFT's ensure_weight_tying, or merge it first",
		               tables->dir);
	return 0;
}

static int read_whole(const struct rh_peft_tables *tables, const struct rh_safetensor *tensor, float **out)
{
	if (*out)
		return 0;
	float *read = rh_alloc((size_t)(tensor->shape[0] * tensor->shape[1]), sizeof *read);
	int rc = read ? read_rows(tables, tensor, 0, tensor->shape[0], read) : -ENOMEM;
	if (rc)
		rh_free(read);
	else
		*out = read;
	return rc;
}

/* out (count, cols) += scale B A, or its transpose */
static int add_factors(struct rh_peft_tables *tables, struct table *table, int64_t first, int64_t count, float *out)
{
	int64_t cols = tables->model->hidden_size, rank = table->rank, wide = table->a->shape[1];
	int rc = read_whole(tables, table->a, &table->read_a);
	if (!rc)
		rc = read_whole(tables, table->b, &table->read_b);
	for (int64_t i = 0; !rc && i < count; i++)
		for (int64_t k = 0; k < rank; k++) {
			int64_t row = first + i;
			float factor =
			        (float)table->scale * (table->is_embedding ? table->read_a[k * wide + row] : table->read_b[row * rank + k]);
			for (int64_t c = 0; c < cols; c++)
				out[i * cols + c] +=
				        factor * (table->is_embedding ? table->read_b[c * rank + k] : table->read_a[k * wide + c]);
		}
	return rc;
}

static int read_base(const struct rh_peft_tables *tables, const struct rh_source *source, enum rh_table which, int64_t first, int64_t count,
                     float *out)
{
	const struct rh_family_names *names = rh_model_names(tables->model);
	char name[512];
	int is_head = which == RH_TABLE_HEAD && !rh_model_ties(rh_source_config(source));
	snprintf(name, sizeof name, "%s.weight", is_head ? names->head : names->embedding);
	return rh_source_read(source, name, first * tables->model->hidden_size, count * tables->model->hidden_size, RH_F32, out);
}

int rh_peft_tables_read(struct rh_peft_tables *tables, const struct rh_source *source, enum rh_table which, int64_t first, int64_t count,
                        float *out)
{
	struct table *table = &tables->table[which];
	const struct rh_safetensor *own = table->whole ? table->whole : table->copy;
	int rc = check_merge(tables);
	if (!rc)
		rc = own ? read_rows(tables, own, first, count, out) : read_base(tables, source, which, first, count, out);
	return rc || !table->a ? rc : add_factors(tables, table, first, count, out);
}

/* A copy that is the base's own table changes nothing. */
static int check_copy(const struct rh_peft_tables *tables, const struct rh_source *source, enum rh_table which)
{
	enum { ROWS = 64 };
	const struct rh_safetensor *copy = tables->table[which].copy;
	int64_t rows = copy ? copy->shape[0] : 0, cols = tables->model->hidden_size;
	float *read = rh_alloc((size_t)(2 * ROWS * cols), sizeof *read);
	int rc = read ? 0 : -ENOMEM;
	for (int64_t first = 0, count; !rc && first < rows; first += count) {
		count = rows - first < ROWS ? rows - first : ROWS;
		rc = read_rows(tables, copy, first, count, read);
		if (!rc)
			rc = read_base(tables, source, which, first, count, read + ROWS * cols);
		if (!rc && memcmp(read, read + ROWS * cols, (size_t)(count * cols) * sizeof *read))
			rc = rh_fail(-EINVAL, "%s: '%s' is not the base's, which a GGUF adapter cannot hold; merge it into the model",
			             tables->dir, copy->name);
	}
	rh_free(read);
	return rc;
}

int rh_peft_tables_factors(struct rh_peft_tables *tables, const struct rh_source *source, enum rh_table which, struct rh_table_factors *out)
{
	const struct table *table = &tables->table[which];
	*out = (struct rh_table_factors){tables->file, table->a, table->b, table->rank, table->scale, table->is_embedding};
	int rc = check_merge(tables);
	if (rc)
		return rc;
	if (table->whole)
		return rh_fail(-EINVAL, "%s: has %s whole, which a GGUF adapter cannot hold; merge it into the model", tables->dir,
		               table->module);
	if (table->a && rh_model_ties(tables->model))
		return rh_fail(
		        -EINVAL,
		        "%s: '%s' is of a table that is embedding and head, which a GGUF adapter cannot tell apart; merge it into the "
		        "model",
		        tables->dir, table->a->name);
	return check_copy(tables, source, which);
}
