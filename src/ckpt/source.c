#include "ckpt/model_out.h"
#include "ckpt/source_internal.h"

#include "core/alloc.h"
#include "core/json.h"
#include "core/log.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void shape_text(const int64_t *shape, int rank, char *out, size_t size)
{
	size_t used = (size_t)snprintf(out, size, "(");
	for (int d = 0; d < rank && used < size; d++)
		used += (size_t)snprintf(out + used, size - used, d ? ", %lld" : "%lld", (long long)shape[d]);
	if (used < size)
		snprintf(out + used, size - used, ")");
}

static int same_shape(const struct source_tensor *expected, int rank, const int64_t *shape)
{
	return expected->rank == rank && !memcmp(expected->shape, shape, (size_t)rank * sizeof *shape);
}

/* Fills in where the tensor lies, once its shape is what the configuration says. `name` is the file's. */
static int settle(struct source_entry *entry, const char *where, const char *name, enum rh_dtype dtype, int rank, const int64_t *shape)
{
	if (!same_shape(&entry->tensor, rank, shape)) {
		char expected[96], found[192];
		shape_text(entry->tensor.shape, entry->tensor.rank, expected, sizeof expected);
		shape_text(shape, rank, found, sizeof found);
		return rh_fail(-EINVAL, "%s: tensor '%s' has shape %s, but the model's configuration makes it %s", where, name, found,
		               expected);
	}
	if ((entry->head_dim || entry->tiles.per_key || entry->is_minus_exp) && rank == 1 && rh_dtype_block(dtype) != 1)
		return rh_fail(-EINVAL, "%s: tensor '%s' is a vector stored as %s, whose order cannot be restored", where, name,
		               rh_dtype_name(dtype));
	entry->tensor.dtype = dtype;
	return 0;
}

static int missing(const char *where, const char *name)
{
	return rh_fail(-EINVAL, "%s: tensor '%s' is missing, but the model's configuration asks for it", where, name);
}

static int ends_in(const char *name, const char *end)
{
	size_t length = strlen(name), wanted = strlen(end);
	return length >= wanted && !strcmp(name + length - wanted, end);
}

/* Tensors that some exporters add and no model reads. */
static int needless(const struct rh_source *source, const char *name)
{
	static const char *const suffixes[] = {"rotary_emb.inv_freq",       "rope_freqs.weight",   "rope_factors_long.weight",
	                                       "rope_factors_short.weight", "attn.bias",           "attn.masked_bias",
	                                       "embeddings.position_ids",   "attn_rot_embd.weight"};
	static const char *const plain[] = {"attn_q_norm.weight", "attn_k_norm.weight"}; /* of a GGUF: a factor, and ones */
	for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
		if (ends_in(name, suffixes[i]))
			return 1;
	for (size_t i = 0; source->config.family->attention.qk_norm_is_plain && i < sizeof plain / sizeof *plain; i++)
		if (ends_in(name, plain[i]))
			return 1;
	return source->config.tie_word_embeddings && !strcmp(name, "lm_head.weight");
}

/* "<name>_blocks" and "<name>_scales" of a tensor that is stored so. */
static int is_mxfp4_part(const struct rh_source *source, const char *name)
{
	char base[256];
	const char *end = strrchr(name, '_');
	if (!source->config.family->moe.reads_mxfp4 || !end || (strcmp(end, "_blocks") && strcmp(end, "_scales")))
		return 0;
	snprintf(base, sizeof base, "%.*s", (int)(end - name), name);
	const struct source_entry *entry = source_entries_find(&source->entries, base);
	return entry && entry->scale;
}

static void note_unknown(const struct rh_source *source, int64_t unknown, const char *first)
{
	if (unknown)
		rh_note("%s: %lld tensors are not part of the model and are ignored, '%s' first", source->path, (long long)unknown, first);
}

