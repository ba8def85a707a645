/* Predicts a run of several boxes: each box's executor runs on its own simulated machine. All share one virtual clock and virtual links.
 * Deterministic. */
#ifndef RH_FORECAST_FORECAST_BOXES_H
#define RH_FORECAST_FORECAST_BOXES_H

#include "forecast/forecast.h"
#include "link/virtual.h"

/* All borrowed. config->boxes says how many. */
struct rh_boxes_request {
	const struct rh_config *config;
	const struct rh_session_machine *machine; /* (boxes) */
	const int *first;                         /* (boxes + 1) layers, as rh_box_cuts gives them */
	const struct rh_virtual_line (*line)[2];  /* (boxes - 1) up, and down */
	const struct rh_forecast_input *input;
};

/* out: (boxes) each freed with rh_forecast_free, in any case. RH_DOES_NOT_FIT with the line of the first box that does not fit; the line
 * begins with its number. A step with too many micro-batches is extrapolated linearly from two shorter ones. */
int rh_forecast_boxes(const struct rh_boxes_request *request, struct rh_forecast *out) RH_MUST;

#endif
