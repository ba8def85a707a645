/* RoundPipe's cuts where rounds are long: with many micro-batches a round what counts is that every device gets as much work as the others,
 * which the lockstep figure cannot see and single cuts cannot mend. Candidates are even shares of all plausible stage counts, run through a
 * recurrence of whole slots (first and last micro-batch only) and improved by moving a block from any stage to any other; the best few are
 * then run in full. Pure. */
#ifndef RH_PARTITION_BALANCE_H
#define RH_PARTITION_BALANCE_H

#include "partition/roundpipe.h"

enum rh_balance { RH_BALANCE_SHARES, RH_BALANCE_MOVES }; /* even shares alone; improved */

/* As rh_partition_make; *out may be worse than its choice where rounds are short. -ENOMEM where no candidate fits. */
int rh_partition_balance(const struct rh_partition_request *request, enum rh_balance effort, struct rh_partition *out) RH_MUST;

#endif
