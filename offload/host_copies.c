#include "offload/host_copies.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/minmax.h"
#include "offload/memory.h"

/* ulimit -l is no cure: the driver's pages are not counted against it. */
#define UNPINNED "a container's or the system's limit of pinned memory, a virtual machine, or another run's registration may be why"

/* The best of three uploads of `bytes` to where nothing lies yet, in bytes a second; `staging`: through it. 0 on a fault. */
static double rate_of(struct rh_device *device, struct rh_staging *staging, char *to, const char *from, int64_t bytes)
{
	double best = 0;
	for (int i = 0; i < 3; i++) {
		double began = rh_clock_seconds();
		int rc = staging ? rh_staging_up(staging, device, RH_STREAM_WEIGHTS, to, from, bytes)
		                 : device->ops->copy_up(device, RH_STREAM_WEIGHTS, to, from, bytes);
		int late = device->ops->synchronize(device);
		double rate = (double)bytes / (rh_clock_seconds() - began);
		if (rc || late)
			return 0;
		best = rate > best ? rate : best;
	}
	return best;
}

static void report(struct rh_host_copies *copies, const struct rh_arena *scratch)
{
	enum { SAMPLE = 32 << 20 };
	const struct rh_host_pin *store = &copies->pin[RH_HOST_STORE];
	struct rh_device *device = copies->device[0];
	int64_t left = store->bytes - store->pinned_bytes, bytes = rh_min(rh_min(scratch->capacity, left), SAMPLE);
	const char *pageable_memory = store->memory + store->pinned_bytes;
	double whole = (double)store->bytes / 1048576, missing = (double)left / 1048576;
	double pageable = rate_of(device, NULL, scratch->base, pageable_memory, bytes) * 1e-9;
	if (!copies->staging) {
		rh_warn_once("host memory is not registered with the devices (%s): %.1f MiB of weights and optimizer state are copied "
		             "pageable, at %.2f GB/s, and a device that copies them is given no work meanwhile; " UNPINNED,
		             store->refusal, whole, pageable);
		return;
	}
	int64_t piece = bytes < copies->staging_memory.capacity ? bytes : copies->staging_memory.capacity;
	double staged = rate_of(device, copies->staging, scratch->base, pageable_memory, bytes) * 1e-9;
	double registered = rate_of(device, NULL, scratch->base, copies->staging_memory.base, piece) * 1e-9;
	rh_warn_once("%.1f of %.1f MiB of weights and optimizer state are not registered with the devices (%s): they are copied through a "
	             "ring of %lld MiB that is, at %.2f GB/s (registered %.2f, pageable %.2f); " UNPINNED,
	             missing, whole, store->refusal, (long long)(copies->staging_memory.capacity >> 20), staged, registered, pageable);
}

/* Copies on the critical path never go through the staging ring: while a device copied such an activation down, the host could enqueue
 * nothing on any device. */
static void report_critical(const struct rh_host_copies *copies)
{
	static const char *const name[RH_HOST_STORE] = {[RH_HOST_BOUNDARIES] = "activations between stages",
	                                                [RH_HOST_MICRO] = "micro-batches and results",
	                                                [RH_HOST_FRAMES] = "weights read from NVMe"};
	for (int i = 0; i < RH_HOST_STORE; i++) {
		const struct rh_host_pin *pin = &copies->pin[i];
		if (pin->device && pin->pinned_bytes < pin->bytes)
			rh_warn_once("%.1f of %.1f MiB of %s are not registered with the devices (%s): a device that copies them is "
			             "given no work meanwhile; " UNPINNED,
			             (double)(pin->bytes - pin->pinned_bytes) / 1048576, (double)pin->bytes / 1048576, name[i],
			             pin->refusal);
	}
}

static int make_staging(struct rh_host_copies *copies)
{
	int rc = rh_host_reserve_near(copies->device, copies->devices, rh_staging_bytes(copies->piece_bytes), "a staging ring",
	                              &copies->staging_memory);
	if (rc)
		return rc;
	rh_host_pin(copies->device[0], copies->staging_memory.base, copies->staging_memory.capacity, &copies->staging_pin);
	/* whole: a buffer of the staging must not lie across registrations */
	if (copies->staging_pin.pinned_bytes == copies->staging_pin.bytes && copies->staging_pin.piece_bytes == copies->staging_pin.bytes)
		return rh_staging_create(copies->device, copies->devices, copies->piece_bytes, &copies->staging_memory, &copies->staging);
	rh_host_unpin(&copies->staging_pin);
	rh_host_release(&copies->staging_memory);
	return 0;
}

