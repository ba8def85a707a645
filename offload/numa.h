/* NUMA: which memory is near which cores and devices. On a machine of one node struct rh_numa is NULL and every call does nothing.
 *
 * Memory that all cores and devices use is interleaved over all nodes; memory that devices alone use lies on the nodes nearest to them.
 * Each node holds a part of every trainable block, the same part of each array, and its threads update that part. Bindings from outside
 * (taskset, numactl, a control group) are kept: cores and nodes beyond them do not count. HWLOC_SYNTHETIC or HWLOC_XMLFILE in the
 * environment (hwloc's own) describe another machine, for tests: then nothing is bound, but work is shared out as it would be there. */
#ifndef RH_OFFLOAD_NUMA_H
#define RH_OFFLOAD_NUMA_H

#include "core/pool.h"
#include "device/device.h"

struct rh_numa;

/* NULL where there is one node, or where the system does not say. Nodes without cores do not count. */
struct rh_numa *rh_numa_open(void);
void rh_numa_close(struct rh_numa *numa);
/* Nodes that this process may take memory from, at most RH_POOL_GROUPS (the first ones); 1 for NULL. */
int rh_numa_nodes(const struct rh_numa *numa);

/* The node of each thread: round robin, weighted by the nodes' cores, so that the first n threads are spread evenly for any n. */
void rh_numa_deal(const struct rh_numa *numa, int threads, int *node);
/* Deals the pool's threads to the nodes and binds them there, but for the caller (number 0): rh_pool_limit leaves some of each node. */
void rh_numa_group(struct rh_numa *numa, struct rh_pool *pool);

/* Memory spread from now on lies on the nodes nearest to these devices; on all nodes if one of the devices is on no bus. Returns the
 * nodes, one bit each. */
unsigned rh_numa_near(struct rh_numa *numa, struct rh_device *const *device, int devices);

/* Whole pages in [at, at + bytes) that have not been faulted in yet will lie on this node. */
void rh_numa_place(struct rh_numa *numa, int node, void *at, int64_t bytes);
/* Around the calling thread's page faults: pages are spread, but for those that rh_numa_place has placed. The end restores the thread's
 * policy. */
void rh_numa_spread_begin(struct rh_numa *numa);
void rh_numa_spread_end(struct rh_numa *numa);

/* Where node `node`'s part of so many elements begins; node == nodes: their number. */
static inline int64_t rh_numa_part(int64_t elements, int nodes, int node)
{
	return elements / nodes * node + elements % nodes * node / nodes;
}

#endif
