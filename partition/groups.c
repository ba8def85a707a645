#include "partition/groups.h"

#include "core/alloc.h"
#include "core/minmax.h"

/* The search takes as much again for each layer as it does for each of those below it: ten times as many would take a minute. More layers
 * than LAYERS_MOST are cut between so many groups, which costs such a plan 3 % at most (1,024 layers; 200: 2 %) and takes tenths of a
 * second. */
enum { LAYERS_MOST = 160, GROUPS_MOST = 64 };

static void add_layer(const struct rh_layer_cost *layer, struct rh_layer_cost *group)
{
	group->forward_s += layer->forward_s;
	group->recompute_s += layer->recompute_s;
	group->recompute_spared_s = layer->recompute_spared_s; /* the topmost one's, which is a stage's wherever the group is */
	group->backward_s += layer->backward_s;
	group->weight_gradient_s += layer->weight_gradient_s;
	group->forward_flops += layer->forward_flops;
	group->backward_flops += layer->backward_flops;
	group->forward_launches += layer->forward_launches;
	group->backward_launches += layer->backward_launches;
	group->upload_bytes += layer->upload_bytes;
	group->gradient_bytes += layer->gradient_bytes;
	group->optimizer_bytes += layer->optimizer_bytes;
	group->saved_bytes += layer->saved_bytes;
	group->boundary_bytes = rh_max(group->boundary_bytes, layer->boundary_bytes);
	group->forward_workspace_bytes = rh_max(group->forward_workspace_bytes, layer->forward_workspace_bytes);
	group->backward_workspace_bytes = rh_max(group->backward_workspace_bytes, layer->backward_workspace_bytes);
}

int groups_create(const struct rh_partition_request *request, struct groups *out)
{
	const struct rh_costs *costs = request->costs;
	int layers = costs->layers, groups = 0, each = (layers - 2 + GROUPS_MOST - 1) / GROUPS_MOST;
	*out = (struct groups){.each = 1};
	if (layers <= LAYERS_MOST || request->memory)
		return 0;
	*out = (struct groups){.request = *request, .costs = *costs, .each = each};
	out->first = rh_alloc((size_t)layers + 1, sizeof *out->first);
	out->costs.layer = rh_alloc((size_t)layers, sizeof *out->costs.layer);
	out->sum_s = rh_alloc((size_t)layers, sizeof *out->sum_s);
	if (!out->first || !out->costs.layer || !out->sum_s) {
		groups_free(out);
		return -ENOMEM;
	}
	for (int l = 0; l < layers; l++) {
		if (l <= 1 || l + 1 == layers || l == costs->first_trained || l - out->first[groups - 1] == each)
			out->first[groups++] = l;
		if (l == costs->first_trained)
			out->costs.first_trained = groups - 1;
		add_layer(&costs->layer[l], &out->costs.layer[groups - 1]);
		out->sum_s[groups - 1] += request->sum_s ? request->sum_s[l] : 0;
	}
	out->first[groups] = layers;
	out->costs.layers = groups;
	out->request.costs = &out->costs;
	out->request.sum_s = request->sum_s ? out->sum_s : NULL;
	return 0;
}

void groups_free(struct groups *groups)
{
	rh_free(groups->first);
	rh_free(groups->costs.layer);
	rh_free(groups->sum_s);
	*groups = (struct groups){0};
}

static void spread(const struct groups *groups, struct rh_stage *stage, int count)
{
	for (int i = 0; i < count; i++)
		stage[i] = (struct rh_stage){groups->first[stage[i].lo], groups->first[stage[i].hi]};
}

void groups_spread(const struct groups *groups, struct rh_partition *partition)
{
	spread(groups, partition->forward, partition->forward_stages);
	spread(groups, partition->backward, partition->backward_stages);
}
