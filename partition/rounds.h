/* A step's micro-batches in rounds: sizes differ by at most one, the longer ones first. */
#ifndef RH_PARTITION_ROUNDS_H
#define RH_PARTITION_ROUNDS_H

#include <stdint.h>

static inline int64_t rh_round_count(int64_t micro_batches, int64_t round_micro_batches)
{
	return (micro_batches + round_micro_batches - 1) / round_micro_batches;
}

/* Micro-batches of one of `rounds`, whose sizes differ by at most one, longer ones first. */
static inline void rh_round_range(int64_t micro_batches, int64_t rounds, int64_t round, int64_t *first, int64_t *count)
{
	int64_t base = micro_batches / rounds, longer = micro_batches % rounds;
	*first = round * base + (round < longer ? round : longer);
	*count = base + (round < longer);
}

#endif
