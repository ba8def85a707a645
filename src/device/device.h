/* The interface of devices. A device has memory of its own, which only copies reach, and a fixed set of streams. Each stream runs its
 * commands in the order in which they were enqueued; between streams only events give an order. Instances: CPU, CUDA and simulated
 * devices.
 *
 * Calls enqueue and return. A fault that shows later (a launch that failed) is sticky, and the next synchronising call returns it. One
 * host thread enqueues on a device; any thread may wait for an event, or query it, while nobody records it. Addresses of device memory
 * look like pointers, but the host never dereferences them. */
#ifndef RH_DEVICE_DEVICE_H
#define RH_DEVICE_DEVICE_H

#include "core/error.h"
#include "device/host_queue.h"
#include "device/op.h"

enum rh_stream {
	RH_STREAM_COMPUTE,
	RH_STREAM_WEIGHTS,          /* bulk, up: weights, and gradient sums of earlier rounds */
	RH_STREAM_ACTIVATIONS_UP,   /* critical: activations, their gradients, and micro-batches' integers */
	RH_STREAM_ACTIVATIONS_DOWN, /* critical: activations, their gradients, and results */
	RH_STREAM_GRADIENTS,        /* bulk, down: gradients, and their sums */
	RH_STREAMS
};

/* The chunk sizes that a kind of device prefers. The planner needs them before it opens a device. */
struct rh_device_grain {
	/* Rows of logits computed in one chunk, where the head's matrix is trained and where it is frozen. A trained head reads and writes its
	 * gradient once a chunk, so it prefers larger chunks. 0: no preference. */
	int64_t head_rows_trained, head_rows_frozen;
	int has_attention_space; /* attention's backward needs a workspace as large as q in fp32 */
	/* FLOPs of products that an attention launch has at most, so that it takes RH_LAUNCH_MOST_S at most: with tensor cores
	 * (rh_attention_uses_tensor_cores), and without. 0: no bound. */
	double attention_flops, plain_attention_flops;
};
/* A display card's driver ends a kernel after a few seconds, and shows nothing while it runs. */
#define RH_LAUNCH_MOST_S 0.3

/* A GPU's preference. With fewer rows a product is bound by the reads of its other operand from memory. */
static inline struct rh_device_grain rh_device_gpu_grain(void)
{
	struct rh_device_grain grain;
	grain.head_rows_trained = 1024;
	grain.head_rows_frozen = 512;
	grain.has_attention_space = 1;
	grain.attention_flops = grain.plain_attention_flops = 0; /* its caller knows how fast it is */
	return grain;
}

struct rh_device_memory {
	int64_t total_bytes, free_bytes; /* of the physical memory behind the device */
	int64_t cap_bytes;               /* most that may be reserved */
	int64_t reserved_bytes, peak_bytes;
};

/* Who uses an event. On a GPU an event without host waits or times costs less. Streams may wait for each kind. */
enum rh_event_use {
	RH_EVENT_ORDER, /* streams alone wait */
	RH_EVENT_HOST,  /* event_sync and event_query too */
	RH_EVENT_TIMED  /* and event_time_ns */
};

/* Opaque to users; each instance's own struct begins with it. */
struct rh_event {
	const struct rh_device_ops *ops;
};

struct rh_device {
	const struct rh_device_ops *ops;
	int index;        /* among the run's devices */
	char address[16]; /* on the PCI bus, as /sys/bus/pci/devices has it; "": on none */
};

/* Every slot is required unless marked optional. */
struct rh_device_ops {
	const char *kind;                        /* "cpu", "cuda", "sim" */
	void (*close)(struct rh_device *device); /* waits for all streams first; no other device's still waits for its events */

	void (*memory)(struct rh_device *device, struct rh_device_memory *out);
	/* Once, before the first launch: all memory that the run will use. -ENOMEM when `bytes` is above the cap, or not to be had. */
	int (*reserve)(struct rh_device *device, int64_t bytes, void **base);

	int (*event_create)(struct rh_device *device, enum rh_event_use use, struct rh_event **out);
	void (*event_destroy)(struct rh_event *event);
	/* The event completes when all commands enqueued on the stream so far are done. Recording it again replaces the earlier record. */
	int (*record)(struct rh_device *device, enum rh_stream stream, struct rh_event *event);
	/* Commands enqueued on the stream after this call start when the event's latest record has completed. An event that was never
	 * recorded causes no wait. The event may belong to another device of the same kind. */
	int (*wait)(struct rh_device *device, enum rh_stream stream, struct rh_event *event);
	/* The host waits for the event's latest record. Returns a sticky fault of its device. */
	int (*event_sync)(struct rh_event *event);
	/* 1 done (or never recorded), 0 not yet, negative on a sticky fault. */
	int (*event_query)(struct rh_event *event);
	/* Nanoseconds on the device's clock when the latest record was reached; valid once done. */
	int64_t (*event_time_ns)(struct rh_event *event);

	/* Host memory must stay valid and, up, unchanged until the copy is done. */
	int (*copy_up)(struct rh_device *device, enum rh_stream stream, void *device_dst, const void *host_src, int64_t bytes);
	int (*copy_down)(struct rh_device *device, enum rh_stream stream, void *host_dst, const void *device_src, int64_t bytes);
	/* The op is copied. Ops that may need the workspace run on RH_STREAM_COMPUTE only, because a device has one: GEMM, SCALED_GEMM,
	 * HEAD_LOSS, RMSNORM_BACKWARD, QK_ROPE_BACKWARD, and the six LORA ops, whose parts are GEMMs.
	 * Operands lie within what was reserved. Either broken is the caller's mistake, which CUDA devices assert. */
	int (*launch)(struct rh_device *device, enum rh_stream stream, const struct rh_op *op);

	/* The host waits until all streams are idle. Returns the first sticky fault, if any. */
	int (*synchronize)(struct rh_device *device);

	/* Optional: pin host memory, so that copies are fast and asynchronous. A copy of unpinned memory gives the same bytes, but it is
	 * slower and may block its caller until the stream reaches it. */
	int (*pin)(struct rh_device *device, void *host, int64_t bytes);
	void (*unpin)(struct rh_device *device, void *host, int64_t bytes);
	/* Optional: a queue that runs host work on the device's clock. Without it host work runs on the host's threads and clock. */
	int (*host_queue)(struct rh_device *device, struct rh_host_queue **out);
};

/* NULL is nothing. */
static inline void rh_event_free(struct rh_event *event)
{
	if (event)
		event->ops->event_destroy(event);
}

/* The slots that an instance must have, by the names that instances give them. */
#define RH_DEVICE_OPS_REQUIRED                                                                                                             \
	.close = device_close, .memory = device_memory, .reserve = device_reserve, .event_create = device_event_create,                    \
	.event_destroy = device_event_destroy, .record = device_record, .wait = device_wait, .event_sync = device_event_sync,              \
	.event_query = device_event_query, .event_time_ns = device_event_time_ns, .copy_up = device_copy_up,                               \
	.copy_down = device_copy_down, .launch = device_launch, .synchronize = device_synchronize

#endif
