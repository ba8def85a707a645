/* The instance of device.h. */
#include "device/sim/sim_internal.h"

#include "core/alloc.h"

#include <math.h>
#include <stdlib.h>

/* Addresses of no memory; those of two devices never overlap. */
#define BASE    ((uintptr_t)1 << 62)
#define SPACING ((uintptr_t)1 << 48)

static struct sim_device *own(struct rh_device *device)
{
	return (struct sim_device *)device;
}

static struct sim_event *own_event(struct rh_event *event)
{
	return (struct sim_event *)event;
}

static void wait_idle(struct sim_device *device)
{
	for (sim_enter(device->sim);; sim_settle(device->sim)) {
		int idle = 1;
		for (int s = 0; s < RH_STREAMS; s++)
			idle &= sim_queue_idle(&device->stream[s]);
		if (idle)
			return;
		sim_advance(device->sim);
	}
}

static void device_close(struct rh_device *base)
{
	struct sim_device *device = own(base);
	struct rh_sim *sim = device->sim;
	wait_idle(device);
	for (int s = 0; s < RH_STREAMS; s++)
		sim_queue_close(&device->stream[s]);
	rh_free(device);
	rh_sim_release(sim);
}

static void device_memory(struct rh_device *base, struct rh_device_memory *out)
{
	struct sim_device *device = own(base);
	int64_t all = device->sim->hardware.device.memory;
	*out = (struct rh_device_memory){.total_bytes = all ? all : device->cap_bytes, .cap_bytes = device->cap_bytes};
	out->reserved_bytes = out->peak_bytes = device->reserved_bytes;
	out->free_bytes = out->total_bytes - out->reserved_bytes;
}

static int device_reserve(struct rh_device *base, int64_t bytes, void **out)
{
	struct sim_device *device = own(base);
	RH_ASSERT(bytes >= 0 && !device->reserved_bytes);
	if (bytes > device->cap_bytes)
		return rh_fail(-ENOMEM, "device sim:%d: the run needs %.1f MiB, its cap is %.1f MiB: raise max_vram", base->index,
		               (double)bytes / 0x1p20, (double)device->cap_bytes / 0x1p20);
	device->reserved_bytes = bytes;
	*out = (void *)(BASE + SPACING * (uintptr_t)base->index);
	return 0;
}

static int device_event_create(struct rh_device *base, enum rh_event_use use, struct rh_event **out)
{
	struct sim_event *event = sim_event_take(own(base)->sim);
	if (!event)
		return -ENOMEM;
	event->base.ops = base->ops;
	event->use = use;
	*out = &event->base;
	return 0;
}

static void device_event_destroy(struct rh_event *event)
{
	sim_event_give(own_event(event));
}

static int device_record(struct rh_device *base, enum rh_stream stream, struct rh_event *event)
{
	return sim_record(&own(base)->stream[stream], own_event(event));
}

static int device_wait(struct rh_device *base, enum rh_stream stream, struct rh_event *event)
{
	RH_ASSERT(event->ops == base->ops);
	return sim_wait(&own(base)->stream[stream], own_event(event));
}

static int device_event_sync(struct rh_event *base)
{
	struct sim_event *event = own_event(base);
	RH_ASSERT(event->use != RH_EVENT_ORDER);
	sim_enter(event->sim);
	while (event->point && !event->point->done) {
		sim_advance(event->sim);
		sim_settle(event->sim);
	}
	return 0;
}

/* A query takes no time: a host that asks for one thing after another would else miss what ends meanwhile. Time advances after so many in
 * vain that the host does nothing else. */
static int device_event_query(struct rh_event *base)
{
	enum { VAIN_MOST = 1000 };
	struct sim_event *event = own_event(base);
	RH_ASSERT(event->use != RH_EVENT_ORDER);
	if (!event->sim->is_settling)
		sim_enter(event->sim);
	if (!event->point || event->point->done)
		return 1;
	if (event->sim->is_settling) { /* called by a worker's `next`: time must not advance */
		event->point->was_queried = 1;
		return 0;
	}
	if (++event->sim->vain_queries < VAIN_MOST)
		return 0;
	sim_advance(event->sim);
	sim_settle(event->sim);
	return event->point->done;
}

