/* RoundPipe's partitioner (arXiv 2604.27085). Forward stages cover the layers below the fused stage, backward stages those of them
 * that are trained; S stages in all, the slowest taking t. First the least (M*S + N(N-1)) * t, exactly, over all partitions whose stages
 * fit: bytes of a stage + the prefetch buffer <= cap, where the prefetch buffer is the largest stage's upload (0 for a single stage). The
 * lockstep figure cannot see uneven stages, so the best few and their neighbours then go through the slot recurrence (timeline.h), and the
 * shortest step wins. Pure. */
#ifndef RH_PARTITION_ROUNDPIPE_H
#define RH_PARTITION_ROUNDPIPE_H

#include "partition/costs.h"
#include "partition/stage_plan.h"
#include "partition/timeline.h"

/* Device memory of a stage of layers [lo, hi). Neither figure may fall when a stage grows at either end. Each is asked for once. */
struct rh_stage_memory {
	int64_t (*bytes)(void *context, enum rh_pass pass, int lo, int hi);  /* all of it, without the prefetch buffer */
	int64_t (*upload)(void *context, enum rh_pass pass, int lo, int hi); /* the part that is uploaded before the stage runs */
	void *context;
};

struct rh_partition_request {
	const struct rh_costs *costs;
	const struct rh_stage_memory *memory; /* NULL: rh_costs_stage_bytes and rh_costs_upload_bytes */
	struct rh_stage_plan_sizer *sizer;    /* exact bytes of all stages together; NULL: `memory` decides alone */
	int64_t cap_bytes;
	int devices;
	int64_t micro_batches, rounds; /* of a step */
	int64_t steps;                 /* that the recurrence runs without a flush; 1: one flushed step */
	int stages_most;               /* limit for rh_partition_long_rounds; 0: any number */
	/* Of a device's link. 0: uploads of weights and activations are free. */
	double up_bytes_per_s;
	const double
	        *sum_s; /* (layers) seconds to move a layer's gradient sum down after a round, and as long up before the next; NULL: 0 */
};

struct rh_partition {
	struct rh_stage *forward, *backward; /* as in struct rh_stage_plan */
	int forward_stages, backward_stages;
	double slowest_s, lockstep_s;
	double makespan_s, bubble; /* by the recurrence */
	int64_t prefetch_bytes, device_bytes;
};

/* The search takes time quadratic in the layers: callers pack models of more layers by memory alone. */
enum { RH_PARTITION_LAYERS_MOST = 160 };

/* The best partition. RH_DOES_NOT_FIT names a layer that does not fit; -EINVAL: a count below one. */
int rh_partition_make(const struct rh_partition_request *request, struct rh_partition *out) RH_MUST;
void rh_partition_free(struct rh_partition *partition);

/* Sets makespan_s and bubble of given stages. Ignores `memory` and `cap_bytes`. */
int rh_partition_time(const struct rh_partition_request *request, struct rh_partition *partition) RH_MUST;

#endif
