/* The way of a program's boundaries through two rings of host memory and NVMe, known before it runs: a pure function of the program.
 *
 * What is written goes to the ring of writes, buffer after buffer in turn, so the n-th write takes the place of the one `down` before it.
 * What is read before that comes from there; a boundary that somebody reads later goes to NVMe too, and each such read, a reload, brings it
 * back through the ring of reads, in the order of the program. */
#ifndef RH_RUN_COURSE_H
#define RH_RUN_COURSE_H

#include "run/boundary.h"

/* A read or a write of the program, in its order. */
struct run_touch {
	int is_write, kind, layer;
	int64_t micro_batch, step;
	int64_t write;  /* number of the write */
	int64_t reload; /* number of a reload, -1: it is not, or a write */
};

struct run_write {
	int record;  /* on NVMe, from 0; -1: it is not written there */
	int reloads; /* reads that are to come */
};

struct run_course {
	struct run_touch *touch;
	struct run_write *write;
	int64_t *reload; /* the write that each reload is of */
	size_t touches, writes, reloads;
	int records;      /* on NVMe at once, at most */
	int64_t *where;   /* scratch: (kinds, layers + 1, micro_batches): the latest write */
	int *free_record; /* scratch */
	size_t touch_capacity, write_capacity, reload_capacity, where_capacity, free_capacity;
};

/* Of a program that may have come before it the memory is used again. walk->touch is not used; micro_batches: places. */
int run_course_make(struct run_course *course, const struct rh_boundary_walk *walk, int64_t micro_batches, int down) RH_MUST;
void run_course_free(struct run_course *course);

/* What a course takes, without the course, which is long: plans ask for many. */
struct run_course_counts {
	int records;         /* as the course's */
	int64_t step_writes; /* boundaries written to NVMe in the step that writes the most */
	/* scratch */
	struct run_counted *write;
	int64_t *where, *of_step;
	size_t writes, write_capacity, where_capacity, step_capacity;
	struct run_stream *stream;
	struct run_round_slot *round;
	size_t streams, stream_capacity, round_capacity;
	int layers;
};

/* As run_course_make, of the same arguments. */
int run_course_count(struct run_course_counts *counts, const struct rh_boundary_walk *walk, int64_t micro_batches, int down) RH_MUST;
/* The same of a program of one step whose every slot has `micro_batches` in place of the one that it has in walk->program: in time that
 * does not grow with them. */
int run_course_count_round(struct run_course_counts *counts, const struct rh_boundary_walk *walk, int64_t micro_batches, int down) RH_MUST;
void run_course_counts_free(struct run_course_counts *counts);

#endif
