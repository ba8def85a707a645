/* A cache of max-min fair rates: the same few sets of transfers and work are in flight again and again. */
#include "device/sim/sim_internal.h"

#include "core/alloc.h"

enum { PLACES = 1024, FLOWS_MOST = 24 }; /* larger sets are not cached */

struct sim_shares {
	struct {
		int flows;             /* 0: free */
		int route[FLOWS_MOST]; /* their numbers, ascending */
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

/* The order in which flows began makes no difference to their rates, so each set has one place. */
static void sort(struct sim_flow **flow, int flows)
{
	for (int i = 1; i < flows; i++) {
		struct sim_flow *now = flow[i];
		int at = i;
		for (; at > 0 && flow[at - 1]->route->number > now->route->number; at--)
			flow[at] = flow[at - 1];
		flow[at] = now;
	}
}

static uint32_t hash_of(struct sim_flow *const *flow, int flows)
{
	uint64_t hash = 0;
	for (int i = 0; i < flows; i++)
		hash = (hash + (uint64_t)flow[i]->route->number + 1) * 0x9e3779b97f4a7c15u;
	return (uint32_t)(hash >> 40) % PLACES;
}

void sim_set_rates(struct rh_sim *sim, struct sim_flow **flow, int flows)
{
	sort(flow, flows);
	uint32_t at = hash_of(flow, flows);
	int *known = &sim->shares->entry[at].flows, *route = sim->shares->entry[at].route, same = *known == flows;
	double *rate = sim->shares->entry[at].rate;
	for (int i = 0; same && i < flows; i++)
		same = route[i] == flow[i]->route->number;
	for (int i = 0; same && i < flows; i++)
		flow[i]->rate = rate[i];
	if (same)
		return;
	sim_share(flow, flows, sim->capacity, sim->resources, sim->spare, sim->load);
	if (flows > FLOWS_MOST)
		return;
	*known = flows;
	for (int i = 0; i < flows; i++) {
		route[i] = flow[i]->route->number;
		rate[i] = flow[i]->rate;
	}
}
