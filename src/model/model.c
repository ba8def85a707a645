#include "model/model.h"

#include "core/alloc.h"
#include "core/arena.h"
#include "core/philox.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 192, TENSORS_MAX = 32, EXPERT_TENSORS = 3, GAP = 64 /* elements: 256 bytes of F32, 128 of bf16 */ };

/* Collects a block's tensors while it is laid out. */
struct layout {
	struct rh_block *block;
	int most, fault; /* most: tensors */
};

static void begin_block(struct layout *at, struct rh_block *block, int trainable, const char *name, int64_t experts)
{
	*at = (struct layout){.block = block, .most = TENSORS_MAX + (int)experts * EXPERT_TENSORS};
	block->trainable = trainable;
	block->uses = 1;
	block->name = rh_strdup(name);
	block->tensor = rh_alloc((size_t)at->most, sizeof *block->tensor);
	if (!block->name || !block->tensor)
		at->fault = -ENOMEM;
}

/* Where the next tensor may begin; tensors that follow without it lie back to back. */
static void align(struct layout *at)
{
	at->block->elements = rh_align_up(at->block->elements, GAP);
}

/* rank 1 tensors are norms and biases: no weight decay. */
static int64_t place(struct layout *at, const char *name, int rank, int64_t rows, int64_t cols)
{
	struct rh_block *block = at->block;
	if (at->fault)
		return 0;
	RH_ASSERT(block->tensors < at->most);
	struct rh_tensor *tensor = &block->tensor[block->tensors];
	*tensor = (struct rh_tensor){rh_strdup(name), rows, cols, block->elements, rank == 2, rank};
	if (!tensor->name) {
		at->fault = -ENOMEM;
		return 0;
	}
	block->tensors++;
	block->elements += rows * cols;
	return tensor->offset;
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

/* The others of a product follow its first back to back. */
static int leads(int proj)
{
	for (int j = 0; j < RH_JOINTS; j++)
		if ((int)rh_joints[j].first == proj)
			return 1;
	return 0;
}

static const char *const proj_name[RH_PROJS] = {
        [RH_PROJ_Q] = "self_attn.q_proj", [RH_PROJ_K] = "self_attn.k_proj", [RH_PROJ_V] = "self_attn.v_proj",
        [RH_PROJ_O] = "self_attn.o_proj", [RH_PROJ_GATE] = "mlp.gate_proj", [RH_PROJ_UP] = "mlp.up_proj",
        [RH_PROJ_DOWN] = "mlp.down_proj",
};

static void size_projections(const struct rh_model_config *config, struct rh_layer *layer)
{
	int64_t q = config->num_attention_heads * config->head_dim, kv = config->num_key_value_heads * config->head_dim;
	int64_t h = config->hidden_size, i = config->intermediate_size;
	const int64_t in[RH_PROJS] = {h, h, h, q, h, h, i}, out[RH_PROJS] = {q, kv, kv, h, i, i, h};
	for (int p = 0; p < RH_PROJS; p++)
		layer->proj[p] =
		        (struct rh_linear){.in = in[p], .out = out[p], .weight = -1, .bias = -1, .lora_a = -1, .lora_b = -1, .site = p};
}

/* Those of them that the layer has: a mixture's experts are none of them. */
static int projections(const struct rh_model_config *config)
{
	return config->experts ? RH_PROJ_GATE : RH_PROJS;
}

static void layer_name(char *name, int index, const char *rest)
{
	snprintf(name, NAME_BYTES, "model.layers.%d.%s", index, rest);
}

static int64_t place_expert(struct layout *at, int index, int64_t expert, enum rh_proj proj, const struct rh_linear *like)
{
	char name[NAME_BYTES], part[64];
	snprintf(part, sizeof part, "mlp.experts.%lld.%s.weight", (long long)expert, strchr(proj_name[proj], '.') + 1);
	layer_name(name, index, part);
	return place(at, name, 2, like->out, like->in);
}

static void lay_out_experts(const struct rh_model_config *config, int index, struct rh_layer *layer, struct layout *at)
{
	char name[NAME_BYTES];
	layer->router = layer->experts_gate_up = layer->experts_down = -1;
	if (!config->experts)
		return;
	align(at);
	layer_name(name, index, "mlp.gate.weight");
	layer->router = place(at, name, 2, config->experts, config->hidden_size);
	align(at);
	for (int64_t e = 0; e < config->experts; e++) {
		int64_t gate = place_expert(at, index, e, RH_PROJ_GATE, &layer->proj[RH_PROJ_GATE]);
		layer->experts_gate_up = e ? layer->experts_gate_up : gate;
		place_expert(at, index, e, RH_PROJ_UP, &layer->proj[RH_PROJ_UP]);
	}
	align(at);
	for (int64_t e = 0; e < config->experts; e++) {
		int64_t down = place_expert(at, index, e, RH_PROJ_DOWN, &layer->proj[RH_PROJ_DOWN]);
		layer->experts_down = e ? layer->experts_down : down;
	}
}

static int lay_out_base(const struct rh_model_config *config, int index, int trainable, struct rh_layer *layer, struct rh_block *block)
{
	struct layout at;
	char name[NAME_BYTES], part[64];
	snprintf(name, sizeof name, "layer %d", index);
	begin_block(&at, block, trainable, name, config->experts);
	layer_name(name, index, "input_layernorm.weight");
	layer->norm1 = place(&at, name, 1, 1, config->hidden_size);
	align(&at);
	layer_name(name, index, "post_attention_layernorm.weight");
	layer->norm2 = place(&at, name, 1, 1, config->hidden_size);
	layer->q_norm = layer->k_norm = -1;
	if (config->qk_norm) {
		align(&at);
		layer_name(name, index, "self_attn.q_norm.weight");
		layer->q_norm = place(&at, name, 1, 1, config->head_dim);
		align(&at);
		layer_name(name, index, "self_attn.k_norm.weight");
		layer->k_norm = place(&at, name, 1, 1, config->head_dim);
	}
	for (int p = 0; p < projections(config); p++) { /* weights */
		if (leads(p))
			align(&at);
		snprintf(part, sizeof part, "%s.weight", proj_name[p]);
		layer_name(name, index, part);
		layer->proj[p].weight = place(&at, name, 2, layer->proj[p].out, layer->proj[p].in);
	}
	lay_out_experts(config, index, layer, &at);
	for (int p = 0; p < projections(config); p++) { /* biases, in the same manner */
		int has = p <= RH_PROJ_V ? config->attention_bias : p == RH_PROJ_O ? config->attention_output_bias : config->mlp_bias;
		if (!has)
			continue;
		if (leads(p))
			align(&at);
		snprintf(part, sizeof part, "%s.bias", proj_name[p]);
		layer_name(name, index, part);
		layer->proj[p].bias = place(&at, name, 1, 1, layer->proj[p].out);
	}
	return end_block(&at);
}

static int lay_out_adapter(const struct rh_lora_config *lora, int index, struct rh_layer *layer, struct rh_block *block)
{
	struct layout at;
	char name[NAME_BYTES], module[NAME_BYTES / 2];
	snprintf(name, sizeof name, "adapter %d", index);
	begin_block(&at, block, 1, name, 0);
	for (int p = 0; p < RH_PROJS; p++) {
		struct rh_linear *linear = &layer->proj[p];
		double scale = 0;
		if (linear->weight < 0)
			continue;
		snprintf(module, sizeof module, "model.layers.%d.%s", index, proj_name[p]);
		int rc = lora->module(lora->context, module, &linear->r, &scale);
		if (rc)
			at.fault = rc;
		if (linear->r == 0)
			continue;
		linear->scale = (float)scale;
		align(&at);
		snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", module);
		linear->lora_a = place(&at, name, 2, linear->r, linear->in);
		align(&at);
		snprintf(name, sizeof name, "base_model.model.%s.lora_B.weight", module);
		linear->lora_b = place(&at, name, 2, linear->out, linear->r);
	}
	return end_block(&at);
}

static int lay_out_embedding(struct rh_model *model)
{
	const struct rh_model_config *config = model->config;
	struct layout at;
	begin_block(&at, &model->block[model->blocks], !model->lora, "embedding", 0);
	at.block->uses = config->tie_word_embeddings ? 2 : 1;
	place(&at, "model.embed_tokens.weight", 2, config->vocab_size, config->hidden_size);
	model->layer[0] = (struct rh_layer){.kind = RH_LAYER_EMBEDDING, .block = {model->blocks++, -1}};
	return end_block(&at);
}

static int lay_out_head(struct rh_model *model)
{
	const struct rh_model_config *config = model->config;
	struct rh_layer *layer = &model->layer[model->layers - 1];
	struct layout at;
	begin_block(&at, &model->block[model->blocks], !model->lora, "head", 0);
	*layer = (struct rh_layer){.kind = RH_LAYER_HEAD, .block = {model->blocks++, -1}};
	layer->norm = place(&at, "model.norm.weight", 1, 1, config->hidden_size);
	if (config->tie_word_embeddings) {
		layer->block[1] = model->layer[0].block[0];
		layer->use[1] = 1;
		layer->head = 0;
	} else {
		align(&at);
		layer->head = place(&at, "lm_head.weight", 2, config->vocab_size, config->hidden_size);
	}
	return end_block(&at);
}

/* Angles per position, computed in fp32 where transformers does. */
static void rope_frequencies(const struct rh_model_config *config, float *inv_freq)
{
	int64_t half = config->head_dim / 2;
	for (int64_t i = 0; i < half; i++) {
		float exponent = (float)(2 * i) / (float)config->head_dim;
		float freq = 1.0f / (float)pow(config->rope_theta, (double)exponent);
		if (config->rope_divisor) {
			freq /= config->rope_divisor[i];
		} else if (config->rope_type == RH_ROPE_LINEAR) {
			freq /= (float)config->rope_factor;
		} else if (config->rope_type == RH_ROPE_LLAMA3) {
			double original = (double)config->rope_original_max_position;
			double low = config->rope_low_freq_factor, high = config->rope_high_freq_factor;
			double wavelength = 2 * M_PI / (double)freq;
			float slow = freq / (float)config->rope_factor;
			if (wavelength > original / low) {
				freq = slow;
			} else if (wavelength >= original / high) {
				float smooth = (float)((original / wavelength - low) / (high - low));
				freq = (1 - smooth) * slow + smooth * freq;
			}
		}
		inv_freq[i] = freq;
	}
}

static int lay_out(struct rh_model *model, const struct rh_lora_config *lora)
{
	const struct rh_model_config *config = model->config;
	int count = (int)config->num_hidden_layers, adapted = 0;
	int rc = lay_out_embedding(model);
	for (int i = 0; !rc && i < count; i++) {
		struct rh_layer *layer = &model->layer[i + 1];
		*layer = (struct rh_layer){.kind = RH_LAYER_BLOCK, .block = {model->blocks, -1}};
		size_projections(config, layer);
		rc = lay_out_base(config, i, !lora, layer, &model->block[model->blocks++]);
		if (rc || !lora)
			continue;
		rc = lay_out_adapter(lora, i, layer, &model->block[model->blocks]);
		model->blocks++;
		if (rc)
			continue;
		struct rh_block *block = &model->block[model->blocks - 1];
		if (block->tensors == 0) { /* this layer has no targeted module */
			rh_free(block->name);
			rh_free(block->tensor);
			*block = (struct rh_block){0};
			model->blocks--;
			continue;
		}
		layer->block[1] = model->blocks - 1;
		if (!adapted++)
			model->first_trained = i + 1;
	}
	if (!rc)
		rc = lay_out_head(model);
	if (!rc && lora && !adapted)
		rc = rh_fail(-EINVAL, "lora_target_modules names no module of this model; it has q_proj, k_proj, v_proj, o_proj, "
		                      "gate_proj, up_proj, down_proj; all-linear is all of them");
	return rc;
}

int rh_model_create(const struct rh_model_config *config, enum rh_dtype dtype, const struct rh_lora_config *lora, struct rh_model **out)
{
	RH_ASSERT(config->head_dim <= 2 * RH_ROPE_MAX_HALF); /* rh_model_config_check */
	struct rh_model *model = rh_alloc(1, sizeof *model);
	if (!model)
		return -ENOMEM;
	model->config = config;
	model->dtype = dtype;
	model->lora = lora != NULL;
	model->dropout = lora ? (float)lora->dropout : 0;
	model->layers = (int)config->num_hidden_layers + 2;
	model->layer = rh_alloc((size_t)model->layers, sizeof *model->layer);
	model->block = rh_alloc((size_t)model->layers * 2, sizeof *model->block);
	rope_frequencies(config, model->inv_freq);
	int rc = model->layer && model->block ? lay_out(model, lora) : -ENOMEM;
	if (rc)
		rh_model_destroy(model);
	else
		*out = model;
	return rc;
}

void rh_model_destroy(struct rh_model *model)
{
	if (!model)
		return;
	for (int b = 0; model->block && b < model->blocks; b++) {
		for (int t = 0; t < model->block[b].tensors; t++)
			rh_free(model->block[b].tensor[t].name);
		rh_free(model->block[b].tensor);
		rh_free(model->block[b].name);
	}
	rh_free(model->block);
	rh_free(model->layer);
	rh_free(model);
}

void rh_model_freeze(struct rh_model *model)
{
	for (int b = 0; b < model->blocks; b++)
		model->block[b].trainable = 0;
}

void rh_model_parameters(const struct rh_model *model, int64_t *trainable, int64_t *all)
{
	*trainable = *all = 0;
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; t < model->block[b].tensors; t++) {
			int64_t elements = model->block[b].tensor[t].rows * model->block[b].tensor[t].cols;
			*all += elements;
			*trainable += model->block[b].trainable ? elements : 0;
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
	int is_a = strstr(t->name, ".lora_A.") != NULL, is_b = strstr(t->name, ".lora_B.") != NULL;
	float bound = 1 / sqrtf((float)t->cols), deviation = (float)model->config->initializer_range;
	for (int64_t i = 0; i < count; i++) {
		if (is_b || t->rank == 1) {
			out[i] = t->rank == 1 && !strstr(t->name, ".bias") ? 1 : 0;
			continue;
		}
		uint64_t element = (uint64_t)(first + i);
		struct rh_philox_block bits = rh_philox(
		        seed, (uint32_t)element, (uint32_t)(element >> 32),
		        (uint32_t)(block * TENSORS_MAX + tensor % TENSORS_MAX) | (uint32_t)(tensor / TENSORS_MAX) << 20, RH_PHILOX_INIT);
		out[i] = is_a ? (2 * rh_philox_unit(bits.word[0]) - 1) * bound : deviation * normal(bits, 0);
	}
}
