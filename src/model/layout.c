/* Which tensors a model has and where they lie in its blocks. Names come from the family (family.h), sizes from each layer's traits. */
#include "model/half.h"

#include "core/alloc.h"
#include "core/arena.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { EXPERT_TENSORS = 3 };

static void begin_block(const struct rh_model_config *config, struct layout *at, struct rh_block *block, int trainable, const char *name,
                        int64_t experts)
{
	*at = (struct layout){.block = block,
	                      .prefix = "",
	                      .deviation = (float)config->initializer_range,
	                      .capacity = MODEL_TENSORS + (int)experts * EXPERT_TENSORS};
	block->trainable = trainable;
	block->uses = 1;
	block->name = rh_strdup(name);
	block->tensor = rh_alloc((size_t)at->capacity, sizeof *block->tensor);
	if (!block->name || !block->tensor)
		at->fault = -ENOMEM;
}

void layout_align(struct layout *at)
{
	at->block->elements = rh_align_up(at->block->elements, MODEL_GAP);
	at->joins = 0;
}

int layout_place(struct layout *at, const char *module, const char *kind, int rank, int64_t rows, int64_t cols)
{
	struct rh_block *block = at->block;
	char name[LAYOUT_NAME_BYTES];
	if (at->fault)
		return 0;
	RH_ASSERT(block->tensors < at->capacity);
	snprintf(name, sizeof name, kind ? "%s%s.%s" : "%s%s", at->prefix, module, kind);
	struct rh_tensor *tensor = &block->tensor[block->tensors];
	*tensor = (struct rh_tensor){.name = rh_strdup(name),
	                             .rows = rows,
	                             .cols = cols,
	                             .offset = block->elements,
	                             .joins = at->joins,
	                             .decays = rank == 2,
	                             .rank = rank,
	                             .initial = {RH_INITIAL_NORMAL, at->deviation}};
	if (!tensor->name) {
		at->fault = -ENOMEM;
		return 0;
	}
	block->elements += rows * cols;
	at->joins = 1;
	return block->tensors++;
}

int layout_place_matrix(struct layout *at, const char *module, const char *kind, int64_t rows, int64_t cols)
{
	int tensor = layout_place(at, module, kind, 2, rows, cols);
	if (!at->fault)
		at->block->tensor[tensor].may_pack = 1;
	return tensor;
}

static int place_table(struct layout *at, const char *module, int64_t rows, int64_t cols)
{
	int tensor = layout_place_matrix(at, module, "weight", rows, cols);
	if (!at->fault)
		at->block->tensor[tensor].is_table = 1;
	return tensor;
}

static void start_from(struct layout *at, int tensor, struct rh_initial initial)
{
	if (!at->fault)
		at->block->tensor[tensor].initial = initial;
}

int layout_place_bias(struct layout *at, const char *module, const char *kind, int rank, int64_t rows, int64_t cols)
{
	layout_align(at);
	int tensor = layout_place(at, module, kind, rank, rows, cols);
	start_from(at, tensor, (struct rh_initial){RH_INITIAL_CONSTANT, 0});
	if (!at->fault)
		at->block->tensor[tensor].decays = 0;
	return tensor;
}

int layout_place_norm(struct layout *at, const char *module, enum rh_norm_kind kind, int64_t length)
{
	layout_align(at);
	int tensor = layout_place(at, module, "weight", 1, 1, length);
	start_from(at, tensor, (struct rh_initial){RH_INITIAL_CONSTANT, kind == RH_NORM_RMS_PLUS_ONE ? 0 : 1});
	if (kind == RH_NORM_LAYER)
		(void)layout_place_bias(at, module, "bias", 1, 1, length);
	return tensor;
}

static int end_block(struct layout *at)
{
	layout_align(at);
	return at->fault;
}

static void layer_prefix(const struct rh_family_names *names, int index, char *out, size_t size)
{
	snprintf(out, size, "%s%d.", names->layers, index);
}

static int has_bias(const struct rh_model_config *config, int proj)
{
	return proj <= RH_PROJ_V ? config->attention_bias : proj == RH_PROJ_O ? config->attention_output_bias : config->mlp_bias;
}

