/* RoundPipe's slot recurrence by the first and the last micro-batch of each slot alone, which is exact: all micro-batches of a slot take
 * the same, so what they wait for never lets one between the two end later than both allow (each end is a maximum of lines in the number
 * of the micro-batch, and less any line it is largest at one of its ends). Of the alike rounds in the middle of a step at most 24 are run;
 * the others are taken to last as long as these did in the mean, so that any number of rounds takes the same time. The recurrence of every
 * micro-batch is timeline.h. */
#ifndef RH_PARTITION_WAVES_H
#define RH_PARTITION_WAVES_H

#include "partition/roundpipe.h"

struct wave_stage {
	double recompute_s, rest_s, sums_s;
	double upload_s;     /* of its weights: begins when the device's slot before the last has ended */
	double activation_s; /* of each micro-batch: its boundary inputs, which go up before the weights of the device's next slot */
	int saved;           /* the stage whose output is what is recomputed from, -1: none */
};

struct waves {
	const struct rh_partition_request *request;
	struct wave_stage *stage; /* (2 * layers) */
	double *first;            /* (2 * layers) of each stage's latest slot: its first micro-batch has ended */
	/* Times that rounds continue from, `times` in one piece from here: */
	double *end;                /* latest end of any slot */
	double *free, *free_before; /* (devices): compute; the end of the slot before the last */
	double *room, *up;          /* (devices): for gradient sums; of weights, the last upload is over */
	double *last;               /* (2 * layers) of each stage's latest slot: its last micro-batch has ended */
	double *load;               /* (devices) a micro-batch's slots in seconds, of each group of devices that take turns */
	double *ahead;              /* (devices) activations of the device's latest slot: seconds up the link */
	int *slots;                 /* (devices) run so far */
	size_t times;
	int stages, forward;
};

int waves_create(const struct rh_partition_request *request, struct waves *out) RH_MUST;
void waves_free(struct waves *waves);

/* These stages from now on. below_s: (layers + 1) what the sums of the layers below take, one way; NULL: nothing. */
void waves_set(struct waves *waves, const struct rh_cost_sums *sums, const double *below_s, const struct rh_partition *cuts);

/* Seconds from the first slot's begin to the last one's end of so many steps; of those after the first where `after_first`. Given up, with
 * what it is by then, where it is more than `most`. */
double waves_run(struct waves *waves, int64_t steps, int after_first, double most);

/* Of a micro-batch, all stages. */
double waves_busy(const struct waves *waves);

#endif