/* Where the GGUF has a tensor of this name, of the shape that the entry has; one row may be a vector there. */
static int find_in_gguf(const struct rh_source *source, const struct source_entry *entry, const char *name,
                        const struct rh_gguf_tensor **out)
{
	struct source_entry shape = *entry; /* settle writes into it */
	*out = rh_gguf_find(source->gguf, name);
	if (!*out)
		return missing(source->path, name);
	if (shape.tensor.rank == 2 && shape.tensor.shape[0] == 1 && (*out)->rank == 1)
		shape.tensor = (struct source_tensor){.rank = 1, .shape = {shape.tensor.shape[1]}};
	return settle(&shape, source->path, name, (*out)->dtype, (*out)->rank, (*out)->shape);
}

/* The second tensor of an entry that is two there. */
static int find_second(const struct rh_source *source, const struct source_entry *entry, const struct rh_gguf_tensor **out)
{
	struct source_entry other = *entry;
	if (entry->second)
		other.tensor.shape[0] = entry->rows - entry->second;
	return find_in_gguf(source, &other, entry->stored2, out);
}

/* Older files have such a matrix whole, as a directory has it. */
static int take_whole(const struct rh_source *source, struct source_entry *entry)
{
	struct rh_text name = {0};
	const char *end = entry->second ? strstr(entry->stored, ".attn_qkv") : NULL;
	if (!end || rh_gguf_find(source->gguf, entry->stored))
		return 0;
	int rc = rh_text_printf(&name, "%.*s.ssm_in.weight", (int)(end - entry->stored), entry->stored);
	if (rc || !rh_gguf_find(source->gguf, name.bytes)) {
		rh_text_free(&name);
		return rc;
	}
	rh_free(entry->stored);
	rh_free(entry->stored2);
	entry->stored = name.bytes;
	entry->stored2 = NULL;
	entry->second = 0;
	entry->tensor.shape[0] = entry->rows;
	return 0;
}

static int settle_in_gguf(struct rh_source *source, struct source_entry *entry)
{
	const struct rh_gguf_tensor *tensor, *second = NULL;
	int rc = take_whole(source, entry);
	if (!rc)
		rc = find_in_gguf(source, entry, entry->stored, &tensor);
	if (!rc && entry->stored2)
		rc = find_second(source, entry, &second);
	if (rc)
		return rc;
	entry->file = tensor->file;
	entry->tensor.dtype = tensor->dtype;
	entry->offset = tensor->offset + (entry->slabs ? tensor->bytes / entry->slabs * entry->slab : 0);
	if (second) {
		entry->file2 = second->file;
		entry->dtype2 = second->dtype;
		entry->offset2 = second->offset;
	}
	return 0;
}

static int open_gguf(struct rh_source *source)
{
	int rc = rh_gguf_open(source->path, &source->gguf);
	if (!rc)
		rc = gguf_model_config(source->gguf, &source->config);
	if (!rc)
		rc = source_expect(&source->config, SOURCE_GGUF, &source->entries);
	int64_t used = 0, unknown = 0;
	for (size_t i = 0; !rc && i < source->entries.count; i++) {
		struct source_entry *entry = &source->entries.entry[i];
		rc = settle_in_gguf(source, entry);
		used += !entry->slab + (entry->stored2 != NULL);
	}
	if (rc)
		return rc;
	for (int64_t i = 0; i < rh_gguf_count(source->gguf); i++)
		unknown += !needless(source, rh_gguf_at(source->gguf, i)->name);
	if (unknown > used)
		rh_note("%s: %lld tensors are not part of the model and are ignored", source->path, (long long)(unknown - used));
	return 0;
}

