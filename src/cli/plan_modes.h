/* Beside a plan of mode fluidpipe: which mode is the fastest of two boxes at which latency and speed of their link, and what the
 * FluidPipe papers' formulas say of the configuration's own link. */
#ifndef RH_CLI_PLAN_MODES_H
#define RH_CLI_PLAN_MODES_H

#include "core/json.h"
#include "forecast/forecast_boxes.h"
#include "partition/fluidpipe_papers.h"

enum plan_mode { PLAN_LOCAL, PLAN_SYNC_PP, PLAN_PACI, PLAN_FLUIDPIPE, PLAN_MODES };
enum { PLAN_TRIPS = 3, PLAN_RATES = 3 };

struct plan_modes {
	double over_own_link[PLAN_MODES]; /* tokens/s over the configuration's link; 0: this run cannot have that mode */
	int has_links;                    /* `over_link` is filled: --compare asks for it */
	double over_link[PLAN_TRIPS][PLAN_RATES][PLAN_MODES]; /* over links of those round trips and speeds */
	struct rh_two_stages stages;                          /* what the papers' formulas are made of, from the simulations */
	struct rh_two_stages_traffic traffic;
	double epoch_wait_s;             /* mode fluidpipe: struct rh_forecast */
	double step_tokens, epoch_steps; /* epoch_steps 0: not known; then stages and traffic are of one step */
};

/* request: of mode fluidpipe with the configuration's link. alone: tokens/s of the fastest box by itself, 0: the run fits on none. */
int plan_modes_simulate(const struct rh_boxes_request *request, double alone, struct plan_modes *out) RH_MUST;
void plan_modes_print(const struct plan_modes *modes);
json_t *plan_modes_json(const struct plan_modes *modes);

#endif
