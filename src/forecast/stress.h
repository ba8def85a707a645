/* The longest sequence that a configuration can train on, one in each step, by where its bytes may lie; and how fast, by length. */
#ifndef RH_FORECAST_STRESS_H
#define RH_FORECAST_STRESS_H

#include "forecast/longest.h"

enum rh_placement {
	RH_PLACEMENT_DEVICE, /* all layers and activations on one device */
	RH_PLACEMENT_HOST,   /* weights, optimizer and saved layer inputs in the host's memory */
	RH_PLACEMENT_NVME,   /* what max_ram has no room for on NVMe */
	RH_PLACEMENTS
};
extern const char *const rh_placement_name[RH_PLACEMENTS];

enum { RH_STRESS_POINTS = 12 };

/* Plain bytes: it goes through a pipe. */
struct rh_stress_found {
	int64_t tokens;    /* 0: none fits, or there is no such place */
	int64_t chunk;     /* most tokens of a chunk; 0: rows are whole */
	char budget[16];   /* the key of what a longer one exceeds; "": a limit that is no budget */
	char buffer[64];   /* what takes the most of that budget, of what grows with the length */
	char why[256];     /* why tokens is 0 */
	int64_t positions; /* that the model knows */
	int64_t device_bytes, ram_bytes, nvme_bytes;
	double step_seconds, tokens_per_second; /* of the longest; 0: not known */
	struct {
		int64_t tokens;
		double tokens_per_second;
	} point[RH_STRESS_POINTS]; /* shorter ones, ascending, the longest last */
	int points;
};

/* The configuration of a step of one sequence of so many tokens, with its bytes in these places. It borrows what `config` holds. */
struct rh_config rh_stress_config(const struct rh_config *config, const struct rh_hardware *hardware, enum rh_placement placement,
                                  int64_t tokens);

/* By plans, and the steps of the longest and of shorter ones in virtual time. until_s: when to stop (core/clock.h); what is known by then
 * is in *out. */
int rh_stress_predict(const struct rh_config *config, const struct rh_session_machine *machine, enum rh_placement placement, double until_s,
                      struct rh_stress_found *out) RH_MUST;

#endif
