/* Host memory made fast to copy from and to: registered with the device, where it has such a thing. */
#ifndef RH_OFFLOAD_PIN_H
#define RH_OFFLOAD_PIN_H

#include "device/device.h"

struct rh_host_pin {
	struct rh_device *device; /* NULL: nothing is pinned */
	char *memory;
	int64_t bytes;
	int64_t pinned_bytes; /* of them, from the start */
	int64_t piece_bytes;  /* registered so many at a time; equal to bytes: all at once */
};

/* All of it at once; where that is refused (registration caps, memlock), in pieces of 1 GiB, 256, 64 or 16 MiB, as many as are taken; else
 * pageable. Nothing is refused for it: what was left out is said once, with its reason and what mends it. `device` is asked for all devices
 * (a registration counts for all of a kind). Memory and device stay until rh_host_unpin. */
void rh_host_pin(struct rh_device *device, void *memory, int64_t bytes, struct rh_host_pin *out);
/* A zeroed pin is legal, and one that was undone. */
void rh_host_unpin(struct rh_host_pin *pin);

/* Bytes from `at` on that one copy may take: a copy must not cross from one registration into another. */
int64_t rh_host_pin_run(const struct rh_host_pin *pin, const void *at, int64_t bytes);

#endif
