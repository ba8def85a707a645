/* Mode fluidpipe: two boxes of one pipeline without gradients between them. Box 1 trains the model's lower layers under a head of its own,
 * which belongs to no result, and sends what they make of its data to box 2, which trains the layers above and the model's head on it. */
#ifndef RH_TRAIN_FLUIDPIPE_H
#define RH_TRAIN_FLUIDPIPE_H

#include "train/session.h"

/* Steps whose sizes box 2 knows beyond the present one: what it trains on in them may travel before it asks. */
enum { RH_FLUIDPIPE_AHEAD = 2 };

/* Before the boxes meet; 0 of other modes. -EINVAL: boxes that distil, and a model that does not classify. */
int rh_fluidpipe_check(const struct rh_session *session) RH_MUST;

/* Makes the session's model that of its box, session->box, before anything of it is planned or stored. Box 1's is a whole model of fewer
 * layers: its own, those of the extra block, and the model's kind of head. Where the model ties its head to the embedding, box 1's head is
 * tied to its own, and box 2's is a matrix of its own. -EINVAL where a box would have no transformer layer. */
int rh_fluidpipe_take_part(struct rh_session *session) RH_MUST;

/* Adds to the workload what the mode itself takes of this box: messages that it keeps, logits, and what opportunistic steps need. samples,
 * targets: of the training set; 0: not known. -EINVAL: a budget of theirs is too small. */
int rh_fluidpipe_plan(const struct rh_session *session, int64_t samples, int64_t targets, struct rh_workload *work) RH_MUST;

/* Messages that this box keeps: box 1 those that box 2 does not have yet, box 2 those that come before it needs them. */
int64_t rh_fluidpipe_ahead(const struct rh_session *session);

/* Writes to `dir` what this box has trained of the whole model: its part as rh_join takes it, or, of an adapter, box 1 all of it. */
int rh_fluidpipe_save(struct rh_session *session, const char *dir) RH_MUST;

#endif
