/* CPU devices that are as slow as a profile's device, for benches: RH_HOOK_PACE names the profile. */
#ifndef RH_MACHINE_PACE_H
#define RH_MACHINE_PACE_H

#include "config/hardware.h"
#include "device/cpu/cpu.h"

struct rh_pace {
	struct rh_hardware hardware;
	double share; /* that each device has of the profile's, where that is the host itself */
	struct rh_cpu_pace cpu;
};

/* *out NULL: the hook is not set. Freed with rh_pace_free. */
int rh_pace_open(int devices, struct rh_pace **out) RH_MUST;
void rh_pace_free(struct rh_pace *pace);

#endif
