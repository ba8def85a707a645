/* What a training step takes on a machine: RoundPipe's slot recurrence with what moves beside it - weights up before a slot, gradients down
 * after it, the host's update, which a later forward waits for layer by layer. Rates are constants: copies that run at the same time share
 * a link by their bytes, and the host's memory by its (a simulated device shares them instant by instant). Stale steps are joined, as the
 * executor joins them. Pure. */
#ifndef RH_PARTITION_STEP_H
#define RH_PARTITION_STEP_H

#include "partition/roundpipe.h"

/* How gradients become weights. */
enum rh_step_update {
	RH_STEP_AS_THEY_ARRIVE, /* each layer by itself and whole, the lowest that waits first; free for upload at once */
	RH_STEP_AS_A_WHOLE      /* RoundPipe's own: gradients are taken layer by layer, then one update of all, then all are published */
};

struct rh_step_rates {
	double up_bytes_per_s, down_bytes_per_s; /* of a device's link; 0: free */
	double host_bytes_per_s;                 /* the host's memory, for all copies and the update; 0: no limit */
	double update_bytes_per_s;               /* what the update moves at most; 0: no limit */
	double device_bytes_per_s;               /* a device's own memory; 0: no limit */
};

/* Bytes a trained parameter. */
struct rh_step_bytes {
	double cleared, rounded;          /* of a device's memory: before the first round's sum, and after the last's */
	double gradient;                  /* down after the last round */
	double carried;                   /* of a round's sum that goes on: down, and up again before the next */
	double taken, updated, published; /* of host memory moved by the three parts of an update */
	double weights, moments;          /* updated, in two passes where that lets the next step begin sooner; 0: it is one */
	/* Of weights that devices make: what comes up for them; what the op moves in the device's memory; upper halves down, which the next
	 * step waits for, and lower ones. The host makes their moments. */
	double made_up, made, made_upper, made_lower;
};

struct rh_step_request {
	/* of a micro-batch that is one sequence longer than the others, and of the others */
	const struct rh_cost_sums *longer, *shorter;
	const double *trained; /* (layers) parameters that the update covers */
	const double
	        *made; /* (layers) of them those whose weights devices make, 0 but in a step's last wave of slots; NULL: the host does */
	const struct rh_partition *cuts;
	int devices;
	int64_t sequences, rounds, round_micro_batches; /* of a step; both divide as evenly as can be, longer ones first */
	int stale;                                      /* 1: a step computes with weights that lack the gradient of the one before */
	enum rh_step_update update;
	int gradients_block; /* they go down on the activations' stream, before the next slot's */
	int sums_apart;      /* a device has room for the next slot's sums beside those that leave; 0: one room, as the executor has */
	int schedule_alone;  /* the estimate ends with schedule_s, and is as if the update took no time */
	struct rh_step_rates rates;
	struct rh_step_bytes bytes;
};

struct rh_step_estimate {
	double period_s;                    /* of one step among many */
	double schedule_s;                  /* the same if gradients and update took no time */
	double busy_s;                      /* arithmetic of a step, all devices */
	double bubble;                      /* 1 - busy / (devices * schedule_s): idle time that the schedule and its uploads leave */
	double exposed;                     /* 1 - schedule_s / period_s: what gradients, update and the host's memory add */
	double copied_bytes, updated_bytes; /* over the links, and by the update, in the host's memory, a step */
	int host_bound;                     /* the host's memory sets the period */
};

/* Sequences of the shorter micro-batches. */
int64_t rh_step_shorter(int64_t sequences, int64_t rounds, int64_t round_micro_batches);

int rh_step_estimate(const struct rh_step_request *request, struct rh_step_estimate *out) RH_MUST;

#endif
