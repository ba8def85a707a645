/* Which memory is near which cores and devices. A machine of one node has none of this: NULL, and every call does nothing.
 *
 * Memory that all cores and devices use lies on all nodes in turn; what devices alone use, on those nearest to them. Of a store's trainable
 * blocks each node holds a part, the same part of every array, and its threads update that part. Who started the process and bound it to
 * cores or nodes (taskset, numactl, a control group) has said which there are. HWLOC_SYNTHETIC or HWLOC_XMLFILE in the environment (hwloc's
 * own) makes a machine up: then nothing is bound, but work is shared out as it would be. */
#ifndef RH_OFFLOAD_NUMA_H
#define RH_OFFLOAD_NUMA_H

#include "core/pool.h"
#include "device/device.h"

struct rh_numa;

/* NULL where there is one node, or the machine does not tell. Nodes without cores do not count. */
struct rh_numa *rh_numa_open(void);
void rh_numa_close(struct rh_numa *numa);
/* Nodes that this process may have memory of; 1 for NULL. At most RH_POOL_GROUPS: of more, the first so many count. */
int rh_numa_nodes(const struct rh_numa *numa);

/* The node of each of so many threads: in turn, by the nodes' shares of the cores, so that of the first so many each node has its share. */
void rh_numa_deal(const struct rh_numa *numa, int threads, int *node);
/* The pool's threads are dealt to the nodes, and bound there (but for the caller, number 0): rh_pool_limit leaves some of each. */
void rh_numa_group(struct rh_numa *numa, struct rh_pool *pool);

/* What is spread from now on lies on the nodes nearest to these devices; on all where one of them is on no bus. Returns a bit for each. */
unsigned rh_numa_near(struct rh_numa *numa, struct rh_device *const *device, int devices);

/* Whole pages in [at, at + bytes) that are not there yet will be a node's. */
void rh_numa_place(struct rh_numa *numa, int node, void *at, int64_t bytes);
/* Around the making of pages by the calling thread: they are spread, where rh_numa_place did not say otherwise. Its own policy comes back.
 */
void rh_numa_spread_begin(struct rh_numa *numa);
void rh_numa_spread_end(struct rh_numa *numa);

/* Where node `node`'s part of so many elements begins; node == nodes: their number. */
static inline int64_t rh_numa_part(int64_t elements, int nodes, int node)
{
	return elements / nodes * node + elements % nodes * node / nodes;
}

#endif
