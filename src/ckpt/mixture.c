#include "ckpt/mixture.h"

#include <stdio.h>
#include <string.h>

int64_t rh_gguf_file_type(enum rh_dtype dtype)
{
	switch (dtype) {
	case RH_F32:
		return 0;
	case RH_F16:
		return 1;
	case RH_Q4_0:
		return 2;
	case RH_Q8_0:
		return 7;
	case RH_Q4_K:
		return 15;
	case RH_Q5_K:
		return 17;
	case RH_Q6_K:
		return 18;
	case RH_MXFP4:
		return 38;
	default: /* BF16 */
		return 32;
	}
}

const char *rh_gguf_file_type_name(enum rh_dtype dtype)
{
	return dtype == RH_Q4_K ? "Q4_K_M" : dtype == RH_Q5_K ? "Q5_K_M" : rh_dtype_name(dtype);
}

int rh_is_k_mixture(enum rh_dtype dtype)
{
	return dtype == RH_Q4_K || dtype == RH_Q5_K || dtype == RH_Q6_K;
}

/* The first eighth of the layers, the last, and each third between. */
static int is_sensitive(int layer, int layers)
{
	return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

/* Models of 80 layers in which several heads share values: these are small, and take more bits. */
static int has_few_values(const struct rh_model_config *config)
{
	const char *architecture = config->family->gguf.architecture;
	return config->num_hidden_layers == 80 &&
	       (!strcmp(architecture, "qwen2") ||
	        (!strcmp(architecture, "llama") && config->num_attention_heads != config->num_key_value_heads));
}

/* Which of the layers with a matrix of values this one is, and how many there are: of some layers keys are the values, or another's. */
static int count_values(const struct rh_model_config *config, int layer, int *all)
{
	int before = 0;
	*all = 0;
	for (int i = 0; i < config->num_hidden_layers; i++) {
		int borrows = i >= config->num_hidden_layers - config->kv_shared_layers;
		int has_values = !borrows && (!config->values_are_keys || config->layer[i].windowed);
		before += has_values && i < layer;
		*all += has_values;
	}
	return before;
}

/* Of eight experts' models the small matrices of attention take more bits. */
enum { FEW_EXPERTS = 8 };

static enum rh_dtype mixed(enum rh_dtype dtype, const struct rh_model_config *config, const char *stored, int64_t cols)
{
	int layer = -1, layers = (int)config->num_hidden_layers, has_few = config->experts == FEW_EXPERTS;
	int is_value = strstr(stored, "attn_v.weight") || strstr(stored, "attn_qkv.weight");
	int is_table = !strcmp(stored, "token_embd.weight") || !strcmp(stored, "per_layer_token_embd.weight");
	int is_head = !strcmp(stored, "output.weight") || (config->tie_word_embeddings && is_table);
	if (is_head)
		return cols % rh_dtype_block(dtype) ? RH_Q8_0 : RH_Q6_K;
	if (has_few && (is_value || strstr(stored, "attn_k.weight")))
		return RH_Q8_0;
	if (has_few && strstr(stored, "attn_output.weight"))
		return dtype == RH_Q4_K ? RH_Q5_K : dtype;
	if ((!is_value && !strstr(stored, "ffn_down")) || sscanf(stored, "blk.%d.", &layer) != 1)
		return dtype;
	if (is_value)
		layer = count_values(config, layer, &layers);
	if (is_sensitive(layer, layers))
		return RH_Q6_K;
	return is_value && dtype == RH_Q4_K && has_few_values(config) ? RH_Q5_K : dtype;
}

/* Routers, convolutions, biases and factors. */
static int stays_f32(const char *stored)
{
	size_t length = strlen(stored), end = strlen(".weight");
	return length < end || strcmp(stored + length - end, ".weight") || strstr(stored, "ffn_gate_inp") || strstr(stored, ".ssm_conv1d.");
}

enum rh_dtype rh_gguf_type_of(enum rh_dtype dtype, const struct rh_model_config *config, const char *stored, int64_t cols)
{
	if (stays_f32(stored))
		return RH_F32;
	if (rh_is_k_mixture(dtype)) {
		if (!strcmp(stored, "position_embd.weight") || !strcmp(stored, "per_layer_model_proj.weight"))
			return RH_F32;
		dtype = mixed(dtype, config, stored, cols);
		if (cols % rh_dtype_block(dtype))
			dtype = dtype == RH_Q4_K ? RH_Q5_0 : dtype == RH_Q5_K ? RH_Q5_1 : RH_Q8_0;
	}
	return cols % rh_dtype_block(dtype) ? RH_F16 : dtype;
}