static void lay_out_norms(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at)
{
	const struct rh_family_names *names = rh_model_names(config);
	for (int n = 0; n < RH_NORMS; n++) {
		layer->norm[n] = -1;
		if (!names->norm[n] || (n == RH_NORM_AFTER_PER_LAYER && !layer->traits.per_layer))
			continue;
		layer->norm[n] = layout_place_norm(at, names->norm[n], layer->traits.norm, layer->width);
	}
	layer->scalar = -1;
	if (!layer->traits.is_scaled)
		return;
	layer->scalar = layout_place_bias(at, names->layer_scalar, NULL, 1, 1, 1); /* neither decayed nor trained: it has no gradient */
	start_from(at, layer->scalar, (struct rh_initial){RH_INITIAL_CONSTANT, 1});
}

static int place_linear(const struct rh_model_config *config, struct layout *at, const char *module, int proj,
                        const struct rh_linear *linear)
{
	int tensor = layout_place_matrix(at, module, "weight", linear->outputs, linear->inputs);
	if (at->fault)
		return tensor;
	at->block->tensor[tensor].groups = linear->groups;
	if (config->family->transposes_linears)
		at->block->tensor[tensor].transposed = 1;
	if (config->family->shrinks_residuals && (proj == RH_PROJ_O || proj == RH_PROJ_DOWN))
		at->block->tensor[tensor].initial.value /= sqrtf(2 * (float)config->num_hidden_layers);
	return tensor;
}

static const char *name_of(const struct rh_family_names *names, const struct rh_layer *layer, int proj)
{
	return rh_proj_name(names, layer->traits.mixer, layer->traits.mlp, proj);
}

void layout_size(const struct rh_model_config *config, struct rh_layer *layer, int proj, int64_t inputs, int64_t outputs, int joins)
{
	int named = proj;
	layer->proj[proj].inputs = inputs;
	layer->proj[proj].joins = joins;
	if (proj == RH_PROJ_O || proj == RH_PROJ_DOWN)
		layer->proj[proj].factor = (float)config->residual_factor;
	while (layer->proj[named].joins && !name_of(rh_model_names(config), layer, named))
		named--;
	layer->proj[named].outputs += outputs;
}

void layout_weights(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, int first, int count)
{
	for (int p = first; p < first + count; p++) {
		struct rh_linear *linear = &layer->proj[p];
		if (!linear->outputs)
			continue;
		if (!linear->joins)
			layout_align(at);
		linear->weight = place_linear(config, at, name_of(rh_model_names(config), layer, p), p, linear);
	}
}

void layout_biases(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, int first, int count)
{
	for (int p = first; p < first + count; p++) {
		struct rh_linear *linear = &layer->proj[p];
		if (!linear->outputs || !has_bias(config, p))
			continue;
		if (!linear->joins)
			layout_align(at);
		linear->bias = layout_place(at, name_of(rh_model_names(config), layer, p), "bias", 1, 1, linear->outputs);
		start_from(at, linear->bias, (struct rh_initial){RH_INITIAL_CONSTANT, 0});
	}
}

static int lay_out_base(const struct rh_model_config *config, int index, int trainable, struct rh_layer *layer, struct rh_block *block)
{
	struct layout at;
	char name[32], prefix[64];
	snprintf(name, sizeof name, "layer %d", index);
	layer_prefix(rh_model_names(config), index, prefix, sizeof prefix);
	begin_block(config, &at, block, trainable, name, layer->traits.experts);
	at.prefix = prefix;
	lay_out_norms(config, layer, &at);
	for (int kind = HALF_NORMS; kind <= HALF_BIASES; kind++)
		for (int which = 0; which < RH_HALVES && half_of(layer, (enum rh_half_place)which); which++)
			half_of(layer, (enum rh_half_place)which)->place(config, layer, &at, (enum half_tensors)kind);
	return end_block(&at);
}

