/* PACI's partitioner (arXiv 2606.07881, D.5): layers cut into N stages of one layer or more, for N boxes. Stage j of N,
 * counted from 1, keeps w_j micro-batches in flight and needs M_j = sum of its layers' static bytes + w_j * sum of their activations. Pure.
 */
#ifndef RH_PARTITION_PACI_H
#define RH_PARTITION_PACI_H

#include "core/error.h"

#include <stdint.h>

struct rh_paci_layer {
	double seconds; /* forward and backward of one micro-batch */
	int64_t static_bytes, activation_bytes;
};

struct rh_paci_request {
	const struct rh_paci_layer *layer;
	int layers, boxes;
	int64_t cap_bytes; /* of a box */
	double latency_s;  /* one way between neighbours */
};

struct rh_paci_partition {
	int *cut; /* (boxes + 1): stage j has layers [cut[j], cut[j+1]), j from 0 */
	double slowest_s;
	int64_t overshoot_bytes; /* of the worst stage above the cap; 0: it fits */
	int64_t window_step;     /* w_j = 1 + (N - j) * window_step, j from 1 */
};

/* Micro-batches that a stage, counted from 1, may have in flight: 1 + (N - stage) * step. The paper's own has step 1; one that hides a
 * latency of L one way, where a stage takes t forward and backward, has step 1 + ceil(2L / t). */
int64_t rh_paci_window(int boxes, int stage, int64_t step);
int64_t rh_paci_window_step(double latency_s, double slowest_s);

/* The slowest stage as fast as the cap allows under a given window. Where nothing fits: first the worst overshoot o as small as can be,
 * then the slowest stage under cap + o. -EINVAL for more boxes than layers. */
int rh_paci_partition_windowed(const struct rh_paci_request *request, int64_t window_step, struct rh_paci_partition *out) RH_MUST;

/* The same with the window that the partition itself asks for. A wider window leaves less memory and so slower stages, which ask for no
 * wider window; so there is one step at which partition and window agree, or two neighbours between which they swing: then the wider, which
 * still hides the latency. */
int rh_paci_partition(const struct rh_paci_request *request, struct rh_paci_partition *out) RH_MUST;
void rh_paci_partition_free(struct rh_paci_partition *partition);

#endif
