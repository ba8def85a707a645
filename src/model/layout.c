/* Which tensors a model has and where they lie in its blocks. Names come from the family (family.h), sizes from each layer's traits. */
#include "model/model_internal.h"

#include "core/alloc.h"
#include "core/arena.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 192, EXPERT_TENSORS = 3, GAP = 64 /* elements: 256 bytes of F32, 128 of bf16 */ };

/* Collects a block's tensors while it is laid out. */
struct layout {
	struct rh_block *block;
	const char *prefix;  /* of its tensors' names */
	float deviation;     /* of weights at random */
	int capacity, fault; /* most: tensors */
};

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

/* Where the next tensor may begin; tensors that follow without it lie back to back. */
static void align(struct layout *at)
{
	at->block->elements = rh_align_up(at->block->elements, GAP);
}

/* The tensor "<prefix><module>.<kind>", or without a kind "<prefix><module>"; returns its number. Those of rank 1 are norms and biases: no
 * weight decay. */
static int place(struct layout *at, const char *module, const char *kind, int rank, int64_t rows, int64_t cols)
{
	struct rh_block *block = at->block;
	char name[NAME_BYTES];
	if (at->fault)
		return 0;
	RH_ASSERT(block->tensors < at->capacity);
	snprintf(name, sizeof name, kind ? "%s%s.%s" : "%s%s", at->prefix, module, kind);
	struct rh_tensor *tensor = &block->tensor[block->tensors];
	*tensor = (struct rh_tensor){.name = rh_strdup(name),
	                             .rows = rows,
	                             .cols = cols,
	                             .offset = block->elements,
	                             .decays = rank == 2,
	                             .rank = rank,
	                             .initial = {RH_INITIAL_NORMAL, at->deviation}};
	if (!tensor->name) {
		at->fault = -ENOMEM;
		return 0;
	}
	block->elements += rows * cols;
	return block->tensors++;
}

static void start_from(struct layout *at, int tensor, struct rh_initial initial)
{
	if (!at->fault)
		at->block->tensor[tensor].initial = initial;
}

/* Aligned, in no matrix's decay, zeros. */
static int place_bias(struct layout *at, const char *module, const char *kind, int rank, int64_t rows, int64_t cols)
{
	align(at);
	int tensor = place(at, module, kind, rank, rows, cols);
	start_from(at, tensor, (struct rh_initial){RH_INITIAL_CONSTANT, 0});
	if (!at->fault)
		at->block->tensor[tensor].decays = 0;
	return tensor;
}

/* A norm's weight, and behind it the bias of a LayerNorm. */
static int place_norm(struct layout *at, const char *module, enum rh_norm_kind kind, int64_t length)
{
	align(at);
	int tensor = place(at, module, "weight", 1, 1, length);
	start_from(at, tensor, (struct rh_initial){RH_INITIAL_CONSTANT, kind == RH_NORM_RMS_PLUS_ONE ? 0 : 1});
	if (kind == RH_NORM_LAYER)
		(void)place_bias(at, module, "bias", 1, 1, length);
	return tensor;
}

static int end_block(struct layout *at)
{
	align(at);
	return at->fault;
}

const struct rh_joint_projections rh_joints[RH_JOINTS] = {[RH_JOINT_QKV] = {RH_PROJ_Q, 3},
                                                          [RH_JOINT_O] = {RH_PROJ_O, 1},
                                                          [RH_JOINT_GATE_UP] = {RH_PROJ_GATE, 2},
                                                          [RH_JOINT_DOWN] = {RH_PROJ_DOWN, 1}};

/* 1: the first projection of its product; the others' weights follow it back to back. */
static int leads(int proj)
{
	for (int j = 0; j < RH_JOINTS; j++)
		if ((int)rh_joints[j].first == proj)
			return 1;
	return 0;
}

