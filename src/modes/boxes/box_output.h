/* A linked run's adapter, in one piece on box 1. */
#ifndef RH_MODES_BOXES_BOX_OUTPUT_H
#define RH_MODES_BOXES_BOX_OUTPUT_H

#include "session/session.h"

/* Writes this box's layers to `dir`. Of an adapter: sends all boxes' parts down to box 1, which writes the whole as a single box would; the
 * others write nothing. */
int box_output_save(struct rh_session *session, const char *dir) RH_MUST;
/* Host memory that box_output_save takes: all of an adapter on box 1; on the others the messages that are not acknowledged. */
int64_t box_output_bytes(const struct rh_session *session);
/* 1: this box writes what a run leaves: its own layers, or, of an adapter, box 1 all of it. */
int box_output_is_here(const struct rh_session *session);

#endif
