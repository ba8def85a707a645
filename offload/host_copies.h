/* Copies between devices and the host memory of a run. What is on the critical path is registered with the devices first, then the store.
 * What the system will not register of the store goes through a ring that it will (offload/staging.h); where it registers nothing, copies
 * are pageable. Each of these is said once, with what it costs. */
#ifndef RH_OFFLOAD_HOST_COPIES_H
#define RH_OFFLOAD_HOST_COPIES_H

#include "offload/pin.h"
#include "offload/staging.h"

enum rh_host_area { RH_HOST_BOUNDARIES, RH_HOST_MICRO, RH_HOST_FRAMES, RH_HOST_STORE, RH_HOST_AREAS };

struct rh_host_copies {
	struct rh_device *const *device; /* borrowed */
	int devices;
	int64_t piece_bytes;                   /* bulk goes to a device in such pieces, so that others' copies come between them */
	struct rh_host_pin pin[RH_HOST_AREAS]; /* by the first device, which does it for all */
	struct rh_staging *staging;            /* for what is not registered of the store; NULL: all is, or nothing can be */
	struct rh_arena staging_memory;
	struct rh_host_pin staging_pin;
};

/* An area: base and capacity; the store's is from rh_store_memory. scratch: memory of the first device that holds nothing yet, to measure
 * copies with; its capacity may be 0. */
struct rh_host_copies_options {
	struct rh_device *const *device;
	int devices, has_staging; /* room for a ring was planned */
	int64_t piece_bytes;
	struct rh_arena area[RH_HOST_AREAS], scratch;
};
int rh_host_copies_create(const struct rh_host_copies_options *options, struct rh_host_copies *out) RH_MUST;
/* A zeroed one is legal, and one whose creation failed. */
void rh_host_copies_destroy(struct rh_host_copies *copies);

/* Like the device's own, cut where one registration ends and the next begins. */
int rh_host_copy_up(struct rh_host_copies *copies, struct rh_device *device, enum rh_stream stream, void *to, const void *from,
                    int64_t bytes) RH_MUST;
int rh_host_copy_down(struct rh_host_copies *copies, struct rh_device *device, enum rh_stream stream, void *to, const void *from,
                      int64_t bytes) RH_MUST;
/* Whether copies of these bytes go through the staging, at least in part. */
int rh_host_is_staged(const struct rh_host_copies *copies, const void *host, int64_t bytes);
/* All that comes down through the staging is there. */
static inline int rh_host_copies_finish(struct rh_host_copies *copies)
{
	return copies->staging ? rh_staging_finish(copies->staging) : 0;
}

#endif
