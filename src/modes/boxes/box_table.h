/* One table is the model's embedding and its head (tie_word_embeddings), and the boxes keep it one: the first and the last box each
 * train a copy. At a step's end each sends the other the fp32 sum of its own use's gradient. Both add the two sums in the same order and
 * make the same update.
 *
 * The sums travel in pieces through the boxes between the two ends, after the step's activations and before the boxes share their
 * squares. Each end receives into the memory that its store has for the sum of the other use. */
#ifndef RH_MODES_BOXES_BOX_TABLE_H
#define RH_MODES_BOXES_BOX_TABLE_H

#include "session/session.h"

/* Notes what the boxes exchange: call it with the whole model, before the box's part is cut out. */
void box_table_note(struct rh_session *session);

/* Host memory of a box between the two ends, for the pieces on their way; 0 elsewhere. */
int64_t box_table_relay_bytes(const struct rh_box *box);
/* Reserves that memory, which is freed with the box; over virtual links none is needed. -ENOMEM. */
int box_table_reserve(struct rh_session *session) RH_MUST;

/* The first pieces that come from the box above, or below: out (BOX_TABLE_FIRST) holds their receives, which the caller posts, or has the
 * executor post behind the step's own. Returns how many; those that are left, or all where it is not called, are posted in the exchange. */
enum { BOX_TABLE_FIRST = 16 };
int box_table_first(const struct rh_session *session, enum rh_letter_way way, uint64_t tag, struct rh_follower *out);
/* 1: these are all. */
int box_table_is_first(const struct rh_session *session);
/* Call it when the executor has finished the step: returns when the other end's sum is here and the updater has been told. before: by way,
 * the link's receives before the first pieces, which are posted. */
int box_table_exchange(struct rh_session *session, uint64_t tag, const int64_t before[]) RH_MUST;
/* Call it before the next step overwrites this end's sum: waits until the peer has all of it. */
int box_table_settle(struct rh_session *session) RH_MUST;

#endif
