/* How DoRA's magnitudes begin: as the norms of the rows of W + scale B A, so that a new adapter changes nothing. */
#include "core/alloc.h"
#include "session/adapter.h"

#include <math.h>

int rh_adapter_check_dora(const struct rh_model *model)
{
	for (int l = 0; l < model->layers; l++)
		if (model->layer[l].on_table.r)
			return rh_fail(-EINVAL,
			               "use_dora: not with adapters of the embedding or the head, which have no magnitudes here; leave "
			               "embed_tokens and lm_head out of lora_target_modules");
	for (int l = 0; l < model->layers; l++)
		for (int p = 0; p < RH_PROJS; p++) {
			const struct rh_layer *layer = &model->layer[l];
			const struct rh_linear *linear = &layer->proj[p];
			if (layer->kind != RH_LAYER_BLOCK || linear->magnitude < 0)
				continue;
			const struct rh_block *block = &model->block[layer->block[0]];
			if (rh_block_tensor(block, linear->weight, model->dtype).form != RH_FORM_PLAIN)
				return rh_fail(
				        -EINVAL,
				        "use_dora: '%s' is packed, in the model's file or by quantize, load_in_4bit or fp8, and DoRA takes "
				        "the norms of plain rows; train on a base in bf16 or fp32",
				        block->tensor[linear->weight].name);
		}
	return 0;
}

static int measure(const struct rh_model *model, const struct rh_layer *layer, const struct rh_linear *linear, struct rh_store *store)
{
	int64_t in = linear->inputs, out = linear->outputs, r = linear->r;
	float *a = rh_alloc((size_t)(r * in), sizeof *a), *b = rh_alloc((size_t)(out * r), sizeof *b),
	      *row = rh_alloc((size_t)in, sizeof *row);
	float *magnitude = rh_alloc((size_t)out, sizeof *magnitude);
	int rc = a && b && row && magnitude ? 0 : -ENOMEM;
	if (!rc)
		rc = rh_store_get(store, layer->block[1], linear->lora_a, 0, r * in, a);
	if (!rc)
		rc = rh_store_get(store, layer->block[1], linear->lora_b, 0, out * r, b);
	for (int64_t o = 0; !rc && o < out; o++) {
		double squares = 0;
		rc = rh_store_get(store, layer->block[0], linear->weight, o * in, in, row);
		for (int64_t k = 0; k < r; k++)
			for (int64_t i = 0; b[o * r + k] != 0 && i < in; i++)
				row[i] += linear->scale * b[o * r + k] * a[k * in + i];
		for (int64_t i = 0; i < in; i++)
			squares += (double)row[i] * (double)row[i];
		magnitude[o] = (float)sqrt(squares);
		if (!rc && !(magnitude[o] > 0))
			rc = rh_fail(-EINVAL,
			             "use_dora: row %lld of '%s' is zero, which has no direction; leave the module out (exclude_modules)",
			             (long long)o, model->block[layer->block[0]].tensor[linear->weight].name);
	}
	if (!rc)
		rc = rh_store_set(store, layer->block[1], linear->magnitude, 0, out, magnitude);
	rh_free(a);
	rh_free(b);
	rh_free(row);
	rh_free(magnitude);
	return rc;
}

int rh_adapter_measure(const struct rh_model *model, struct rh_store *store)
{
	int rc = 0;
	for (int l = 0; l < model->layers; l++)
		for (int p = 0; !rc && model->layer[l].kind == RH_LAYER_BLOCK && p < RH_PROJS; p++)
			if (model->layer[l].proj[p].magnitude >= 0)
				rc = measure(model, &model->layer[l], &model->layer[l].proj[p], store);
	return rc;
}
