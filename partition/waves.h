/* RoundPipe's slot recurrence by the first and the last micro-batch of each slot alone, which is exact: all micro-batches of a slot take
 * the same, so what they wait for never lets one between the two end later than both allow (each end is a maximum of lines in the number
 * of the micro-batch, and less any line it is largest at one of its ends). Rounds that repeat are not run (steady.h): any number of
 * micro-batches takes the same time. The recurrence of every micro-batch is timeline.h. */
#ifndef RH_PARTITION_WAVES_H
#define RH_PARTITION_WAVES_H

#include "partition/roundpipe.h"
#include "partition/steady.h"

struct wave_stage {
	double recompute_s, rest_s, sums_s;
	double held_s; /* rh_cost_held */
	int saved; /* the stage whose output is what is recomputed from, -1: none */
};

struct waves {
	const struct rh_partition_request *request;
	struct wave_stage *stage; /* (2 * layers) */
	double *first;            /* (2 * layers) of each stage's latest slot: its first micro-batch has ended */
	double *end;              /* what rounds go on from: latest end of any slot, and in one piece behind it: */
	double *free, *room;      /* (devices): compute; for gradient sums */
	double *last;             /* (2 * layers) of each stage's latest slot: its last micro-batch has ended */
	double *load;             /* (devices) of a run: a micro-batch's slots, of each group of devices that take turns */
	double *was;              /* (1 + 2 * devices + 2 * layers) end, free, room and last after the round before, by turns */
	struct steady steady;
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
