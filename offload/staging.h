/* A bounded ring of registered memory through which copies of unregistered memory go: what a run does where the system registers too little
 * of its store. Devices copy from and to the ring at full speed and beside their work; the bytes are moved between ring and store by the
 * processor: upwards by the caller, downwards by a thread, once the device's copy is done.
 *
 * The thread that enqueues on the devices drives. Whatever a full ring waits for was enqueued before, so it cannot hang. */
#ifndef RH_OFFLOAD_STAGING_H
#define RH_OFFLOAD_STAGING_H

#include "core/arena.h"
#include "device/device.h"

struct rh_staging;

/* Bytes that a ring is cut from whose copies take so many at a time: eight of them. */
int64_t rh_staging_bytes(int64_t slot_bytes);

/* `memory` has that many, and stays until rh_staging_destroy; devices are named by their index. */
int rh_staging_create(struct rh_device *const *device, int devices, int64_t slot_bytes, struct rh_arena *memory,
                      struct rh_staging **out) RH_MUST;
/* Lets copies downwards end. NULL is legal. */
void rh_staging_destroy(struct rh_staging *staging);

/* Copies as the device's own, in its stream's order; upwards the host's bytes are read before it returns. */
int rh_staging_up(struct rh_staging *staging, struct rh_device *device, enum rh_stream stream, void *to, const void *from,
                  int64_t bytes) RH_MUST;
int rh_staging_down(struct rh_staging *staging, struct rh_device *device, enum rh_stream stream, void *to, const void *from,
                    int64_t bytes) RH_MUST;
/* `done` is called when all copies downwards so far are where they belong; not after a fault, which comes back here or from
 * rh_staging_finish. By the ring's thread, which holds no lock. It is short, and does not call the ring. */
int rh_staging_then(struct rh_staging *staging, void (*done)(void *context, int argument), void *context, int argument) RH_MUST;
/* Waits until all copies downwards are where they belong. The first fault of a device. */
int rh_staging_finish(struct rh_staging *staging) RH_MUST;

#endif
