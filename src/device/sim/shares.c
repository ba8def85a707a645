/* A cache of max-min fair rates: the same few sets of transfers and work are in flight again and again. */
#include "device/sim/sim_internal.h"

#include "core/alloc.h"

#include <string.h>

enum { PLACES = 256, FLOWS_MOST = 24 }; /* larger sets are not cached */

struct sim_shares {
	struct {
		int flows; /* 0: free */
		const struct sim_route *route[FLOWS_MOST];
		double rate[FLOWS_MOST];
	} entry[PLACES]; /* direct-mapped, by a hash of the routes */
};

int sim_shares_create(struct sim_shares **out)
{
	*out = rh_alloc(1, sizeof **out);
	return *out ? 0 : -ENOMEM;
}

void sim_shares_free(struct sim_shares *shares)
{
	rh_free(shares);
}

void sim_shares_forget(struct sim_shares *shares)
{
	for (int i = 0; i < PLACES; i++)
		shares->entry[i].flows = 0;
}

static uint32_t hash_of(struct sim_flow *const *flow, int flows)
{
	uint64_t hash = 0;
	for (int i = 0; i < flows; i++)
		hash = (hash ^ (uint64_t)(uintptr_t)flow[i]->route) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
	return (uint32_t)(hash >> 40) % PLACES;
}

void sim_set_rates(struct rh_sim *sim, struct sim_flow *const *flow, int flows)
{
	uint32_t at = hash_of(flow, flows);
	int *known = &sim->shares->entry[at].flows, same = *known == flows;
	const struct sim_route **route = sim->shares->entry[at].route;
	double *rate = sim->shares->entry[at].rate;
	for (int i = 0; same && i < flows; i++)
		same = route[i] == flow[i]->route;
	for (int i = 0; same && i < flows; i++)
		flow[i]->rate = rate[i];
	if (same)
		return;
	sim_share(flow, flows, sim->capacity, sim->resources, sim->spare, sim->load);
	if (flows > FLOWS_MOST)
		return;
	*known = flows;
	for (int i = 0; i < flows; i++) {
		route[i] = flow[i]->route;
		rate[i] = flow[i]->rate;
	}
}
