/* A GPU's worker: the thread that makes its calls, as launching takes time and one thread could not feed several GPUs. Copies, launches,
 * records and waits are checked where they are asked for, enqueued, and carried out in that order.
 *
 * A command depends only on commands that were enqueued before it, on whatever GPU: so workers that wait for one another cannot deadlock.
 *   WAIT    for an event of another GPU's: its record was enqueued, and has to be carried out first (else CUDA would know of none)
 *   RECORD  of an event that other GPUs were told to wait for: they wait for the record before, so that has to be carried out first */
#include "cuda/device_internal.h"

#include <sched.h>

enum { RING_BYTES = 1 << 20 };

enum kind { COPY_UP, COPY_DOWN, LAUNCH, RECORD, WAIT };

struct copying {
	enum rh_stream stream;
	void *to;
	const void *from;
	int64_t bytes;
};

/* The payload of RECORD and WAIT. count: RECORD waits until this many waits of other devices for the event are carried out; WAIT, until
 * this many commands of the event's device are. */
struct ordering {
	enum rh_stream stream;
	struct cuda_event *event;
	uint64_t count;
};

static void copy(struct cuda_device *device, enum kind kind, const void *payload)
{
	const struct copying *copy = payload;
	int up = kind == COPY_UP;
	if (cuda_enter(device))
		return;
	(void)cuda_check(device,
	                 cudaMemcpyAsync(copy->to, copy->from, (size_t)copy->bytes, up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
	                                 device->stream[copy->stream]),
	                 up ? "copying to the GPU" : "copying from the GPU");
}

/* The stream, in 8 bytes, and the op. */
static void launch(struct cuda_device *device, const void *payload)
{
	enum rh_stream stream;
	struct rh_op op;
	memcpy(&stream, payload, sizeof stream);
	rh_op_unpack((const char *)payload + 8, &op);
	if (cuda_enter(device))
		return;
	struct launch_context launch = device->launch;
	launch.stream = device->stream[stream];
	rh_error_clear();
	int rc = launch_op(&launch, &op);
	cudaError_t error = cudaPeekAtLastError(); /* perhaps an earlier launch's: it says more than what failed because of it */
	if (error != cudaSuccess)
		(void)cuda_check(device, error, rh_op_info(op.kind)->name);
	else if (rc)
		(void)cuda_keep_fault(device, rh_fail_in(rc, "%s", rh_op_info(op.kind)->name));
}

/* After a fault nothing is given to the GPU any more, but each command is over, so that nobody hangs. */
static void carry_out(void *context, int kind, const void *payload, uint64_t number)
{
	struct cuda_device *device = context;
	const struct ordering *ordering = payload;
	(void)number;
	switch ((enum kind)kind) {
	case COPY_UP:
	case COPY_DOWN:
		copy(device, (enum kind)kind, payload);
		return;
	case LAUNCH:
		launch(device, payload);
		return;
	case RECORD:
		while (atomic_load_explicit(&ordering->event->waits_done, memory_order_acquire) < ordering->count)
			(void)sched_yield(); /* other workers are behind: they come to it without this one */
		cuda_event_record(device, ordering->stream, ordering->event);
		cuda_event_release(ordering->event);
		return;
	case WAIT:
		if (ordering->event->device != device)
			rh_worker_await(ordering->event->device->worker, ordering->count);
		cuda_event_wait(device, ordering->stream, ordering->event);
		if (ordering->event->device != device)
			atomic_fetch_add_explicit(&ordering->event->waits_done, 1, memory_order_release);
		cuda_event_release(ordering->event);
		return;
	}
}

int cuda_queue_open(struct cuda_device *device)
{
	int rc = rh_worker_open(RING_BYTES, carry_out, device, &device->worker);
	return rc ? rh_fail(rc, "device " CUDA_KIND ":%d: cannot start its worker's thread: %s", device->gpu, strerror(-rc)) : 0;
}

int cuda_queue_copy(struct cuda_device *device, int is_up, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	const struct copying copy = {stream, to, from, bytes};
	uint64_t number;
	memcpy(rh_worker_claim(device->worker, is_up ? COPY_UP : COPY_DOWN, sizeof copy, &number), &copy, sizeof copy);
	rh_worker_publish(device->worker);
	return rh_fault_get(&device->fault);
}

int cuda_queue_launch(struct cuda_device *device, enum rh_stream stream, const struct rh_op *op)
{
	uint64_t number;
	char *payload = rh_worker_claim(device->worker, LAUNCH, 8 + rh_op_packed_bytes(op), &number);
	memcpy(payload, &stream, sizeof stream);
	rh_op_pack(op, payload + 8);
	rh_worker_publish(device->worker);
	return rh_fault_get(&device->fault);
}

int cuda_queue_record(struct cuda_device *device, enum rh_stream stream, struct cuda_event *event)
{
	const struct ordering ordering = {stream, event, event->waits};
	atomic_fetch_add_explicit(&event->references, 1, memory_order_relaxed);
	uint64_t number;
	memcpy(rh_worker_claim(device->worker, RECORD, sizeof ordering, &number), &ordering, sizeof ordering);
	atomic_store_explicit(&event->recorded, number, memory_order_release);
	rh_worker_publish(device->worker);
	return rh_fault_get(&device->fault);
}

int cuda_queue_wait(struct cuda_device *device, enum rh_stream stream, struct cuda_event *event)
{
	uint64_t recorded = atomic_load_explicit(&event->recorded, memory_order_acquire), number;
	const struct ordering ordering = {stream, event, recorded};
	if (!recorded)
		return 0;
	event->waits += event->device != device;
	atomic_fetch_add_explicit(&event->references, 1, memory_order_relaxed);
	memcpy(rh_worker_claim(device->worker, WAIT, sizeof ordering, &number), &ordering, sizeof ordering);
	rh_worker_publish(device->worker);
	return rh_fault_get(&device->fault);
}
