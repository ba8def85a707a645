/* Host memory as devices copy it. What is on the critical path is registered first, then the store; what the system will not register of
 * that goes through a ring that it will, and where it registers nothing, copies are pageable: each said once, with its cost. */
#include "run/executor_internal.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/minmax.h"

/* ulimit -l is no cure: the driver's pages are not counted against it. */
#define UNPINNED "a container's or the system's limit of pinned memory, a virtual machine, or another run's registration may be why"

/* The best of three uploads of `bytes` to where no weights are yet, in bytes a second; `staging`: through it. 0 on a fault. */
static double rate_of(struct rh_executor *executor, struct rh_staging *staging, const char *from, int64_t bytes)
{
	struct run_device *on = &executor->on[0];
	double best = 0;
	for (int i = 0; i < 3; i++) {
		double began = rh_clock_seconds();
		int rc = staging ? rh_staging_up(staging, on->device, RH_STREAM_WEIGHTS, on->weights, from, bytes)
		                 : on->device->ops->copy_up(on->device, RH_STREAM_WEIGHTS, on->weights, from, bytes);
		int late = on->device->ops->synchronize(on->device);
		double rate = (double)bytes / (rh_clock_seconds() - began);
		if (rc || late)
			return 0;
		best = rate > best ? rate : best;
	}
	return best;
}

static void report(struct rh_executor *executor)
{
	enum { SAMPLE = 32 << 20 };
	const struct rh_host_pin *store = &executor->pin[RUN_PIN_STORE];
	int64_t left = store->bytes - store->pinned_bytes, bytes = executor->options.plan->weight_bytes;
	bytes = bytes < left ? bytes : left;
	bytes = bytes < SAMPLE ? bytes : SAMPLE;
	double whole = (double)store->bytes / 1048576, missing = (double)left / 1048576;
	double pageable = rate_of(executor, NULL, store->memory + store->pinned_bytes, bytes) * 1e-9;
	if (!executor->staging) {
		rh_warn_once("host memory is not registered with the devices (%s): %.1f MiB of weights and optimizer state are copied "
		             "pageable, at %.2f GB/s, and nothing is enqueued meanwhile; " UNPINNED,
		             store->why, whole, pageable);
		return;
	}
	int64_t piece = bytes < executor->staging_memory.capacity ? bytes : executor->staging_memory.capacity;
	double staged = rate_of(executor, executor->staging, store->memory + store->pinned_bytes, bytes) * 1e-9;
	double registered = rate_of(executor, NULL, executor->staging_memory.base, piece) * 1e-9;
	rh_warn_once("%.1f of %.1f MiB of weights and optimizer state are not registered with the devices (%s): they are copied through a "
	             "ring of %lld MiB that is, at %.2f GB/s (registered %.2f, pageable %.2f); " UNPINNED,
	             missing, whole, store->why, (long long)(executor->staging_memory.capacity >> 20), staged, registered, pageable);
}

/* What is on the critical path has no staging: while a device copies such an activation down the host enqueues nothing on any. */
static void report_critical(const struct rh_executor *executor)
{
	static const char *const name[RUN_PIN_STORE] = {[RUN_PIN_BOUNDARIES] = "activations between stages",
	                                                [RUN_PIN_MICRO] = "micro-batches and results",
	                                                [RUN_PIN_FRAMES] = "weights read from NVMe"};
	for (int i = 0; i < RUN_PIN_STORE; i++) {
		const struct rh_host_pin *pin = &executor->pin[i];
		if (pin->device && pin->pinned_bytes < pin->bytes)
			rh_warn_once("%.1f of %.1f MiB of %s are not registered with the devices (%s): while they are copied no device is "
			             "given work; " UNPINNED,
			             (double)(pin->bytes - pin->pinned_bytes) / 1048576, (double)pin->bytes / 1048576, name[i], pin->why);
	}
}

static int make_staging(struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	int rc = rh_host_reserve_near(options->device, options->devices, rh_staging_bytes(executor->pieces.most), "a staging ring",
	                              &executor->staging_memory);
	if (rc)
		return rc;
	rh_host_pin(options->device[0], executor->staging_memory.base, executor->staging_memory.capacity, &executor->staging_pin);
	/* whole: a buffer of the staging must not lie across registrations */
	if (executor->staging_pin.pinned_bytes == executor->staging_pin.bytes &&
	    executor->staging_pin.piece_bytes == executor->staging_pin.bytes)
		return rh_staging_create(options->device, options->devices, executor->pieces.most, &executor->staging_memory,
		                         &executor->staging);
	rh_host_unpin(&executor->staging_pin);
	rh_host_release(&executor->staging_memory);
	return 0;
}

