/* Inside the outlook: what fits, by trying. */
#ifndef RH_TRAIN_OUTLOOK_INTERNAL_H
#define RH_TRAIN_OUTLOOK_INTERNAL_H

#include "train/outlook.h"

/* The longest sequence with so many in flight, one a micro-batch; 0: none fits. known: of a length, that it fits; 0: of none. */
int64_t outlook_longest(const struct rh_config *config, const struct rh_session_machine *machine, int in_flight, int64_t known);

/* What a user may change, each alone enough, what is dearest (more memory) last, into out->mend. */
void outlook_mend(const struct rh_config *config, const struct rh_session_machine *machine, struct rh_outlook *out);

#endif
