/* A published table of bubbles (config/experiment.h), recomputed: one flushed step by the slot recurrence, with hops and free uploads.
 * Pure. */
#ifndef RH_SCHEDULE_PUBLISHED_H
#define RH_SCHEDULE_PUBLISHED_H

#include "config/experiment.h"
#include "config/layer_table.h"

struct rh_bubble_row_result {
	double published, recomputed; /* percent; 0: not published */
	double own;                   /* RoundPipe's with this partitioner's cuts; 0 for the others */
};

/* The cuts are the published ones. RoundPipe recomputes ahead of the gradient, the others once it is there. -EINVAL where stages do not
 * hold the table's blocks. */
int rh_published_bubbles(const struct rh_experiment *experiment, const struct rh_layer_table *table,
                         struct rh_bubble_row_result out[RH_BUBBLE_ROWS]) RH_MUST;

#endif
