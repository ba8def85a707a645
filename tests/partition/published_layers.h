/* Layer times that RoundPipe's artifact measured on one RTX 4090 (arXiv 2604.27085): 8192 tokens, fp16 operands and accumulation. A layer's
 * recompute costs its forward once more; the head is not recomputed. */
#ifndef RH_TESTS_PARTITION_PUBLISHED_LAYERS_H
#define RH_TESTS_PARTITION_PUBLISHED_LAYERS_H

#include "check.h"

#include "core/alloc.h"
#include "partition/costs.h"

enum { PUBLISHED_MODELS = 5 };

struct published_layers {
	const char *name;
	int blocks;
	double forward_ms, backward_ms, head_forward_ms, head_backward_ms;
	double hop_ms; /* a boundary activation between GPUs through the host */
};

static const struct published_layers published_layers[PUBLISHED_MODELS] = {{"qwen3-1.7b", 28, 7.429, 15.831, 22.066, 43.707, 1.6},
                                                                           {"llama-3.1-8b", 32, 18.504, 41.207, 37.226, 74.501, 3.2},
                                                                           {"gpt-oss-20b", 24, 21.645, 81.781, 44.293, 86.264, 2.25},
                                                                           {"qwen3-32b", 64, 40.561, 91.174, 54.928, 108.294, 4.0},
                                                                           {"qwen3-235b-lora", 94, 43.016, 58.376, 42.444, 43.294, 3.2}};

/* Blocks, then the head; to be freed with rh_costs_free. */
static inline void published_costs(const struct published_layers *model, struct rh_costs *out)
{
	*out = (struct rh_costs){.layers = model->blocks + 1, .hop_s = model->hop_ms * 1e-3, .tokens = 8192};
	out->layer = rh_alloc((size_t)out->layers, sizeof *out->layer);
	assert_non_null(out->layer);
	for (int l = 0; l <= model->blocks; l++) {
		int head = l == model->blocks;
		double forward = (head ? model->head_forward_ms : model->forward_ms) * 1e-3,
		       backward = (head ? model->head_backward_ms : model->backward_ms) * 1e-3;
		out->layer[l] = (struct rh_layer_cost){
		        .forward_s = forward, .recompute_s = head ? 0 : forward, .backward_s = backward, .weight_gradient_s = backward / 2};
	}
}

#endif
