/* The parts of `plan` for one box: its answer for programs and for people, and all schedules side by side. */
#ifndef RH_CLI_PLAN_H
#define RH_CLI_PLAN_H

#include "core/json.h"
#include "core/text.h"
#include "forecast/machine_find.h"
#include "forecast/outlook.h"

struct rh_tasks;

/* NULL: out of memory. */
json_t *plan_json(const struct rh_machine_found *found, const struct rh_forecast_input *input, const struct rh_outlook *look);
/* Adds the lines of the terminal, with the trace drawn below. */
int plan_put(struct rh_text *out, const struct rh_machine_found *found, const struct rh_forecast_input *input,
             const struct rh_outlook *look, const struct rh_trace *trace, const struct rh_config *config) RH_MUST;
/* --compare: prints each schedule's forecast. VERB_SAYS_NO: the run fits under none. */
int plan_compare(const struct rh_config *config, const struct rh_machine_found *found, const struct rh_forecast_input *input,
                 struct rh_tasks *tasks) RH_MUST;

#endif