/* Opens `name` within the directory unless it is open already. */
static int open_shard(struct rh_source *source, const char *name, struct rh_safetensors **out)
{
	for (size_t i = source->shards; i-- > 0;)
		if (!strcmp(source->shard_name[i], name)) {
			*out = source->shard[i];
			return 0;
		}
	if (!*name || strchr(name, '/') || *name == '.')
		return rh_fail(-EINVAL, "%s: model.safetensors.index.json names the shard '%.200s', which is no plain file name",
		               source->path, name);
	char *path = rh_path_join(source->path, name), *copy = rh_strdup(name);
	size_t i = source->shards, room = i, names_room = i;
	int rc = path && copy ? rh_grow(&source->shard, &room, i + 1, sizeof *source->shard) : -ENOMEM;
	if (!rc)
		rc = rh_grow(&source->shard_name, &names_room, i + 1, sizeof *source->shard_name);
	if (!rc && !rh_file_exists(path))
		rc = rh_fail(-ENOENT, "%s: the shard is missing, though model.safetensors.index.json names it; download it again", path);
	if (!rc)
		rc = rh_safetensors_open(path, &source->shard[i]);
	if (!rc) {
		*out = source->shard[i];
		source->shard_name[i] = copy;
		source->shards++;
		copy = NULL;
	}
	rh_free(copy);
	rh_free(path);
	return rc;
}

/* weight_map of model.safetensors.index.json; *out is the caller's. Opens every shard it names, so that a missing one shows. */
static int load_index(struct rh_source *source, const char *path, json_t **out)
{
	int rc = rh_json_load(path, out);
	if (rc)
		return rc;
	json_t *map = json_object_get(*out, "weight_map"), *file;
	const char *name;
	if (!json_is_object(map))
		return rh_fail(-EINVAL, "%s: there is no 'weight_map' object", path);
	json_object_foreach(map, name, file)
	{
		struct rh_safetensors *shard;
		if (!json_is_string(file) || strlen(json_string_value(file)) != json_string_length(file))
			return rh_fail(-EINVAL, "%s: weight_map['%s'] must be a file name", path, name);
		rc = open_shard(source, json_string_value(file), &shard);
		if (rc)
			return rc;
	}
	return 0;
}

/* The shard of a tensor: the one that the index names, else the only one. *out is NULL where there is no such tensor. */
static int find_named(struct rh_source *source, const char *name, const json_t *map, struct rh_safetensors **shard,
                      const struct rh_safetensor **out)
{
	const char *file = "model.safetensors";
	*out = NULL;
	if (map && !(file = json_string_value(json_object_get(map, name))))
		return 0;
	int rc = open_shard(source, file, shard);
	if (rc)
		return rc;
	*out = rh_safetensors_find(*shard, name);
	if (!*out && map)
		return rh_fail(-EINVAL, "%s: tensor '%s' is not in %s, where model.safetensors.index.json puts it", source->path, name,
		               file);
	return 0;
}

/* The tensor's name in files of the model without its head; NULL: the same as in other files. */
static const char *without_base(const struct rh_source *source, const char *name)
{
	const char *base = source->config.family->names->base;
	return base && !strncmp(name, base, strlen(base)) ? name + strlen(base) : NULL;
}

/* LayerNorm's parts as TensorFlow called them, in BERT's first files. */
static const struct {
	const char *name, *old_name;
} layer_norm[] = {{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}};

/* `from` at the end of a name becomes `to`; 0: it does not end so. */
static int exchange_end(const char *name, const char *from, const char *to, char *out, size_t size)
{
	size_t length = strlen(name), end = strlen(from);
	if (length < end || strcmp(name + length - end, from))
		return 0;
	snprintf(out, size, "%.*s%s", (int)(length - end), name, to);
	return 1;
}

static int old_name(const char *name, char *out, size_t size)
{
	return exchange_end(name, layer_norm[0].name, layer_norm[0].old_name, out, size) ||
	       exchange_end(name, layer_norm[1].name, layer_norm[1].old_name, out, size);
}

int source_find(struct rh_source *source, const char *name, const json_t *map, struct rh_safetensors **shard,
                const struct rh_safetensor **out)
{
	char old[256];
	const char *other = without_base(source, name);
	int rc = find_named(source, name, map, shard, out);
	if (!rc && !*out && other)
		rc = find_named(source, other, map, shard, out);
	if (!rc && !*out && old_name(name, old, sizeof old))
		rc = find_named(source, old, map, shard, out);
	return rc;
}

