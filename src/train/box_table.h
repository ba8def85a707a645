/* A table that is embedding and head of a model, and that boxes keep one (tie_word_embeddings): the first and the last box each train a
 * copy. At a step's end each sends the other the fp32 sum of its own use's gradient. Both add the two in one box's order and update alike.
 *
 * The sums travel in pieces through the boxes between, behind the step's activations and before the boxes share their squares. Each end
 * receives into the place that its store has for the sum of the other use. */
#ifndef RH_TRAIN_BOX_TABLE_H
#define RH_TRAIN_BOX_TABLE_H

#include "train/session.h"

/* Notes what the boxes exchange: call it with the whole model, before the box's part is cut out. */
void box_table_note(struct rh_session *session);

/* Host memory of a box between the two ends, for the pieces on their way; 0 elsewhere. */
int64_t box_table_relay_bytes(const struct rh_box *box);
/* Takes that memory, which goes with the box; of virtual links there is none. -ENOMEM. */
int box_table_reserve(struct rh_session *session) RH_MUST;

/* The executor has finished the step: returns when the other end's sum is here, and the updater knows. */
int box_table_exchange(struct rh_session *session, uint64_t tag) RH_MUST;
/* Before the next step overwrites the own sum: waits until the peer has all of it. */
int box_table_settle(struct rh_session *session) RH_MUST;

#endif
