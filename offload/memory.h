/* Host memory that the plan reserves: one mapping, exact, never grown. */
#ifndef RH_OFFLOAD_MEMORY_H
#define RH_OFFLOAD_MEMORY_H

#include "core/arena.h"
#include "offload/numa.h"

/* What rh_host_reserve maps for `bytes`: rounded up to a page. */
int64_t rh_host_round(int64_t bytes);

/* Maps rh_host_round(bytes), zeroed, its pages there from the start, on all NUMA nodes in turn: in reserved hugepages (vm.nr_hugepages)
 * where enough are free, else in transparent ones where the kernel gives them. Nothing at all for 0 bytes. `what` names the user for the
 * error line. */
int rh_host_reserve(int64_t bytes, const char *what, struct rh_arena *out) RH_MUST;
/* The same for what these devices alone use: on the nodes nearest to them. */
int rh_host_reserve_near(struct rh_device *const *device, int devices, int64_t bytes, const char *what, struct rh_arena *out) RH_MUST;
/* Addresses alone, which no one may touch. */
int rh_host_reserve_addresses(int64_t bytes, const char *what, struct rh_arena *out) RH_MUST;
/* Pages, for who says where they are to lie: `place` is called (rh_numa_place) before they are made. numa NULL: it is not. */
struct rh_host_placing {
	struct rh_numa *numa;
	void (*place)(const void *context, struct rh_numa *numa, struct rh_arena memory);
	const void *context;
};
int rh_host_reserve_placed(const struct rh_host_placing *placing, int64_t bytes, const char *what, struct rh_arena *out) RH_MUST;
/* A zeroed arena is legal. */
void rh_host_release(struct rh_arena *arena);

#endif