/* Is a tensor of the files one of the model's, under either of its names? */
static int is_known(const struct rh_source *source, const char *name)
{
	char whole[256], fresh[256];
	const char *base = source->config.family->names->base;
	for (int i = 0; i < 2; i++)
		if (exchange_end(name, layer_norm[i].old_name, layer_norm[i].name, fresh, sizeof fresh))
			return is_known(source, fresh);
	if (source_entries_find(&source->entries, name))
		return 1;
	snprintf(whole, sizeof whole, "%s%s", base ? base : "", name);
	return base && source_entries_find(&source->entries, whole);
}

/* Part of a tensor in MXFP4, "<name>_blocks" or "<name>_scales", of this shape: where it lies. */
static int find_mxfp4(struct rh_source *source, const struct source_entry *entry, const json_t *map, const char *part,
                      const struct source_tensor *expected, struct source_entry *out)
{
	struct rh_text name = {0};
	struct rh_safetensors *shard;
	const struct rh_safetensor *tensor = NULL;
	int rc = rh_text_printf(&name, "%s_%s", entry->name, part);
	if (!rc)
		rc = source_find(source, name.bytes, map, &shard, &tensor);
	if (!rc && !tensor)
		rc = missing(source->path, entry->name);
	if (!rc && (tensor->dtype != RH_U8 || !same_shape(expected, tensor->rank, tensor->shape))) {
		char right[96], found[192];
		shape_text(expected->shape, expected->rank, right, sizeof right);
		shape_text(tensor->shape, tensor->rank, found, sizeof found);
		rc = rh_fail(-EINVAL, "%s: tensor '%s' is %s %s, but the model's configuration makes it U8 %s", source->path, name.bytes,
		             rh_dtype_name(tensor->dtype), found, right);
	}
	if (!rc) {
		out->file = rh_safetensors_file(shard);
		out->offset = tensor->offset;
	}
	rh_text_free(&name);
	return rc;
}

/* Experts that are stored in MXFP4, each matrix as the model has it: blocks of 32 values in 16 bytes, and their scales. */
static int settle_mxfp4(struct rh_source *source, struct source_entry *entry, const json_t *map)
{
	int64_t experts = entry->matrices, of_one = entry->rows / experts, runs = entry->cols / 32;
	struct source_tensor blocks = {.rank = 4, .shape = {experts, of_one, runs, 16}},
	                     scales = {.rank = 3, .shape = {experts, of_one, runs}};
	struct source_entry of_scales = {0};
	if (entry->cols % 32)
		return missing(source->path, entry->name);
	int rc = find_mxfp4(source, entry, map, "blocks", &blocks, entry);
	if (!rc)
		rc = find_mxfp4(source, entry, map, "scales", &scales, &of_scales);
	entry->tensor.dtype = RH_FP4;
	entry->scale = of_scales.file;
	entry->scale_offset = of_scales.offset;
	return rc;
}

/* A text model's tensor goes by either of two names in a larger model's files; entry->stored becomes the one that it has. */
static int find_wrapped(struct rh_source *source, struct source_entry *entry, const json_t *map, struct rh_safetensors **shard,
                        const struct rh_safetensor **out)
{
	int rc = source_find(source, entry->name, map, shard, out);
	if (rc || !source->config.wrapped)
		return rc;
	if (!*out)
		return source_find(source, entry->stored, map, shard, out);
	rh_free(entry->stored);
	entry->stored = rh_strdup(entry->name);
	return entry->stored ? 0 : -ENOMEM;
}

/* The tensor of a packed matrix whose name has an end of its own. */
static int find_packed(struct rh_source *source, const struct source_entry *entry, const json_t *map, struct rh_safetensors **shard,
                       const struct rh_safetensor **out)
{
	const char *names[] = {entry->name, source->config.wrapped ? entry->stored : entry->name};
	int rc = 0;
	for (int i = 0; !rc && !*out && i < 2; i++) {
		char name[256];
		snprintf(name, sizeof name, "%s_packed", names[i]);
		rc = source_find(source, name, map, shard, out);
	}
	return rc;
}

