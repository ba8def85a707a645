/* Boundary activations and their gradients in host memory: which of them a program reads and writes, how many buffers it needs, and
 * which boundary has which buffer. Where boundaries go to NVMe the buffers are two rings instead (schedule/reload.h). */
#ifndef RH_SCHEDULE_BOUNDARY_H
#define RH_SCHEDULE_BOUNDARY_H

#include "schedule/program.h"

enum rh_boundary_kind {
	RH_BOUNDARY_ACTIVATION,
	RH_BOUNDARY_GRADIENT,
	RH_BOUNDARY_NARROW, /* the activation's copy in 8 bits, which a backward slot reads (rh_stage_plan_narrows) */
	RH_BOUNDARY_KINDS
};

/* Buffers of this box's own boundaries, and buffers of boundaries that only the box above or below reads, so that a slow link does not
 * take buffers from the others. */
enum rh_boundary_pool {
	RH_BOUNDARY_OWN,
	RH_BOUNDARY_TO_ABOVE,
	RH_BOUNDARY_TO_BELOW,
	RH_BOUNDARY_SHORTER,                                              /* of chunks of class 1, and so on; those of class 0 are OWN */
	RH_BOUNDARY_NARROWS = RH_BOUNDARY_SHORTER + RH_CHUNK_CLASSES - 1, /* copies in 8 bits, of class 0, and so on */
	RH_BOUNDARY_POOLS = RH_BOUNDARY_NARROWS + RH_CHUNK_CLASSES
};
/* Pools whose buffers are of a size of their own. */
enum { RH_BOUNDARY_SIZES = RH_BOUNDARY_POOLS - RH_BOUNDARY_SHORTER };

/* Which boundary is in which buffer: numbers alone. */
struct rh_boundaries {
	struct rh_boundary_buffers {
		int first, count; /* the buffers' numbers: the first, and how many */
		int *queue;       /* those that are free, oldest first */
		int head, free_count;
		int least_free; /* since creation: count - least_free is the peak */
	} pool[RH_BOUNDARY_POOLS];
	int *readers;                   /* of each buffer: slots and messages that have still to read it */
	int *buffer[RH_BOUNDARY_KINDS]; /* (layers + 1, micro_batches): which buffer, -1 none. NARROW: NULL where there are no such */
	int64_t micro_batches;
};

/* One use of a boundary by a program, in the executor's order: it reads it, writes it, or needs it no longer. */
enum rh_boundary_verb { RH_BOUNDARY_READ, RH_BOUNDARY_WRITE, RH_BOUNDARY_RELEASE };
struct rh_boundary_access {
	enum rh_boundary_verb verb;
	enum rh_boundary_kind kind;
	int layer;
	int64_t micro_batch; /* its index (struct rh_boundary_walk) */
	int readers;         /* of WRITE */
	int64_t step;        /* of the program's */
	size_t slot;         /* likewise */
};
struct rh_boundary_walk {
	const struct rh_stage_plan *plan;
	int layers;
	const struct rh_program *program;
	/* of a program of several steps: micro-batch m of step s has index s % steps_in_flight * step_micro_batches + m */
	int64_t steps_in_flight, step_micro_batches;
	/* Above 1: of texts in chunks (struct rh_dispatch); model: what says which slots read each chunk's input once more before. */
	int chunks;
	const struct rh_chunk_classes *classes; /* NULL: nobody asks for sizes */
	const struct rh_model *model;
	int (*access)(void *context, const struct rh_boundary_access *access); /* nonzero ends the walk */
	void *context;
};
int rh_boundary_walk(const struct rh_boundary_walk *walk) RH_MUST;

/* Buffers that a program needs at once in memory, found by walking it; of copies in 8 bits none. */
int rh_boundaries_needed(const struct rh_stage_plan *plan, int layers, const struct rh_program *program, int64_t micro_batches,
                         int *out) RH_MUST;
/* The same for one round of RoundPipe, which is enough for all rounds that are no longer, because each ends before the next. In
 * `program` every slot has one micro-batch, which stands for each of the round's. narrow: of copies in 8 bits; may be NULL. */
int rh_boundaries_needed_in_round(const struct rh_stage_plan *plan, int layers, const struct rh_program *program, int64_t micro_batches,
                                  int *out, int *narrow) RH_MUST;

int rh_boundaries_create(const int count[RH_BOUNDARY_POOLS], int layers, int64_t micro_batches, struct rh_boundaries *out) RH_MUST;
void rh_boundaries_destroy(struct rh_boundaries *boundaries);

/* A buffer for (kind, layer boundary, micro-batch), which will be read `readers` times. Of the pool's free buffers it takes the one that
 * has been free longest; is_latest: the one that became free last. */
struct rh_boundary_want {
	enum rh_boundary_pool pool;
	int is_latest, readers;
};
/* Boundaries that only another box reads have buffers of their own, where there are any. */
struct rh_boundary_want rh_boundary_want(const struct rh_boundaries *boundaries, const struct rh_stage_plan *plan, int trains,
                                         enum rh_boundary_kind kind, int layer);
int rh_boundary_acquire(struct rh_boundaries *boundaries, struct rh_boundary_want want, enum rh_boundary_kind kind, int layer,
                        int64_t micro_batch);
/* The buffer of a boundary that has been acquired. */
int rh_boundary_find(const struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch);
/* Counts one read of the boundary. 1: that was the last one, and its buffer is free. */
int rh_boundary_release(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch);

/* How many slots of a round read the activation at a layer boundary: a forward stage, a backward stage, or both begin there. Those that
 * read its copy in 8 bits count there: rh_boundary_narrow_readers. */
int rh_boundary_readers(const struct rh_stage_plan *plan, int trains, int layer);
int rh_boundary_narrow_readers(const struct rh_stage_plan *plan, int trains, int layer);
/* What a slot that reads the boundary below it reads. */
enum rh_boundary_kind rh_boundary_input(const struct rh_stage_plan *plan, const struct rh_slot *slot);

#endif
