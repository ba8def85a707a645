/* Mode fluidpipe: a pipeline of two boxes without gradients between them. Box 1 trains the model's lower layers under an extra head,
 * which no result contains, and sends their output to box 2, which trains the layers above and the model's head on it. */
#ifndef RH_MODES_FLUIDPIPE_FLUIDPIPE_H
#define RH_MODES_FLUIDPIPE_FLUIDPIPE_H

#include "session/session.h"

/* Messages of a step beside its activations: a later step's head, and the micro-batches (fluidpipe_step.h). */
enum { RH_FLUIDPIPE_STEP_MESSAGES = 2 };

/* How many steps ahead box 2 knows the sizes of a step's data, so that the data may travel before box 2 needs them: as many as have
 * fluidpipe_ahead messages, and 2 at least. */
int64_t rh_fluidpipe_steps_ahead(const struct rh_config *config);

/* Call it before the links open; returns 0 in other modes. -EINVAL: the boxes distil, and the model does not classify. */
int rh_fluidpipe_check(const struct rh_session *session) RH_MUST;

/* Makes the session's model that of its box, session->box, before anything of it is planned or stored. Box 1's is a whole model of fewer
 * layers: its own, those of the extra block, and the model's kind of head. Where the model ties its head to the embedding, box 1's head is
 * tied to its own, and box 2's is a matrix of its own. -EINVAL where a box would have no transformer layer. */
int rh_fluidpipe_take_part(struct rh_session *session) RH_MUST;

/* Adds to the workload what the mode takes of this box's memory: messages that it keeps, logits, and what opportunistic steps need.
 * samples, targets: of the training set; 0: not known. -EINVAL: a budget of opportunistic steps is too small. */
int rh_fluidpipe_plan(const struct rh_session *session, int64_t samples, int64_t targets, struct rh_workload *work) RH_MUST;

/* How many messages this box keeps: box 1 those that box 2 has not received yet, box 2 those that arrive before it needs them. */
int64_t rh_fluidpipe_ahead(const struct rh_session *session);

/* Bytes of the activations of so many tokens that box 1 sends to box 2. */
int64_t rh_fluidpipe_activation_bytes(const struct rh_model *model, int64_t tokens);

/* Writes to `dir` what this box has trained of the whole model: its part as rh_join takes it, or, of an adapter, box 1 all of it. */
int rh_fluidpipe_save(struct rh_session *session, const char *dir) RH_MUST;

#endif
