/* The messages between two boxes of mode fluidpipe in a forecast, beside the activations, which the executor sends: the logits of boxes
 * that distil. They have training's sizes and order (fluidpipe_step.h). In other modes all functions do nothing. */
#ifndef RH_FORECAST_FORECAST_FLUIDPIPE_H
#define RH_FORECAST_FORECAST_FLUIDPIPE_H

#include "forecast/forecast_input.h"

struct forecast_fluidpipe {
	struct rh_session *session;
	const struct rh_forecast_input *input;
	struct rh_link *below; /* NULL: this is not box 2 */
	int64_t first;         /* box 2: number of the first step's first message in the link */
	int64_t rows;          /* of the logits that go down behind the steps */
	char *message;         /* as long as the longest of these messages */
};

/* Box 1 returns when it knows what box 2 has announced, as in the midst of a run. forecast_fluidpipe_close in any case. */
int forecast_fluidpipe_open(struct rh_session *session, const struct rh_forecast_input *input, struct forecast_fluidpipe *out) RH_MUST;
void forecast_fluidpipe_close(struct forecast_fluidpipe *talk);

/* Box 2, before step s: announces what box 1 sends, and, where box 2 distils, waits for the step's logits. */
int forecast_fluidpipe_take_step(struct forecast_fluidpipe *talk, int s) RH_MUST;
/* Box 1 has finished step s: sends the step's logits. */
int forecast_fluidpipe_finish_step(struct forecast_fluidpipe *talk, int s) RH_MUST;
/* Behind the last step, which ends an epoch: box 1 waits for box 2's logits. */
int forecast_fluidpipe_end(struct forecast_fluidpipe *talk) RH_MUST;

#endif