/* A module that the family has no name for is part of the one before it of the same product. */
static void size_projections(const struct rh_model_config *config, struct rh_layer *layer)
{
	const struct rh_traits *traits = &layer->traits;
	int64_t q = traits->heads * traits->head_dim, kv = traits->kv_heads * traits->head_dim;
	int64_t h = layer->width, i = traits->intermediate;
	const int64_t in[RH_PROJS] = {h, h, h, q, h, h, i}, out[RH_PROJS] = {q, kv, kv, h, i, traits->ungated ? 0 : i, h};
	for (int p = 0, named = 0; p < RH_PROJS; p++) {
		layer->proj[p] = (struct rh_linear){.inputs = in[p], .weight = -1, .bias = -1, .lora_a = -1, .lora_b = -1, .site = p};
		if (traits->experts && p >= RH_PROJ_GATE)
			continue;
		named = rh_model_names(config)->proj[p] ? p : named;
		layer->proj[named].outputs += out[p];
	}
}

static void layer_prefix(const struct rh_family_names *names, int index, char *out, size_t size)
{
	snprintf(out, size, "%s%d.", names->layers, index);
}

/* One expert's matrix; `proj` names it. */
static int place_expert(struct layout *at, const struct rh_family_names *names, int64_t expert, enum rh_proj proj, int64_t out, int64_t in)
{
	char module[64];
	snprintf(module, sizeof module, "%s.%lld.%s", names->experts, (long long)expert, strchr(names->proj[proj], '.') + 1);
	return place(at, module, "weight", 2, out, in);
}

/* All experts' matrices, (out,in) one under another, in one tensor of the files, and their biases. */
static void lay_out_stacked_experts(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at)
{
	const struct rh_family_names *names = rh_model_names(config);
	int64_t experts = layer->traits.experts, wide = 2 * layer->traits.intermediate, hidden = layer->width;
	align(at);
	layer->experts_gate_up = place(at, names->experts_gate_up, NULL, 2, experts * wide, hidden);
	align(at);
	layer->experts_down = place(at, names->experts_down, NULL, 2, experts * hidden, layer->traits.intermediate);
	if (at->fault)
		return;
	at->block->tensor[layer->experts_gate_up].transposed = at->block->tensor[layer->experts_down].transposed = experts;
	at->block->tensor[layer->experts_gate_up].stacked = at->block->tensor[layer->experts_down].stacked = 1;
}

static void lay_out_expert_biases(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at)
{
	const struct rh_family_names *names = rh_model_names(config);
	int64_t experts = layer->traits.experts;
	char module[64];
	layer->router_bias = layer->gate_up_bias = layer->down_bias = -1;
	if (!layer->traits.expert_bias)
		return;
	layer->router_bias = place_bias(at, names->router, "bias", 1, 1, experts);
	snprintf(module, sizeof module, "%s_bias", names->experts_gate_up);
	layer->gate_up_bias = place_bias(at, module, NULL, 2, experts, 2 * layer->traits.intermediate);
	snprintf(module, sizeof module, "%s_bias", names->experts_down);
	layer->down_bias = place_bias(at, module, NULL, 2, experts, layer->width);
}

static void lay_out_experts(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at)
{
	const struct rh_family_names *names = rh_model_names(config);
	int64_t experts = layer->traits.experts, wide = layer->traits.intermediate, hidden = layer->width;
	layer->router = layer->experts_gate_up = layer->experts_down = -1;
	if (!experts)
		return;
	align(at);
	layer->router = place(at, names->router, "weight", 2, experts, hidden);
	if (names->experts_gate_up) {
		lay_out_stacked_experts(config, layer, at);
		return;
	}
	align(at);
	for (int64_t e = 0; e < experts; e++) {
		int gate = place_expert(at, names, e, RH_PROJ_GATE, wide, hidden);
		layer->experts_gate_up = e ? layer->experts_gate_up : gate;
		place_expert(at, names, e, RH_PROJ_UP, wide, hidden);
	}
	align(at);
	for (int64_t e = 0; e < experts; e++) {
		int down = place_expert(at, names, e, RH_PROJ_DOWN, hidden, wide);
		layer->experts_down = e ? layer->experts_down : down;
	}
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
		if (!names->norm[n])
			continue;
		layer->norm[n] = place_norm(at, names->norm[n], layer->traits.norm, layer->width);
	}
	layer->q_norm = layer->k_norm = -1;
	if (layer->traits.qk_norm) {
		layer->q_norm = place_norm(at, "self_attn.q_norm", layer->traits.norm, layer->traits.head_dim);
		layer->k_norm = place_norm(at, "self_attn.k_norm", layer->traits.norm, layer->traits.head_dim);
	}
}

