/* Cuts bettered by simulated annealing (Kirkpatrick, Gelatt and Vecchi 1983): from a choice that is good already, as what is hard to find
 * is a few steps away, some of them uphill. The same moves every time. Pure. */
#ifndef RH_PARTITION_ANNEAL_H
#define RH_PARTITION_ANNEAL_H

#include "partition/roundpipe.h"

struct anneal {
	int layers, first_trained;
	int64_t moves; /* to be tried */
	/* Seconds of a step with these stages, or anything above `most` if they take more or do not fit; sets all of *cuts but the stages. */
	double (*seconds)(void *context, struct rh_partition *cuts, double most);
	void *context;
};

/* *best: its stages, and makespan_s as `seconds` has it; replaced where something better is found. */
int anneal_cuts(const struct anneal *how, struct rh_partition *best) RH_MUST;

#endif
