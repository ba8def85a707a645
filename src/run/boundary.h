/* Boundary activations and their gradients in host memory: fixed-size buffers, handed out first in, first out, each with the events that
 * say when its last write is done and when its last read is. */
#ifndef RH_RUN_BOUNDARY_H
#define RH_RUN_BOUNDARY_H

#include "core/arena.h"
#include "device/device.h"
#include "schedule/program.h"

enum rh_boundary_kind { RH_BOUNDARY_ACTIVATION, RH_BOUNDARY_GRADIENT, RH_BOUNDARY_KINDS };

struct rh_boundary_buffer {
	char *memory;
	struct rh_event **written, **read; /* one of each a device; NULL where no device ever did */
	int written_by;                    /* device of the latest write, -1 none */
	uint64_t read_by;                  /* devices, by bit, that have read it since: a backward's read need not follow a forward's */
	int readers;                       /* slots that have still to read it */
};

struct rh_boundaries {
	struct rh_boundary_buffer *buffer;
	int count;
	int *queue; /* free buffers, oldest first */
	int head, free_count;
	int *where[RH_BOUNDARY_KINDS]; /* (layers + 1, micro_batches): which buffer, -1 none */
	int64_t micro_batches;
	int least_free; /* since creation: count - least_free is the peak */
};

/* Buffers that a program needs at once, found by walking it; the walk is the executor's. */
int rh_boundaries_needed(const struct rh_plan *plan, int layers, const struct rh_program *program, int64_t micro_batches, int *out) RH_MUST;

/* memory NULL: bookkeeping only. */
int rh_boundaries_create(int count, int layers, int64_t micro_batches, int64_t bytes_each, struct rh_arena *memory,
                         struct rh_device *const *device, int devices, struct rh_boundaries *out) RH_MUST;
void rh_boundaries_destroy(struct rh_boundaries *boundaries, int devices);

/* A buffer for (kind, layer boundary, micro-batch), to be read by `readers` slots. */
struct rh_boundary_buffer *rh_boundary_acquire(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch,
                                               int readers);
struct rh_boundary_buffer *rh_boundary_find(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch);
/* One reader has enqueued its read. The last one gives the buffer back. */
void rh_boundary_release(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch);

/* How many slots of a round read the activation at a layer boundary: a forward stage, a backward stage, or both begin there. */
int rh_boundary_readers(const struct rh_plan *plan, int trains, int layer);

#endif
