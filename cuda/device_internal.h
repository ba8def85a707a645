/* Inside the CUDA device: its struct, its faults, and what its files call of each other. device.c has memory, what commands are checked
 * for, and opening; load.c loads kernels; probe.c finds where memory lies; device_queue.c has the worker that carries commands out;
 * device_event.c events and the GPU's clock; gpus.c which GPUs this machine has. */
#ifndef RH_CUDA_DEVICE_INTERNAL_H
#define RH_CUDA_DEVICE_INTERNAL_H

#include "core/fault.h"
#include "cuda/device.h"
#include "cuda/launch.h"
#include "device/worker.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#ifdef RH_CUDA_EMULATED
#define CUDA_KIND "emu"
#else
#define CUDA_KIND "cuda"
#endif

enum { CUDA_ANCHORS = 3 };

/* The clock of a GPU against the host's. CUDA tells the time between two events in fp32 milliseconds: exact enough only if the earlier one
 * is young. So an event, the anchor, is recorded now and then, and its time on CLOCK_MONOTONIC kept. */
struct cuda_clock {
	pthread_mutex_t lock; /* of all: the worker renews it while others ask for times */
	/* Anchor number i lies at i % CUDA_ANCHORS; the latest two of `count` are valid, and the next may be on its way. */
	cudaEvent_t anchor[CUDA_ANCHORS];
	int64_t anchor_ns[CUDA_ANCHORS], count;
	int is_next_recorded;
};

/* After a call failed, CUDA returns that error from every later call. The device keeps the first fault with its line and returns it from
 * then on without asking CUDA again: no caller hangs, and none reports an after-effect. */
struct cuda_device {
	struct rh_device base;
	int gpu;
	int64_t cap_bytes, reserved_bytes;
	char *memory; /* reserved_bytes, then the workspace of products */
	cudaStream_t stream[RH_STREAMS];
	struct launch_context launch;
	struct cuda_clock clock;
	struct rh_worker *worker; /* the thread that makes all calls that enqueue */
	struct rh_fault fault;    /* other threads ask for events too */
};

struct cuda_event {
	struct rh_event base;
	struct cuda_device *device;
	cudaEvent_t event;
	enum rh_event_use use;
	_Atomic int references; /* the owner's, and one for each pending command that uses it */
	/* Command of the device's worker that records it last; 0: none. Other threads ask for it: who waits for the event on the host. */
	_Atomic uint64_t recorded;
	uint64_t waits;         /* waits of other devices: how many were enqueued; waits_done: how many of them were carried out */
	_Atomic uint64_t waits_done;
	/* the worker's */
	int is_recorded;
	int64_t anchor; /* number of the latest anchor at the latest record */
};

static inline struct cuda_device *cuda_device_of(struct rh_device *device)
{
	return (struct cuda_device *)device;
}

/* What to do about an error of CUDA's, to follow its text; "" if there is nothing to say. */
const char *cuda_advice(cudaError_t error);

/* Keeps a fault whose line this thread has made; returns the first fault of the device. */
int cuda_keep_fault(struct cuda_device *device, int code);

/* Returns 0, or makes a fault of `error`; `doing` names the failed call in its line. */
int cuda_check(struct cuda_device *device, cudaError_t error, const char *doing);

/* The first thing that each call does: returns the device's fault, or makes its GPU the calling thread's. */
int cuda_enter(struct cuda_device *device) RH_MUST;

/* gpus.c. -EINVAL for a GPU that is not there, -ENODEV for one that is too old. */
int cuda_check_gpu(int gpu) RH_MUST;
cudaError_t cuda_wake(int gpu); /* before anything else makes the GPU's context */
cudaError_t cuda_memory_of(int gpu, int64_t *free_bytes, int64_t *total_bytes);
cudaError_t cuda_address_of(int gpu, char address[16]); /* on the PCI bus, as /sys writes it */

int cuda_load_kernels(struct cuda_device *device) RH_MUST; /* load.c: all of the program's, onto the calling thread's GPU */
int cuda_probe_memory(struct cuda_device *device) RH_MUST; /* probe.c: what was reserved, before anything is written there */

/* device_event.c: slots of struct rh_device_ops, and the clock's beginning, idle time and end. */
int device_event_create(struct rh_device *base, enum rh_event_use use, struct rh_event **out);
void device_event_destroy(struct rh_event *event);
int device_record(struct rh_device *base, enum rh_stream stream, struct rh_event *event);
int device_wait(struct rh_device *base, enum rh_stream stream, struct rh_event *event);
int device_event_sync(struct rh_event *event);
int device_event_query(struct rh_event *event);
int64_t device_event_time_ns(struct rh_event *event);
/* On the worker's thread. */
void cuda_event_record(struct cuda_device *device, enum rh_stream stream, struct cuda_event *event);
void cuda_event_wait(struct cuda_device *device, enum rh_stream stream, struct cuda_event *event);
void cuda_event_release(struct cuda_event *event);
int cuda_clock_start(struct cuda_device *device) RH_MUST;
int cuda_clock_idle(struct cuda_device *device) RH_MUST; /* all streams are idle: renews an old anchor */
void cuda_clock_stop(struct cuda_device *device);

/* device_queue.c: the worker, which rh_worker_close ends; commands to it. They return the device's fault. */
int cuda_queue_open(struct cuda_device *device) RH_MUST;
int cuda_queue_copy(struct cuda_device *device, int is_up, enum rh_stream stream, void *to, const void *from, int64_t bytes) RH_MUST;
int cuda_queue_launch(struct cuda_device *device, enum rh_stream stream, const struct rh_op *op) RH_MUST;
int cuda_queue_record(struct cuda_device *device, enum rh_stream stream, struct cuda_event *event) RH_MUST;
int cuda_queue_wait(struct cuda_device *device, enum rh_stream stream, struct cuda_event *event) RH_MUST;

#endif
