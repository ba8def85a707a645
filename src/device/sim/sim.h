/* A machine in virtual time: the instance of device.h, and of host_queue.h, that takes the time that a hardware profile says and touches no
 * data. Deterministic; nothing sleeps.
 *
 * Commands are kept as they are enqueued, and time goes on only while the host waits (event_sync, event_query, synchronize, a queue's
 * await): by then all that will run beside them is known. A command begins when its stream has come to it. A copy holds its link, the
 * switch above it and the host's memory at once; work of the host's holds cores, memory or drive; what is in flight shares each of them
 * max-min fairly (flow.h), anew at every start and end. A launch takes what rh_sim_op_seconds says.
 *
 * A stream of a GPU holds so many commands and no more: a call that finds no room waits, in which time goes on.
 *
 * One host thread drives all devices and queues of a machine. */
#ifndef RH_DEVICE_SIM_SIM_H
#define RH_DEVICE_SIM_SIM_H

#include "config/hardware.h"
#include "device/device.h"
#include "device/host_queue.h"

struct rh_sim;

struct rh_sim_options {
	const struct rh_hardware *hardware; /* read at creation only */
	int devices;
	enum rh_state_layout layout; /* whose optimizer rate counts */
	int64_t stream_holds;        /* commands; 0: any number */
	/* Where the profile's device is the whole host (on_host_cores), devices share it out: each has cores / devices, at least one. */
};

/* The machine lives until it is released and all its devices and queues are closed. */
int rh_sim_create(const struct rh_sim_options *options, struct rh_sim **out) RH_MUST;
void rh_sim_release(struct rh_sim *sim);

/* As the device that the profile describes has it: the grain; the commands that a stream holds, of a GPU about a thousand (measured by
 * many, told by nobody; cuda/ cannot ask), 0 where they lie in memory of ours. */
int64_t rh_sim_stream_holds(const struct rh_hardware_device *device);
struct rh_device_grain rh_sim_grain(const struct rh_hardware_device *device);

/* Device memory reserved has addresses and no bytes behind them. */
int rh_sim_open(struct rh_sim *sim, int index, int64_t cap_bytes, struct rh_device **out) RH_MUST;
int rh_sim_queue(struct rh_sim *sim, struct rh_host_queue **out) RH_MUST;

/* The host's clock. */
double rh_sim_seconds(const struct rh_sim *sim);

/* Seconds that an op takes on a device that is `share` of the profile's. */
double rh_sim_op_seconds(const struct rh_hardware_device *device, const struct rh_op *op, double share);
/* Which peak the op's products count against. */
enum rh_product rh_sim_op_product(const struct rh_op *op);
/* Which operands of its product lie transposed; of none that is told apart, any. */
enum rh_gemm_form rh_sim_op_form(const struct rh_op *op);

/* What a profile's entry for an op of that kind is called; `weighs`: that also makes weights' gradients, NULL if none of the kind does. */
const char *rh_sim_rate_name(enum rh_op_kind kind, int weighs);
int rh_sim_op_weighs(const struct rh_op *op);

/* What a profile's entry for an op calls its size: rh_hardware_op.size. */
double rh_sim_op_size(const struct rh_op *op);

#endif
