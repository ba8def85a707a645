#include "offload/pin.h"

#include "core/log.h"

static const int64_t sizes[] = {INT64_C(1) << 30, 256 << 20, 64 << 20, 16 << 20};

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
	for (size_t i = 0; rc && !pin->pinned_bytes && i < sizeof sizes / sizeof *sizes; i++)
		if (sizes[i] < pin->bytes) {
			pin->piece_bytes = sizes[i];
			rc = pin_pieces(pin);
		}
	if (!rc && pin->piece_bytes < pin->bytes)
		rh_warn_once("host memory is registered in pieces of %lld MiB: more at once is refused here; copies are cut there",
		             (long long)(pin->piece_bytes >> 20));
	if (rc)
		rh_warn_once("%.1f of %.1f MiB of host memory are not registered, and copied more slowly (%s); raise the limit with "
		             "ulimit -l unlimited, or lower max_ram",
		             (double)(pin->bytes - pin->pinned_bytes) / 1048576, (double)pin->bytes / 1048576, rh_error(rc));
}

void rh_host_pin(struct rh_device *device, void *memory, int64_t bytes, struct rh_host_pin *out)
{
	*out = (struct rh_host_pin){.memory = memory, .bytes = bytes};
	if (!bytes || !device->ops->pin)
		return;
	out->device = device;
	pin_on_device(out);
}

void rh_host_unpin(struct rh_host_pin *pin)
{
	if (pin->device && pin->device->ops->unpin)
		for (int64_t first = 0; first < pin->pinned_bytes; first += pin->piece_bytes)
			pin->device->ops->unpin(pin->device, pin->memory + first, piece_at(pin, first));
	*pin = (struct rh_host_pin){0};
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
