#include "machine/copies.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "offload/memory.h"
#include "offload/pin.h"
#include "machine/median.h"

enum { REPEATS = 7, SMALL_BYTES = 4096, SMALL_COPIES = 64 };

enum way { WAY_UP = 1, WAY_DOWN = 2 };

struct copying {
	const struct rh_devices *devices;
	void *const *base;
	struct rh_arena host;
	int64_t bytes; /* of one copy */
};

/* Device i copies from and to its own part of the host's buffer. */
static int enqueue(const struct copying *copying, int i, unsigned ways)
{
	struct rh_device *device = copying->devices->device[i];
	char *host = copying->host.base + 2 * i * copying->bytes, *base = copying->base[i];
	int rc = 0;
	if (ways & WAY_UP)
		rc = device->ops->copy_up(device, RH_STREAM_WEIGHTS, base, host, copying->bytes);
	if (!rc && ways & WAY_DOWN)
		rc = device->ops->copy_down(device, RH_STREAM_GRADIENTS, host + copying->bytes, base + copying->bytes, copying->bytes);
	return rc;
}

static int synchronize(const struct copying *copying, int devices)
{
	int first = 0;
	for (int i = 0; i < devices; i++) {
		int rc = copying->devices->device[i]->ops->synchronize(copying->devices->device[i]);
		first = first ? first : rc;
	}
	return first;
}

/* By the host's clock: copies are long. */
static int measure(const struct copying *copying, int devices, unsigned ways, double *bytes_per_s)
{
	double rate[REPEATS];
	int rc = 0;
	for (int n = 0; !rc && n < REPEATS; n++) {
		double began = rh_clock_seconds();
		for (int i = 0; !rc && i < devices; i++)
			rc = enqueue(copying, i, ways);
		int synced = synchronize(copying, devices);
		if (!rc)
			rc = synced;
		double moved = (double)copying->bytes * devices * (ways == (WAY_UP | WAY_DOWN) ? 2 : 1);
		rate[n] = moved / (rh_clock_seconds() - began);
	}
	*bytes_per_s = rc ? 0 : doctor_median(rate, REPEATS);
	return rc;
}

static int measure_latency(const struct copying *copying, double *seconds)
{
	struct rh_device *device = copying->devices->device[0];
	int rc = 0;
	*seconds = 0;
	for (int n = 0; !rc && n < REPEATS; n++) {
		double began = rh_clock_seconds();
		for (int i = 0; !rc && i < SMALL_COPIES; i++)
			rc = device->ops->copy_up(device, RH_STREAM_WEIGHTS, copying->base[0], copying->host.base, SMALL_BYTES);
		int synced = synchronize(copying, 1);
		if (!rc)
			rc = synced;
		double each = (rh_clock_seconds() - began) / SMALL_COPIES;
		*seconds = !n || each < *seconds ? each : *seconds;
	}
	return rc;
}

int doctor_measure_copies(const struct rh_devices *devices, void *const *base, int64_t bytes, struct doctor_copies *out)
{
	struct copying copying = {.devices = devices, .base = base, .bytes = bytes / 2 / RH_ALIGN * RH_ALIGN};
	struct rh_host_pin pin = {0};
	*out = (struct doctor_copies){0};
	int rc = rh_host_reserve(2 * copying.bytes * devices->count, "the measurement of copies", &copying.host);
	if (rc)
		return rc;
	if (devices->device[0]->ops->pin) {
		rh_host_pin(devices->device[0], copying.host.base, copying.host.capacity, &pin);
		out->tried = pin.bytes;
		out->registered = pin.pinned_bytes;
		/* a copy must not cross from one registration into another: none does, where each part is in one */
		int64_t run = rh_host_pin_run(&pin, copying.host.base, copying.bytes);
		copying.bytes = run < copying.bytes ? run / RH_ALIGN * RH_ALIGN : copying.bytes;
	}
	rc = measure(&copying, 1, WAY_UP, &out->up);
	if (!rc)
		rc = measure(&copying, 1, WAY_DOWN, &out->down);
	if (!rc)
		rc = measure(&copying, 1, WAY_UP | WAY_DOWN, &out->both);
	if (!rc)
		rc = measure(&copying, devices->count, WAY_UP, &out->all_up);
	if (!rc)
		rc = measure_latency(&copying, &out->latency_s);
	rh_host_unpin(&pin);
	rh_host_release(&copying.host);
	return rc;
}
