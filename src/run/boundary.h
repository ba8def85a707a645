/* Boundary activations and their gradients in host memory: buffers of one size. Where boundaries stay in memory, buffers are handed out
 * first in, first out, as copies are issued. Where they go to NVMe the buffers are two rings, and the lowering knows which boundary is in
 * which (run/lower_drive.c). */
#ifndef RH_RUN_BOUNDARY_H
#define RH_RUN_BOUNDARY_H

#include "core/arena.h"
#include "device/device.h"
#include "schedule/program.h"

enum rh_boundary_kind { RH_BOUNDARY_ACTIVATION, RH_BOUNDARY_GRADIENT, RH_BOUNDARY_KINDS };

struct rh_boundary_buffer {
	char *memory;
	int readers;  /* slots that have still to read it */
	int64_t slot; /* of those that have read it, the latest of the program; -1: none has */
};

struct rh_boundaries {
	struct rh_boundary_buffer *buffer;
	int count;
	int *queue; /* free buffers, oldest first */
	int head, free_count;
	int *where[RH_BOUNDARY_KINDS]; /* (layers + 1, micro_batches): which buffer, -1 none */
	int64_t bytes_each, micro_batches;
	int least_free; /* since creation: count - least_free is the peak */
};

/* What a program does with boundaries, in the executor's order: it reads a boundary, writes one, is done with one. */
enum rh_boundary_verb { RH_BOUNDARY_READ, RH_BOUNDARY_WRITE, RH_BOUNDARY_RELEASE };
struct rh_boundary_access {
	enum rh_boundary_verb verb;
	enum rh_boundary_kind kind;
	int layer;
	int64_t micro_batch; /* its place: as the executor counts them */
	int readers;         /* of WRITE */
	int64_t step;        /* of the program's */
	size_t slot;         /* likewise */
};
struct rh_boundary_walk {
	const struct rh_plan *plan;
	int layers;
	const struct rh_program *program;
	int64_t steps_held,
	        step_micro_batches; /* of a program of several steps: micro-batch m of step s has place s % held * micro-batches + m */
	int (*access)(void *context, const struct rh_boundary_access *access); /* nonzero ends the walk */
	void *context;
};
int rh_boundary_walk(const struct rh_boundary_walk *walk) RH_MUST;

/* Buffers that a program needs at once in memory, found by walking it. */
int rh_boundaries_needed(const struct rh_plan *plan, int layers, const struct rh_program *program, int64_t micro_batches, int *out) RH_MUST;
/* The same of a round of RoundPipe, and so of all its rounds that are no longer, as one is over before the next: every slot of `program`
 * has one micro-batch, and each of the round's does the same as it. */
int rh_boundaries_needed_in_round(const struct rh_plan *plan, int layers, const struct rh_program *program, int64_t micro_batches,
                                  int *out) RH_MUST;

struct rh_boundaries_options {
	int count, layers; /* buffers */
	int64_t micro_batches, bytes_each;
	struct rh_arena *memory; /* NULL: bookkeeping only, for no device */
};
int rh_boundaries_create(const struct rh_boundaries_options *options, struct rh_boundaries *out) RH_MUST;
void rh_boundaries_destroy(struct rh_boundaries *boundaries);

/* A buffer for (kind, layer boundary, micro-batch), to be read by `readers` slots. Devices may still be reading what it held before. */
struct rh_boundary_buffer *rh_boundary_acquire(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch,
                                               int readers);
/* Where a boundary is that has been acquired. */
struct rh_boundary_buffer *rh_boundary_find(const struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer,
                                            int64_t micro_batch);
/* One reader has enqueued its read. The last one gives the buffer back. */
void rh_boundary_release(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch);

/* How many slots of a round read the activation at a layer boundary: a forward stage, a backward stage, or both begin there. */
int rh_boundary_readers(const struct rh_plan *plan, int trains, int layer);

#endif
