/* A ring of bytes on their way to files. Bytes go straight to their file while nobody waits for whoever hands them over; while
 * somebody does, they are copied into the ring, as far as it has room, and written afterwards: a copy takes a fraction of the time of
 * a write. Bytes of all files leave in the order in which they came. One thread uses it. */
#ifndef RH_WEIGHTS_WRITE_RING_H
#define RH_WEIGHTS_WRITE_RING_H

#include "core/error.h"

#include <stdint.h>

struct rh_write_ring {
	char *bytes;
	int64_t size, used, first;        /* `used` of `size` bytes, from `first` on, around the end */
	int (*is_awaited)(void *context); /* somebody waits; NULL: nobody does */
	void *context;
};

/* Writes bytes that follow those of its last call. */
typedef int rh_write_ring_sink(void *file, const void *bytes, int64_t length);

/* Bytes for a file, in the ring or in the file when it returns. What fails may be a write of earlier bytes, of another file; afterwards the
 * ring must be cleared. */
int rh_write_ring_put(struct rh_write_ring *ring, rh_write_ring_sink *write, void *file, const void *bytes, int64_t length) RH_MUST;
/* Writes all that is in it. */
int rh_write_ring_drain(struct rh_write_ring *ring) RH_MUST;
/* Forgets all that is in it: its files are given up. */
void rh_write_ring_clear(struct rh_write_ring *ring);

#endif
