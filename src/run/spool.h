/* Boundaries on NVMe: two rings of buffers in host memory through which they go there and come back, on a way that is known before the
 * program runs (run/course.h).
 *
 *   a device's write --its event--> thread of writes: record written, checksums kept --> the buffer is free for the write `down` later
 *   record whole, buffer's copy to the device before over --> thread of reads: record read, verified --> copied to a device
 *
 * A record is asked for as soon as it is whole and the ring has room, in the program's order; so nothing is read that is half written. On a
 * simulated machine both threads are queues in virtual time, and nothing is moved. */
#ifndef RH_RUN_SPOOL_H
#define RH_RUN_SPOOL_H

#include "offload/space.h"
#include "run/boundary.h"

struct run_spool_options {
	struct rh_space *space; /* NULL: of a simulated machine */
	int first_record;       /* of as many as any program needs, one after the other */
	int64_t bytes;          /* of a record and of a buffer */
	int64_t micro_batches;  /* places */
	int down, up;           /* buffers of the two rings: those of the boundaries in this order */
	struct rh_device *device;
};

/* Borrows the buffers of `boundaries`, whose memory must lie as the space's unit wants. After rh_space_close it can only be destroyed. */
int run_spool_create(const struct run_spool_options *options, struct rh_boundary_buffer *buffer, struct run_spool **out) RH_MUST;
/* NULL is legal. */
void run_spool_destroy(struct run_spool *spool);

/* rh_boundary_acquire, _sent, _find; rh_boundaries_begin and _end. */
int run_spool_write(struct run_spool *spool, enum rh_boundary_kind kind, int layer, int64_t micro_batch,
                    struct rh_boundary_buffer **out) RH_MUST;
int run_spool_written(struct run_spool *spool, struct rh_boundary_buffer *buffer) RH_MUST;
int run_spool_read(struct run_spool *spool, enum rh_boundary_kind kind, int layer, int64_t micro_batch,
                   struct rh_boundary_buffer **out) RH_MUST;
int run_spool_begin(struct run_spool *spool, const struct rh_boundary_walk *walk) RH_MUST;
int run_spool_end(struct run_spool *spool) RH_MUST;

#endif
