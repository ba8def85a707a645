#include "device/sim/flow.h"

#include "core/error.h"
#include "core/minmax.h"

#include <math.h>

/* The share at which the first flow or resource is full, if all flows that are not settled yet (rate < 0) rise together. */
static double next_level(struct sim_flow *const *flow, int flows, const double *spare, const double *load, int resources)
{
	double level = HUGE_VAL;
	for (int i = 0; i < flows; i++)
		if (flow[i]->rate < 0 && flow[i]->route->most > 0)
			level = rh_min_double(level, flow[i]->route->most / flow[i]->route->scale);
	for (int r = 0; r < resources; r++)
		if (load[r] > 0)
			level = rh_min_double(level, rh_max_double(spare[r], 0) / load[r]);
	return level;
}

static int is_full(const struct sim_route *route, double level, const double *spare, const double *load)
{
	if (route->most > 0 && route->most <= level * route->scale * (1 + 1e-12))
		return 1;
	for (int u = 0; u < route->uses; u++)
		if (spare[route->use[u].resource] <= load[route->use[u].resource] * level * (1 + 1e-12))
			return 1;
	return 0;
}

void sim_share(struct sim_flow *const *flow, int flows, const double *capacity, int resources, double *spare, double *load)
{
	int left = 0;
	for (int r = 0; r < resources; r++)
		spare[r] = capacity[r];
	for (int i = 0; i < flows; i++) {
		const struct sim_route *route = flow[i]->route;
		flow[i]->rate = route->uses ? -1 : route->most > 0 ? route->most : HUGE_VAL; /* what shares nothing is settled */
		left += route->uses > 0;
	}
	while (left) {
		for (int r = 0; r < resources; r++)
			load[r] = 0;
		for (int i = 0; i < flows; i++)
			for (int u = 0; flow[i]->rate < 0 && u < flow[i]->route->uses; u++)
				load[flow[i]->route->use[u].resource] += flow[i]->route->scale * flow[i]->route->use[u].weight;
		double level = next_level(flow, flows, spare, load, resources);
		/* all that is full at this level is settled before anything is taken away, so that equals get the same */
		int settled = 0;
		for (int i = 0; i < flows; i++)
			if (flow[i]->rate < 0 && is_full(flow[i]->route, level, spare, load)) {
				flow[i]->rate = -2;
				settled++;
			}
		RH_ASSERT(settled > 0);
		for (int i = 0; i < flows; i++) {
			if (flow[i]->rate != -2)
				continue;
			flow[i]->rate = level * flow[i]->route->scale;
			for (int u = 0; u < flow[i]->route->uses; u++)
				spare[flow[i]->route->use[u].resource] -= flow[i]->rate * flow[i]->route->use[u].weight;
		}
		left -= settled;
	}
}