static int64_t device_event_time_ns(struct rh_event *event)
{
	const struct sim_point *point = own_event(event)->point;
	RH_ASSERT(own_event(event)->use == RH_EVENT_TIMED);
	return point ? (int64_t)llround(point->at_s * 1e9) : 0;
}

static int device_copy_up(struct rh_device *base, enum rh_stream stream, void *device_dst, const void *host_src, int64_t bytes)
{
	(void)device_dst;
	(void)host_src;
	return sim_task(&own(base)->stream[stream], &own(base)->copy[SIM_UP], (double)bytes);
}

static int device_copy_down(struct rh_device *base, enum rh_stream stream, void *host_dst, const void *device_src, int64_t bytes)
{
	(void)host_dst;
	(void)device_src;
	return sim_task(&own(base)->stream[stream], &own(base)->copy[SIM_DOWN], (double)bytes);
}

static int device_launch(struct rh_device *base, enum rh_stream stream, const struct rh_op *op)
{
	struct sim_device *device = own(base);
	return sim_task(&device->stream[stream], &device->compute, sim_op_seconds(device->sim, op));
}

static int device_synchronize(struct rh_device *base)
{
	wait_idle(own(base));
	return 0;
}

static int device_host_queue(struct rh_device *base, struct rh_host_queue **out)
{
	return rh_sim_queue(own(base)->sim, out);
}

static const struct rh_device_ops sim_ops = {
        .kind = "sim",
        RH_DEVICE_OPS_REQUIRED,
        .host_queue = device_host_queue,
};

/* FLOP/s of products in attention of long texts, forward or backward, whichever is slower. */
static double attention_rate(const struct rh_hardware_device *device, enum rh_dtype dtype)
{
	enum { ROWS = 1 << 16, HEADS = 16, DIM = 64 };
	struct rh_op op = {.kind = RH_OP_ATTENTION};
	struct rh_view rows = rh_view_of(NULL, dtype, ROWS, HEADS * DIM);
	op.attention.heads = op.attention.kv_heads = HEADS;
	op.attention.documents = 1;
	op.attention.longest = ROWS;
	double least = HUGE_VAL;
	for (int i = 0; i < 2; i++, op.kind = RH_OP_ATTENTION_BACKWARD) {
		for (int n = RH_ATTENTION_Q; n <= RH_ATTENTION_V; n++)
			op.operand[n] = rows, op.operand[n].data = &op; /* nobody reads it */
		least = fmin(least, rh_op_cost(&op).product_flops / rh_sim_op_seconds(device, &op, 1));
	}
	return least;
}

struct rh_device_grain rh_sim_grain(const struct rh_hardware_device *device)
{
	struct rh_device_grain grain = rh_device_gpu_grain();
	if (device->on_host_cores)
		return (struct rh_device_grain){0};
	grain.attention_flops = RH_LAUNCH_MOST_S * attention_rate(device, RH_BF16);
	grain.plain_attention_flops = RH_LAUNCH_MOST_S * attention_rate(device, RH_F32);
	return grain;
}

int64_t rh_sim_stream_capacity(const struct rh_hardware_device *device)
{
	enum { GPU_COMMANDS = 1000 };
	return device->on_host_cores ? 0 : GPU_COMMANDS;
}

int rh_sim_open(struct rh_sim *sim, int index, int64_t cap_bytes, struct rh_device **out)
{
	RH_ASSERT(index >= 0 && index < sim->devices);
	struct sim_device *device = rh_alloc(1, sizeof *device);
	if (!device)
		return -ENOMEM;
	device->base = (struct rh_device){.ops = &sim_ops, .index = index};
	device->sim = sim;
	device->cap_bytes = cap_bytes;
	sim_device_routes(sim, device);
	for (int s = 0; s < RH_STREAMS; s++) {
		sim_queue_open(sim, &device->stream[s]);
		device->stream[s].pending_max = sim->stream_capacity;
	}
	sim_reference(sim);
	*out = &device->base;
	return 0;
}
