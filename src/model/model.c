#include "model/model_internal.h"

#include "core/alloc.h"
#include "core/philox.h"

#include <math.h>
#include <string.h>

static void use_rope(struct rh_model *model, int rope, int64_t rotary)
{
	if (rope < 0)
		return;
	for (int is_long = 0; is_long < 2; is_long++)
		rh_rope_table(&model->config->rope[rope], rotary, is_long ? INT64_MAX : 0, &model->rope[rope][is_long]);
	model->ropes = rope + 1 > model->ropes ? rope + 1 : model->ropes;
}

static void rope_tables(struct rh_model *model)
{
	for (int l = 0; l < model->layers; l++) {
		const struct rh_traits *traits = &model->layer[l].traits;
		if (model->layer[l].kind != RH_LAYER_BLOCK)
			continue;
		use_rope(model, traits->rope, traits->rotary);
		use_rope(model, traits->query_rope, traits->rotary);
	}
}

int rh_model_create(const struct rh_model_config *config, enum rh_dtype dtype, const struct rh_lora_config *lora, struct rh_model **out)
{
	RH_ASSERT(config->head_dim <= 2 * RH_ROPE_MAX_HALF && config->num_hidden_layers <= RH_MOST_LAYERS); /* rh_model_config_check */
	struct rh_model *model = rh_alloc(1, sizeof *model);
	if (!model)
		return -ENOMEM;
	model->config = config;
	model->dtype = dtype;
	model->lora = lora != NULL;
	model->dropout = lora ? (float)lora->dropout : 0;
	model->dora = lora && lora->dora;
	model->layers = (int)config->num_hidden_layers + 2;
	model->layer = rh_alloc((size_t)model->layers, sizeof *model->layer);
	model->block = rh_alloc((size_t)model->layers * 2 + 2, sizeof *model->block);
	int rc = model->layer && model->block ? model_lay_out(model, lora) : -ENOMEM;
	for (int b = 0; !rc && b < model->blocks; b++)
		model->block[b].number = b;
	for (int l = 0; !rc && l < model->layers; l++)
		model->routed_layers += model->layer[l].kind == RH_LAYER_BLOCK && model->layer[l].traits.experts;
	if (!rc)
		rope_tables(model);
	if (rc)
		rh_model_destroy(model);
	else
		*out = model;
	return rc;
}

static void free_block(struct rh_block *block)
{
	for (int t = 0; t < block->tensors; t++)
		rh_free(block->tensor[t].name);
	rh_free(block->tensor);
	rh_free(block->name);
}

const char *rh_proj_name(const struct rh_family_names *names, enum rh_mixer_kind mixer, enum rh_mlp_kind mlp, int proj)
{
	if (proj >= RH_PROJ_PER_LAYER_GATE)
		return names->per_layer[proj - RH_PROJ_PER_LAYER_GATE];
	if (proj >= RH_PROJ_MLP && proj < RH_PROJ_GATING && mlp == RH_MLP_GATED && names->dense[0])
		return names->dense[proj - RH_PROJ_MLP];
	if (proj >= RH_PROJ_MLP)
		return names->mlp[proj - RH_PROJ_MLP];
	if (mixer == RH_MIXER_DELTA)
		return names->delta[proj];
	return names->attention[proj];
}

int64_t rh_row_in_file(const struct rh_row_groups *groups, int64_t row, int64_t *run)
{
	int64_t wide = 0, before = 0; /* rows of a group; those before the part */
	int part = 0;
	*run = INT64_MAX;
	if (!groups->count)
		return row;
	for (int p = 0; p < 4; p++)
		wide += groups->part[p];
	for (; row >= groups->count * groups->part[part]; part++) {
		row -= groups->count * groups->part[part];
		before += groups->part[part];
	}
	int64_t within = row % groups->part[part];
	*run = groups->part[part] - within;
	return row / groups->part[part] * wide + before + within;
}

