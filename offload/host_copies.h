/* Copies between devices and a run's host memory. Memory on the critical path is registered with the devices first, then the store.
 * Where the system refuses to register all of the store, copies of the rest go through a ring of registered memory (offload/staging.h).
 * Where it registers less than the ring, copies are pageable. A line says once which of these happened, and what it costs. */
#ifndef RH_OFFLOAD_HOST_COPIES_H
#define RH_OFFLOAD_HOST_COPIES_H

#include "offload/pin.h"
#include "offload/staging.h"

enum rh_host_area { RH_HOST_BOUNDARIES, RH_HOST_MICRO, RH_HOST_FRAMES, RH_HOST_STORE, RH_HOST_AREAS };

struct rh_host_copies {
	struct rh_device *const *device; /* borrowed */
	int devices;
	int64_t piece_bytes; /* weights go to a device in pieces of this size, so that other copies can pass between two */
	struct rh_host_pin pin[RH_HOST_AREAS]; /* registered by the first device, which is enough for all */
	struct rh_staging *staging;            /* for the part of the store that is not registered; NULL: all of it is, or nothing can be */
	struct rh_arena staging_memory;
	struct rh_host_pin staging_pin;
};

/* The areas are arenas by base and capacity; the store's comes from rh_store_memory. scratch: memory of the first device that is still
 * unused, to measure copies with; its capacity may be 0. */
struct rh_host_copies_options {
	struct rh_device *const *device;
	int devices, has_staging; /* has_staging: the plan counted a ring */
	int64_t piece_bytes;
	struct rh_arena area[RH_HOST_AREAS], scratch;
};
int rh_host_copies_create(const struct rh_host_copies_options *options, struct rh_host_copies *out) RH_MUST;
/* A zeroed one is legal, and one whose creation failed. */
void rh_host_copies_destroy(struct rh_host_copies *copies);

/* Like the device's own copies. A copy that crosses from one registration into the next is split there. */
int rh_host_copy_up(struct rh_host_copies *copies, struct rh_device *device, enum rh_stream stream, void *to, const void *from,
                    int64_t bytes) RH_MUST;
int rh_host_copy_down(struct rh_host_copies *copies, struct rh_device *device, enum rh_stream stream, void *to, const void *from,
                      int64_t bytes) RH_MUST;
/* Whether copies of these bytes go through the staging, at least in part. */
int rh_host_is_staged(const struct rh_host_copies *copies, const void *host, int64_t bytes);
/* Waits until all downloads through the staging ring have reached the store. */
static inline int rh_host_copies_finish(struct rh_host_copies *copies)
{
	return copies->staging ? rh_staging_finish(copies->staging) : 0;
}

#endif
