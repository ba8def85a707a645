/* Experiments that are known by layer times (config/experiment.h): what they take under the system that published them, and under this one
 * with micro-batches, rounds and cuts free. Pure. */
#ifndef RH_PARTITION_ANCHOR_H
#define RH_PARTITION_ANCHOR_H

#include "config/experiment.h"
#include "config/hardware.h"
#include "partition/step.h"

struct rh_anchor_request {
	const struct rh_experiment *experiment;
	const struct rh_layer_table *table;
	const struct rh_peer *as; /* NULL: this system */
	const struct rh_hardware *hardware;
	int devices; /* of its kind */
	int stale;
};

struct rh_anchor_result {
	int64_t rounds, round_micro_batches, micro_batches;
	struct rh_partition cuts;
	struct rh_step_estimate time;
	double tokens_per_s, published_tokens_per_s; /* 0: not published */
	int made_blocks;                             /* whose weights devices make (partition/made.h), of the lowest ones */
	double host_bytes;                           /* held for weights and their updates */
};

/* Its published micro-batches and rounds (-ENOENT where there are none; on one device any), and cuts that are the published ones or,
 * without, this partitioner's; or the search. RH_DOES_NOT_FIT where a layer does not fit the device. */
int rh_anchor_predict(const struct rh_anchor_request *request, struct rh_anchor_result *out) RH_MUST;
void rh_anchor_result_free(struct rh_anchor_result *result);

/* This system's, of a synchronous AdamW step in bf16 with the split layout: what a trained parameter moves, and how fast on that machine
 * (copies at half of both ways' rate, as they go at once). */
extern const struct rh_step_bytes rh_anchor_bytes;
struct rh_step_rates rh_anchor_rates(const struct rh_hardware *hardware);

/* RoundPipe's published cuts as a partition. -EINVAL where they do not cover the layers. */
int rh_anchor_cuts(const struct rh_experiment *experiment, int layers, struct rh_partition *out) RH_MUST;

#endif
