/* RoundPipe's slot recurrence, computed for the first and the last micro-batch of each slot only. That is exact: all micro-batches of a
 * slot take the same time, so each end time is a maximum of lines in the micro-batch's number, and a maximum of lines is bounded by its
 * two ends. At most 48 of a step's alike middle rounds are run; the others are taken to last as long as these did on average, so the cost
 * does not grow with the number of rounds. timeline.h computes every micro-batch. */
#ifndef RH_PARTITION_WAVES_H
#define RH_PARTITION_WAVES_H

#include "partition/roundpipe.h"

struct wave_stage {
	double recompute_s, rest_s;
	/* Seconds that gradient sums take one way: all of the stage's; those of its lowest layer, which come and go last; in the fused stage the
	 * head's, -1 where the head is not trained. */
	double sums_s, last_sum_s, head_sum_s;
	double upload_s;     /* of its weights; begins when the device's slot before the last has ended */
	double activation_s; /* to upload one micro-batch's boundary inputs, which go before the weights of the device's next slot */
	int saved;           /* the stage whose output is the input of the recompute; -1: none */
};

struct waves {
	const struct rh_partition_request *request;
	struct wave_stage *stage; /* (2 * layers) */
	double *first;            /* (2 * layers) of each stage's latest slot: its first micro-batch has ended */
	/* Times that rounds continue from, `times` in one piece from here: */
	double *end;                    /* latest end of any slot */
	double *free, *free_before;     /* (devices) when compute is free: after the latest slot, and after the one before it */
	double *sums_end, *weights_end; /* (devices) when the latest gradient sums have left; when the latest upload of weights has ended */
	double *last;                   /* (2 * layers) of each stage's latest slot: its last micro-batch has ended */
	double *load;                   /* (devices) a micro-batch's slots in seconds, of each group of devices that take turns */
	double *ahead;                  /* (devices) activations of the device's latest slot: seconds up the link */
	int *slots;                     /* (devices) run so far */
	size_t times;
	int stages, forward;
};

int waves_create(const struct rh_partition_request *request, struct waves *out) RH_MUST;
void waves_free(struct waves *waves);

/* Sets the stages. below_s: (layers + 1) seconds that the gradient sums of the layers below take, one way; NULL: 0. */
void waves_set(struct waves *waves, const struct rh_cost_sums *sums, const double *below_s, const struct rh_partition *cuts);

/* Seconds from the first slot's begin to the last slot's end; with `after_first`, only what the steps after the first add. Stops early,
 * with the time so far, once it exceeds `most`. */
double waves_run(struct waves *waves, int64_t steps, int after_first, double most);

/* Seconds of computation of one micro-batch, over all stages. */
double waves_busy(const struct waves *waves);

#endif
