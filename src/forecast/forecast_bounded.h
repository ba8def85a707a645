/* Forecasts in bounded time, for steps too long to be simulated whole. */
#ifndef RH_FORECAST_FORECAST_BOUNDED_H
#define RH_FORECAST_FORECAST_BOUNDED_H

#include "forecast/forecast.h"
#include "partition/cuts.h"

/* Like rh_forecast, in bounded time. Of a step with too many micro-batches times layers, two shorter steps with the same stages are
 * simulated, and the whole is extrapolated linearly from them. The trace then shows the longer of the two. Bytes are the whole step's. */
int rh_forecast_bounded(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                        const struct rh_forecast_options *options, struct rh_forecast *out) RH_MUST;
/* Sets the configuration's cuts to a plan's stages, so that they are not searched for again. The configuration borrows *cuts; the caller
 * frees them (rh_cuts_free). */
int rh_config_pin_stages(struct rh_config *config, const struct rh_stage_plan *plan, struct rh_cuts *cuts) RH_MUST;
/* Sets what `spill: auto` chooses to what a plan has chosen. */
void rh_config_pin_spill(struct rh_config *config, const struct rh_forecast *planned);

#endif
