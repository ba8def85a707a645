/* Which memory is near which cores. A machine of one node has none of this: NULL, and every call does nothing.
 *
 * Memory that all cores and devices use lies on all nodes in turn. Of a store's trainable blocks each node holds a part, the same part of
 * every array, and its threads update that part. HWLOC_SYNTHETIC in the environment (hwloc's own) makes a machine up: then nothing is
 * bound, but work is shared out as it would be. */
#ifndef RH_OFFLOAD_NUMA_H
#define RH_OFFLOAD_NUMA_H

#include "core/pool.h"

struct rh_numa;

/* NULL where there is one node, or the machine does not tell. */
struct rh_numa *rh_numa_open(void);
void rh_numa_close(struct rh_numa *numa);
/* Nodes that this process may have memory of; 1 for NULL. At most RH_POOL_GROUPS: of more, the first so many count. */
int rh_numa_nodes(const struct rh_numa *numa);

/* The pool's threads are grouped by node, as many on each as its share of the cores, and bound there. */
void rh_numa_group(struct rh_numa *numa, struct rh_pool *pool);

/* Whole pages in [at, at + bytes) that are not there yet will be a node's. */
void rh_numa_place(struct rh_numa *numa, int node, void *at, int64_t bytes);
/* Around the making of pages by the calling thread: they come from all nodes in turn, where rh_numa_place did not say otherwise. */
void rh_numa_spread_begin(struct rh_numa *numa);
void rh_numa_spread_end(struct rh_numa *numa);

/* Where node `node`'s part of so many elements begins; node == nodes: their number. */
static inline int64_t rh_numa_part(int64_t elements, int nodes, int node)
{
	return elements / nodes * node + elements % nodes * node / nodes;
}

#endif
