/* What this machine has free, and opening the devices that `device:` names. */
#ifndef RH_MACHINE_MACHINE_H
#define RH_MACHINE_MACHINE_H

#include "config/optim.h"
#include "device/device.h"

/* Cores that this process may run on. */
int rh_machine_cores(void);
/* Bytes of memory that can still be taken: MemAvailable, or less where this process's control group, or one above it, says so (v1 and v2).
 */
int64_t rh_machine_free_ram(void);
/* Tests: the same with /proc and /sys found under `root`. */
int64_t rh_machine_free_ram_under(const char *root);
/* Bytes that this process's control groups let it have at all; -1: they set no limit. `root` as above, "" for this machine. */
int64_t rh_machine_group_limit_under(const char *root);
/* Bytes that this process's control groups leave until they kill it (memory.max) or slow it down (memory.high); INT64_MAX: they set no
 * limit. Cheap enough for every step. */
int64_t rh_machine_group_room(void);
/* Most resident memory of this process so far, in bytes, and the reserved hugepages that it has now, which the kernel does not count as
 * resident: a run maps them once, before it begins, and keeps them to its end. */
int64_t rh_machine_peak_ram(void);
/* Tests: the same with /proc found under `root`. */
int64_t rh_machine_peak_ram_under(const char *root);
/* Bytes of memory that this process has now, files' pages not counted. */
int64_t rh_machine_own_bytes(void);

struct rh_devices {
	struct rh_device **device;
	int count;
	struct rh_pace *pace; /* of CPU devices (machine/pace.h); NULL: none */
};

/* The device of a configuration that names none: "cuda" if this machine and this build have it, else "cpu:1". A line says so where an
 * NVIDIA card is there, or a driver that does not serve. */
const char *rh_machine_default_device(void);
/* The same for what rh_cuda_count (cuda/device.h) has said. */
const char *rh_machine_device_for(int gpus);

/* How many devices a specification (config/device_spec.h) names. Negative with the reason for what this build or machine does not have. */
int rh_devices_count(const char *spec) RH_MUST;
/* Bytes of memory of its own that each of the devices may use; 0: their memory is the host's. */
int rh_devices_room(const char *spec, int64_t *bytes) RH_MUST;
/* The chunk sizes that these devices prefer. */
int rh_devices_grain(const char *spec, struct rh_device_grain *out) RH_MUST;
/* Whether each of the devices multiplies 8-bit operands; -ENODEV with the reason. */
int rh_devices_check_fp8(const char *spec) RH_MUST;
/* The first `count` of them. CPU devices share the cores out: each gets cores / (how many the specification names) threads, at least 1. */
int rh_devices_open(const char *spec, int count, int64_t cap_bytes, struct rh_devices *out) RH_MUST;
/* Those of a simulated machine. `hardware` is read during the call only. clock: NULL, or one that several machines share (sim/clock.h). */
struct rh_hardware;
struct rh_sim_clock;
int rh_devices_simulate(const struct rh_hardware *hardware, int count, enum rh_state_layout layout, int64_t cap_bytes,
                        struct rh_sim_clock *clock, struct rh_devices *out) RH_MUST;
/* Says what a run should know of GPUs that drive a display, or that are reached through Windows. */
void rh_devices_tell_desktop(const char *device);
void rh_devices_close(struct rh_devices *devices);

#endif
