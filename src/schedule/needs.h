/* How many boundary buffers a run reserves, and how much of the boundaries goes to NVMe, for the largest of its programs. Pure. */
#ifndef RH_SCHEDULE_NEEDS_H
#define RH_SCHEDULE_NEEDS_H

#include "schedule/boundary.h"
#include "schedule/dispatch.h"
#include "schedule/reload.h"

/* What a run's programs are made from, and where their boundaries may lie. */
struct rh_boundary_run {
	struct rh_dispatch dispatch;
	int64_t infer_micro_batches; /* of one forward-only call, at most */
	/* Buffers beyond the minimum, which would be enough if devices ran one after the other: with the minimum alone, devices that run
	 * at the same time wait for one another's buffers. */
	int64_t spare;
	/* Boundaries go to NVMe where they need more than these buffers: 4 for writes, 3 for reads, and the spare ones. Forward-only
	 * rounds are so short (rh_boundary_infer_round) that they write nothing. */
	int spills;
	int64_t record_bytes; /* of the largest boundary on NVMe */
	int64_t record_unit;  /* of which records of other sizes have a multiple; 0: there are none */
};

struct rh_boundary_needs {
	int count;              /* buffers in host memory; none where everything is one stage */
	int to_above, to_below; /* among these, buffers of what only the box above, or below, reads */
	int from_below;         /* activations that may be received before the program asks for them */
	int64_t bytes_each;     /* of a buffer, and of a record; of buffers of chunks, those of class 0 */
	/* Of pools from RH_BOUNDARY_SHORTER on, where they do not go to NVMe: buffers among `count`, and their bytes. sizes: there are any. */
	int sizes, of_size[RH_BOUNDARY_SIZES];
	int64_t size_bytes[RH_BOUNDARY_SIZES];
	int64_t bytes;                   /* of all buffers */
	int write_buffers, read_buffers; /* among the buffers, the rings to and from NVMe; 0: all boundaries stay in memory */
	int records;                     /* on NVMe: those of size 0, and so on */
	int64_t step_writes;             /* of records in a step */
	int size_records[RH_RECORD_SIZES];
	int64_t record_bytes[RH_RECORD_SIZES];
	int64_t nvme, nvme_step; /* bytes: of all records; written in a step */
};
int rh_boundary_needs(const struct rh_boundary_run *run, struct rh_boundary_needs *out) RH_MUST;

/* The micro-batches of a forward-only round. Each writes one boundary, which the next stage reads a round later. */
int64_t rh_boundary_infer_round(int64_t round, int spills, int64_t spare);

/* For a program without a flush: over how many steps the micro-batches in flight are spread, at most; and the most boundaries in flight. */
int64_t rh_boundary_steps_in_flight(const struct rh_dispatch *dispatch);
int rh_boundary_in_flight(const struct rh_dispatch *dispatch);

#endif
