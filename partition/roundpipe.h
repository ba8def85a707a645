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
	struct rh_plan_sizer *sizer;          /* says what stages take of a device together; NULL: `memory` alone does */
	int64_t cap_bytes;
	int devices;
	int64_t micro_batches, rounds; /* of a step */
	int64_t steps;                 /* that the recurrence joins without a flush; 1: one flushed step */
	int stages_most;               /* that rh_partition_long_rounds may make; 0: any number */
	/* Of a device's link, for weights and activations, where the recurrence is to reckon with them; 0: they take no time. */
	double up_bytes_per_s;
	const double *sum_s; /* (layers) what a layer's gradient sum takes from round to round, down, and again up; NULL: nothing */
};

struct rh_partition {
	struct rh_stage *forward, *backward; /* as in struct rh_plan */
	int forward_stages, backward_stages;
	double slowest_s, lockstep_s;
	double makespan_s, bubble; /* by the recurrence */
	int64_t prefetch_bytes, device_bytes;
};

/* The search takes as much again for each layer as it does for each of those below it: of more layers than this no one should ask. */
enum { RH_PARTITION_LAYERS_MOST = 160 };

/* The chosen one. RH_DOES_NOT_FIT names a layer that does not fit; -EINVAL for
 * counts below one. */
int rh_partition_make(const struct rh_partition_request *request, struct rh_partition *out) RH_MUST;
void rh_partition_free(struct rh_partition *partition);

/* Sets makespan_s and bubble of stages as they stand; `memory` and `cap_bytes` are not looked at. */
int rh_partition_time(const struct rh_partition_request *request, struct rh_partition *partition) RH_MUST;

#endif