static int place_linear(const struct rh_model_config *config, struct layout *at, int proj, const struct rh_linear *linear)
{
	int tensor = place(at, rh_model_names(config)->proj[proj], "weight", 2, linear->outputs, linear->inputs);
	if (at->fault)
		return tensor;
	if (config->family->transposes_linears)
		at->block->tensor[tensor].transposed = 1;
	if (config->family->shrinks_residuals && (proj == RH_PROJ_O || proj == RH_PROJ_DOWN))
		at->block->tensor[tensor].initial.value /= sqrtf(2 * (float)config->num_hidden_layers);
	return tensor;
}

static int lay_out_base(const struct rh_model_config *config, int index, int trainable, struct rh_layer *layer, struct rh_block *block)
{
	const struct rh_family_names *names = rh_model_names(config);
	struct layout at;
	char name[32], prefix[64];
	snprintf(name, sizeof name, "layer %d", index);
	layer_prefix(names, index, prefix, sizeof prefix);
	begin_block(config, &at, block, trainable, name, layer->traits.experts);
	at.prefix = prefix;
	lay_out_norms(config, layer, &at);
	for (int p = 0; p < RH_PROJS; p++) { /* weights */
		if (leads(p) && layer->proj[p].outputs)
			align(&at);
		if (layer->proj[p].outputs)
			layer->proj[p].weight = place_linear(config, &at, p, &layer->proj[p]);
	}
	lay_out_experts(config, layer, &at);
	lay_out_expert_biases(config, layer, &at);
	layer->sinks = -1;
	if (layer->traits.sinks) {
		align(&at);
		layer->sinks = place(&at, "self_attn.sinks", NULL, 1, 1, layer->traits.heads);
		at.block->tensor[layer->sinks].decays = 1; /* as transformers' trainer has it */
	}
	for (int p = 0; p < RH_PROJS; p++) { /* biases, in the same manner */
		if (!layer->proj[p].outputs || !has_bias(config, p))
			continue;
		if (leads(p))
			align(&at);
		layer->proj[p].bias = place(&at, names->proj[p], "bias", 1, 1, layer->proj[p].outputs);
		start_from(&at, layer->proj[p].bias, (struct rh_initial){RH_INITIAL_CONSTANT, 0});
	}
	return end_block(&at);
}

/* A and B of a linear, of `count` experts one under another, which are then one tensor each in the files. */
static void place_adapter(struct layout *at, const char *module, struct rh_linear *linear, int64_t count, double scale)
{
	linear->scale = (float)scale;
	align(at);
	linear->lora_a = place(at, module, "lora_A.weight", 2, count * linear->r, linear->inputs);
	start_from(at, linear->lora_a, (struct rh_initial){RH_INITIAL_UNIFORM, 1 / sqrtf((float)linear->inputs)});
	align(at);
	linear->lora_b = place(at, module, "lora_B.weight", 2, count * linear->outputs, linear->r);
	start_from(at, linear->lora_b, (struct rh_initial){RH_INITIAL_CONSTANT, 0});
	if (!at->fault && count > 1)
		at->block->tensor[linear->lora_b].interleaved = count;
}

