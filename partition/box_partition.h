/* PACI's partitioner (arXiv 2606.07881, D.5) for boxes and links that differ: a model's layers as one run of consecutive layers a box, each
 * of one layer or more; and for the devices of a box, each as a box. Pure.
 *
 * Box j takes T_j seconds for a micro-batch, the sum of its layers', and needs M_j bytes = sum of its layers' static bytes + w_j * sum of
 * their activations, w_j being the micro-batches that it has in flight. A micro-batch's trip through all boxes and, up and down, all links
 * takes the sum of all T_j, of the transfers and of the latencies. Micro-batches follow one another at
 *   period = the longest of every T_j, of every link's transfer in either direction, and of trip / w_1;
 * the last not in a step that ends with a flush and has at most w_1 micro-batches, as none waits for another's return. */
#ifndef RH_PARTITION_BOX_PARTITION_H
#define RH_PARTITION_BOX_PARTITION_H

#include "core/error.h"

#include <stdint.h>

struct rh_box_layer {
	double seconds;           /* forward and backward of a micro-batch */
	int64_t static_bytes;     /* however many micro-batches are in flight */
	int64_t activation_bytes; /* of one micro-batch */
};

struct rh_box_means {
	const struct rh_box_layer *layer; /* (layers) on this box */
	int64_t cap_bytes;                /* left for layers; below 0 where the rest alone needs more than there is */
	int64_t in_flight;                /* w_j, at most that of the box below */
	const struct rh_box_layer *stage; /* (layers + 1, layers + 1) layers [lo, hi) together; NULL: the sum of each layer's */
};

/* All pointers are borrowed. Link k is between box k and the box above it; its directions are up and down. */
struct rh_box_partition_request {
	int boxes, layers;
	const struct rh_box_means *box;        /* (boxes) */
	const int64_t *boundary_bytes;         /* (layers) a layer's output on the wire; its gradient takes as much */
	const double *latency_s, *bytes_per_s; /* (boxes - 1, 2); bytes_per_s 0: without bound */
	int64_t micro_batches;                 /* of a step that ends with a flush; 0: there is no flush */
};

struct rh_box_partition {
	double period_s, trip_s;
	int64_t overshoot_bytes; /* of the worst box above its cap; 0: all fit */
};

/* cut: (boxes + 1): box j gets layers [cut[j], cut[j + 1]). First the least worst overshoot o; then, under M_j <= cap_j + o, the shortest
 * step, (micro_batches - 1) * period + trip; without a flush the shortest period, and of several the shortest trip. Exact, and the same on
 * each machine. -EINVAL: more boxes than layers; -EOVERFLOW: bytes beyond 64 bits. */
int rh_box_partition_make(const struct rh_box_partition_request *request, int *cut, struct rh_box_partition *out) RH_MUST;

#endif
