/* Host memory made fast to copy from and to: registered with the device, where it has such a thing; else kept from being swapped out. */
#ifndef RH_OFFLOAD_PIN_H
#define RH_OFFLOAD_PIN_H

#include "device/device.h"

struct rh_host_pin {
	struct rh_device *device; /* NULL: nothing is registered */
	int is_locked;            /* in memory, by mlock */
	char *memory;
	int64_t bytes;
	int64_t pinned_bytes; /* of them, from the start */
	int64_t piece_bytes;  /* registered so many at a time; equal to bytes: all at once */
	char why[192];        /* the device's reason for what is left out, "" where nothing is */
};

/* All of it at once; where that is refused (registration caps, memlock), in pieces of 1 GiB, 256, 64 or 16 MiB (of small memory smaller
 * ones), as many as are taken; else pageable. Nothing is refused for it; whoever copies says what was left out. For a device that registers
 * nothing, locked where RLIMIT_MEMLOCK lets it be, and not a word where not: its copies are as fast. `device` is asked for all devices (a
 * registration counts for all of a kind). Memory and device stay until rh_host_unpin. */
void rh_host_pin(struct rh_device *device, void *memory, int64_t bytes, struct rh_host_pin *out);
/* A zeroed pin is legal, and one that was undone. */
void rh_host_unpin(struct rh_host_pin *pin);

/* 1 where `at` is registered, or need not be. */
int rh_host_pin_has(const struct rh_host_pin *pin, const void *at);

/* Bytes from `at` on that one copy may take: a copy must not cross from one registration into another. */
int64_t rh_host_pin_run(const struct rh_host_pin *pin, const void *at, int64_t bytes);

#endif