/* "mlp.experts.down_proj" of a family, as transformers has it in memory, where all experts' matrices are one parameter. */
static void parameter_name(const struct rh_family_names *names, enum rh_routed which, char *out, size_t size)
{
	const char *stacked = which == RH_ROUTED_GATE_UP ? names->experts_gate_up : names->experts_down;
	if (which == RH_ROUTED_ROUTER)
		snprintf(out, size, "%s.weight", names->router);
	else if (stacked)
		snprintf(out, size, "%s", stacked);
	else
		snprintf(out, size, "%s.%s", names->experts, which == RH_ROUTED_GATE_UP ? "gate_up_proj" : "down_proj");
}

static void size_routed(struct rh_layer *layer)
{
	int64_t hidden = layer->width, wide = layer->traits.intermediate;
	const int64_t in[RH_ROUTED] = {hidden, hidden, wide}, out[RH_ROUTED] = {layer->traits.experts, 2 * wide, hidden};
	for (int w = 0; w < RH_ROUTED; w++) {
		layer->routed[w] = (struct rh_linear){.weight = -1, .bias = -1, .lora_a = -1, .lora_b = -1};
		if (layer->traits.experts)
			layer->routed[w].inputs = in[w], layer->routed[w].outputs = out[w];
	}
}

/* PEFT wraps the experts once for each of their parameters: the inner one's tensors are behind "base_layer". */
static void lay_out_routed_adapters(const struct rh_model_config *config, const struct rh_lora_config *lora, const char *prefix,
                                    struct rh_layer *layer, struct layout *at)
{
	const struct rh_family_names *names = rh_model_names(config);
	double scale[RH_ROUTED] = {0};
	char name[NAME_BYTES], parameter[64];
	for (int w = 0; w < RH_ROUTED && !at->fault; w++) {
		parameter_name(names, (enum rh_routed)w, parameter, sizeof parameter);
		snprintf(name, sizeof name, "%s%s", prefix, parameter);
		at->fault = lora->parameter(lora->context, name, &layer->routed[w].r, &scale[w]);
	}
	for (int w = 0; w < RH_ROUTED && !at->fault; w++) {
		if (!layer->routed[w].r)
			continue;
		parameter_name(names, (enum rh_routed)w, parameter, sizeof parameter);
		*strrchr(parameter, '.') = 0;
		snprintf(name, sizeof name, "%s%s%s", prefix, parameter,
		         w == RH_ROUTED_GATE_UP && layer->routed[RH_ROUTED_DOWN].r ? ".base_layer" : "");
		place_adapter(at, name, &layer->routed[w], w == RH_ROUTED_ROUTER ? 1 : layer->traits.experts, scale[w]);
	}
}

static int lay_out_adapter(const struct rh_model_config *config, const struct rh_lora_config *lora, int index, struct rh_layer *layer,
                           struct rh_block *block)
{
	struct layout at;
	char name[32], prefix[64], module[NAME_BYTES];
	snprintf(name, sizeof name, "adapter %d", index);
	begin_block(config, &at, block, 1, name, 0);
	at.prefix = "base_model.model.";
	layer_prefix(rh_model_modules(config), index, prefix, sizeof prefix);
	for (int p = 0; p < RH_PROJS; p++) {
		struct rh_linear *linear = &layer->proj[p];
		double scale = 0;
		if (linear->weight < 0)
			continue;
		snprintf(module, sizeof module, "%s%s", prefix, rh_model_modules(config)->proj[p]);
		int rc = lora->module(lora->context, module, &linear->r, &scale);
		if (rc)
			at.fault = rc;
		if (linear->r && !at.fault)
			place_adapter(&at, module, linear, 1, scale);
	}
	if (layer->traits.experts && lora->parameter)
		lay_out_routed_adapters(config, lora, prefix, layer, &at);
	return end_block(&at);
}

/* One tensor of the files, (rows,cols) here. */
static int place_shaped(struct layout *at, const char *module, const char *kind, int64_t rows, int64_t cols, const int64_t file_shape[4])
{
	align(at);
	int tensor = place(at, module, kind, 2, rows, cols);
	if (!at->fault)
		memcpy(at->block->tensor[tensor].file_shape, file_shape, sizeof at->block->tensor[tensor].file_shape);
	return tensor;
}