int rh_host_copies_create(const struct rh_host_copies_options *options, struct rh_host_copies *out)
{
	struct rh_device *device = options->device[0];
	const struct rh_arena *store = &options->area[RH_HOST_STORE];
	struct rh_host_pin *pin = out->pin;
	*out = (struct rh_host_copies){.device = options->device, .devices = options->devices, .piece_bytes = options->piece_bytes};
	for (int i = 0; i < RH_HOST_AREAS; i++)
		rh_host_pin(device, options->area[i].base, options->area[i].capacity, &pin[i]);
	int is_whole = !pin[RH_HOST_STORE].device || pin[RH_HOST_STORE].pinned_bytes == store->capacity;
	RH_ASSERT(is_whole || options->has_staging);
	int rc = is_whole ? 0 : make_staging(out);
	/* what took all there was makes room for the ring, which serves all of the store */
	static const enum rh_host_area large[] = {RH_HOST_STORE, RH_HOST_BOUNDARIES};
	for (int i = 0; !is_whole && !rc && !out->staging && i < 2; i++) {
		const struct rh_arena *area = &options->area[large[i]];
		if (!pin[large[i]].pinned_bytes)
			continue;
		rh_host_unpin(&pin[large[i]]);
		rc = make_staging(out);
		rh_host_pin(device, area->base, area->capacity, &pin[large[i]]);
	}
	report_critical(out);
	if (!rc && !is_whole)
		report(out, &options->scratch);
	return rc;
}

void rh_host_copies_destroy(struct rh_host_copies *copies)
{
	rh_staging_destroy(copies->staging);
	rh_host_unpin(&copies->staging_pin);
	rh_host_release(&copies->staging_memory);
	for (int i = 0; i < RH_HOST_AREAS; i++)
		rh_host_unpin(&copies->pin[i]);
}

/* Bytes from `host` on that one copy may take; *staging: the way of that copy. */
static int64_t copy_run(const struct rh_host_copies *copies, const char *host, int64_t bytes, struct rh_staging **staging)
{
	*staging = NULL;
	for (int i = 0; i < RH_HOST_AREAS; i++)
		if (host >= copies->pin[i].memory && host < copies->pin[i].memory + copies->pin[i].bytes) {
			if (i == RH_HOST_STORE && !rh_host_pin_has(&copies->pin[i], host))
				*staging = copies->staging;
			return rh_host_pin_run(&copies->pin[i], host, bytes);
		}
	return bytes;
}

int rh_host_is_staged(const struct rh_host_copies *copies, const void *host, int64_t bytes)
{
	struct rh_staging *staging = NULL;
	for (int64_t done = 0; !staging && done < bytes;)
		done += copy_run(copies, (const char *)host + done, bytes - done, &staging);
	return staging != NULL;
}

/* Bulk goes to a device in pieces, so that others' copies come between them. */
static int64_t piece_of(const struct rh_host_copies *copies, enum rh_stream stream, int64_t bytes)
{
	int is_bulk = stream == RH_STREAM_WEIGHTS || stream == RH_STREAM_GRADIENTS;
	return is_bulk ? rh_min(bytes, copies->piece_bytes) : bytes;
}

int rh_host_copy_up(struct rh_host_copies *copies, struct rh_device *device, enum rh_stream stream, void *to, const void *from,
                    int64_t bytes)
{
	int rc = 0;
	for (int64_t done = 0, run; !rc && done < bytes; done += run) {
		struct rh_staging *staging;
		run = copy_run(copies, (const char *)from + done, piece_of(copies, stream, bytes - done), &staging);
		rc = staging ? rh_staging_up(staging, device, stream, (char *)to + done, (const char *)from + done, run)
		             : device->ops->copy_up(device, stream, (char *)to + done, (const char *)from + done, run);
	}
	return rc;
}

int rh_host_copy_down(struct rh_host_copies *copies, struct rh_device *device, enum rh_stream stream, void *to, const void *from,
                      int64_t bytes)
{
	int rc = 0;
	for (int64_t done = 0, run; !rc && done < bytes; done += run) {
		struct rh_staging *staging;
		run = copy_run(copies, (const char *)to + done, piece_of(copies, stream, bytes - done), &staging);
		rc = staging ? rh_staging_down(staging, device, stream, (char *)to + done, (const char *)from + done, run)
		             : device->ops->copy_down(device, stream, (char *)to + done, (const char *)from + done, run);
	}
	return rc;
}
