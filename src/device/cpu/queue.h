/* Streams and events of the CPU device. A stream is a worker (device/worker.h); the n-th command enqueued on it is done when
 * its `done` has reached n. An event is no more than such a number on a stream, so that recording it again moves it while whoever waits for
 * the earlier record still waits for exactly that. */
#ifndef RH_DEVICE_CPU_QUEUE_H
#define RH_DEVICE_CPU_QUEUE_H

#include "core/fault.h"
#include "device/cpu/kernels.h"
#include "device/device.h"

struct cpu_stream;
struct cpu_event;

/* options->threads threads, the stream's own among them, compute the compute stream's ops; one those of others, which are rare and small.
 * `fault` is the device's, and outlives the stream. */
int cpu_stream_open(int device, enum rh_stream stream, const struct rh_cpu_options *options, struct rh_fault *fault,
                    struct cpu_stream **out) RH_MUST;
/* Runs what is enqueued, then ends the thread. NULL is legal. */
void cpu_stream_close(struct cpu_stream *stream);

/* These block while the ring is full. Addresses are real ones. */
void cpu_stream_op(struct cpu_stream *stream, const struct rh_op *op);
void cpu_stream_copy(struct cpu_stream *stream, void *dst, const void *src, int64_t bytes);
void cpu_stream_record(struct cpu_stream *stream, struct cpu_event *event);
void cpu_stream_wait(struct cpu_stream *stream, struct cpu_event *event);

/* Returns when all that was enqueued before is done. */
void cpu_stream_drain(struct cpu_stream *stream);

/* `base` comes first; `fault` is the owning device's. All uses cost the same here, but an event is held to its own as on a GPU. The caller
 * holds one reference until cpu_event_destroy. */
int cpu_event_create(const struct rh_device_ops *ops, struct rh_fault *fault, enum rh_event_use use, struct cpu_event **out) RH_MUST;
void cpu_event_destroy(struct cpu_event *event);
int cpu_event_sync(struct cpu_event *event);
int cpu_event_query(struct cpu_event *event);
int64_t cpu_event_time_ns(struct cpu_event *event);

#endif