static int settle_in_shard(struct rh_source *source, struct source_entry *entry, const json_t *map)
{
	struct rh_safetensors *shard = NULL;
	const struct rh_safetensor *tensor;
	int is_matrix = entry->tensor.rank == 2 && !entry->matrices;
	int rc = find_wrapped(source, entry, map, &shard, &tensor);
	if (!rc && !tensor && is_matrix)
		rc = find_packed(source, entry, map, &shard, &tensor);
	if (rc)
		return rc;
	if (!tensor && entry->matrices && source->config.family->moe.reads_mxfp4)
		return settle_mxfp4(source, entry, map);
	if (!tensor && rh_model_may_lack(&source->config, entry->name)) {
		source->fresh++;
		return 0;
	}
	if (!tensor)
		return missing(source->path, entry->name);
	if ((tensor->dtype == RH_U8 || tensor->dtype == RH_I8 || tensor->dtype == RH_E4M3) && is_matrix) {
		entry->file = rh_safetensors_file(shard);
		entry->offset = tensor->offset;
		if (tensor->dtype != RH_U8 && !same_shape(&entry->tensor, tensor->rank, tensor->shape))
			return settle(entry, source->path, entry->name, tensor->dtype, tensor->rank, tensor->shape);
		return source_settle_scaled(source, entry, map, tensor);
	}
	if (tensor->dtype != RH_F32 && tensor->dtype != RH_F16 && tensor->dtype != RH_BF16)
		return rh_fail(-EINVAL, "%s: tensor '%s' has type %s, which is not supported (F32, F16, BF16 are)", source->path,
		               entry->name, rh_dtype_name(tensor->dtype));
	entry->file = rh_safetensors_file(shard);
	entry->offset = tensor->offset;
	return settle(entry, source->path, entry->name, tensor->dtype, tensor->rank, tensor->shape);
}

/* A tensor in pieces, as fp32. */
struct reading {
	const struct rh_safetensors *shard;
	const struct rh_safetensor *tensor;
};

static int read_piece(const struct reading *from, int64_t first, int64_t count, float *out)
{
	enum rh_dtype dtype = from->tensor->dtype;
	int rc = rh_safetensors_read(from->shard, from->tensor, rh_dtype_bytes(dtype, first), out, rh_dtype_bytes(dtype, count));
	if (!rc)
		rh_widen(dtype, count, out);
	return rc;
}

/* 1: the two have the same shape and values. */
static int is_same_table(const struct reading *one, const struct reading *two)
{
	enum { PIECE = 1 << 18 };
	int64_t elements = 1;
	int same = one->tensor->rank == two->tensor->rank, rc = 0;
	for (int d = 0; same && d < one->tensor->rank; d++) {
		same = one->tensor->shape[d] == two->tensor->shape[d];
		elements *= one->tensor->shape[d];
	}
	float *piece = rh_alloc(2 * (size_t)PIECE, sizeof *piece);
	if (!piece)
		return -ENOMEM;
	for (int64_t first = 0; !rc && same && first < elements; first += PIECE) {
		int64_t count = elements - first < PIECE ? elements - first : PIECE;
		rc = read_piece(one, first, count, piece);
		if (!rc)
			rc = read_piece(two, first, count, piece + PIECE);
		same = !rc && !memcmp(piece, piece + PIECE, (size_t)count * sizeof *piece);
	}
	rh_free(piece);
	return rc ? rc : same;
}

static int is_plain(const struct rh_safetensor *tensor)
{
	return tensor->dtype == RH_F32 || tensor->dtype == RH_F16 || tensor->dtype == RH_BF16;
}

/* Whether the head is the embedding is the files' word where they have both: transformers does not tie two that differ, whatever the
 * configuration says. Of a larger model it ties a head that is not there. */