void layout_place_adapter(struct layout *at, const char *module, struct rh_linear *linear, int64_t count, double scale)
{
	linear->scale = (float)scale;
	layout_align(at);
	linear->lora_a = layout_place(at, module, "lora_A.weight", 2, count * linear->r, linear->inputs);
	start_from(at, linear->lora_a, (struct rh_initial){RH_INITIAL_UNIFORM, 1 / sqrtf((float)linear->inputs)});
	layout_align(at);
	linear->lora_b = layout_place(at, module, "lora_B.weight", 2, count * linear->outputs, linear->r);
	at->block->tensor[linear->lora_b].is_lora_b = 1;
	at->block->tensor[linear->lora_b].groups = linear->groups;
	start_from(at, linear->lora_b, (struct rh_initial){RH_INITIAL_CONSTANT, 0});
	if (!at->fault && count > 1)
		at->block->tensor[linear->lora_b].interleaved = count;
}

/* PEFT's optimizers treat it as a B: it has weight decay, and LoRA+'s rate. Its values follow from the weights (session/dora.c). */
static void place_magnitude(struct layout *at, const char *module, struct rh_linear *linear)
{
	layout_align(at);
	linear->magnitude = layout_place(at, module, "lora_magnitude_vector", 1, 1, linear->outputs);
	start_from(at, linear->magnitude, (struct rh_initial){RH_INITIAL_CONSTANT, 1});
	if (at->fault)
		return;
	at->block->tensor[linear->magnitude].decays = 1;
	at->block->tensor[linear->magnitude].groups = linear->groups;
	at->block->tensor[linear->magnitude].is_lora_b = 1;
}

static int lay_out_adapter(const struct rh_model_config *config, const struct rh_lora_config *lora, int index, struct rh_layer *layer,
                           struct rh_block *block)
{
	struct layout at;
	char name[32], prefix[64], module[LAYOUT_NAME_BYTES];
	snprintf(name, sizeof name, "adapter %d", index);
	begin_block(config, &at, block, 1, name, 0);
	at.prefix = "base_model.model.";
	layer_prefix(rh_model_modules(config), index, prefix, sizeof prefix);
	for (int p = 0; p < RH_PROJS; p++) {
		struct rh_linear *linear = &layer->proj[p];
		double scale = 0;
		if (linear->weight < 0)
			continue;
		snprintf(module, sizeof module, "%s%s", p == RH_PROJ_PER_LAYER_INPUTS ? "" : prefix,
		         name_of(rh_model_modules(config), layer, p));
		int rc = lora->module(lora->context, module, &linear->r, &scale);
		if (rc)
			at.fault = rc;
		if (linear->r && !at.fault)
			layout_place_adapter(&at, module, linear, 1, scale);
		if (linear->r && lora->dora && !at.fault)
			place_magnitude(&at, module, linear);
	}
	for (int which = 0; which < RH_HALVES; which++) {
		const struct rh_half *half = half_of(layer, (enum rh_half_place)which);
		if (half && half->place_adapters)
			half->place_adapters(config, lora, prefix, layer, &at);
	}
	return end_block(&at);
}

/* One tensor of the files, (rows,cols) here. */
static int place_shaped(struct layout *at, const char *module, const char *kind, int64_t rows, int64_t cols, const int64_t file_shape[4])
{
	layout_align(at);
	int tensor = layout_place(at, module, kind, 2, rows, cols);
	if (!at->fault)
		memcpy(at->block->tensor[tensor].file_shape, file_shape, sizeof at->block->tensor[tensor].file_shape);
	return tensor;
}

/* The table of an image's tokens: the class token, and right behind it the bias of the patches' linear, for those that are patches. */
static void place_image_tokens(const struct rh_model_config *config, int64_t hidden, struct layout *at)
{
	const struct rh_family_names *names = rh_model_names(config);
	(void)place_shaped(at, names->embedding, NULL, 1, hidden, (int64_t[4]){1, 1, hidden});
	start_from(at, layout_place(at, names->patches, "bias", 1, 1, hidden), (struct rh_initial){RH_INITIAL_CONSTANT, 0});
}

