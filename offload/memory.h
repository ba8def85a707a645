/* Host memory that the plan reserves: one mapping, exact, never grown. */
#ifndef RH_OFFLOAD_MEMORY_H
#define RH_OFFLOAD_MEMORY_H

#include "core/arena.h"
#include "offload/numa.h"

/* What rh_host_reserve maps for `bytes`: rounded up to a page. */
int64_t rh_host_round(int64_t bytes);

/* Maps rh_host_round(bytes), zeroed and faulted in, interleaved over all NUMA nodes: in reserved hugepages (vm.nr_hugepages) where enough
 * are free, else in transparent ones where the kernel has them. 0 bytes map nothing. `what` names the memory in the error line. */
int rh_host_reserve(int64_t bytes, const char *what, struct rh_arena *out) RH_MUST;
/* The same for memory that these devices alone use: on the nodes nearest to them. */
int rh_host_reserve_near(struct rh_device *const *device, int devices, int64_t bytes, const char *what, struct rh_arena *out) RH_MUST;
/* Reserves addresses without memory: nobody may touch them. */
int rh_host_reserve_addresses(int64_t bytes, const char *what, struct rh_arena *out) RH_MUST;
/* For callers that place pages themselves: `place` (it calls rh_numa_place) runs before they are faulted in. numa NULL: it does not. */
struct rh_host_placing {
	struct rh_numa *numa;
	void (*place)(const void *context, struct rh_numa *numa, struct rh_arena memory);
	const void *context;
};
int rh_host_reserve_placed(const struct rh_host_placing *placing, int64_t bytes, const char *what, struct rh_arena *out) RH_MUST;
/* A zeroed arena is legal. */
void rh_host_release(struct rh_arena *arena);

#endif
