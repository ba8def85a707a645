/* Events of the CUDA device, and the clock that tells their times. */
#include "core/alloc.h"
#include "core/minmax.h"
#include "cuda/device_internal.h"

#include <time.h>

enum { ANCHOR_AGE_NS = 1000 * 1000 * 1000 };

static struct cuda_event *event_of(struct rh_event *event)
{
	return (struct cuda_event *)event;
}

/* The clock */

static int64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Records an anchor and waits for it: all streams are idle. */
static int drop_anchor(struct cuda_device *device)
{
	struct cuda_clock *clock = &device->clock;
	int to = (int)(clock->count % CUDA_ANCHORS);
	cudaError_t error = cudaEventRecord(clock->anchor[to], device->stream[RH_STREAM_COMPUTE]);
	if (error == cudaSuccess)
		error = cudaEventSynchronize(clock->anchor[to]);
	clock->anchor_ns[to] = now_ns();
	clock->count++;
	clock->is_next_recorded = 0;
	return cuda_check(device, error, "reading the GPU's clock");
}

static int is_anchor_old(const struct cuda_clock *clock)
{
	return now_ns() - clock->anchor_ns[(clock->count - 1) % CUDA_ANCHORS] > ANCHOR_AGE_NS;
}

/* For streams that are never idle (steps are joined): records an anchor among the work. Once the GPU has reached it, its time follows from
 * the anchor before it. */
static int renew_anchor(struct cuda_device *device)
{
	struct cuda_clock *clock = &device->clock;
	int to = (int)(clock->count % CUDA_ANCHORS), from = (int)((clock->count - 1) % CUDA_ANCHORS);
	float milliseconds = 0;
	if (!clock->is_next_recorded) {
		if (!is_anchor_old(clock))
			return 0;
		clock->is_next_recorded = 1;
		return cuda_check(device, cudaEventRecord(clock->anchor[to], device->stream[RH_STREAM_COMPUTE]), "recording an event");
	}
	cudaError_t error = cudaEventQuery(clock->anchor[to]);
	if (error == cudaErrorNotReady) {
		(void)cudaGetLastError();
		return 0;
	}
	if (error == cudaSuccess)
		error = cudaEventElapsedTime(&milliseconds, clock->anchor[from], clock->anchor[to]);
	clock->anchor_ns[to] = clock->anchor_ns[from] + (int64_t)((double)milliseconds * 1e6);
	clock->count++;
	clock->is_next_recorded = 0;
	return cuda_check(device, error, "reading the GPU's clock");
}

int cuda_clock_start(struct cuda_device *device)
{
	int rc = 0;
	pthread_mutex_init(&device->clock.lock, NULL);
	for (int i = 0; !rc && i < CUDA_ANCHORS; i++)
		rc = cuda_check(device, cudaEventCreateWithFlags(&device->clock.anchor[i], cudaEventBlockingSync), "creating an event");
	return rc ? rc : drop_anchor(device);
}

int cuda_clock_idle(struct cuda_device *device)
{
	pthread_mutex_lock(&device->clock.lock);
	int rc = is_anchor_old(&device->clock) ? drop_anchor(device) : 0;
	pthread_mutex_unlock(&device->clock.lock);
	return rc;
}

void cuda_clock_stop(struct cuda_device *device)
{
	for (int i = 0; i < CUDA_ANCHORS; i++)
		if (device->clock.anchor[i])
			(void)cudaEventDestroy(device->clock.anchor[i]);
	if (device->clock.anchor[0]) /* else it was never started */
		pthread_mutex_destroy(&device->clock.lock);
}

/* Events */

int device_event_create(struct rh_device *base, enum rh_event_use use, struct rh_event **out)
{
	/* A host thread that waits sleeps: the CPU has an optimizer to run. */
	static const unsigned flags[] = {[RH_EVENT_ORDER] = cudaEventDisableTiming,
	                                 [RH_EVENT_HOST] = cudaEventDisableTiming | cudaEventBlockingSync,
	                                 [RH_EVENT_TIMED] = cudaEventBlockingSync};
	struct cuda_device *device = cuda_device_of(base);
	int rc = cuda_enter(device);
	if (rc)
		return rc;
	struct cuda_event *event = rh_alloc(1, sizeof *event);
	if (!event)
		return -ENOMEM;
	event->base.ops = base->ops;
	event->device = device;
	event->use = use;
	atomic_init(&event->references, 1);
	atomic_init(&event->waits_done, 0);
	rc = cuda_check(device, cudaEventCreateWithFlags(&event->event, flags[use]), "creating an event");
	if (rc)
		rh_free(event);
	else
		*out = &event->base;
	return rc;
}

