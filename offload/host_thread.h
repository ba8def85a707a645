/* The instance of device/host_queue.h on a thread and by the clock of the host's own: for work that waits for devices' events or drives,
 * while whoever submits it goes on. */
#ifndef RH_OFFLOAD_HOST_THREAD_H
#define RH_OFFLOAD_HOST_THREAD_H

#include "device/host_queue.h"

/* At most `capacity` jobs are submitted and not over. It has no `serve` and no `pass`. A job that waits for a device's event fails with
 * that device. */
int rh_host_thread_open(int capacity, struct rh_host_queue **out) RH_MUST;

#endif
