/* A ring of registered memory, through which copies of unregistered memory go where the system refuses to register the whole store.
 * Devices copy to and from the ring at full speed, beside their work. The processor moves the bytes between ring and store: the caller for
 * uploads, a thread for downloads, once the device's copy is done.
 *
 * One thread calls: the one that enqueues on the devices. A full ring waits only for copies that are enqueued already, so it cannot hang.
 */
#ifndef RH_OFFLOAD_STAGING_H
#define RH_OFFLOAD_STAGING_H

#include "core/arena.h"
#include "device/device.h"

struct rh_staging;

/* Bytes of a ring of eight buffers: four each way. */
int64_t rh_staging_bytes(int64_t buffer_bytes);

/* `memory` has rh_staging_bytes, and is borrowed until rh_staging_destroy. Devices are told apart by their index. */
int rh_staging_create(struct rh_device *const *device, int devices, int64_t buffer_bytes, struct rh_arena *memory,
                      struct rh_staging **out) RH_MUST;
/* Waits for downloads. NULL is legal. */
void rh_staging_destroy(struct rh_staging *staging);

/* Like the device's own copies, in its stream's order. An upload has read the host's bytes when it returns. */
int rh_staging_up(struct rh_staging *staging, struct rh_device *device, enum rh_stream stream, void *to, const void *from,
                  int64_t bytes) RH_MUST;
int rh_staging_down(struct rh_staging *staging, struct rh_device *device, enum rh_stream stream, void *to, const void *from,
                    int64_t bytes) RH_MUST;
/* Calls `done` on the ring's thread, which holds no lock, when all downloads so far have reached the store. After a fault `done` is not
 * called, and this call or rh_staging_finish returns the fault. `done` must be short and must not call the ring. */
int rh_staging_then(struct rh_staging *staging, void (*done)(void *context, int argument), void *context, int argument) RH_MUST;
/* Waits until all downloads have reached the store. The first fault of a device. */
int rh_staging_finish(struct rh_staging *staging) RH_MUST;

#endif
