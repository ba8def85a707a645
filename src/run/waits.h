/* What a device's compute stream waited for in a step: an event before and one after each wait. */
#ifndef RH_RUN_WAITS_H
#define RH_RUN_WAITS_H

#include "device/device.h"
#include "run/executor.h"

enum run_wait_kind { RUN_WAIT_WEIGHTS, RUN_WAIT_ACTIVATIONS, RUN_WAIT_GRADIENTS, RUN_WAIT_KINDS };

struct run_wait {
	enum run_wait_kind kind;
	struct rh_event *before, *after;
};

enum { RUN_WAITS_MOST = 1 << 16 }; /* that are booked of a step: what comes after them in a longer one counts as computing */

struct run_waits {
	struct run_wait *wait; /* as many as a step has had so far, each with its events */
	size_t waits, capacity, used;
	struct rh_event *first, *last; /* of the step, on the compute stream */
	int begun, ended;              /* what is waited for after the step's end, by its last gradients, is not the step's */
	struct run_wait *held;
};

/* A zeroed struct may be destroyed. */
int run_waits_create(struct rh_device *device, struct run_waits *out) RH_MUST;
void run_waits_destroy(struct run_waits *waits);

/* What the compute stream does from now on starts after `event`, and the time until then is booked. */
int run_waits_for(struct run_waits *waits, struct rh_device *device, enum run_wait_kind kind, struct rh_event *event) RH_MUST;

/* The same around whatever keeps the host from enqueuing: what the compute stream does not have meanwhile it waits for. */
int run_waits_hold(struct run_waits *waits, struct rh_device *device, enum run_wait_kind kind) RH_MUST;
int run_waits_release(struct run_waits *waits, struct rh_device *device) RH_MUST;

/* Around a step: forget; the step's first and last moment; the host waits for the last one; then the sums, in seconds. */
void run_waits_reset(struct run_waits *waits);
int run_waits_begin(struct run_waits *waits, struct rh_device *device) RH_MUST; /* does nothing from the second call on */
int run_waits_end(struct run_waits *waits, struct rh_device *device) RH_MUST;
int run_waits_sync(const struct run_waits *waits) RH_MUST;
void run_waits_add(const struct run_waits *waits, struct rh_step_times *times);

#endif
