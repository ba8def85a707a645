/* RoundPipe's cuts where rounds are long: with many micro-batches a round what counts is that every device gets as much work as the others,
 * wave by wave, which the lockstep figure cannot see. Candidates are even shares for all plausible counts of stages, larger ones first or
 * last, run through a recurrence of whole slots (first and last micro-batch only); the best for each remainder of stages by devices are
 * then run in full. Pure. */
#ifndef RH_PARTITION_ROUNDPIPE_LONG_H
#define RH_PARTITION_ROUNDPIPE_LONG_H

#include "partition/roundpipe.h"

/* As rh_partition_make, but makespan_s of joined steps is what the steps after the first add; *out may be worse than its choice where
 * rounds are short. RH_DOES_NOT_FIT where no candidate fits. */
int rh_partition_long_rounds(const struct rh_partition_request *request, struct rh_partition *out) RH_MUST;

#endif
