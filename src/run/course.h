/* The way of a program's boundaries through two rings of host memory and NVMe, known before it runs: a pure function of the program.
 *
 * What is written goes to the ring of writes, buffer after buffer in turn, so the n-th write takes the place of the one `down` before it.
 * What is read before that comes from there; a boundary that somebody reads later ("late") goes to NVMe too, and each late read brings it
 * back through the ring of reads, in the order of the program. */
#ifndef RH_RUN_COURSE_H
#define RH_RUN_COURSE_H

#include "run/boundary.h"

/* A read or a write of the program, in its order. */
struct run_touch {
	int is_write, kind, layer;
	int64_t micro_batch, step;
	int64_t sent; /* number of the write */
	int64_t late; /* number of a late read, -1: it is not, or a write */
};

struct run_sent {
	int record; /* on NVMe, from 0; -1: it is not written there */
	int late;   /* reads that are to come */
};

struct run_course {
	struct run_touch *touch;
	struct run_sent *sent;
	int64_t *late; /* the write that each late read is of */
	size_t touches, sents, lates;
	int records;      /* on NVMe at once, at most */
	int64_t *where;   /* scratch: (kinds, layers + 1, micro_batches): the latest write */
	int *free_record; /* scratch */
	size_t touch_capacity, sent_capacity, late_capacity, where_capacity, free_capacity;
};

/* Of a program that may have come before it the memory is used again. walk->touch is not used; micro_batches: places. */
int run_course_make(struct run_course *course, const struct rh_boundary_walk *walk, int64_t micro_batches, int down) RH_MUST;
/* Boundaries written to NVMe in the step that writes the most. */
int64_t run_course_writes(const struct run_course *course);
void run_course_free(struct run_course *course);

#endif