/* The patches' linear, in files a convolution whose strides are the patch's sides. */
static void place_patches(const struct rh_model_config *config, int64_t hidden, struct layout *at, struct rh_linear *linear)
{
	int64_t side = config->patch_size;
	*linear = (struct rh_linear){
	        .inputs = rh_model_patch(config), .outputs = hidden, .bias = -1, .lora_a = -1, .lora_b = -1, .magnitude = -1};
	linear->weight = place_shaped(at, rh_model_names(config)->patches, "weight", linear->outputs, linear->inputs,
	                              (int64_t[4]){linear->outputs, config->num_channels, side, side});
}

static int saves(const struct rh_lora_config *lora, const char *module)
{
	return lora && lora->saves && lora->saves(lora->context, module);
}

/* Rank and scale of the adapter that a table's module has in training; r 0: none. */
static int table_rank(const struct rh_lora_config *lora, const char *module, int64_t *r, double *scale)
{
	*r = 0;
	return lora && lora->adapts_tables && module ? lora->module(lora->context, module, r, scale) : 0;
}

static void begin_table_adapter(struct rh_model *model, struct layout *at, struct rh_layer *layer, const char *name)
{
	begin_block(model->config, at, &model->block[model->blocks], 1, name, 0);
	at->prefix = "base_model.model.";
	layer->block[RH_BLOCK_ADAPTER] = model->blocks++;
}

/* Of the embedding's table, which may be the head's too: then the two adapters are one, which begins as a linear's does (PEFT's
 * ensure_weight_tying). */
static int lay_out_embedding_adapter(struct rh_model *model, const struct rh_lora_config *lora)
{
	const struct rh_model_config *config = model->config;
	const struct rh_family_names *names = rh_model_names(config);
	struct rh_layer *layer = &model->layer[0];
	struct rh_linear *linear = &layer->on_table;
	struct layout at;
	double scale = 0;
	int rc = model->block[layer->block[RH_BLOCK_BASE]].whole ? 0 : table_rank(lora, names->embedding, &linear->r, &scale);
	if (rc || !linear->r)
		return rc;
	if (names->positions || names->types || names->embedding_norm || names->patches)
		return rh_fail(-EINVAL,
		               "lora_target_modules means %s too, a table beside others, whose adapter is not built; name others, such as "
		               "query and value",
		               names->embedding);
	begin_table_adapter(model, &at, layer, "embedding adapter");
	at.block->uses = rh_model_ties(config) ? 2 : 1;
	linear->scale = (float)scale;
	linear->inputs = config->vocab_size;
	linear->outputs = layer->width;
	linear->lora_a = layout_place(&at, names->embedding, "lora_embedding_A", 2, linear->inputs, linear->r);
	start_from(&at, linear->lora_a, (struct rh_initial){RH_INITIAL_CONSTANT, 0});
	if (!at.fault)
		at.block->tensor[linear->lora_a].transposed = 1;
	layout_align(&at);
	linear->lora_b = layout_place(&at, names->embedding, "lora_embedding_B", 2, linear->outputs, linear->r);
	start_from(&at, linear->lora_b,
	           rh_model_ties(config) ? (struct rh_initial){RH_INITIAL_UNIFORM, 1 / sqrtf((float)linear->outputs)}
	                                 : (struct rh_initial){RH_INITIAL_NORMAL, 1});
	return end_block(&at);
}

/* Of the head's matrix: the embedding's, where that is the head's matrix too. */
static int lay_out_head_adapter(struct rh_model *model, const struct rh_lora_config *lora, struct rh_layer *layer)
{
	const struct rh_model_config *config = model->config;
	const char *module = rh_model_names(config)->head;
	struct layout at;
	double scale = 0;
	if (rh_model_ties(config)) {
		layer->on_table = model->layer[0].on_table;
		layer->block[RH_BLOCK_ADAPTER] = model->layer[0].block[RH_BLOCK_ADAPTER];
		layer->use[RH_BLOCK_ADAPTER] = layer->on_table.r != 0;
		return 0;
	}
	int rc = layer->block[RH_BLOCK_TABLE] >= 0 ? 0 : table_rank(lora, module, &layer->on_table.r, &scale);
	if (rc || !layer->on_table.r)
		return rc;
	layer->on_table.inputs = layer->width;
	layer->on_table.outputs = rh_model_outputs(config);
	begin_table_adapter(model, &at, layer, "head adapter");
	layout_place_adapter(&at, module, &layer->on_table, 1, scale);
	return end_block(&at);
}

