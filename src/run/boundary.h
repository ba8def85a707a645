/* Boundary activations and their gradients in host memory: fixed-size buffers, each with the events that say when its last write is done
 * and when its last read is. In memory buffers are handed out first in, first out; where boundaries go to NVMe (run/spool.h) the buffers
 * are its rings. Those that copy to and from devices need not know which. */
#ifndef RH_RUN_BOUNDARY_H
#define RH_RUN_BOUNDARY_H

#include "core/arena.h"
#include "device/device.h"
#include "schedule/program.h"

enum rh_boundary_kind { RH_BOUNDARY_ACTIVATION, RH_BOUNDARY_GRADIENT, RH_BOUNDARY_KINDS };

struct rh_boundary_buffer {
	char *memory;
	struct rh_event **written, **read; /* one of each a device; NULL where no device ever did */
	int written_by;                    /* device of the latest write, -1 none: what is in it is there */
	uint64_t read_by;                  /* devices, by bit, that have read it since: a backward's read need not follow a forward's */
	int readers;                       /* slots that have still to read it */
};

struct run_spool;

struct rh_boundaries {
	struct rh_boundary_buffer *buffer;
	int count;
	int *queue; /* free buffers, oldest first */
	int head, free_count;
	int *where[RH_BOUNDARY_KINDS]; /* (layers + 1, micro_batches): which buffer, -1 none */
	int64_t micro_batches;
	int least_free;          /* since creation: count - least_free is the peak */
	struct run_spool *spool; /* to NVMe; NULL: all stay in memory. Then the above but `buffer` and `count` is not used */
};

/* What a program does with boundaries, in the executor's order: it reads a boundary, writes one, is done with one. */
enum rh_boundary_act { RH_BOUNDARY_READ, RH_BOUNDARY_WRITE, RH_BOUNDARY_LEAVE };
struct rh_boundary_touch {
	enum rh_boundary_act act;
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
	int (*touch)(void *context, const struct rh_boundary_touch *touch); /* nonzero ends the walk */
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
	struct rh_device *const *device;
	int devices;
	int has_events; /* boundaries go to NVMe, whose threads wait for devices' copies */
};
int rh_boundaries_create(const struct rh_boundaries_options *options, struct rh_boundaries *out) RH_MUST;
void rh_boundaries_destroy(struct rh_boundaries *boundaries, int devices);

/* A buffer for (kind, layer boundary, micro-batch), to be read by `readers` slots. What devices read of it before may still be on its way:
 * read_by. The host waits for NVMe, if at all. */
int rh_boundary_acquire(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch, int readers,
                        struct rh_boundary_buffer **out) RH_MUST;
/* The device's write to the buffer acquired last is enqueued, and its event recorded. */
int rh_boundary_sent(struct rh_boundaries *boundaries, struct rh_boundary_buffer *buffer) RH_MUST;
/* Where a boundary is, for one read that is enqueued and recorded before the next call. The host may wait. */
int rh_boundary_find(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch,
                     struct rh_boundary_buffer **out) RH_MUST;
/* The same of boundaries in memory, if it has been acquired; NULL: not yet. */
const struct rh_boundary_buffer *rh_boundary_there(const struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer,
                                                   int64_t micro_batch);
/* One reader has enqueued its read. The last one gives the buffer back. */
void rh_boundary_release(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch);

/* Around a program: the second waits until nothing is on its way to or from NVMe, whatever happened before. walk->touch is not used. */
int rh_boundaries_begin(struct rh_boundaries *boundaries, const struct rh_boundary_walk *walk) RH_MUST;
int rh_boundaries_end(struct rh_boundaries *boundaries) RH_MUST;

/* How many slots of a round read the activation at a layer boundary: a forward stage, a backward stage, or both begin there. */
int rh_boundary_readers(const struct rh_plan *plan, int trains, int layer);

#endif