static int settle_head(struct rh_source *source, const json_t *map)
{
	const struct rh_family_names *names = rh_model_names(&source->config);
	struct reading head = {0}, table = {0};
	struct rh_safetensors *shard = NULL;
	char name[256];
	if (!names->head || (!source->config.wrapped && !rh_model_ties(&source->config)))
		return 0;
	snprintf(name, sizeof name, "%s.weight", names->head);
	int rc = source_find(source, name, map, &shard, &head.tensor);
	if (!rc && !head.tensor && source->config.wrapped)
		rc = source_find(source, "language_model.lm_head.weight", map, &shard, &head.tensor);
	if (rc || source->config.wrapped || !head.tensor) {
		source->config.tie_word_embeddings = source->config.wrapped ? !head.tensor : source->config.tie_word_embeddings;
		return rc;
	}
	head.shard = shard;
	snprintf(name, sizeof name, "%s.weight", names->embedding);
	rc = source_find(source, name, map, &shard, &table.tensor);
	table.shard = shard;
	if (rc || !table.tensor || !is_plain(head.tensor) || !is_plain(table.tensor))
		return rc;
	int same = is_same_table(&head, &table);
	if (same)
		return same < 0 ? same : 0;
	source->config.tie_word_embeddings = 0;
	rh_note("%s: config.json ties the head to the embedding, but '%s' is another table in the files: both are used, as transformers "
	        "does",
	        source->path, head.tensor->name);
	return 0;
}

/* 1: the files have a tensor of this name, or of the one that a larger model's files may have for it. */
static int has_named(struct rh_source *source, const char *name, const json_t *map)
{
	struct rh_safetensors *shard;
	const struct rh_safetensor *tensor = NULL;
	int rc = source_find(source, name, map, &shard, &tensor);
	char *other = !rc && !tensor && source->config.wrapped ? source_wrapped_name(name) : NULL;
	if (other)
		rc = source_find(source, other, map, &shard, &tensor);
	rh_free(other);
	return rc ? rc : tensor != NULL;
}

/* Of a family whose files have all experts' matrices in one tensor, or each apart: which these have. */
static int settle_experts(struct rh_source *source, const json_t *map)
{
	struct rh_model_config *config = &source->config;
	const struct rh_family_names *names = rh_model_names(config);
	const char *end[] = {"", "_packed"};
	char name[256];
	if (!config->family->moe.may_lie_apart)
		return 0;
	snprintf(name, sizeof name, "%s0.%s", names->layers, names->experts_gate_up);
	int found = has_named(source, name, map);
	if (found)
		config->experts_are_apart = 0;
	for (int i = 0; !found && i < 2; i++) {
		snprintf(name, sizeof name, "%s0.%s.0.gate_proj.weight%s", names->layers, names->experts, end[i]);
		found = has_named(source, name, map);
		if (found > 0)
			config->experts_are_apart = 1;
	}
	return found < 0 ? found : 0;
}

static int is_used(const struct rh_source *source, const char *name)
{
	const struct source_entries *entries = &source->entries;
	if (is_known(source, name) || needless(source, name) || is_mxfp4_part(source, name) || source_is_beside(source, name))
		return 1;
	for (size_t i = 0; source->config.wrapped && i < entries->count; i++)
		if (!strcmp(entries->entry[i].stored, name))
			return 1;
	return 0;
}

/* Of a layer behind the model's, which predicts a token beyond the next one: config.json counts these, and transformers leaves them out. */
static int is_of_predictor(const struct rh_source *source, const char *name)
{
	const struct rh_model_config *config = &source->config;
	const char *layers = rh_model_names(config)->layers;
	int64_t count = json_integer_value(json_object_get(config->source, "num_nextn_predict_layers"));
	if (count <= 0 || strncmp(name, layers, strlen(layers)) != 0)
		return 0;
	int64_t layer = strtoll(name + strlen(layers), NULL, 10);
	return layer >= config->num_hidden_layers && layer - config->num_hidden_layers < count;
}

