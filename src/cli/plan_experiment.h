/* plan EXPERIMENT.yaml: no configuration of a run but an experiment that is known by layer times (config/experiment.h). */
#ifndef RH_CLI_PLAN_EXPERIMENT_H
#define RH_CLI_PLAN_EXPERIMENT_H

#include "config/config.h"

struct rh_tasks;
int plan_experiment(const struct rh_config *config, struct rh_tasks *tasks) RH_MUST;

#endif