int64_t rh_row_of_file(const struct rh_row_groups *groups, int64_t row, int64_t *run)
{
	int64_t wide = 0, first = 0; /* rows of a group; the part's first row here */
	int part = 0;
	*run = INT64_MAX;
	if (!groups->count)
		return row;
	for (int p = 0; p < 4; p++)
		wide += groups->part[p];
	int64_t group = row / wide, within = row % wide;
	for (; within >= groups->part[part]; part++) {
		within -= groups->part[part];
		first += groups->count * groups->part[part];
	}
	*run = groups->part[part] - within;
	return first + group * groups->part[part] + within;
}

void rh_model_destroy(struct rh_model *model)
{
	if (!model)
		return;
	for (int b = 0; model->block && b < model->blocks; b++)
		free_block(&model->block[b]);
	rh_free(model->block);
	rh_free(model->layer);
	rh_free(model);
}

/* Blocks that stay are told by `stays`; layers name them by their new numbers. */
static void keep_blocks(struct rh_model *model, int (*stays)(const struct rh_model *model, int block))
{
	int blocks = model->blocks, kept = 0;
	for (int b = 0; b < blocks; b++) {
		int is_kept = stays(model, b);
		for (int l = 0; l < model->layers; l++)
			for (int which = 0; which < RH_LAYER_BLOCKS; which++)
				if (model->layer[l].block[which] == b) /* what is kept is at most b: no later block's number */
					model->layer[l].block[which] = is_kept ? kept : -1;
		if (is_kept)
			model->block[kept++] = model->block[b];
		else
			free_block(&model->block[b]);
	}
	model->blocks = kept;
}

static int is_used(const struct rh_model *model, int block)
{
	int is = 0;
	for (int l = 0; l < model->layers; l++)
		is |= rh_layer_has_block(&model->layer[l], block);
	return is;
}

static int is_trained(const struct rh_model *model, int block)
{
	return model->block[block].trainable;
}

static void note_shared(struct rh_model *model)
{
	for (int b = 0; b < model->blocks; b++) {
		struct rh_block *block = &model->block[b];
		if (block->uses == 2 && block->trainable && rh_model_is_part(model))
			block->shared = rh_model_has_head(model) ? RH_SHARED_BY_HEAD : RH_SHARED_BY_EMBEDDING;
	}
}

int rh_model_shared_block(const struct rh_model *model)
{
	int found = -1;
	for (int b = 0; b < model->blocks; b++)
		found = model->block[b].shared ? b : found;
	return found;
}

void rh_model_keep(struct rh_model *model, int lo, int hi)
{
	RH_ASSERT(lo >= 0 && lo < hi && hi <= model->layers && !model->first_layer);
	model->layers = hi - lo;
	model->first_layer = lo;
	model->first_trained -= lo;
	memmove(model->layer, model->layer + lo, (size_t)model->layers * sizeof *model->layer);
	keep_blocks(model, is_used);
	note_shared(model);
}

void rh_model_keep_above(struct rh_model *model, int lo)
{
	rh_model_keep(model, lo, model->layers);
	model->first_trained = model_lowest_trained(model);
}

void rh_model_keep_trained(struct rh_model *model)
{
	keep_blocks(model, is_trained);
}

void rh_model_spare_embeddings(struct rh_model *model)
{
	for (int b = 0; b < model->blocks; b++) {
		struct rh_block *block = &model->block[b];
		const int *of = model->layer[0].block;
		int is_of_embedding = rh_model_has_embedding(model) && (b == of[RH_BLOCK_BASE] || b == of[RH_BLOCK_TABLE]);
		for (int t = 0; t < block->tensors && (is_of_embedding || block->uses > 1); t++)
			block->tensor[t].decays = 0;
	}
}

void rh_model_freeze(struct rh_model *model)
{
	for (int b = 0; b < model->blocks; b++)
		model->block[b].trainable = 0;
}

static int same_forms(const struct rh_block *a, const struct rh_block *b)
{
	int same = a->packed_bytes == b->packed_bytes && a->tensors == b->tensors;
	for (int t = 0; same && a->packed_bytes && t < a->tensors; t++)
		same = a->tensor[t].form == b->tensor[t].form;
	return same;
}

