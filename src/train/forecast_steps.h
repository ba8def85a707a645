/* A few steps run by the executor in virtual time. */
#ifndef RH_TRAIN_FORECAST_STEPS_H
#define RH_TRAIN_FORECAST_STEPS_H

#include "train/forecast_input.h"

struct rh_trace;
struct forecast_check;

/* What goes on beside the steps; each may be NULL. */
struct forecast_beside {
	struct rh_trace *trace;
	struct forecast_check *check;
};

/* Of the steps that count: the first ones begin with nothing in flight. Zeroed before. */
struct forecast_steps {
	double seconds, busy_s; /* all of them; devices computed, in their mean */
	int64_t tokens;
	struct rh_step_times times; /* of one step */
};

/* Steps that end, or are joined, as training with a common update has them. */
int forecast_run_steps(struct rh_session *session, const struct rh_forecast_input *input, const int32_t *zeros,
                       struct forecast_beside beside, struct forecast_steps *out) RH_MUST;
/* Steps of a schedule whose stages update themselves: no flush between them. */
int forecast_run_stretch(struct rh_session *session, const struct rh_forecast_input *input, const int32_t *zeros,
                         struct forecast_beside beside, struct forecast_steps *out) RH_MUST;

/* Step s of the input into `micro`, whose integers nobody reads; its tokens. */
int64_t forecast_fill(const struct rh_forecast_input *input, int s, const int32_t *zeros, struct rh_micro_batch *micro);

#endif
