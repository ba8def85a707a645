/* The machine that a forecast simulates. */
#ifndef RH_FORECAST_MACHINE_FIND_H
#define RH_FORECAST_MACHINE_FIND_H

#include "session/session.h"

/* The machine that the configuration names: a profile, or this machine. */
struct rh_machine_found {
	struct rh_hardware hardware;
	struct rh_session_machine machine; /* points to `hardware` */
	int assumed;                       /* rates are guesses, because `doctor` has not measured this machine */
};
int rh_machine_find(const struct rh_config *config, struct rh_machine_found *out) RH_MUST;
/* How many times as fast as fp32's the processor's bf16 products are, where the run computes on it in fp32 and the difference is large:
 * measured, or of AMX assumed. Else 0. */
double rh_machine_bf16_gain(const struct rh_machine_found *found, const struct rh_config *config);
void rh_machine_found_free(struct rh_machine_found *found);

#endif
