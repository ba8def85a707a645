#include "offload/numa.h"

#include "core/alloc.h"
#include "core/log.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A thread's memory policy as the kernel has it: hwloc's words for them are fewer, and would not give it back as it was. */
enum { POLICY_NODES = 1024 };
struct policy {
	int mode;
	unsigned long nodes[POLICY_NODES / (8 * sizeof(long))];
};

struct rh_numa {
	hwloc_topology_t topology;
	int nodes;
	hwloc_obj_t node[RH_POOL_GROUPS];
	int cores; /* of all nodes that this process may run on */
	hwloc_bitmap_t spread;
	struct policy original_policy;
};

static int is_made_up(void)
{
	return getenv("HWLOC_SYNTHETIC") || getenv("HWLOC_XMLFILE");
}

/* Asked first: loading a topology takes longer than small runs wish to wait. */
static int has_several_nodes(void)
{
	char online[16] = "0";
	FILE *file = fopen("/sys/devices/system/node/has_memory", "re");
	if (file && !fgets(online, sizeof online, file))
		snprintf(online, sizeof online, "0");
	if (file)
		fclose(file);
	return strpbrk(online, "-,") != NULL || is_made_up();
}

/* The cores that the calling thread is bound to. The topology's own flags cannot tell: they ask for a binding that all threads share,
 * which is gone once a pool's threads are bound to nodes. */
static int restrict_to_binding(hwloc_topology_t topology)
{
	hwloc_bitmap_t set = hwloc_bitmap_alloc();
	hwloc_membind_policy_t policy;
	int rc = set ? 0 : -1;
	if (!rc && !hwloc_get_cpubind(topology, set, HWLOC_CPUBIND_THREAD))
		rc = hwloc_topology_restrict(topology, set, 0) && errno == ENOMEM; /* else the topology stays as it was */
	if (!rc && !hwloc_get_membind(topology, set, &policy, HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) &&
	    policy == HWLOC_MEMBIND_BIND)
		rc = hwloc_topology_restrict(topology, set, HWLOC_RESTRICT_FLAG_BYNODESET) && errno == ENOMEM;
	hwloc_bitmap_free(set);
	return rc;
}

static void find_nodes(struct rh_numa *numa)
{
	hwloc_const_nodeset_t allowed = hwloc_topology_get_allowed_nodeset(numa->topology);
	for (hwloc_obj_t node = NULL; (node = hwloc_get_next_obj_by_type(numa->topology, HWLOC_OBJ_NUMANODE, node));) {
		if (!hwloc_bitmap_isset(allowed, node->os_index) || hwloc_bitmap_iszero(node->cpuset))
			continue;
		hwloc_bitmap_set(numa->spread, node->os_index);
		if (numa->nodes == RH_POOL_GROUPS)
			continue;
		numa->node[numa->nodes++] = node;
		numa->cores += hwloc_bitmap_weight(node->cpuset);
	}
}

static int load(struct rh_numa *numa)
{
	if (hwloc_topology_set_io_types_filter(numa->topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) || hwloc_topology_load(numa->topology))
		return -1;
	return hwloc_topology_is_thissystem(numa->topology) ? restrict_to_binding(numa->topology) : 0;
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
	numa->spread = hwloc_bitmap_alloc();
	if (numa->spread && !load(numa))
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
	hwloc_bitmap_free(numa->spread);
	hwloc_topology_destroy(numa->topology);
	rh_free(numa);
}

int rh_numa_nodes(const struct rh_numa *numa)
{
	return numa ? numa->nodes : 1;
}

void rh_numa_deal(const struct rh_numa *numa, int threads, int *node)
{
	int64_t given[RH_POOL_GROUPS] = {0};
	for (int i = 0; i < threads; i++) {
		int64_t most = INT64_MIN;
		node[i] = 0;
		for (int n = 0; numa && n < numa->nodes; n++) { /* to the one that is furthest behind its share */
			int64_t behind = (int64_t)hwloc_bitmap_weight(numa->node[n]->cpuset) * (i + 1) - given[n] * numa->cores;
			if (behind > most) {
				most = behind;
				node[i] = n;
			}
		}
		given[node[i]]++;
	}
}

void rh_numa_group(struct rh_numa *numa, struct rh_pool *pool)
{
	int threads = rh_pool_threads(pool), *group = numa ? rh_alloc((size_t)threads, sizeof *group) : NULL;
	if (!group) /* one group, as it was */
		return;
	int bound = 1;
	rh_numa_deal(numa, threads, group);
	for (int i = 1; i < threads; i++)
		if (hwloc_set_thread_cpubind(numa->topology, rh_pool_worker(pool, i), numa->node[group[i]]->cpuset, 0))
			bound = 0;
	if (!bound)
		rh_warn_once(
		        "the optimizer's threads are not bound to the NUMA nodes whose memory they update (%s): it may run more slowly",
		        strerror(errno));
	rh_pool_group(pool, group, numa->nodes);
	rh_free(group);
}

unsigned rh_numa_near(struct rh_numa *numa, struct rh_device *const *device, int devices)
{
	unsigned near = 0;
	if (!numa)
		return 1;
	for (int d = 0; d < devices; d++) {
		hwloc_obj_t at = device[d]->address[0] ? hwloc_get_pcidev_by_busidstring(numa->topology, device[d]->address) : NULL;
		hwloc_obj_t above = at ? hwloc_get_non_io_ancestor_obj(numa->topology, at) : NULL;
		unsigned found = 0;
		for (int n = 0; above && n < numa->nodes; n++)
			found |= (unsigned)hwloc_bitmap_intersects(above->nodeset, numa->node[n]->nodeset) << n;
		if (!found) /* anywhere */
			return (1u << numa->nodes) - 1;
		near |= found;
	}
	hwloc_bitmap_zero(numa->spread);
	for (int n = 0; n < numa->nodes; n++)
		if (near >> n & 1)
			hwloc_bitmap_or(numa->spread, numa->spread, numa->node[n]->nodeset);
	return near;
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
	if (!numa)
		return;
	numa->original_policy = (struct policy){0}; /* the default, where it is not told */
	(void)syscall(SYS_get_mempolicy, &numa->original_policy.mode, numa->original_policy.nodes, POLICY_NODES + 1L, NULL, 0L);
	if (hwloc_set_membind(numa->topology, numa->spread, HWLOC_MEMBIND_INTERLEAVE, HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET))
		rh_warn_once("host memory is not spread over the NUMA nodes (%s): the optimizer may run at the speed of one; start with "
		             "numactl --interleave=all",
		             strerror(errno));
}

void rh_numa_spread_end(struct rh_numa *numa)
{
	if (numa)
		(void)syscall(SYS_set_mempolicy, (long)numa->original_policy.mode, numa->original_policy.nodes, POLICY_NODES + 1L);
}