static void note_kept(const struct rh_source *source)
{
	if (source->config.wrapped)
		rh_note("%s: the text model inside %s is used; %zu tensors of its other parts stay as they are", source->path,
		        source->config.family->wrapper->architecture, source->others);
	else
		rh_note("%s: %zu tensors, '%s' first, are of no use to the model and stay as they are", source->path, source->others,
		        source->other[0].tensor->name);
}

static int note_others(struct rh_source *source)
{
	const struct rh_model_config *config = &source->config;
	int64_t unknown = 0;
	const char *first = NULL;
	int rc = 0;
	for (size_t s = 0; s < source->shards; s++)
		for (int64_t i = 0; !rc && i < rh_safetensors_count(source->shard[s]); i++) {
			const struct rh_safetensor *tensor = rh_safetensors_at(source->shard[s], i);
			if (is_used(source, tensor->name))
				continue;
			if (!config->wrapped && !config->family->keeps_others && !is_of_predictor(source, tensor->name)) {
				unknown++;
				first = first ? first : tensor->name;
				continue;
			}
			rc = rh_grow(&source->other, &source->other_capacity, source->others + 1, sizeof *source->other);
			if (!rc)
				source->other[source->others++] = (struct source_other){source->shard[s], tensor};
		}
	if (!rc && source->others)
		note_kept(source);
	if (!rc)
		note_unknown(source, unknown, first);
	return rc;
}

static int read_directory(struct rh_source *source, const char *single, const char *index)
{
	json_t *root = NULL;
	int rc = rh_model_config_load(source->path, &source->config);
	if (!rc)
		rc = rh_model_config_set_task(&source->config, source->task, source->num_labels, source->path);
	if (!rc && !rh_file_exists(single)) {
		if (rh_file_exists(index))
			rc = load_index(source, index, &root);
		else
			rc = rh_fail(-ENOENT,
			             "%s: there is neither model.safetensors nor model.safetensors.index.json; other weight files "
			             "(pytorch_model.bin) must be converted to safetensors first",
			             source->path);
	}
	if (!rc && (source->config.wrapped || !source->part))
		rc = settle_head(source, json_object_get(root, "weight_map"));
	if (!rc)
		rc = settle_experts(source, json_object_get(root, "weight_map"));
	if (!rc)
		rc = source_expect(&source->config, SOURCE_SAFETENSORS, &source->entries);
	if (!rc && source->part)
		source_entries_keep(&source->entries, source->part);
	for (size_t i = 0; !rc && i < source->entries.count; i++)
		rc = settle_in_shard(source, &source->entries.entry[i], json_object_get(root, "weight_map"));
	json_decref(root);
	if (!rc)
		rc = note_others(source);
	if (!rc && source->fresh)
		rh_note("%s: the files are of %s; %lld tensors of %s's head are not in them and start at random", source->path,
		        source->config.architecture, (long long)source->fresh, rh_model_architecture(&source->config));
	return rc;
}

static int open_directory(struct rh_source *source)
{
	char *single = rh_path_join(source->path, "model.safetensors");
	char *index = rh_path_join(source->path, "model.safetensors.index.json");
	int rc = single && index ? read_directory(source, single, index) : -ENOMEM;
	rh_free(single);
	rh_free(index);
	return rc;
}

/* `wanted`: the task, or the part, asked for. */
static int open_as(const char *path, const struct rh_source *wanted, struct rh_source **out)
{
	struct rh_source *source = rh_alloc(1, sizeof *source);
	if (source)
		*source = *wanted;
	int rc = source && (source->path = rh_strdup(path)) ? 0 : -ENOMEM;
	if (!rc && rh_dir_exists(path))
		rc = open_directory(source);
	else if (!rc && rh_file_exists(path))
		rc = open_gguf(source);
	else if (!rc)
		rc = rh_fail(-ENOENT, "%s: no such model; give a Hugging Face directory or a .gguf file", path);
	if (rc)
		rh_source_close(source);
	else
		*out = source;
	return rc;
}

