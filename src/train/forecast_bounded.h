/* Predictions of steps too long to be simulated whole. */
#ifndef RH_TRAIN_FORECAST_BOUNDED_H
#define RH_TRAIN_FORECAST_BOUNDED_H

#include "partition/cuts.h"
#include "train/forecast.h"

/* The same in bounded time: of steps with more micro-batches times layers than can be simulated at once, two shorter ones with the same
 * stages are, and what a micro-batch more takes is taken to go on. The trace is then of the longer of the two. Bytes are of the whole. */
int rh_forecast_bounded(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                        const struct rh_forecast_beside *beside, struct rh_forecast *out) RH_MUST;
/* The configuration with the stages of a plan, which are then not searched for anew. It borrows *cuts, which are the caller's
 * (rh_cuts_free). */
int rh_config_pin_stages(struct rh_config *config, const struct rh_plan *plan, struct rh_cuts *cuts) RH_MUST;

#endif