/* The wide table of layers' own inputs, in a block of its own. */
static int lay_out_inputs_table(struct rh_model *model, const struct rh_lora_config *lora)
{
	const struct rh_model_config *config = model->config;
	const char *module = rh_model_names(config)->inputs_table;
	struct layout at;
	int64_t r = 0;
	double scale;
	int rc = lora ? lora->module(lora->context, module, &r, &scale) : 0;
	if (!rc && (r || saves(lora, module)))
		rc = rh_fail(-EINVAL, "lora_target_modules or modules_to_save mean %s too, which adapters leave as it is here; name others",
		             module);
	if (rc)
		return rc;
	begin_block(config, &at, &model->block[model->blocks], !lora, "layers' inputs", 0);
	at.block->is_wide = 1;
	model->layer[0].block[RH_BLOCK_TABLE] = model->blocks++;
	(void)layout_place(&at, module, "weight", 2, config->layer_input_rows, config->num_hidden_layers * config->layer_input_size);
	return end_block(&at);
}

static int lay_out_embedding(struct rh_model *model, const struct rh_lora_config *lora)
{
	const struct rh_model_config *config = model->config;
	struct layout at;
	const struct rh_family_names *names = rh_model_names(config);
	int is_whole = saves(lora, names->embedding) || (rh_model_ties(config) && saves(lora, names->head));
	begin_block(config, &at, &model->block[model->blocks], !lora || is_whole, "embedding", 0);
	at.block->whole = is_whole;
	at.block->uses = rh_model_ties(config) ? 2 : 1;
	struct rh_layer *layer = &model->layer[0];
	*layer = (struct rh_layer){.kind = RH_LAYER_EMBEDDING,
	                           .block = {model->blocks++, -1, -1},
	                           .traits = rh_traits_of(config, 0),
	                           .width = config->hidden_size,
	                           .norm = {-1, -1, -1, -1, -1},
	                           .positions = -1,
	                           .types = -1};
	if (names->patches)
		place_image_tokens(config, layer->width, &at);
	else if (config->embedding_scale == 0)
		place_table(&at, names->embedding, config->vocab_size, layer->width);
	else /* rows of a packed table are not scaled */
		layout_place(&at, names->embedding, "weight", 2, config->vocab_size, layer->width);
	layout_align(&at);
	if (names->patches)
		layer->positions = place_shaped(&at, names->positions, NULL, config->max_position_embeddings, layer->width,
		                                (int64_t[4]){1, config->max_position_embeddings, layer->width});
	else if (names->positions)
		layer->positions = layout_place(&at, names->positions, "weight", 2, config->max_position_embeddings, layer->width);
	layout_align(&at);
	if (names->types)
		layer->types = layout_place(&at, names->types, "weight", 2, config->types, layer->width);
	if (names->patches)
		place_patches(config, layer->width, &at, &layer->proj[RH_PROJ_O]);
	if (names->embedding_norm)
		layer->norm[RH_NORM_FINAL] = layout_place_norm(&at, names->embedding_norm, layer->traits.norm, layer->width);
	int rc = end_block(&at);
	if (!rc && config->layer_input_size)
		rc = lay_out_inputs_table(model, lora);
	return rc ? rc : lay_out_embedding_adapter(model, lora);
}

/* A linear of the head, its weights here and its bias behind them. */
static void place_dense(int64_t hidden, struct layout *at, const char *module, struct rh_linear *linear)
{
	layout_align(at);
	linear->inputs = linear->outputs = hidden;
	linear->weight = layout_place(at, module, "weight", 2, linear->outputs, linear->inputs);
	linear->bias = layout_place_bias(at, module, "bias", 1, 1, linear->outputs);
}

