/* A recurrence of rounds that are all alike comes to move on by the same time every so many of them: from then on it need not be run.
 * Exact, as nothing in such a recurrence but sums and maxima counts: where all its times are later by the same, so is all that follows.
 * Pure. */
#ifndef RH_PARTITION_STEADY_H
#define RH_PARTITION_STEADY_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

struct steady {
	double **at; /* what the recurrence goes on from; (times) times, 0: there is none, then (all - times) sums that grow */
	size_t times, all, room;
	double *was;          /* (room) of them, `round` rounds from the first */
	int64_t round, twice; /* -1: nothing is remembered; rounds after which it is forgotten */
};

int steady_create(size_t room, struct steady *out) RH_MUST;
void steady_free(struct steady *steady);

/* Rounds of another kind begin. */
void steady_begin(struct steady *steady);
/* To be told, in the same order every time: times first. */
void steady_clear(struct steady *steady);
void steady_time(struct steady *steady, double *time);
void steady_sum(struct steady *steady, double *sum);
/* `round` of this kind are over and `left` are still to come; all things stand as they did at every earlier call, but for the times. How
 * many of those to come have been skipped: a multiple of those since one of the calls. */
int64_t steady_skip(struct steady *steady, int64_t round, int64_t left);

#endif
