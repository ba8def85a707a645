/* Reads the key `device`: cpu, cpu:N, cuda, cuda:0,2, cuda:0,0 (two workers on one GPU), sim:NAME (a hardware profile: plan alone); in
 * builds for tests also emu:N. This folder does not know whether this build and this machine have such devices. */
#ifndef RH_CONFIG_DEVICE_SPEC_H
#define RH_CONFIG_DEVICE_SPEC_H

#include "core/error.h"

enum rh_device_kind { RH_DEVICE_CPU, RH_DEVICE_CUDA, RH_DEVICE_EMU, RH_DEVICE_SIM };

enum { RH_DEVICES_MAX = 64 };

struct rh_device_spec {
	enum rh_device_kind kind;
	int count;               /* 0: all GPUs, or all that the profile has */
	int gpu[RH_DEVICES_MAX]; /* of each device; not for cpu and sim */
	const char *profile;     /* of sim: the name in the text */
};

/* -EINVAL with "'TEXT' is not allowed; expected ...". */
int rh_device_spec_parse(const char *text, struct rh_device_spec *out) RH_MUST;

#endif
