/* Mode fluidpipe in virtual time: the messages between its two boxes beside the activations, which the executor sends. These are the logits
 * of boxes that distil, with training's sizes and order (fluidpipe_step.h). Slots of struct rh_mode_forecast. */
#ifndef RH_MODES_FLUIDPIPE_FLUIDPIPE_FORECAST_H
#define RH_MODES_FLUIDPIPE_FLUIDPIPE_FORECAST_H

#include "session/session.h"

struct rh_boxes_request;
struct rh_forecast;
struct rh_forecast_input;

/* Box 1 returns when it knows what box 2 has announced, as in the midst of a run. *drains: logits come down behind the last step. */
int fluidpipe_forecast_open(struct rh_session *session, const struct rh_forecast_input *input, void **own, int *drains) RH_MUST;
void fluidpipe_forecast_close(void *own);

/* Box 2, before a step: announces what box 1 sends, and, where box 2 distils, waits for the step's logits. */
int fluidpipe_forecast_take_step(void *own, int step) RH_MUST;
/* Box 1 has finished a step: sends its logits. */
int fluidpipe_forecast_finish_step(void *own, int step) RH_MUST;
/* Behind the last step, which ends an epoch: box 1 waits for box 2's logits. */
int fluidpipe_forecast_end(void *own) RH_MUST;

/* Fills in out->target_bytes. */
void fluidpipe_forecast_describe(const struct rh_session *session, struct rh_forecast *out);

/* Lower bound on a step's time. Box 2 expects at most fluidpipe_ahead messages, and those of at most rh_fluidpipe_steps_ahead + 1 steps, so
 * no more pass in a round trip. Simulated steps have no heads and no micro-batches on the line and do not show all of this; and logits
 * that stream are not simulated step by step. */
double fluidpipe_forecast_least_step_s(const struct rh_boxes_request *request, int64_t micro_batches, const struct rh_forecast *box);

#endif
