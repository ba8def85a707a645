/* One drive: a file that requests read and write. Many requests are in flight at once, and the drive carries them out in any order. A
 * caller that needs an order waits for the `done` of one request before it submits the next.
 *
 * Instances: io_uring (registered file and memory, one ring a drive), threads with pread and pwrite where io_uring is forbidden, and one
 * that injects faults into either. */
#ifndef RH_OFFLOAD_DRIVE_H
#define RH_OFFLOAD_DRIVE_H

#include "core/error.h"

#include <stdint.h>

enum rh_drive_kind { RH_DRIVE_READ, RH_DRIVE_WRITE };

/* The caller owns the request; from submit to `done` the drive has it. memory, offset and bytes are multiples of the drive's unit. */
struct rh_drive_request {
	enum rh_drive_kind kind;
	void *memory;
	int64_t offset, bytes;
	/* Called on a thread of the drive, or on the caller's within submit; must not wait for the drive. */
	void (*done)(struct rh_drive_request *request);
	void *context;
	int rc; /* 0, or a negative errno without a line; all bytes or an error */
	/* the drive's own; zero at submit */
	int64_t moved;
	/* for the instance that injects faults */
	int64_t first_bytes; /* of the first call, 0: all */
	int delay_ms;        /* the kernel's answer is delayed by this */
	struct rh_drive_request *next;
};

struct rh_drive {
	const struct rh_drive_ops *ops;
};

/* Every slot is required. */
struct rh_drive_ops {
	const char *kind; /* "io_uring", "threads" */
	/* From any thread, also from `done`. */
	void (*submit)(struct rh_drive *drive, struct rh_drive_request *request);
	/* Announces memory that later requests will use, besides the memory attached before. The instance registers it where it can, in
	 * pieces of at most 1 GiB. Where the system refuses, a line says so once, and requests work without. Waits for the requests in
	 * flight. The memory must stay until close. */
	void (*attach)(struct rh_drive *drive, void *memory, int64_t bytes);
	/* Waits for all requests, for `seconds` at most. Requests that stall longer are abandoned: once close has returned, no `done`
	 * runs and no request is touched. Only `done` may submit meanwhile. The descriptor stays open, because it is the caller's. */
	void (*close)(struct rh_drive *drive, double seconds);
};

enum rh_drive_engine { RH_DRIVE_BEST, RH_DRIVE_THREADS };

struct rh_drive_options {
	int descriptor; /* open for reading and writing; borrowed */
	int depth;      /* requests at the drive at once; more wait in line */
	int64_t unit;   /* of offsets, lengths and addresses */
	enum rh_drive_engine engine;
};

/* RH_NVME=threads in the environment stands for RH_DRIVE_THREADS (tests). */
int rh_drive_open(const struct rh_drive_options *options, struct rh_drive **out) RH_MUST;

/* Tests: injects one fault into the n-th call from now on. A call is a request of any drive opened after this, or a reservation of
 * space; for RH_FAULT_TORN only writes count. nth 0: no fault, and no counting. Returns the number of calls since the last
 * rh_drive_fail_nth. */
enum rh_drive_fault {
	RH_FAULT_FAIL,  /* negative errno `code` */
	RH_FAULT_SHORT, /* the first call moves half of it, as a kernel may */
	RH_FAULT_TORN,  /* a write says that all is written, and half is */
	RH_FAULT_FLIP,  /* a bit of what was read, or of what is written */
	RH_FAULT_STALL, /* never done */
	RH_FAULT_DELAY  /* done after `code` more milliseconds */
};
int64_t rh_drive_fail_nth(int64_t nth, enum rh_drive_fault fault, int code);

#endif
