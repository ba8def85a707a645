/* RoundPipe's cuts for long rounds. With many micro-batches a round, every device should get as much work as the others in each wave; the
 * lockstep figure cannot see that. Candidates are even shares for all plausible numbers of stages, with the larger stages first or last.
 * The recurrence of whole slots (waves.h) times them. The best for each remainder of stages by devices is then improved by moving single
 * layers. Pure. */
#ifndef RH_PARTITION_ROUNDPIPE_LONG_H
#define RH_PARTITION_ROUNDPIPE_LONG_H

#include "partition/roundpipe.h"

/* Like rh_partition_make, but makespan_s of joined steps is the time that the steps after the first add. Where rounds are short the result
 * may be worse than rh_partition_make's. RH_DOES_NOT_FIT where no candidate fits. */
int rh_partition_long_rounds(const struct rh_partition_request *request, struct rh_partition *out) RH_MUST;

#endif
