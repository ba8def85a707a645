/* A linked run's adapter, in one piece on box 1. */
#ifndef RH_MODES_BOXES_BOX_OUTPUT_H
#define RH_MODES_BOXES_BOX_OUTPUT_H

#include "session/session.h"

/* Sends all boxes' parts of an adapter down to box 1, which writes the whole to `dir` as a single box would; the others write nothing. */
int box_output_save(struct rh_session *session, const char *dir) RH_MUST;
/* Host memory that box_output_save takes: all of the adapter on box 1; on the others the messages that are not acknowledged. */
int64_t box_output_bytes(const struct rh_box *box);

#endif
