/* The parts of `stress`: what was found and tried for each placement, as a table and as JSON. */
#ifndef RH_CLI_STRESS_H
#define RH_CLI_STRESS_H

#include "core/json.h"
#include "core/text.h"
#include "forecast/stress.h"
#include "train/stress_trial.h"

struct stress_result {
	struct rh_stress_found found[RH_PLACEMENTS];
	struct rh_stress_tried tried[RH_PLACEMENTS];
	int is_tried[RH_PLACEMENTS];
	int is_real;        /* on this machine; else another one, and nothing can be tried */
	int is_out_of_time; /* something was left out */
	const char *machine;
	int devices, rates_assumed;
};

int stress_put(const struct stress_result *result, struct rh_text *out) RH_MUST;
/* NULL: out of memory. */
json_t *stress_json(const struct stress_result *result);

#endif
