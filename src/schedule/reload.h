/* Which boundaries a program writes to NVMe, and which of its reads are reloads: known before it runs, a pure function of the program.
 *
 * Boundaries go into a ring of W = `write_buffers` host buffers, in the program's order: write n overwrites write n - W. A read of a
 * boundary that is still in the ring takes it from there. Any later read is a reload: the boundary goes to NVMe as well, and each reload
 * brings it back through a second ring, in the program's order.
 *
 * Records on NVMe are of sizes: of a boundary as it is or of its copy in 8 bits, and of chunks of each class. */
#ifndef RH_SCHEDULE_RELOAD_H
#define RH_SCHEDULE_RELOAD_H

#include "schedule/boundary.h"

enum { RH_RECORD_SIZES = 2 * RH_CHUNK_CLASSES };
/* classes: NULL or of one class where rows are whole, or all chunks are as long. */
static inline int rh_record_size(enum rh_boundary_kind kind, const struct rh_chunk_classes *classes, int64_t chunk)
{
	return (kind == RH_BOUNDARY_NARROW ? RH_CHUNK_CLASSES : 0) + (classes && classes->count > 1 ? classes->of_chunk[chunk] : 0);
}

/* A read or write of the program, in its order. */
struct rh_reload_access {
	int is_write, kind, layer;
	int64_t micro_batch, step;
	int64_t write;  /* number of this write, or of the write that this read reads */
	int64_t reload; /* number of the reload; -1: a write, or a read from the ring */
};

struct rh_reload_write {
	int record;          /* on NVMe, from 0 among those of its size; -1: it is not written there */
	int size;            /* rh_record_size */
	int reloads, unused; /* while records are given out: reloads of it that are still to come; the next in the list of free records */
};

/* More than 20 members: arrays with their counts and capacities, which are used again from program to program. */
struct rh_reloads {
	struct rh_reload_access *access;
	struct rh_reload_write *write;
	int64_t *reload;                      /* the write that each reload reads */
	size_t accesses, writes, count;       /* count: of reloads */
	int records[RH_RECORD_SIZES];         /* on NVMe at once, at most */
	int64_t step_writes;                  /* to NVMe, in the step that has the most */
	int64_t size_writes[RH_RECORD_SIZES]; /* of these */
	size_t next;                          /* of the accesses */
	/* scratch */
	int64_t *latest; /* (kinds, layers + 1, micro_batches): the latest write of each boundary */
	int64_t *of_step;
	struct rh_reload_stream *stream;
	struct rh_reload_slot *round;
	int layers;
	size_t access_capacity, write_capacity, reload_capacity, latest_capacity, step_capacity;
	size_t streams, stream_capacity, round_capacity;
};

/* Reuses the memory of an earlier program. walk->access is ignored; micro_batches: how many indices micro-batches have
 * (rh_boundary_walk); write_buffers: length of the ring of writes. */
int rh_reloads_find(struct rh_reloads *reloads, const struct rh_boundary_walk *walk, int64_t micro_batches, int write_buffers) RH_MUST;
/* Finds only `records` and `step_writes`, for a program of one step in which each slot has `micro_batches` micro-batches, although
 * walk->program has one in each. Its time does not grow with their number. */
int rh_reloads_count_round(struct rh_reloads *reloads, const struct rh_boundary_walk *walk, int64_t micro_batches,
                           int write_buffers) RH_MUST;
/* The program's next read or write of this boundary, while it runs: one that rh_reloads_find found. Skips the slots that a program of
 * many steps drops. */
const struct rh_reload_access *rh_reloads_next(struct rh_reloads *reloads, int is_write, enum rh_boundary_kind kind, int layer,
                                               int64_t micro_batch);
void rh_reloads_free(struct rh_reloads *reloads);

#endif
