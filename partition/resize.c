#include "partition/resize.h"

#include "core/alloc.h"
#include "core/minmax.h"

struct resizing {
	const struct rh_resize *how;
	double ratio;
};

static double grown(const struct resizing *at, double seconds, double fixed, double launch, double floor_bytes)
{
	double rate = at->how->memory_bytes_per_s;
	double linear = rh_max_double(seconds - fixed, 0) * at->ratio * at->how->slower;
	return seconds > 0 ? launch + rh_max_double(linear, rate > 0 ? floor_bytes / rate : 0) : 0;
}

static int64_t scaled(int64_t bytes, double ratio)
{
	return (int64_t)((double)bytes * ratio);
}

static void resize_layer(const struct resizing *at, int head, struct rh_layer_cost *layer)
{
	const struct rh_resize *how = at->how;
	double fixed_forward = head ? 0 : how->fixed_forward_s, fixed_backward = head ? 0 : how->fixed_backward_s;
	double launch_forward = head ? 0 : how->launch_forward_s, launch_backward = head ? 0 : how->launch_backward_s;
	/* of a gradient's 6 bytes on the device 4 are an fp32 sum, read and written */
	double weights = (double)layer->upload_bytes, sums = (double)layer->gradient_bytes * 8 / 6;
	double spared = layer->recompute_s > 0 ? layer->recompute_spared_s / layer->recompute_s : 0;
	double put_off = layer->weight_gradient_s, input = layer->backward_s - put_off;
	layer->forward_s = grown(at, layer->forward_s, fixed_forward, launch_forward, weights);
	layer->recompute_s = grown(at, layer->recompute_s, fixed_forward, launch_forward, weights);
	layer->recompute_spared_s = layer->recompute_s * spared;
	layer->weight_gradient_s = grown(at, put_off, fixed_backward / 2, launch_backward / 2, sums);
	layer->backward_s = layer->weight_gradient_s + grown(at, input, fixed_backward / 2, launch_backward / 2, weights);
	layer->forward_flops *= at->ratio;
	layer->backward_flops *= at->ratio;
	layer->saved_bytes = scaled(layer->saved_bytes, at->ratio);
	layer->boundary_bytes = scaled(layer->boundary_bytes, at->ratio);
	layer->forward_workspace_bytes = scaled(layer->forward_workspace_bytes, at->ratio);
	layer->backward_workspace_bytes = scaled(layer->backward_workspace_bytes, at->ratio);
}

int rh_costs_resize(const struct rh_costs *given, const struct rh_resize *how, struct rh_costs *out)
{
	*out = *given;
	out->layer = NULL;
	if (given->tokens <= 0 || how->tokens <= 0)
		return rh_fail(-EINVAL, "layers: tokens is missing: without the size that was timed there is no time for another");
	struct resizing at = {how, (double)how->tokens / (double)given->tokens};
	out->layer = rh_alloc((size_t)given->layers, sizeof *out->layer);
	if (!out->layer)
		return -ENOMEM;
	for (int l = 0; l < given->layers; l++) {
		out->layer[l] = given->layer[l];
		resize_layer(&at, l + 1 == given->layers, &out->layer[l]);
	}
	out->hop_s = given->hop_s * at.ratio;
	out->tokens = how->tokens;
	return 0;
}
