/* Bandwidth of pinned copies, on the streams that training uses for bulk: up alone, down alone, both at once. */
#include "bench/gpu/bench.h"

#include <stdlib.h>
#include <string.h>

struct way {
	int up, down;
	int64_t bytes;
	char *host[2];
	double seconds;
};

/* From one synchronised moment to the next by the host's clock would count its own waiting: events on each stream, the longest counts. */
static int copy_once(struct bench *bench, struct way *way, struct rh_event *const event[4])
{
	const struct rh_device_ops *ops = bench->device->ops;
	struct rh_device *device = bench->device;
	int rc = 0;
	for (int down = 0; !rc && down < 2; down++) {
		enum rh_stream stream = down ? RH_STREAM_GRADIENTS : RH_STREAM_WEIGHTS;
		if (!(down ? way->down : way->up))
			continue;
		rc = ops->record(device, stream, event[2 * down]);
		if (!rc)
			rc = down ? ops->copy_down(device, stream, way->host[1], bench->base + way->bytes, way->bytes)
			          : ops->copy_up(device, stream, bench->base, way->host[0], way->bytes);
		if (!rc)
			rc = ops->record(device, stream, event[2 * down + 1]);
	}
	int64_t first = INT64_MAX, last = 0;
	for (int down = 0; !rc && down < 2; down++) {
		if (!(down ? way->down : way->up))
			continue;
		rc = ops->event_sync(event[2 * down + 1]);
		int64_t begin = ops->event_time_ns(event[2 * down]), end = ops->event_time_ns(event[2 * down + 1]);
		first = begin < first ? begin : first;
		last = end > last ? end : last;
	}
	double seconds = (double)(last - first) / 1e9;
	way->seconds = !way->seconds || seconds < way->seconds ? seconds : way->seconds;
	return rc ? rc : ops->synchronize(device);
}

static int measure(struct bench *bench, struct way *way, const char *name, double *bandwidth)
{
	struct rh_event *event[4] = {0};
	const struct rh_device_ops *ops = bench->device->ops;
	int rc = 0;
	way->seconds = 0;
	for (int i = 0; !rc && i < 4; i++)
		rc = ops->event_create(bench->device, RH_EVENT_TIMED, &event[i]);
	for (int i = 0; !rc && i < 5; i++)
		rc = copy_once(bench, way, event);
	for (int i = 0; i < 4; i++)
		ops->event_destroy(event[i]);
	*bandwidth = way->seconds > 0 ? (double)way->bytes * (way->up + way->down) / way->seconds / 1e9 : 0;
	if (!rc)
		bench_line("copies", "\"way\": \"%s\", \"bytes\": %lld, \"value\": %.2f, \"unit\": \"GB/s\"", name, (long long)way->bytes,
		           *bandwidth);
	return rc;
}

int bench_copies(int argc, char **argv)
{
	struct bench bench;
	double alone[2], both;
	int rc = argc < 1 ? -EINVAL : bench_open(argv[0], strncmp(argv[0], "emu", 3) ? (int64_t)2 << 30 : 2 << 20, &bench);
	if (rc)
		return rc;
	struct way way = {.bytes = bench.bytes / 2};
	for (int i = 0; !rc && i < 2; i++) {
		if (posix_memalign((void **)&way.host[i], 1 << 21, (size_t)way.bytes))
			rc = rh_fail(-ENOMEM, "no host memory for copies");
		else {
			memset(way.host[i], 1, (size_t)way.bytes);
			rc = bench.device->ops->pin ? bench.device->ops->pin(bench.device, way.host[i], way.bytes) : 0;
		}
	}
	way.up = 1;
	if (!rc)
		rc = measure(&bench, &way, "up", &alone[0]);
	way.up = 0, way.down = 1;
	if (!rc)
		rc = measure(&bench, &way, "down", &alone[1]);
	way.up = 1;
	if (!rc)
		rc = measure(&bench, &way, "both at once", &both);
	for (int i = 0; i < 2; i++) {
		if (way.host[i] && bench.device->ops->unpin)
			bench.device->ops->unpin(bench.device, way.host[i], way.bytes);
		free(way.host[i]);
	}
	bench_close(&bench);
	return rc;
}
