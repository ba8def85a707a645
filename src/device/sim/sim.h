/* A machine in virtual time: an instance of device.h and of host_queue.h that moves no data. Times come from a hardware profile.
 * Deterministic; nothing sleeps.
 *
 * Calls only enqueue. Virtual time advances while the host waits (event_sync, synchronize, await of a host queue): by then everything that
 * runs concurrently has been enqueued. A command begins when the commands before it in its queue are done.
 *   - A copy uses its PCIe link, the switch above the link and host memory, all at once.
 *   - A host job uses cores, host memory or a drive.
 *   - All transfers and jobs in flight share each resource max-min fairly (flow.h). Rates are recomputed at every start and end.
 *   - A launch takes rh_sim_op_seconds.
 *   - A GPU's stream has a bounded number of pending commands: a call that exceeds it waits, and time advances.
 *
 * One host thread drives all devices and queues of a machine. */
#ifndef RH_DEVICE_SIM_SIM_H
#define RH_DEVICE_SIM_SIM_H

#include "config/hardware.h"
#include "device/device.h"
#include "device/host_queue.h"

struct rh_sim;
struct rh_sim_clock;

struct rh_sim_options {
	const struct rh_hardware *hardware; /* only read during rh_sim_create */
	int devices;
	enum rh_state_layout layout; /* selects the optimizer rate of the profile */
	struct rh_sim_clock *clock;  /* NULL, or a clock that several machines share (clock.h): borrowed; the calling host has the turn */
	int64_t stream_capacity;     /* most pending commands of a stream, records of timed events not counted; 0: unbounded */
	/* Where the profile's device is the host itself (on_host_cores), each device has cores / devices of it, at least one core. */
};

/* The machine is freed when it is released and all its devices, events and queues are closed. */
int rh_sim_create(const struct rh_sim_options *options, struct rh_sim **out) RH_MUST;
void rh_sim_release(struct rh_sim *sim);

/* Properties of the device that a profile describes. The capacity of a stream: about 1,000 commands on a GPU (often measured, undocumented,
 * and cuda/ cannot query it); 0, unbounded, for CPU devices, whose queues are ours. */
int64_t rh_sim_stream_capacity(const struct rh_hardware_device *device);
struct rh_device_grain rh_sim_grain(const struct rh_hardware_device *device);

/* Reserved device memory has addresses, and no bytes behind them. */
int rh_sim_open(struct rh_sim *sim, int index, int64_t cap_bytes, struct rh_device **out) RH_MUST;
int rh_sim_queue(struct rh_sim *sim, struct rh_host_queue **out) RH_MUST;

/* The host's clock. */
double rh_sim_seconds(const struct rh_sim *sim);

/* Seconds that an op takes on a device that has `share` of the profile's device. */
double rh_sim_op_seconds(const struct rh_hardware_device *device, const struct rh_op *op, double share);
/* Which peak the op's products count against. */
enum rh_product rh_sim_op_product(const struct rh_op *op);
/* Which operands of its product are transposed; RH_GEMM_ANY where the profile does not distinguish them. */
enum rh_gemm_form rh_sim_op_form(const struct rh_op *op);

/* Name of a profile's entry for an op of that kind. with_weights: for the variant that also computes weight gradients; NULL where the kind
 * has none. */
const char *rh_sim_rate_name(enum rh_op_kind kind, int with_weights);
int rh_sim_op_has_weight_gradient(const struct rh_op *op);

/* The size by which a profile's entries for an op differ: rh_hardware_op.size. */
double rh_sim_op_size(const struct rh_op *op);

#endif