static int same_block(const struct rh_model *model, int a, int b)
{
	if (a < 0 || b < 0)
		return a == b;
	return same_forms(&model->block[a], &model->block[b]) && model->block[a].elements == model->block[b].elements &&
	       model->block[a].trainable == model->block[b].trainable;
}

static int same_traits(const struct rh_traits *a, const struct rh_traits *b, enum rh_alike in)
{
	struct rh_traits other = *b;
	if (in == RH_ALIKE_IN_BYTES)
		other.window = a->window;
	if (in == RH_ALIKE_IN_BYTES && a->rope >= 0 && b->rope >= 0)
		other.rope = a->rope;
	return rh_traits_equal(a, &other);
}

int rh_layers_alike(const struct rh_model *model, int a, int b, enum rh_alike in)
{
	const struct rh_layer *x = &model->layer[a], *y = &model->layer[b];
	return x->kind == y->kind && x->width == y->width && !memcmp(x->side, y->side, sizeof x->side) &&
	       same_block(model, x->block[0], y->block[0]) && same_block(model, x->block[RH_BLOCK_ADAPTER], y->block[RH_BLOCK_ADAPTER]) &&
	       same_block(model, x->block[RH_BLOCK_TABLE], y->block[RH_BLOCK_TABLE]) && !memcmp(x->use, y->use, sizeof x->use) &&
	       same_traits(&x->traits, &y->traits, in) && !memcmp(x->norm, y->norm, sizeof x->norm) && x->scalar == y->scalar &&
	       !memcmp(x->own, y->own, sizeof x->own) && !memcmp(x->routed, y->routed, sizeof x->routed) &&
	       !memcmp(x->proj, y->proj, sizeof x->proj) && !memcmp(&x->on_table, &y->on_table, sizeof x->on_table) && x->head == y->head &&
	       x->head_bias == y->head_bias && x->table == y->table && x->bias_table == y->bias_table && x->positions == y->positions &&
	       x->types == y->types;
}

void rh_model_parameters(const struct rh_model *model, int64_t *trainable, int64_t *all)
{
	*trainable = *all = 0;
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; t < model->block[b].tensors; t++) {
			const struct rh_tensor *tensor = &model->block[b].tensor[t];
			int64_t elements = tensor->parts ? tensor->cols : tensor->rows * tensor->cols;
			*all += elements;
			*trainable += model->block[b].trainable && !tensor->parts ? elements : 0;
		}
}

static float normal(struct rh_philox_block bits, int which)
{
	/* Box-Muller on two of the four words; 1 - unit is in (0, 1]. */
	float radius = sqrtf(-2 * logf(1 - rh_philox_unit(bits.word[0])));
	float angle = 6.28318530718f * rh_philox_unit(bits.word[1]);
	return which ? radius * sinf(angle) : radius * cosf(angle);
}

void rh_model_initial(const struct rh_model *model, uint64_t seed, int block, int tensor, int64_t first, int64_t count, float *out)
{
	const struct rh_tensor *t = &model->block[block].tensor[tensor];
	for (int64_t i = 0; i < count; i++) {
		if (t->initial.kind == RH_INITIAL_CONSTANT) {
			out[i] = t->initial.value;
			continue;
		}
		uint64_t element = (uint64_t)(first + i);
		struct rh_philox_block bits = rh_philox(seed, (uint32_t)element, (uint32_t)(element >> 32),
		                                        (uint32_t)(model->block[block].number * MODEL_TENSORS + tensor % MODEL_TENSORS) |
		                                                (uint32_t)(tensor / MODEL_TENSORS) << 20,
		                                        RH_PHILOX_INIT);
		float unit = rh_philox_unit(bits.word[0]);
		if (t->initial.kind == RH_INITIAL_LOG_UNIFORM)
			out[i] = logf(0.01f + unit * (t->initial.value - 0.01f));
		else
			out[i] = t->initial.value * (t->initial.kind == RH_INITIAL_UNIFORM ? 2 * unit - 1 : normal(bits, 0));
	}
}
