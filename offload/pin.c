#include "offload/pin.h"

#include "core/log.h"

#include <stdio.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

/* The smallest piece that is tried: there are no more than 16 of what is small, nor very many of what is large. */
static int64_t least_piece(int64_t bytes)
{
	int64_t least = bytes / 16 < PAGE ? PAGE : bytes / 16;
	return least > 16 << 20 ? 16 << 20 : least;
}

static int64_t piece_at(const struct rh_host_pin *pin, int64_t first)
{
	int64_t left = pin->bytes - first;
	return left < pin->piece_bytes ? left : pin->piece_bytes;
}

/* Registers pieces until one is refused; its code, or 0. */
static int pin_pieces(struct rh_host_pin *pin)
{
	const struct rh_device_ops *ops = pin->device->ops;
	int rc = 0;
	while (!rc && pin->pinned_bytes < pin->bytes) {
		int64_t bytes = piece_at(pin, pin->pinned_bytes);
		rc = ops->pin(pin->device, pin->memory + pin->pinned_bytes, bytes);
		if (!rc)
			pin->pinned_bytes += bytes;
	}
	return rc;
}

static void pin_on_device(struct rh_host_pin *pin)
{
	pin->piece_bytes = pin->bytes;
	int rc = pin_pieces(pin);
	for (int64_t piece = INT64_C(1) << 30; rc && !pin->pinned_bytes && piece >= least_piece(pin->bytes); piece /= 4)
		if (piece < pin->bytes) {
			pin->piece_bytes = piece;
			rc = pin_pieces(pin);
		}
	if (!rc && pin->piece_bytes < pin->bytes)
		rh_warn_once("host memory is registered in pieces of %.3g MiB: more at once is refused here; copies are cut there",
		             (double)pin->piece_bytes / 1048576);
	if (rc)
		snprintf(pin->refusal, sizeof pin->refusal, "%s", rh_error(rc));
}

void rh_host_pin(struct rh_device *device, void *memory, int64_t bytes, struct rh_host_pin *out)
{
	*out = (struct rh_host_pin){.memory = memory, .bytes = bytes};
	if (!bytes)
		return;
	if (!device->ops->pin) {
		out->is_locked = !mlock(memory, (size_t)bytes);
		if (!out->is_locked) /* a part may be */
			munlock(memory, (size_t)bytes);
		return;
	}
	out->device = device;
	pin_on_device(out);
}

void rh_host_unpin(struct rh_host_pin *pin)
{
	if (pin->device && pin->device->ops->unpin)
		for (int64_t first = 0; first < pin->pinned_bytes; first += pin->piece_bytes)
			pin->device->ops->unpin(pin->device, pin->memory + first, piece_at(pin, first));
	if (pin->is_locked)
		munlock(pin->memory, (size_t)pin->bytes);
	*pin = (struct rh_host_pin){0};
}

int rh_host_pin_has(const struct rh_host_pin *pin, const void *at)
{
	return !pin->device || (const char *)at - pin->memory < pin->pinned_bytes;
}

int64_t rh_host_pin_run(const struct rh_host_pin *pin, const void *at, int64_t bytes)
{
	int64_t first = (const char *)at - pin->memory;
	RH_ASSERT(first >= 0 && bytes >= 0 && first <= pin->bytes - bytes);
	if (!pin->device || pin->piece_bytes >= pin->bytes)
		return bytes;
	int64_t border = first >= pin->pinned_bytes ? pin->bytes : (first / pin->piece_bytes + 1) * pin->piece_bytes;
	if (first < pin->pinned_bytes && border > pin->pinned_bytes)
		border = pin->pinned_bytes;
	return border - first < bytes ? border - first : bytes;
}
