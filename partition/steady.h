/* A recurrence of rounds that are all alike comes to move on by the same time every so many of them: from then on it need not be run.
 * Exact, as nothing in such a recurrence but sums and maxima counts: where all its times are later by the same, so is all that follows.
 * Devices that do not wait for all others may run ahead of them for ever: after some hundred rounds each is taken to go on as it did.
 * Pure. */
#ifndef RH_PARTITION_STEADY_H
#define RH_PARTITION_STEADY_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

struct steady {
	double *was; /* (room): what the recurrence went on from, `round` rounds from the first */
	size_t room;
	int64_t round, twice; /* -1: nothing is remembered; rounds after which it is forgotten */
};

/* What a recurrence goes on from: times, 0: there is none, and behind them sums that grow. */
struct steady_state {
	double *value;
	size_t times, all;
};

int steady_create(size_t room, struct steady *out) RH_MUST;
void steady_free(struct steady *steady);

/* Rounds of another kind begin. */
void steady_begin(struct steady *steady);
/* `round` of this kind are over and `left` are still to come; all things stand as they did at every earlier call, but for the times. How
 * many of those to come have been skipped: a multiple of those since one of the calls. */
int64_t steady_skip(struct steady *steady, struct steady_state now, int64_t round, int64_t left);

#endif
