#include "device/cpu/queue.h"

#include "core/alloc.h"
#include "core/arena.h"
#include "core/pages.h"
#include "core/ram.h"

#include <stdio.h>
#include <string.h>

/* Device addresses are real ones plus this: not canonical on x86-64, so host code that follows one faults at once. */
#define BIAS ((uintptr_t)1 << 62)

struct cpu_device {
	struct rh_device base;
	struct cpu_stream *stream[RH_STREAMS];
	struct rh_fault fault;
	int64_t cap_bytes;
	int64_t reserved_bytes;
	char *memory; /* reserved_bytes; NULL: nothing reserved yet */
};

static struct cpu_device *own(struct rh_device *device)
{
	return (struct cpu_device *)device;
}

static void device_memory(struct rh_device *base, struct rh_device_memory *out)
{
	struct cpu_device *device = own(base);
	rh_ram_under("", &out->total_bytes, &out->free_bytes);
	out->cap_bytes = device->cap_bytes;
	out->reserved_bytes = out->peak_bytes = device->reserved_bytes; /* reserved once: what is reserved is the peak */
}

static int device_reserve(struct rh_device *base, int64_t bytes, void **out)
{
	struct cpu_device *device = own(base);
	RH_ASSERT(bytes >= 0 && !device->memory);
	int64_t total_bytes, free_bytes;
	rh_ram_under("", &total_bytes, &free_bytes);
	if (bytes > device->cap_bytes)
		return rh_fail(-ENOMEM, "device cpu:%d: the run needs %.1f MiB, its cap is %.1f MiB: raise max_vram", base->index,
		               (double)bytes / 0x1p20, (double)device->cap_bytes / 0x1p20);
	if (bytes > free_bytes)
		return rh_fail(-ENOMEM, "device cpu:%d: the run needs %.1f MiB, the machine has %.1f MiB free: lower max_vram", base->index,
		               (double)bytes / 0x1p20, (double)free_bytes / 0x1p20);
	int rc = rh_pages_map(bytes ? bytes : 1, &device->memory);
	if (rc)
		return rh_fail(rc, "device cpu:%d: cannot map %.1f MiB: %s", base->index, (double)bytes / 0x1p20, strerror(-rc));
	device->reserved_bytes = bytes;
	*out = (void *)((uintptr_t)device->memory + BIAS);
	return 0;
}

/* The real address of `bytes` of device memory at `address`. */
static void *translate(const struct cpu_device *device, const void *address, int64_t bytes)
{
	uintptr_t first = (uintptr_t)device->memory + BIAS, at = (uintptr_t)address;
	RH_ASSERT(bytes >= 0 && bytes <= device->reserved_bytes && at >= first &&
	          at - first <= (uintptr_t)(device->reserved_bytes - bytes));
	return (void *)(at - BIAS);
}

static void *translate_view(const struct cpu_device *device, const struct rh_view *view)
{
	RH_ASSERT(view->rows >= 0 && view->cols >= 0 && (view->stride >= view->cols || view->rows <= 1));
	int64_t elements = 0;
	if (view->rows && view->cols)
		RH_ASSERT(!__builtin_mul_overflow(view->rows - 1, view->stride, &elements) &&
		          !__builtin_add_overflow(elements, view->cols, &elements) &&
		          elements < INT64_MAX / rh_dtype_block_bytes(view->dtype));
	return translate(device, view->data, rh_dtype_bytes(view->dtype, elements));
}

static int device_event_create(struct rh_device *base, enum rh_event_use use, struct rh_event **out)
{
	struct cpu_event *event;
	int rc = cpu_event_create(base->ops, &own(base)->fault, use, &event);
	if (!rc)
		*out = (struct rh_event *)event;
	return rc;
}

static void device_event_destroy(struct rh_event *event)
{
	cpu_event_destroy((struct cpu_event *)event);
}

static int device_record(struct rh_device *base, enum rh_stream stream, struct rh_event *event)
{
	cpu_stream_record(own(base)->stream[stream], (struct cpu_event *)event);
	return 0;
}

static int device_wait(struct rh_device *base, enum rh_stream stream, struct rh_event *event)
{
	RH_ASSERT(event->ops == base->ops);
	cpu_stream_wait(own(base)->stream[stream], (struct cpu_event *)event);
	return 0;
}

static int device_event_sync(struct rh_event *event)
{
	return cpu_event_sync((struct cpu_event *)event);
}

static int device_event_query(struct rh_event *event)
{
	return cpu_event_query((struct cpu_event *)event);
}

static int64_t device_event_time_ns(struct rh_event *event)
{
	return cpu_event_time_ns((struct cpu_event *)event);
}

static int device_copy_up(struct rh_device *base, enum rh_stream stream, void *device_dst, const void *host_src, int64_t bytes)
{
	cpu_stream_copy(own(base)->stream[stream], translate(own(base), device_dst, bytes), host_src, bytes);
	return 0;
}

static int device_copy_down(struct rh_device *base, enum rh_stream stream, void *host_dst, const void *device_src, int64_t bytes)
{
	cpu_stream_copy(own(base)->stream[stream], host_dst, translate(own(base), device_src, bytes), bytes);
	return 0;
}

static int device_launch(struct rh_device *base, enum rh_stream stream, const struct rh_op *op)
{
	RH_ASSERT(rh_op_fault(op) == NULL);
	struct rh_op real = *op;
	for (int i = 0; i < RH_OP_OPERANDS; i++) {
		if (real.operand[i].data)
			real.operand[i].data = translate_view(own(base), &real.operand[i]);
	}
	cpu_stream_op(own(base)->stream[stream], &real);
	return 0;
}

static int device_synchronize(struct rh_device *base)
{
	for (int i = 0; i < RH_STREAMS; i++)
		cpu_stream_drain(own(base)->stream[i]);
	return rh_fault_get(&own(base)->fault);
}

static void device_close(struct rh_device *base)
{
	if (!base)
		return;
	struct cpu_device *device = own(base);
	for (int i = 0; i < RH_STREAMS; i++) { /* one stream may wait for another: none ends before all have run dry */
		if (device->stream[i])
			cpu_stream_drain(device->stream[i]);
	}
	for (int i = 0; i < RH_STREAMS; i++)
		cpu_stream_close(device->stream[i]);
	if (device->memory)
		rh_pages_unmap(device->memory, device->reserved_bytes ? device->reserved_bytes : 1);
	rh_free(device);
}

static const struct rh_device_ops cpu_ops = {
        .kind = "cpu",
        RH_DEVICE_OPS_REQUIRED,
};

struct rh_device_grain rh_cpu_grain(void)
{
	return (struct rh_device_grain){0};
}

int rh_cpu_open(int index, const struct rh_cpu_options *options, struct rh_device **out)
{
	RH_ASSERT(options->threads >= 1 && options->cap_bytes >= 0);
	struct cpu_device *device = rh_alloc(1, sizeof *device);
	if (!device)
		return -ENOMEM;
	device->base.ops = &cpu_ops;
	device->base.index = index;
	int64_t total_bytes;
	device->cap_bytes = options->cap_bytes;
	if (!device->cap_bytes)
		rh_ram_under("", &total_bytes, &device->cap_bytes);
	int rc = 0;
	for (int i = 0; !rc && i < RH_STREAMS; i++)
		rc = cpu_stream_open(index, (enum rh_stream)i, options, &device->fault, &device->stream[i]);
	if (rc)
		device_close(&device->base);
	else
		*out = &device->base;
	return rc;
}
