/* Host memory that devices copy fast: registered with the device where it can register memory, else locked against swapping. */
#ifndef RH_OFFLOAD_PIN_H
#define RH_OFFLOAD_PIN_H

#include "device/device.h"

struct rh_host_pin {
	struct rh_device *device; /* NULL: nothing is registered */
	int is_locked;            /* in memory, by mlock */
	char *memory;
	int64_t bytes;
	int64_t pinned_bytes; /* registered, from the start */
	int64_t piece_bytes;  /* of one registration; equal to bytes: all at once */
	char refusal[192];    /* the device's reason for refusing the rest, "" where it did not */
};

/* Registers all of the memory at once. Where the system refuses (registration caps, memlock), registers as many pieces as it accepts, of
 * 1 GiB, 256, 64 or 16 MiB (small memory: of smaller ones); the rest stays pageable. This never fails: the caller reports what was left
 * out. A device that registers nothing copies as fast without; for it the memory is only locked, if RLIMIT_MEMLOCK allows that, without
 * a line. A registration counts for all devices of a kind, so one device is enough. Memory and device must stay until rh_host_unpin. */
void rh_host_pin(struct rh_device *device, void *memory, int64_t bytes, struct rh_host_pin *out);
/* A zeroed pin is legal, and one that was unpinned before. */
void rh_host_unpin(struct rh_host_pin *pin);

/* 1: the byte at `at` is registered, or need not be. */
int rh_host_pin_has(const struct rh_host_pin *pin, const void *at);

/* The most bytes from `at` on that one copy may move: a copy must not cross from one registration into another. */
int64_t rh_host_pin_run(const struct rh_host_pin *pin, const void *at, int64_t bytes);

#endif
