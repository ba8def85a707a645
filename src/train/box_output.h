/* A linked run's adapter, in one piece on box 1. */
#ifndef RH_TRAIN_BOX_OUTPUT_H
#define RH_TRAIN_BOX_OUTPUT_H

#include "train/session.h"

/* What all boxes have trained of an adapter comes down to box 1, which writes it to `dir` as one box would; the others write nothing. */
int box_output_save(struct rh_session *session, const char *dir) RH_MUST;
/* Host memory that this takes beside the run's: all of the adapter on box 1, messages that are not acknowledged on the others. */
int64_t box_output_bytes(const struct rh_box *box);

#endif
