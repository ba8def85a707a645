/* What `plan` says of several boxes. */
#ifndef RH_CLI_PLAN_BOXES_H
#define RH_CLI_PLAN_BOXES_H

#include "forecast/forecast_input.h"
#include "forecast/machine_find.h"

struct rh_tasks;

int plan_boxes(const struct rh_config *config, const struct rh_machine_found *found, const struct rh_forecast_input *input,
               struct rh_tasks *tasks) RH_MUST;

#endif