int run_host_pin(struct rh_executor *executor)
{
	struct rh_device *device = executor->options.device[0];
	int64_t bytes;
	void *store = rh_store_memory(executor->options.store, &bytes);
	struct rh_host_pin *pin = executor->pin;
	rh_host_pin(device, executor->boundary_memory.base, executor->boundary_memory.capacity, &pin[RUN_PIN_BOUNDARIES]);
	rh_host_pin(device, executor->micro_memory.base, executor->micro_memory.capacity, &pin[RUN_PIN_MICRO]);
	rh_host_pin(device, executor->frame_memory.base, executor->frame_memory.capacity, &pin[RUN_PIN_FRAMES]);
	rh_host_pin(device, store, bytes, &pin[RUN_PIN_STORE]);
	report_critical(executor);
	if (!pin[RUN_PIN_STORE].device || pin[RUN_PIN_STORE].pinned_bytes == bytes)
		return 0;
	RH_ASSERT(executor->options.registers);
	int rc = make_staging(executor);
	if (!rc && !executor->staging && pin[RUN_PIN_STORE].pinned_bytes) { /* the store took all there was: the staging serves all of it */
		rh_host_unpin(&pin[RUN_PIN_STORE]);
		rc = make_staging(executor);
		rh_host_pin(device, store, bytes, &pin[RUN_PIN_STORE]);
	}
	if (!rc)
		report(executor);
	return rc;
}

void run_host_unpin(struct rh_executor *executor)
{
	rh_staging_destroy(executor->staging);
	rh_host_unpin(&executor->staging_pin);
	rh_host_release(&executor->staging_memory);
	for (int i = 0; i < RUN_PINS; i++)
		rh_host_unpin(&executor->pin[i]);
}

/* Bytes from `host` on that one copy may take; *staging: the way of that copy. */
static int64_t copy_run(const struct rh_executor *executor, const char *host, int64_t bytes, struct rh_staging **staging)
{
	*staging = NULL;
	for (int i = 0; i < RUN_PINS; i++)
		if (host >= executor->pin[i].memory && host < executor->pin[i].memory + executor->pin[i].bytes) {
			if (i == RUN_PIN_STORE && !rh_host_pin_has(&executor->pin[i], host))
				*staging = executor->staging;
			return rh_host_pin_run(&executor->pin[i], host, bytes);
		}
	return bytes;
}

int run_is_staged(const struct rh_executor *executor, const void *host, int64_t bytes)
{
	struct rh_staging *staging = NULL;
	for (int64_t done = 0; !staging && done < bytes;)
		done += copy_run(executor, (const char *)host + done, bytes - done, &staging);
	return staging != NULL;
}

/* Bulk goes to a device in pieces, so that others' copies come between them. */
static int64_t piece_of(const struct rh_executor *executor, enum rh_stream stream, int64_t bytes)
{
	int is_bulk = stream == RH_STREAM_WEIGHTS || stream == RH_STREAM_GRADIENTS;
	return is_bulk ? rh_min(bytes, executor->pieces.most) : bytes;
}

int run_copy_up(struct rh_executor *executor, struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	int rc = 0;
	for (int64_t done = 0, run; !rc && done < bytes; done += run) {
		struct rh_staging *staging;
		run = copy_run(executor, (const char *)from + done, piece_of(executor, stream, bytes - done), &staging);
		rc = staging ? rh_staging_up(staging, device, stream, (char *)to + done, (const char *)from + done, run)
		             : device->ops->copy_up(device, stream, (char *)to + done, (const char *)from + done, run);
	}
	return rc;
}

int run_copy_down(struct rh_executor *executor, struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	int rc = 0;
	for (int64_t done = 0, run; !rc && done < bytes; done += run) {
		struct rh_staging *staging;
		run = copy_run(executor, (const char *)to + done, piece_of(executor, stream, bytes - done), &staging);
		rc = staging ? rh_staging_down(staging, device, stream, (char *)to + done, (const char *)from + done, run)
		             : device->ops->copy_down(device, stream, (char *)to + done, (const char *)from + done, run);
	}
	return rc;
}
