#include "offload/numa.h"

#include "core/alloc.h"
#include "core/log.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct rh_numa {
	hwloc_topology_t topology;
	int nodes;
	hwloc_obj_t node[RH_POOL_GROUPS];
	int cores; /* of all nodes that this process may run on */
};

/* Asked first: loading a topology takes longer than small runs wish to wait. */
static int has_several_nodes(void)
{
	char online[16] = "0";
	FILE *file = fopen("/sys/devices/system/node/has_memory", "re");
	if (file && !fgets(online, sizeof online, file))
		snprintf(online, sizeof online, "0");
	if (file)
		fclose(file);
	return strpbrk(online, "-,") != NULL || getenv("HWLOC_SYNTHETIC");
}

static void find_nodes(struct rh_numa *numa)
{
	hwloc_const_nodeset_t allowed = hwloc_topology_get_allowed_nodeset(numa->topology);
	for (hwloc_obj_t node = NULL; (node = hwloc_get_next_obj_by_type(numa->topology, HWLOC_OBJ_NUMANODE, node));) {
		if (numa->nodes == RH_POOL_GROUPS || !hwloc_bitmap_isset(allowed, node->os_index))
			continue;
		numa->node[numa->nodes++] = node;
		numa->cores += hwloc_bitmap_weight(node->cpuset);
	}
}

struct rh_numa *rh_numa_open(void)
{
	if (!has_several_nodes())
		return NULL;
	struct rh_numa *numa = rh_alloc(1, sizeof *numa);
	if (!numa || hwloc_topology_init(&numa->topology)) {
		rh_free(numa);
		return NULL;
	}
	if (!hwloc_topology_load(numa->topology))
		find_nodes(numa);
	if (numa->nodes > 1)
		return numa;
	rh_numa_close(numa);
	return NULL;
}

void rh_numa_close(struct rh_numa *numa)
{
	if (!numa)
		return;
	hwloc_topology_destroy(numa->topology);
	rh_free(numa);
}

int rh_numa_nodes(const struct rh_numa *numa)
{
	return numa ? numa->nodes : 1;
}

/* The node of thread i of so many: the nodes' cores one after the other, each thread the middle of its share. */
static int node_of(const struct rh_numa *numa, int i, int threads)
{
	int64_t at = ((int64_t)2 * i + 1) * numa->cores / (2 * threads), below = 0;
	for (int n = 0; n < numa->nodes; n++) {
		below += hwloc_bitmap_weight(numa->node[n]->cpuset);
		if (at < below)
			return n;
	}
	return numa->nodes - 1;
}

void rh_numa_group(struct rh_numa *numa, struct rh_pool *pool)
{
	int threads = rh_pool_threads(pool), *group = numa ? rh_alloc((size_t)threads, sizeof *group) : NULL;
	if (!group) /* one group, as it was */
		return;
	int bound = 1;
	for (int i = 0; i < threads; i++) {
		group[i] = node_of(numa, i, threads);
		if (i && hwloc_set_thread_cpubind(numa->topology, rh_pool_worker(pool, i), numa->node[group[i]]->cpuset, 0))
			bound = 0;
	}
	if (!bound)
		rh_warn_once(
		        "the optimizer's threads are not bound to the NUMA nodes whose memory they update (%s): it may run more slowly",
		        strerror(errno));
	rh_pool_group(pool, group, numa->nodes);
	rh_free(group);
}

void rh_numa_place(struct rh_numa *numa, int node, void *at, int64_t bytes)
{
	enum { HUGEPAGE = 2 << 20 };
	uintptr_t page = bytes < 8 * HUGEPAGE ? (uintptr_t)sysconf(_SC_PAGESIZE) : HUGEPAGE;
	uintptr_t first = ((uintptr_t)at + page - 1) / page * page, end = ((uintptr_t)at + (uintptr_t)bytes) / page * page;
	if (numa && first < end) /* a wish: what is refused is spread like the rest */
		(void)hwloc_set_area_membind(numa->topology, (void *)first, end - first, numa->node[node]->nodeset, HWLOC_MEMBIND_BIND,
		                             HWLOC_MEMBIND_BYNODESET);
}

void rh_numa_spread_begin(struct rh_numa *numa)
{
	if (numa && hwloc_set_membind(numa->topology, hwloc_topology_get_allowed_nodeset(numa->topology), HWLOC_MEMBIND_INTERLEAVE,
	                              HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET))
		rh_warn_once("host memory is not spread over the NUMA nodes (%s): the optimizer may run at the speed of one; start with "
		             "numactl --interleave=all",
		             strerror(errno));
}

void rh_numa_spread_end(struct rh_numa *numa)
{
	if (numa)
		(void)hwloc_set_membind(numa->topology, hwloc_topology_get_allowed_nodeset(numa->topology), HWLOC_MEMBIND_DEFAULT,
		                        HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET);
}
