/* RoundPipe's partitioner (arXiv 2604.27085). Forward stages cover the layers below the fused stage, backward stages those of them
 * that are trained; S stages in all, the slowest taking t. First the least (M*S + N(N-1)) * t, exactly, over all partitions whose stages
 * fit: bytes of a stage + the prefetch buffer <= cap,   the prefetch buffer = the largest stage's upload (none for a single stage). Then,
 * as that lockstep figure is blind to uneven stages, the best few and their neighbours are run through the slot recurrence (timeline.h),
 * and the shortest step wins. Pure. */
#ifndef RH_PARTITION_ROUNDPIPE_H
#define RH_PARTITION_ROUNDPIPE_H

#include "partition/costs.h"
#include "partition/plan.h"
#include "partition/timeline.h"

/* What a stage of layers [lo, hi) needs. Neither may fall when a stage grows at either end; both are asked once for each run. */
struct rh_stage_memory {
	int64_t (*bytes)(void *context, enum rh_pass pass, int lo, int hi);  /* all of a device but the prefetch buffer */
	int64_t (*upload)(void *context, enum rh_pass pass, int lo, int hi); /* of them, what is sent up before the stage */
	void *context;
};

struct rh_partition_request {
	const struct rh_costs *costs;
	const struct rh_stage_memory *memory; /* NULL: rh_costs_stage_bytes and rh_costs_upload_bytes */
	int64_t cap_bytes;
	int devices;
	int64_t micro_batches, rounds; /* of a step */
	int64_t steps;                 /* that the recurrence joins without a flush; 1: one flushed step */
	int stages_most;               /* that rh_partition_long_rounds may make; 0: any number */
	int64_t moves;                 /* that rh_partition_long_rounds may try to better its choice by (anneal.h) */
	double most_s;                 /* no start of rh_partition_long_rounds takes longer for a step; 0: any may */
	const double *sum_s; /* (layers) what a layer's gradient sum takes from round to round, down, and again up; NULL: nothing */
};

struct rh_partition {
	struct rh_stage *forward, *backward; /* as in struct rh_plan */
	int forward_stages, backward_stages;
	double slowest_s, lockstep_s;
	double makespan_s, bubble; /* by the recurrence */
	int64_t prefetch_bytes, device_bytes;
	int grouped; /* layers between which no cut was tried, in most groups of them; 1: all were, 0: nothing was searched for */
};

/* The chosen one; of more than 160 layers cut between groups of them alone. RH_DOES_NOT_FIT names a layer that does not fit; -EINVAL for
 * counts below one. */
int rh_partition_make(const struct rh_partition_request *request, struct rh_partition *out) RH_MUST;
void rh_partition_free(struct rh_partition *partition);

/* Sets makespan_s and bubble of stages as they stand; `memory` and `cap_bytes` are not looked at. */
int rh_partition_time(const struct rh_partition_request *request, struct rh_partition *partition) RH_MUST;

#endif
