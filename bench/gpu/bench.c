#include "bench/gpu/bench.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 9, WARM = 2, FILL_BYTES = 1 << 20 };

static int is_emulated(const char *device)
{
	return !strncmp(device, "emu", 3) || !strncmp(device, "cpu", 3);
}

/* bf16 and fp32 alike read as numbers of about 1 and of either sign: never zeros, which run faster than data. */
static void fill(uint16_t *word, size_t count)
{
	uint32_t state = 1;
	for (size_t i = 0; i < count; i++) {
		state = state * 1664525u + 1013904223u;
		word[i] = (uint16_t)(0x3f00u | (state >> 16 & 0x807fu));
	}
}

int bench_open(const char *device, int64_t bytes, struct bench *out)
{
	*out = (struct bench){.bytes = bytes, .small = is_emulated(device)};
	void *base = NULL;
	static uint16_t host[FILL_BYTES / 2];
	int rc = rh_devices_open(device, 1, bytes, &out->devices);
	if (rc)
		return rc;
	out->device = out->devices.device[0];
	const struct rh_device_ops *ops = out->device->ops;
	rc = ops->reserve(out->device, bytes, &base);
	out->base = base;
	fill(host, FILL_BYTES / 2);
	for (int64_t at = 0; !rc && at < bytes; at += FILL_BYTES)
		rc = ops->copy_up(out->device, RH_STREAM_COMPUTE, out->base + at, host, bytes - at < FILL_BYTES ? bytes - at : FILL_BYTES);
	if (!rc)
		rc = ops->synchronize(out->device);
	if (!rc)
		rc = ops->event_create(out->device, RH_EVENT_TIMED, &out->from);
	if (!rc)
		rc = ops->event_create(out->device, RH_EVENT_TIMED, &out->to);
	if (rc)
		bench_close(out);
	return rc;
}

void bench_close(struct bench *bench)
{
	if (bench->from)
		bench->from->ops->event_destroy(bench->from);
	if (bench->to)
		bench->to->ops->event_destroy(bench->to);
	rh_devices_close(&bench->devices);
	*bench = (struct bench){0};
}

struct rh_view bench_view(struct bench *bench, enum rh_dtype dtype, int64_t rows, int64_t cols)
{
	struct rh_view view = rh_view_of(bench->base + bench->used, dtype, rows, cols);
	bench->used += (rh_view_bytes(view) + 255) / 256 * 256;
	RH_ASSERT(bench->used <= bench->bytes);
	return view;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int bench_time(struct bench *bench, bench_enqueue *enqueue, void *user, int times, double *seconds)
{
	const struct rh_device_ops *ops = bench->device->ops;
	double taken[REPEATS];
	int repeats = bench->small ? 1 : REPEATS;
	for (int i = bench->small ? 0 : -WARM; i < repeats; i++) {
		int rc = bench->small ? 0
		                      : enqueue(bench, user); /* what is timed is enqueued while this runs: no gap of the host's is in it */
		if (!rc)
			rc = ops->record(bench->device, RH_STREAM_COMPUTE, bench->from);
		for (int k = 0; !rc && k < times; k++)
			rc = enqueue(bench, user);
		if (!rc)
			rc = ops->record(bench->device, RH_STREAM_COMPUTE, bench->to);
		if (!rc)
			rc = ops->event_sync(bench->to);
		if (rc)
			return rc;
		if (i >= 0)
			taken[i] = (double)(ops->event_time_ns(bench->to) - ops->event_time_ns(bench->from)) / 1e9 / times;
		rc = ops->synchronize(bench->device); /* keeps the clock's anchor young */
		if (rc)
			return rc;
	}
	qsort(taken, (size_t)repeats, sizeof *taken, ascending);
	*seconds = taken[repeats / 2];
	return 0;
}

static int enqueue_op(struct bench *bench, void *op)
{
	return bench->device->ops->launch(bench->device, RH_STREAM_COMPUTE, op);
}

int bench_op(struct bench *bench, const struct rh_op *op, int times, double *seconds)
{
	struct rh_op copy = *op;
	return bench_time(bench, enqueue_op, &copy, times, seconds);
}

void bench_line(const char *name, const char *format, ...)
{
	va_list args;
	printf("{\"bench\": \"%s\", ", name);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("}\n");
	fflush(stdout);
}