/* The head's matrix in a block of its own, which adapters leave trainable: one that is trained whole, or a classifier, as it is new, or its
 * labels are. */
static int lay_out_own_matrix(struct rh_model *model, struct rh_layer *layer, const char *name, const char *module)
{
	const struct rh_model_config *config = model->config;
	int is_classifier = rh_model_task(config)->classifier != NULL;
	struct layout at;
	begin_block(config, &at, &model->block[model->blocks], 1, name, 0);
	at.block->whole = model->lora;
	layer->block[RH_BLOCK_TABLE] = model->blocks++;
	layer->table = RH_BLOCK_TABLE;
	layer->head = layout_place(&at, module, "weight", 2, rh_model_outputs(config), layer->width);
	if (is_classifier) {
		layer->bias_table = RH_BLOCK_TABLE;
		layer->head_bias = layout_place_bias(&at, module, "bias", 1, 1, rh_model_outputs(config));
	}
	return end_block(&at);
}

/* The head's own linear has no adapter: a target that means it is refused, as PEFT would expect one in the file. */
static int check_dense(const struct rh_lora_config *lora, const char *dense)
{
	int64_t r = 0;
	double scale;
	int rc = lora && dense ? lora->module(lora->context, dense, &r, &scale) : 0;
	if (rc || !r)
		return rc;
	return rh_fail(-EINVAL,
	               "lora_target_modules means %s too, a layer of the head, whose adapter is not built yet; name others, such as query "
	               "and value",
	               dense);
}

static int lay_out_head(struct rh_model *model, const struct rh_lora_config *lora)
{
	const struct rh_model_config *config = model->config;
	const struct rh_family_names *names = rh_model_names(config);
	const struct rh_family_task *task = rh_model_task(config);
	struct rh_layer *layer = &model->layer[model->layers - 1];
	struct layout at;
	int is_whole = !rh_model_ties(config) && !task->classifier && saves(lora, names->head);
	begin_block(config, &at, &model->block[model->blocks], !lora, "head", 0);
	*layer = (struct rh_layer){.kind = RH_LAYER_HEAD,
	                           .block = {model->blocks++, -1, -1},
	                           .traits = layer[-1].traits,
	                           .width = layer[-1].width,
	                           .norm = {-1, -1, -1, -1, -1},
	                           .head_bias = -1};
	if (config->family->has_plain_final_norm)
		layer->traits.norm = RH_NORM_RMS;
	if (names->final_norm)
		layer->norm[RH_NORM_FINAL] = layout_place_norm(&at, names->final_norm, layer->traits.norm, layer->width);
	if (task->dense) {
		place_dense(layer->width, &at, task->dense, &layer->proj[RH_PROJ_O]);
		layer->traits.activation = task->activation;
	}
	if (task->norm)
		layer->norm[RH_NORM_DENSE] = layout_place_norm(&at, task->norm, layer->traits.norm, layer->width);
	if (task->bias)
		layer->head_bias = layout_place_bias(&at, task->bias, "bias", 1, 1, rh_model_outputs(config));
	if (rh_model_ties(config)) {
		layer->block[RH_BLOCK_TABLE] = model->layer[0].block[RH_BLOCK_BASE];
		layer->use[RH_BLOCK_TABLE] = 1;
		layer->table = RH_BLOCK_TABLE;
	} else if (!task->classifier && !is_whole) {
		layout_align(&at);
		layer->head = place_table(&at, names->head, config->vocab_size, layer->width);
	}
	int rc = end_block(&at);
	if (!rc)
		rc = check_dense(lora, task->dense);
	if (!rc && task->classifier)
		rc = lay_out_own_matrix(model, layer, "classifier", task->classifier);
	if (!rc && is_whole)
		rc = lay_out_own_matrix(model, layer, "head matrix", names->head);
	return rc ? rc : lay_out_head_adapter(model, lora, layer);
}

/* A layer without a targeted module has no adapter block. */
static void drop_block(struct rh_model *model)
{
	struct rh_block *block = &model->block[--model->blocks];
	rh_free(block->name);
	rh_free(block->tensor);
	*block = (struct rh_block){0};
}