int rh_source_open(const char *path, struct rh_source **out)
{
	return open_as(path, &(struct rh_source){.task = RH_TASK_UNSET}, out);
}

int rh_source_open_for(const char *path, enum rh_task_kind task, int64_t num_labels, struct rh_source **out)
{
	return open_as(path, &(struct rh_source){.task = task, .num_labels = num_labels}, out);
}

int rh_source_open_part(const char *path, const struct rh_model *part, struct rh_source **out)
{
	return open_as(path, &(struct rh_source){.task = RH_TASK_UNSET, .part = part}, out);
}

int rh_source_has(const struct rh_source *source, const char *name)
{
	const struct source_entry *entry = source_entries_find(&source->entries, name);
	return entry && entry->file;
}

void rh_source_close(struct rh_source *source)
{
	if (!source)
		return;
	for (size_t i = 0; i < source->shards; i++) {
		rh_safetensors_close(source->shard[i]);
		rh_free(source->shard_name[i]);
	}
	rh_free(source->shard);
	rh_free(source->shard_name);
	rh_free(source->other);
	rh_gguf_close(source->gguf);
	source_entries_free(&source->entries);
	rh_model_config_free(&source->config);
	rh_free(source->path);
	rh_free(source);
}

void rh_source_forget(const struct rh_source *source)
{
	if (source->gguf)
		rh_gguf_forget(source->gguf);
}

const struct rh_model_config *rh_source_config(const struct rh_source *source)
{
	return &source->config;
}

int rh_source_scale_rope(struct rh_source *source, const json_t *scaling)
{
	return rh_model_config_scale_rope(&source->config, scaling);
}

int rh_source_keeps_f32(const struct rh_source *source, const char *name)
{
	const struct rh_family_names *names = rh_model_names(&source->config);
	const struct source_entry *entry = source->gguf ? NULL : source_entries_find(&source->entries, name);
	char norm[96];
	if (!entry || entry->tensor.dtype != RH_F32)
		return 0;
	if (names->choice_bias && ends_in(name, names->choice_bias))
		return 1;
	if (!source->config.delta.heads)
		return 0;
	snprintf(norm, sizeof norm, ".%s.weight", names->gated_norm);
	return ends_in(name, norm) || ends_in(name, names->a_log);
}

const char *rh_source_file_name(const struct rh_source *source, const char *name)
{
	const struct source_entry *entry = source->config.wrapped ? source_entries_find(&source->entries, name) : NULL;
	return entry ? entry->stored : name;
}

int64_t rh_source_others(const struct rh_source *source)
{
	return (int64_t)source->others;
}

void rh_source_others_declare(const struct rh_source *source, struct rh_safetensors_entry *out)
{
	for (size_t i = 0; i < source->others; i++) {
		const struct rh_safetensor *tensor = source->other[i].tensor;
		out[i] = (struct rh_safetensors_entry){.name = tensor->name, .dtype = tensor->dtype, .rank = tensor->rank};
		memcpy(out[i].shape, tensor->shape, sizeof tensor->shape);
	}
}

int rh_source_others_write(const struct rh_source *source, struct rh_model_out *out)
{
	enum { PIECE_BYTES = 1 << 20 };
	char *piece = source->others ? rh_alloc(PIECE_BYTES, 1) : NULL;
	int rc = source->others && !piece ? -ENOMEM : 0;
	for (size_t i = 0; i < source->others; i++)
		for (int64_t done = 0, bytes = source->other[i].tensor->bytes; !rc && done < bytes;) {
			int64_t now = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
			rc = rh_safetensors_read(source->other[i].shard, source->other[i].tensor, done, piece, now);
			if (!rc)
				rc = rh_model_out_write(out, piece, now);
			done += now;
		}
	rh_free(piece);
	return rc;
}
