/* Inside the outlook: what fits, by trying. */
#ifndef RH_TRAIN_OUTLOOK_INTERNAL_H
#define RH_TRAIN_OUTLOOK_INTERNAL_H

#include "train/outlook.h"

/* The largest max_length with which the configuration fits, one row a micro-batch; 0: none does. */
int64_t outlook_longest(const struct rh_config *config, const struct rh_session_machine *machine);

/* What a user may change, each alone enough, what is dearest (more memory) last, into out->mend. */
void outlook_mend(const struct rh_config *config, const struct rh_session_machine *machine, struct rh_outlook *out);

#endif
