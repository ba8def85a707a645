/* Events of the CUDA device, and the clock that tells their times. */
#include "core/alloc.h"
#include "core/minmax.h"
#include "cuda/device_internal.h"

#include <time.h>

enum { ANCHOR_AGE_NS = 1000 * 1000 * 1000 };

struct cuda_event {
	struct rh_event base;
	struct cuda_device *device;
	cudaEvent_t event;
	enum rh_event_use use;
	int is_recorded;
	int64_t anchor; /* number of the latest anchor at the latest record */
};

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
	for (int i = 0; !rc && i < CUDA_ANCHORS; i++)
		rc = cuda_check(device, cudaEventCreateWithFlags(&device->clock.anchor[i], cudaEventBlockingSync), "creating an event");
	return rc ? rc : drop_anchor(device);
}

int cuda_clock_idle(struct cuda_device *device)
{
	return is_anchor_old(&device->clock) ? drop_anchor(device) : 0;
}

void cuda_clock_stop(struct cuda_device *device)
{
	for (int i = 0; i < CUDA_ANCHORS; i++)
		if (device->clock.anchor[i])
			(void)cudaEventDestroy(device->clock.anchor[i]);
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
	rc = cuda_check(device, cudaEventCreateWithFlags(&event->event, flags[use]), "creating an event");
	if (rc)
		rh_free(event);
	else
		*out = &event->base;
	return rc;
}

void device_event_destroy(struct rh_event *base)
{
	if (!base)
		return;
	(void)cudaEventDestroy(event_of(base)->event); /* it fails only with the device's own fault, which other calls return */
	rh_free(base);
}

int device_record(struct rh_device *base, enum rh_stream stream, struct rh_event *event)
{
	struct cuda_device *device = cuda_device_of(base);
	struct cuda_event *own = event_of(event);
	RH_ASSERT(own->device == device);
	int rc = cuda_enter(device);
	if (!rc)
		rc = cuda_check(device, cudaEventRecord(own->event, device->stream[stream]), "recording an event");
	if (!rc && own->use == RH_EVENT_TIMED)
		rc = renew_anchor(device);
	own->is_recorded |= !rc;
	own->anchor = device->clock.count - 1;
	return rc;
}

int device_wait(struct rh_device *base, enum rh_stream stream, struct rh_event *event)
{
	struct cuda_device *device = cuda_device_of(base), *other = event_of(event)->device;
	RH_ASSERT(event->ops == base->ops);
	int rc = rh_fault_get(&other->fault);
	if (rc)
		return rc;
	rc = cuda_enter(device);
	if (rc)
		return rc;
	return cuda_check(device, cudaStreamWaitEvent(device->stream[stream], event_of(event)->event, 0), "waiting for an event");
}

int device_event_sync(struct rh_event *event)
{
	struct cuda_device *device = event_of(event)->device;
	RH_ASSERT(event_of(event)->use != RH_EVENT_ORDER);
	int rc = cuda_enter(device);
	return rc ? rc : cuda_check(device, cudaEventSynchronize(event_of(event)->event), "waiting for the GPU");
}

int device_event_query(struct rh_event *event)
{
	struct cuda_device *device = event_of(event)->device;
	RH_ASSERT(event_of(event)->use != RH_EVENT_ORDER);
	int rc = cuda_enter(device);
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
	const struct cuda_clock *clock = &device->clock;
	float milliseconds = 0;
	RH_ASSERT(event->use == RH_EVENT_TIMED);
	/* Against the anchor that was the latest at the record, as long as that is kept: so the time is the same whenever it is read. */
	int from = (int)(rh_max(event->anchor, clock->count - 2) % CUDA_ANCHORS);
	if (!event->is_recorded || cuda_enter(device))
		return 0;
	if (cudaEventElapsedTime(&milliseconds, clock->anchor[from], event->event) != cudaSuccess) {
		(void)cudaGetLastError(); /* the time is for reports; a fault of the GPU comes back from the next command */
		return 0;
	}
	return clock->anchor_ns[from] + (int64_t)((double)milliseconds * 1e6);
}
