/* Which tensors a mixture of experts has: each expert its own in the files, or all in one; and their adapters. */
#include "model/moe.h"

#include <stdio.h>
#include <string.h>

/* One expert's matrix; `proj` names it. */
static int place_expert(struct layout *at, const struct rh_family_names *names, int64_t expert, enum rh_proj proj, int64_t out, int64_t in)
{
	char module[64];
	snprintf(module, sizeof module, "%s.%lld.%s", names->experts, (long long)expert, strrchr(names->mlp[proj - RH_PROJ_MLP], '.') + 1);
	return layout_place_matrix(at, module, "weight", out, in);
}

/* All experts' matrices, (out,in) one under another, in one tensor of the files, and their biases. */
static void place_stacked(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at)
{
	int *own = layer->own[RH_MLP];
	const struct rh_family_names *names = rh_model_names(config);
	int64_t experts = layer->traits.experts, wide = 2 * layer->traits.intermediate, hidden = layer->width;
	layout_align(at);
	own[MOE_GATE_UP] = layout_place_matrix(at, names->experts_gate_up, NULL, experts * wide, hidden);
	layout_align(at);
	own[MOE_DOWN] = layout_place_matrix(at, names->experts_down, NULL, experts * hidden, layer->traits.intermediate);
	const int64_t in_files[2][3] = {{experts, wide, hidden}, {experts, hidden, layer->traits.intermediate}};
	for (int i = 0; i < 2 && !at->fault; i++) {
		struct rh_tensor *tensor = &at->block->tensor[own[i ? MOE_DOWN : MOE_GATE_UP]];
		if (config->family->moe.is_transposed) {
			tensor->transposed = experts;
			tensor->stacked = 1;
		} else
			memcpy(tensor->file_shape, in_files[i], sizeof in_files[i]);
	}
}

static void place_biases(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at)
{
	int *own = layer->own[RH_MLP];
	const struct rh_family_names *names = rh_model_names(config);
	int64_t experts = layer->traits.experts;
	char module[64];
	own[MOE_ROUTER_BIAS] = layout_place_bias(at, names->router, "bias", 1, 1, experts);
	snprintf(module, sizeof module, "%s_bias", names->experts_gate_up);
	own[MOE_GATE_UP_BIAS] = layout_place_bias(at, module, NULL, 2, experts, 2 * layer->traits.intermediate);
	snprintf(module, sizeof module, "%s_bias", names->experts_down);
	own[MOE_DOWN_BIAS] = layout_place_bias(at, module, NULL, 2, experts, layer->width);
}

/* Each number in fp32 in the files, as it is added to others that are as small: its parts hold it whole on a device in bf16. */
static int place_choice_bias(struct layout *at, const char *name, int64_t experts)
{
	layout_align(at);
	int tensor = layout_place(at, name, NULL, 2, RH_BF16_PARTS, experts);
	if (at->fault)
		return tensor;
	at->block->tensor[tensor].initial = (struct rh_initial){RH_INITIAL_CONSTANT, 0};
	at->block->tensor[tensor].decays = 0;
	at->block->tensor[tensor].parts = RH_BF16_PARTS;
	at->block->tensor[tensor].file_shape[0] = experts;
	return tensor;
}

static void place_experts(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at)
{
	int *own = layer->own[RH_MLP];
	const struct rh_family_names *names = rh_model_names(config);
	int64_t experts = layer->traits.experts, wide = layer->traits.intermediate, hidden = layer->width;
	layout_align(at);
	if (names->router)
		own[MOE_ROUTER] = layout_place(at, names->router, "weight", 2, experts, hidden);
	if (names->choice_bias)
		own[MOE_CHOICE_BIAS] = place_choice_bias(at, names->choice_bias, experts);
	if (names->experts_gate_up && !config->experts_are_apart) {
		place_stacked(config, layer, at);
		return;
	}
	layout_align(at);
	for (int64_t e = 0; e < experts; e++) {
		int gate = place_expert(at, names, e, RH_PROJ_GATE, wide, hidden);
		own[MOE_GATE_UP] = e ? own[MOE_GATE_UP] : gate;
		place_expert(at, names, e, RH_PROJ_UP, wide, hidden);
	}
	layout_align(at);
	for (int64_t e = 0; e < experts; e++) {
		int down = place_expert(at, names, e, RH_PROJ_DOWN, hidden, wide);
		own[MOE_DOWN] = e ? own[MOE_DOWN] : down;
	}
}

/* Their biases lie behind them, before the mixer's. */
void moe_place(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, enum half_tensors kind)
{
	if (kind == HALF_WEIGHTS)
		place_experts(config, layer, at);
	if (kind == HALF_WEIGHTS && layer->traits.expert_bias)
		place_biases(config, layer, at);
	if (layer->traits.shared)
		half_mlp.place(config, layer, at, kind);
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

void moe_size(const struct rh_model_config *config, struct rh_layer *layer)
{
	int64_t hidden = layer->width, wide = layer->traits.intermediate;
	const int64_t in[RH_ROUTED] = {hidden, hidden, wide}, out[RH_ROUTED] = {layer->traits.experts, 2 * wide, hidden};
	if (layer->traits.shared)
		half_mlp.size(config, layer);
	for (int w = 0; w < RH_ROUTED; w++)
		layer->routed[w] = (struct rh_linear){
		        .inputs = in[w], .outputs = out[w], .weight = -1, .bias = -1, .lora_a = -1, .lora_b = -1, .magnitude = -1};
}

/* PEFT wraps the experts once for each of their parameters: the inner one's tensors are behind "base_layer". */
void moe_place_adapters(const struct rh_model_config *config, const struct rh_lora_config *lora, const char *prefix, struct rh_layer *layer,
                        struct layout *at)
{
	const struct rh_family_names *names = rh_model_names(config);
	double scale[RH_ROUTED] = {0};
	char name[LAYOUT_NAME_BYTES], parameter[64];
	for (int w = 0; w < RH_ROUTED && lora->parameter && !at->fault; w++) {
		if (w == RH_ROUTED_ROUTER && !names->router)
			continue; /* it is a linear, and so is its adapter */
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
		layout_place_adapter(at, name, &layer->routed[w], w == RH_ROUTED_ROUTER ? 1 : layer->traits.experts, scale[w]);
	}
}
