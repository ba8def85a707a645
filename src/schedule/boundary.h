/* Boundary activations and their gradients in host memory: what a program does with them, how many buffers it needs, and the books by which
 * buffers are given out. Where boundaries go to NVMe the buffers are two rings instead (schedule/reload.h). */
#ifndef RH_SCHEDULE_BOUNDARY_H
#define RH_SCHEDULE_BOUNDARY_H

#include "schedule/program.h"

enum rh_boundary_kind { RH_BOUNDARY_ACTIVATION, RH_BOUNDARY_GRADIENT, RH_BOUNDARY_KINDS };

/* Buffers of boundaries for this box, and of those that go to the box above it or below it alone: a slow link must not keep the others. */
enum rh_boundary_pool { RH_BOUNDARY_OWN, RH_BOUNDARY_TO_ABOVE, RH_BOUNDARY_TO_BELOW, RH_BOUNDARY_POOLS };

/* Which boundary is in which buffer: numbers alone. */
struct rh_boundaries {
	struct rh_boundary_buffers {
		int first, count; /* numbers */
		int *queue;       /* those that are free, oldest first */
		int head, free_count;
		int least_free; /* since creation: count - least_free is the peak */
	} pool[RH_BOUNDARY_POOLS];
	int *readers;                   /* of each buffer: slots and messages that have still to read it */
	int *buffer[RH_BOUNDARY_KINDS]; /* (layers + 1, micro_batches): which buffer, -1 none */
	int64_t micro_batches;
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

int rh_boundaries_create(const int count[RH_BOUNDARY_POOLS], int layers, int64_t micro_batches, struct rh_boundaries *out) RH_MUST;
void rh_boundaries_destroy(struct rh_boundaries *boundaries);

/* A buffer for (kind, layer boundary, micro-batch), to be read so many times: of this box's own the one that was given back last where
 * is_latest, else the one of the pool that has been free longest. */
struct rh_boundary_want {
	enum rh_boundary_pool pool;
	int is_latest, readers;
};
/* Boundaries that only another box reads have buffers of their own, where there are any. */
struct rh_boundary_want rh_boundary_want(const struct rh_boundaries *boundaries, const struct rh_plan *plan, int trains,
                                         enum rh_boundary_kind kind, int layer);
int rh_boundary_acquire(struct rh_boundaries *boundaries, struct rh_boundary_want want, enum rh_boundary_kind kind, int layer,
                        int64_t micro_batch);
/* Where a boundary is that has been acquired. */
int rh_boundary_find(const struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch);
/* It has been read once. 1: that was the last time, which gives the buffer back. */
int rh_boundary_release(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch);

/* How many slots of a round read the activation at a layer boundary: a forward stage, a backward stage, or both begin there. */
int rh_boundary_readers(const struct rh_plan *plan, int trains, int layer);

#endif
