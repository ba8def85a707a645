/* How many boundary buffers a run reserves, and what of boundaries goes to NVMe, for the worst program that it may ask for. Pure. */
#ifndef RH_SCHEDULE_NEEDS_H
#define RH_SCHEDULE_NEEDS_H

#include "schedule/boundary.h"
#include "schedule/dispatch.h"

/* What the programs of a run are made of, and where their boundaries may lie. */
struct rh_boundary_run {
	struct rh_dispatch dispatch;
	int64_t infer_micro_batches; /* of one forward-only call, at most */
	/* Buffers beyond the least. The least is what a device after the other would need: devices that work at the same time then wait for
	 * one another's buffers. */
	int64_t spare;
	/* Boundaries go to NVMe, where they take more than the buffers for it: 4 for writes, 3 for reads, and spare ones. Forward-only rounds
	 * are cut so short (rh_boundary_infer_round) that they write nothing. */
	int spills;
	int64_t record_bytes; /* of a boundary on NVMe */
};

struct rh_boundary_needs {
	int count;                       /* buffers in host memory; none where everything is one stage */
	int to_above, to_below;          /* of these, for what goes to the box above or below alone */
	int64_t bytes_each;              /* of a buffer, and of a record */
	int write_buffers, read_buffers; /* of the buffers, the two rings to and from NVMe; 0: all stay in memory */
	int records;                     /* on NVMe */
	int64_t step_writes;             /* of records in a step */
};
int rh_boundary_needs(const struct rh_boundary_run *run, struct rh_boundary_needs *out) RH_MUST;

/* Micro-batches of a forward-only round: it writes a boundary a micro-batch, and the next stage reads it a round later. */
int64_t rh_boundary_infer_round(int64_t round, int spills, int64_t spare);

/* Steps whose micro-batches are in flight at once in a program without a flush: a micro-batch enters when the one that entered so many
 * before it has left: so many, and a whole step more. Of boundaries in flight there, the most. */
int64_t rh_boundary_steps_held(const struct rh_dispatch *dispatch);
int rh_boundary_in_flight(const struct rh_dispatch *dispatch);

#endif