/* The table of an image's tokens: the class token, and right behind it the bias of the patches' linear, for those that are patches. */
static void place_image_tokens(const struct rh_model_config *config, int64_t hidden, struct layout *at)
{
	const struct rh_family_names *names = rh_model_names(config);
	(void)place_shaped(at, names->embedding, NULL, 1, hidden, (int64_t[4]){1, 1, hidden});
	start_from(at, place(at, names->patches, "bias", 1, 1, hidden), (struct rh_initial){RH_INITIAL_CONSTANT, 0});
}

/* The patches' linear, in files a convolution whose strides are the patch's sides. */
static void place_patches(const struct rh_model_config *config, int64_t hidden, struct layout *at, struct rh_linear *linear)
{
	int64_t side = config->patch_size;
	*linear = (struct rh_linear){.inputs = rh_model_patch(config), .outputs = hidden, .bias = -1, .lora_a = -1, .lora_b = -1};
	linear->weight = place_shaped(at, rh_model_names(config)->patches, "weight", linear->outputs, linear->inputs,
	                              (int64_t[4]){linear->outputs, config->num_channels, side, side});
}

static int saves(const struct rh_lora_config *lora, const char *module)
{
	return lora && lora->saves && lora->saves(lora->context, module);
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
	                           .block = {model->blocks++, -1},
	                           .traits = rh_traits_of(config, 0),
	                           .width = config->hidden_size,
	                           .norm = {-1, -1, -1, -1},
	                           .positions = -1,
	                           .types = -1};
	if (names->patches)
		place_image_tokens(config, layer->width, &at);
	else
		place(&at, names->embedding, "weight", 2, config->vocab_size, layer->width);
	align(&at);
	if (names->patches)
		layer->positions = place_shaped(&at, names->positions, NULL, config->max_position_embeddings, layer->width,
		                                (int64_t[4]){1, config->max_position_embeddings, layer->width});
	else if (names->positions)
		layer->positions = place(&at, names->positions, "weight", 2, config->max_position_embeddings, layer->width);
	align(&at);
	if (names->types)
		layer->types = place(&at, names->types, "weight", 2, config->types, layer->width);
	if (names->patches)
		place_patches(config, layer->width, &at, &layer->proj[RH_PROJ_O]);
	if (names->embedding_norm)
		layer->norm[RH_NORM_FINAL] = place_norm(&at, names->embedding_norm, layer->traits.norm, layer->width);
	return end_block(&at);
}

/* A linear of the head, its weights here and its bias behind them. */
static void place_dense(int64_t hidden, struct layout *at, const char *module, struct rh_linear *linear)
{
	align(at);
	linear->inputs = linear->outputs = hidden;
	linear->weight = place(at, module, "weight", 2, linear->outputs, linear->inputs);
	linear->bias = place_bias(at, module, "bias", 1, 1, linear->outputs);
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
	layer->block[1] = model->blocks++;
	layer->table = 1;
	layer->head = place(&at, module, "weight", 2, rh_model_outputs(config), layer->width);
	if (is_classifier) {
		layer->bias_table = 1;
		layer->head_bias = place_bias(&at, module, "bias", 1, 1, rh_model_outputs(config));
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
	                           .block = {model->blocks++, -1},
	                           .traits = layer[-1].traits,
	                           .width = layer[-1].width,
	                           .norm = {-1, -1, -1, -1},
	                           .head_bias = -1};
	if (names->final_norm)
		layer->norm[RH_NORM_FINAL] = place_norm(&at, names->final_norm, layer->traits.norm, layer->width);
	if (task->dense) {
		place_dense(layer->width, &at, task->dense, &layer->proj[RH_PROJ_O]);
		layer->traits.activation = task->activation;
	}
	if (task->norm)
		layer->norm[RH_NORM_DENSE] = place_norm(&at, task->norm, layer->traits.norm, layer->width);
	if (task->bias)
		layer->head_bias = place_bias(&at, task->bias, "bias", 1, 1, rh_model_outputs(config));
	if (rh_model_ties(config)) {
		layer->block[1] = model->layer[0].block[0];
		layer->use[1] = layer->table = 1;
	} else if (!task->classifier && !is_whole) {
		align(&at);
		layer->head = place(&at, names->head, "weight", 2, config->vocab_size, layer->width);
	}
	int rc = end_block(&at);
	if (!rc)
		rc = check_dense(lora, task->dense);
	if (!rc && task->classifier)
		rc = lay_out_own_matrix(model, layer, "classifier", task->classifier);
	if (!rc && is_whole)
		rc = lay_out_own_matrix(model, layer, "head matrix", names->head);
	return rc;
}

