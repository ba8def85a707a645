/* Chooses the plan that a run follows. The recurrence (plan/run_plan.h) searches; the dispatcher in virtual time judges the best few.
 * `train`, `plan` and `plan --compare` all ask here, so the plan that runs is the plan that was judged and printed. */
#ifndef RH_FORECAST_JUDGE_H
#define RH_FORECAST_JUDGE_H

#include "forecast/forecast.h"

/* The recurrence does not know that copies compete for memory and links. So its time is a lower bound, unless weights stay on a device,
 * when the plan may be faster. That matters where a step has few micro-batches: then all plans are simulated. Otherwise the recurrence's
 * choice is simulated, and after it only plans whose lower bound would be better (rh_run_plan_is_better). Where GPUs idle, plans for fewer
 * of them are searched for and judged, too, so that more GPUs do not make a run slower.
 * plans: the session's, for all devices; those with the best one, for fewer devices or for all, take their place. *chosen: its number;
 * *out: its forecast, the caller's. options->planned is called for it alone. */
int rh_judge(struct rh_session *session, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
             const struct rh_forecast_options *options, struct rh_run_plans *plans, int *chosen, struct rh_forecast *out) RH_MUST;

/* Searches and judges on a simulated machine. options: may be NULL; its plan is not looked at. RH_DOES_NOT_FIT with the line that says what
 * does not fit. */
int rh_forecast_judged(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                       const struct rh_forecast_options *options, struct rh_forecast *out) RH_MUST;

#endif