void cuda_event_release(struct cuda_event *event)
{
	if (atomic_fetch_sub_explicit(&event->references, 1, memory_order_acq_rel) != 1)
		return;
	(void)cudaEventDestroy(event->event); /* it fails only with the device's own fault, which other calls return */
	rh_free(event);
}

void device_event_destroy(struct rh_event *base)
{
	if (base)
		cuda_event_release(event_of(base));
}

void cuda_event_record(struct cuda_device *device, enum rh_stream stream, struct cuda_event *event)
{
	int rc = cuda_enter(device);
	if (!rc)
		rc = cuda_check(device, cudaEventRecord(event->event, device->stream[stream]), "recording an event");
	pthread_mutex_lock(&device->clock.lock);
	if (!rc && event->use == RH_EVENT_TIMED)
		rc = renew_anchor(device);
	event->is_recorded |= !rc;
	event->anchor = device->clock.count - 1;
	pthread_mutex_unlock(&device->clock.lock);
}

void cuda_event_wait(struct cuda_device *device, enum rh_stream stream, struct cuda_event *event)
{
	if (!cuda_enter(device))
		(void)cuda_check(device, cudaStreamWaitEvent(device->stream[stream], event->event, 0), "waiting for an event");
}

int device_record(struct rh_device *base, enum rh_stream stream, struct rh_event *event)
{
	struct cuda_device *device = cuda_device_of(base);
	RH_ASSERT(event_of(event)->device == device);
	int rc = rh_fault_get(&device->fault);
	return rc ? rc : cuda_queue_record(device, stream, event_of(event));
}

int device_wait(struct rh_device *base, enum rh_stream stream, struct rh_event *event)
{
	struct cuda_device *device = cuda_device_of(base), *other = event_of(event)->device;
	RH_ASSERT(event->ops == base->ops);
	int rc = rh_fault_get(&other->fault);
	if (!rc)
		rc = rh_fault_get(&device->fault);
	return rc ? rc : cuda_queue_wait(device, stream, event_of(event));
}

int device_event_sync(struct rh_event *event)
{
	struct cuda_device *device = event_of(event)->device;
	RH_ASSERT(event_of(event)->use != RH_EVENT_ORDER);
	rh_worker_await(device->worker, event_of(event)->recorded);
	int rc = cuda_enter(device);
	return rc ? rc : cuda_check(device, cudaEventSynchronize(event_of(event)->event), "waiting for the GPU");
}

int device_event_query(struct rh_event *event)
{
	struct cuda_device *device = event_of(event)->device;
	RH_ASSERT(event_of(event)->use != RH_EVENT_ORDER);
	int rc = rh_fault_get(&device->fault);
	if (rc || !rh_worker_has_done(device->worker, event_of(event)->recorded))
		return rc;
	rc = cuda_enter(device);
	if (rc)
		return rc;
	cudaError_t error = cudaEventQuery(event_of(event)->event);
	if (error == cudaErrorNotReady) {
		(void)cudaGetLastError(); /* else the next launch would find it */
		return 0;
	}
	rc = cuda_check(device, error, "asking for an event");
	return rc ? rc : 1;
}

int64_t device_event_time_ns(struct rh_event *base)
{
	struct cuda_event *event = event_of(base);
	struct cuda_device *device = event->device;
	struct cuda_clock *clock = &device->clock;
	float milliseconds = 0;
	RH_ASSERT(event->use == RH_EVENT_TIMED);
	if (!event->is_recorded || cuda_enter(device))
		return 0;
	pthread_mutex_lock(&clock->lock);
	/* Against the anchor that was the latest at the record, as long as that is kept: so the time is the same whenever it is read. */
	int from = (int)(rh_max(event->anchor, clock->count - 2) % CUDA_ANCHORS);
	int64_t from_ns = clock->anchor_ns[from];
	cudaError_t error = cudaEventElapsedTime(&milliseconds, clock->anchor[from], event->event);
	pthread_mutex_unlock(&clock->lock);
	if (error == cudaSuccess)
		return from_ns + (int64_t)((double)milliseconds * 1e6);
	(void)cudaGetLastError(); /* the time is for reports; a fault of the GPU comes back from the next command */
	return 0;
}
