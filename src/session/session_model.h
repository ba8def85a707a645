/* The model's configuration as this run has it: what its keys change of the files'. Each returns 0, or an error that is told. */
#ifndef RH_SESSION_SESSION_MODEL_H
#define RH_SESSION_SESSION_MODEL_H

#include "session/session.h"

/* The run's rope_scaling counts before the files'. */
int rh_session_scale_rope(struct rh_session *session) RH_MUST;

/* The model of its first layers, where so many are asked for. */
int rh_session_keep_first_layers(struct rh_session *session) RH_MUST;

/* From here on the head has a matrix of its own. */
int rh_session_untie_config(struct rh_session *session) RH_MUST;

/* Boxes, and stages that update themselves, train an embedding and a head that are one table apart: they are two from the start, unless the
 * run asks for one. Adapters leave the table as it is. */
int rh_session_untie(struct rh_session *session) RH_MUST;

/* The ends exchange the gradient of a table that they train with all weights, not beside an adapter. */
int rh_session_check_tied(const struct rh_session *session) RH_MUST;

/* Do stages of one box update themselves? */
int rh_session_updates_by_stage(const struct rh_config *config);

#endif
