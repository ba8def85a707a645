/* The instance of device/host_queue.h on a real thread and the host's clock. Its jobs wait for devices' events or for drives, while the
 * thread that submitted them continues. */
#ifndef RH_OFFLOAD_HOST_THREAD_H
#define RH_OFFLOAD_HOST_THREAD_H

#include "device/host_queue.h"

/* At most `capacity` jobs are submitted and not finished. The instance has no `serve` and no `await_change`. A job that waits for a
 * device's event fails when that device fails. */
int rh_host_thread_open(int capacity, struct rh_host_queue **out) RH_MUST;

#endif