static int site_of(int proj)
{
	if (proj >= RH_PROJ_PER_LAYER_GATE)
		return RH_SITE_PER_LAYER + proj - RH_PROJ_PER_LAYER_GATE;
	if (proj == RH_PROJ_FIFTH || proj == RH_PROJ_GATING)
		return proj == RH_PROJ_FIFTH ? RH_SITE_FIFTH : RH_SITE_GATING;
	return proj > RH_PROJ_FIFTH ? proj - 1 : proj;
}

static int lay_out_layer(struct rh_model *model, const struct rh_lora_config *lora, int index)
{
	const struct rh_model_config *config = model->config;
	struct rh_layer *layer = &model->layer[index + 1];
	*layer = (struct rh_layer){.kind = RH_LAYER_BLOCK,
	                           .block = {model->blocks, -1, -1},
	                           .traits = rh_traits_of(config, index),
	                           .width = config->hidden_size};
	for (int p = 0; p < RH_PROJS; p++)
		layer->proj[p] =
		        (struct rh_linear){.weight = -1, .bias = -1, .lora_a = -1, .lora_b = -1, .magnitude = -1, .site = site_of(p)};
	for (int which = 0; which < RH_HALVES; which++) {
		for (int t = 0; t < RH_HALF_TENSORS; t++)
			layer->own[which][t] = -1;
		if (half_of(layer, (enum rh_half_place)which))
			half_of(layer, (enum rh_half_place)which)->size(config, layer);
	}
	if (half_of(layer, RH_MIXER)->carries)
		layer->carried = half_of(layer, RH_MIXER)->carries(layer);
	int rc = lay_out_base(config, index, !lora, layer, &model->block[model->blocks++]);
	if (rc || !lora)
		return rc;
	rc = lay_out_adapter(config, lora, index, layer, &model->block[model->blocks++]);
	if (rc)
		return rc;
	if (model->block[model->blocks - 1].tensors == 0)
		drop_block(model);
	else
		layer->block[RH_BLOCK_ADAPTER] = model->blocks - 1;
	return 0;
}

/* "q_proj, k_proj": the last parts of the names of a layer's linears. */
static void list_modules(const struct rh_model_config *config, char *out, size_t size)
{
	const struct rh_family_names *names = rh_model_modules(config);
	size_t used = 0;
	for (int kind = RH_MIXER_ATTENTION; kind <= RH_MIXER_DELTA; kind += RH_MIXER_DELTA - RH_MIXER_ATTENTION)
		for (int p = 0; p < (kind == RH_MIXER_DELTA ? RH_PROJ_MLP : RH_PROJS) && used < size; p++) {
			const char *name = rh_proj_name(names, (enum rh_mixer_kind)kind, RH_MLP_SHARED, p);
			if (name && (p != RH_PROJ_GATING || config->experts) && (p < RH_PROJ_PER_LAYER_GATE || config->layer_input_size))
				used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "", rh_last_part(name));
		}
}

static int trains(const struct rh_model *model, const struct rh_layer *layer)
{
	int any = 0;
	for (int which = 0; which < RH_LAYER_BLOCKS; which++)
		any |= layer->block[which] >= 0 && model->block[layer->block[which]].trainable;
	return any;
}

int model_lowest_trained(const struct rh_model *model)
{
	int l = 0;
	while (l < model->layers && !trains(model, &model->layer[l]))
		l++;
	return l;
}

int64_t rh_model_cache_range(const struct rh_model *model, int lo, int hi, int64_t rows, int64_t *first)
{
	int64_t at = 0;
	int from = lo;
	*first = 0;
	if (!rows)
		return 0;
	for (int l = lo; l < hi; l++)
		from = l - model->layer[l].carried.below < from ? l - model->layer[l].carried.below : from;
	for (int l = 0; l < hi; l++) {
		const struct rh_carried *carried = &model->layer[l].carried;
		if (l == from)
			*first = at;
		if (!carried->below)
			at += rh_align_up(rh_dtype_bytes(model->dtype, rows * carried->columns) + carried->bytes, RH_ALIGN);
	}
	return at - *first;
}

