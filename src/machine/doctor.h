/* The doctor: what this machine is, what it does in a second, what is wrong with it, and the profile that `plan` and simulated devices
 * read. */
#ifndef RH_MACHINE_DOCTOR_H
#define RH_MACHINE_DOCTOR_H

#include "config/hardware.h"
#include "cuda/device.h"
#include "machine/advice.h"
#include "machine/ops.h"

struct rh_doctor_options {
	const char *device; /* as the configuration names it */
	char *const *dir;   /* on the drives to measure, one each */
	int dirs;
	double probes_seconds; /* for the ops of training */
};

struct rh_doctor_report {
	struct doctor_facts facts;
	struct doctor_measured measured;
	struct doctor_host host;
	double optimizer[RH_LAYOUTS], optimizer_f32; /* bytes per second; 0: not measured */
	struct doctor_op_times ops;                  /* of one device */
	double launch_s;                             /* of an op that does nothing */
	double one_core, halves;                     /* of a CPU device, see doctor_cores_reduce; 0: not measured */
	int devices;
	struct rh_cuda_gpu gpu;                      /* the first device's, where it is one; major 0: it is not */
	int64_t device_bytes, device_reserved_bytes; /* memory of its own, and what of it is not to be had; 0: the host's */
	char drive_trouble[256];                     /* why the drive was not measured; "" if it was */
	struct doctor_advices advices;
	double seconds; /* that it all took */
};

/* Looks, measures (well under a minute) and advises. A drive that cannot be measured is no error. *out is freed with rh_doctor_free. */
int rh_doctor_examine(const struct rh_doctor_options *options, struct rh_doctor_report *out) RH_MUST;
void rh_doctor_free(struct rh_doctor_report *report);

/* The report as a profile; freed with rh_hardware_free. Products that were measured at equal shapes count once, by their mean. */
int rh_doctor_profile(const struct rh_doctor_report *report, struct rh_hardware *out) RH_MUST;

#endif
