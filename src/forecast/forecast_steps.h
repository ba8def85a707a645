/* A few steps run by the executor in virtual time. */
#ifndef RH_FORECAST_FORECAST_STEPS_H
#define RH_FORECAST_FORECAST_STEPS_H

#include "forecast/forecast_input.h"

struct rh_trace;
struct forecast_check;

/* Observers of the steps; each may be NULL. */
struct forecast_observers {
	struct rh_trace *trace;
	struct forecast_check *check;
};

/* Sums over the counted steps. The first steps are not counted, because they begin with idle devices. Zero it before. */
struct forecast_steps {
	double seconds, busy_s; /* duration; the devices' mean computing time */
	double drained_s;       /* until the logits that come down behind the last step are here; 0: none do */
	int64_t tokens;
	struct rh_step_times times;  /* of one step */
	int64_t *drift, drift_count; /* struct rh_forecast; the caller's */
};

/* Steps with one optimizer update for all stages, joined where updates are stale. */
int forecast_run_steps(struct rh_session *session, const struct rh_forecast_input *input, const int32_t *zeros,
                       struct forecast_observers observers, struct forecast_steps *out) RH_MUST;
/* Behind them: the pass over a reference, whose speed is taken to be that of its first call. */
int forecast_run_reference(struct rh_session *session, const struct rh_forecast_input *input, const int32_t *zeros,
                           double *tokens_per_second) RH_MUST;
/* Steps of a schedule whose stages update their own blocks: no flush between them. */
int forecast_run_stretch(struct rh_session *session, const struct rh_forecast_input *input, const int32_t *zeros,
                         struct forecast_observers observers, struct forecast_steps *out) RH_MUST;

/* Writes step s of the input to `micro`, whose integers are never read. Returns its tokens. */
int64_t forecast_fill(const struct rh_session *session, const struct rh_forecast_input *input, int s, const int32_t *zeros,
                      struct rh_micro_batch *micro);

#endif