int64_t rh_model_carried_back_bytes(const struct rh_model *model, int lo, int hi, int64_t rows, int chunks)
{
	int64_t bytes = 0;
	for (int l = lo; l < hi; l++)
		if (model->layer[l].kind == RH_LAYER_BLOCK)
			bytes += rh_align_up(rows * model->layer[l].carried.columns * 4, RH_ALIGN) +
			         rh_max(chunks - 1, 0) * model->layer[l].carried.bytes;
	return bytes;
}

int rh_model_carriers(const struct rh_model *model, int lo, int hi)
{
	int carriers = 0;
	for (int l = lo; l < hi; l++)
		carriers += model->layer[l].kind == RH_LAYER_BLOCK || model->layer[l].carried.columns;
	return carriers;
}

void rh_model_judge(struct rh_model *model, const struct rh_preference *preference)
{
	model->preference = *preference;
	model->dropout = 0;
	model->drop = (struct rh_model_dropout){0};
	struct rh_layer *head = &model->layer[model->layers - 1];
	if (head->kind == RH_LAYER_HEAD)
		head->carried.columns = (int64_t)sizeof(float) / rh_dtype_bytes(model->dtype, 1);
}

/* Does the adapter change a table that who loads the weights adds it to? */
static int changes_tables(const struct rh_model *model, const struct rh_lora_config *lora)
{
	const struct rh_family_names *names = rh_model_names(model->config);
	const char *modules[] = {names->embedding, names->head};
	int64_t r = 0;
	double scale;
	for (int i = 0; i < 2 && lora && !lora->adapts_tables && !r; i++)
		if (modules[i] && lora->module(lora->context, modules[i], &r, &scale))
			return 0; /* said where the model's modules are asked for */
	return r != 0;
}

static int borrows(const struct rh_layer *layer, int lane)
{
	return layer->kind == RH_LAYER_BLOCK && layer->traits.keys == RH_KEYS_BORROWED && layer->traits.lane == lane;
}

/* A lane begins with the layer that lends, and ends with the last one that borrows. */
static void note_sides(struct rh_model *model)
{
	int last[RH_LANES] = {0, 0};
	struct rh_side side = {.inputs = 0};
	for (int l = 0; l < model->layers; l++)
		for (int lane = 0; lane < RH_LANES; lane++)
			last[lane] = borrows(&model->layer[l], lane) ? l : last[lane];
	for (int l = 0; l < model->layers; l++) {
		struct rh_layer *layer = &model->layer[l];
		const struct rh_traits *traits = &layer->traits;
		layer->side[0] = side;
		if (layer->kind == RH_LAYER_BLOCK && traits->keys == RH_KEYS_LENT)
			side.lane[traits->lane] = 2 * traits->kv_heads * traits->head_dim;
		for (int lane = 0; lane < RH_LANES; lane++)
			side.lane[lane] = l == last[lane] ? 0 : side.lane[lane];
		side.inputs = layer->kind == RH_LAYER_HEAD ? 0 : (model->layers - 2 - l) * model->config->layer_input_size;
		layer->side[1] = side;
	}
}

int model_lay_out(struct rh_model *model, const struct rh_lora_config *lora)
{
	int rc = lay_out_embedding(model, lora), is_adapted = !lora || changes_tables(model, lora);
	for (int i = 0; !rc && i < (int)model->config->num_hidden_layers; i++)
		rc = lay_out_layer(model, lora, i);
	if (!rc)
		rc = lay_out_head(model, lora);
	for (int l = 0; !rc && l < model->layers; l++)
		is_adapted |= model->layer[l].block[RH_BLOCK_ADAPTER] >= 0;
	if (!rc && !is_adapted) {
		char modules[256];
		list_modules(model->config, modules, sizeof modules);
		rc = rh_fail(-EINVAL, "lora_target_modules names no module of this model; it has %s; all-linear is all of them", modules);
	}
	if (rc)
		return rc;
	note_sides(model);
	model->first_trained = model_lowest_trained(model);
	return 0;
}