/* A layer without a targeted module has no adapter block. */
static void drop_block(struct rh_model *model)
{
	struct rh_block *block = &model->block[--model->blocks];
	rh_free(block->name);
	rh_free(block->tensor);
	*block = (struct rh_block){0};
}

static int lay_out_layer(struct rh_model *model, const struct rh_lora_config *lora, int index)
{
	const struct rh_model_config *config = model->config;
	struct rh_layer *layer = &model->layer[index + 1];
	*layer = (struct rh_layer){
	        .kind = RH_LAYER_BLOCK, .block = {model->blocks, -1}, .traits = rh_traits_of(config, index), .width = config->hidden_size};
	layer->cache_column = model->cache_columns;
	model->cache_columns += 2 * layer->traits.kv_heads * layer->traits.head_dim;
	size_projections(config, layer);
	size_routed(layer);
	int rc = lay_out_base(config, index, !lora, layer, &model->block[model->blocks++]);
	if (rc || !lora)
		return rc;
	rc = lay_out_adapter(config, lora, index, layer, &model->block[model->blocks++]);
	if (rc)
		return rc;
	if (model->block[model->blocks - 1].tensors == 0)
		drop_block(model);
	else
		layer->block[1] = model->blocks - 1;
	return 0;
}

/* "q_proj, k_proj": the last parts of the names of a layer's linears. */
static void list_modules(const struct rh_family_names *names, char *out, size_t size)
{
	size_t used = 0;
	for (int p = 0; p < RH_PROJS && used < size; p++)
		if (names->proj[p])
			used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "", strrchr(names->proj[p], '.') + 1);
}

int model_lowest_trained(const struct rh_model *model)
{
	int l = 0;
	while (l < model->layers && !model->block[model->layer[l].block[0]].trainable &&
	       (model->layer[l].block[1] < 0 || !model->block[model->layer[l].block[1]].trainable))
		l++;
	return l;
}

int64_t rh_model_cache_range(const struct rh_model *model, int lo, int hi, int64_t rows, int64_t *first)
{
	int64_t columns = 0;
	*first = 0;
	for (int l = lo; l < hi; l++) {
		const struct rh_layer *layer = &model->layer[l];
		if (layer->kind == RH_LAYER_BLOCK && !columns)
			*first = rh_dtype_bytes(model->dtype, rows * layer->cache_column);
		columns += layer->kind == RH_LAYER_BLOCK ? 2 * layer->traits.kv_heads * layer->traits.head_dim : 0;
	}
	return rh_dtype_bytes(model->dtype, rows * columns);
}

int model_lay_out(struct rh_model *model, const struct rh_lora_config *lora)
{
	int rc = lay_out_embedding(model, lora), is_adapted = !lora;
	for (int i = 0; !rc && i < (int)model->config->num_hidden_layers; i++) {
		rc = lay_out_layer(model, lora, i);
		is_adapted |= model->layer[i + 1].block[1] >= 0;
	}
	if (!rc)
		rc = lay_out_head(model, lora);
	if (!rc && !is_adapted) {
		char modules[256];
		list_modules(rh_model_modules(model->config), modules, sizeof modules);
		rc = rh_fail(-EINVAL, "lora_target_modules names no module of this model; it has %s; all-linear is all of them", modules);
	}
	if (!rc)
		model->first_trained = model_lowest_trained(model);
	return rc;
}
