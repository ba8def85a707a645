/* Costs of runs of layers. */
#include "core/alloc.h"
#include "partition/costs.h"

int rh_costs_sum(const struct rh_costs *costs, struct rh_cost_sums *out)
{
	size_t count = (size_t)costs->layers + 1;
	*out = (struct rh_cost_sums){.costs = costs, .forward = rh_alloc(4 * count, sizeof *out->forward)};
	if (!out->forward)
		return -ENOMEM;
	out->recompute = out->forward + count;
	out->backward = out->recompute + count;
	out->weight_gradient = out->backward + count;
	for (int l = 0; l < costs->layers; l++) {
		const struct rh_layer_cost *layer = &costs->layer[l];
		out->forward[l + 1] = out->forward[l] + layer->forward_s;
		int trained = l >= costs->first_trained;
		out->recompute[l + 1] = out->recompute[l] + (trained ? layer->recompute_s : 0);
		out->backward[l + 1] = out->backward[l] + (trained ? layer->backward_s : 0);
		out->weight_gradient[l + 1] = out->weight_gradient[l] + (trained ? layer->weight_gradient_s : 0);
	}
	return 0;
}

void rh_cost_sums_free(struct rh_cost_sums *sums)
{
	rh_free(sums->forward);
	*sums = (struct rh_cost_sums){0};
}

double rh_cost_forward(const struct rh_cost_sums *sums, int lo, int hi)
{
	return sums->forward[hi] - sums->forward[lo];
}

double rh_cost_recompute(const struct rh_cost_sums *sums, int lo, int hi)
{
	return hi > lo ? sums->recompute[hi] - sums->recompute[lo] - sums->costs->layer[hi - 1].recompute_spared_s : 0;
}

double rh_cost_backward(const struct rh_cost_sums *sums, int lo, int hi)
{
	return sums->backward[hi] - sums->backward[lo];
}

double rh_cost_weight_gradient(const struct rh_cost_sums *sums, int lo, int hi)
{
	return sums->weight_gradient[hi] - sums->weight_gradient[lo];
}

double rh_cost_stage(const struct rh_cost_sums *sums, enum rh_pass pass, int lo, int hi)
{
	if (pass == RH_PASS_FORWARD)
		return rh_cost_forward(sums, lo, hi);
	double before = pass == RH_PASS_FUSED ? rh_cost_forward(sums, lo, hi) : rh_cost_recompute(sums, lo, hi);
	return before + rh_cost_backward(sums, lo, hi);
}

int64_t rh_costs_upload_bytes(const struct rh_costs *costs, int lo, int hi)
{
	int64_t bytes = 0;
	for (int l = lo; l < hi; l++)
		bytes += costs->layer[l].upload_bytes;
	return bytes;
}

int64_t rh_costs_stage_bytes(const struct rh_costs *costs, enum rh_pass pass, int lo, int hi)
{
	int64_t bytes = 0, workspace = 0, boundary = 0;
	for (int l = lo; l < hi; l++) {
		const struct rh_layer_cost *layer = &costs->layer[l];
		int64_t needed = layer->forward_workspace_bytes;
		bytes += layer->upload_bytes;
		if (pass != RH_PASS_FORWARD) {
			bytes += layer->gradient_bytes + layer->saved_bytes;
			needed = layer->backward_workspace_bytes > needed ? layer->backward_workspace_bytes : needed;
		}
		workspace = needed > workspace ? needed : workspace;
		boundary = layer->boundary_bytes > boundary ? layer->boundary_bytes : boundary;
	}
	return bytes + workspace + 3 * boundary;
}
