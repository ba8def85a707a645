/* What a device's compute stream waited for from the begin of a step to its end: an event before and one after each wait. */
#ifndef RH_DEVICE_STALLS_H
#define RH_DEVICE_STALLS_H

#include "device/device.h"

#include <stddef.h>

enum rh_stall_kind {
	RH_STALL_WEIGHTS,     /* for weights to be uploaded */
	RH_STALL_ACTIVATIONS, /* for activations and gradients between stages */
	RH_STALL_GRADIENTS,   /* for memory that a download still reads */
	RH_STALL_KINDS
};

struct rh_stall {
	enum rh_stall_kind kind;
	struct rh_event *begin, *end;
};

enum { RH_STALLS_MOST = 1 << 16 }; /* the most waits that are recorded of a step: later ones count as computing */

struct rh_stalls {
	struct rh_device *device;
	struct rh_stall *stall; /* as many as a step has had so far, each with its events */
	size_t stalls, capacity, used;
	struct rh_event *first, *last; /* of the step, on the compute stream */
	int begun, ended;              /* waits after the step's end, by its last gradients, do not count */
	struct rh_stall *open;         /* whose end is not recorded; NULL: there is none */
};

/* A zeroed struct may be destroyed, and holds nothing. */
int rh_stalls_create(struct rh_device *device, struct rh_stalls *out) RH_MUST;
void rh_stalls_destroy(struct rh_stalls *stalls);

/* Call them around whatever makes the compute stream wait: the time between them counts as a wait of this kind. */
int rh_stalls_open(struct rh_stalls *stalls, enum rh_stall_kind kind) RH_MUST;
int rh_stalls_close(struct rh_stalls *stalls) RH_MUST;

/* For each step: forget the last one; its first moment; its last moment; the host waits for the last moment. Then rh_stalls_add gives
 * the sums, in seconds. */
void rh_stalls_reset(struct rh_stalls *stalls);
int rh_stalls_begin(struct rh_stalls *stalls) RH_MUST; /* does nothing from the second call on */
int rh_stalls_end(struct rh_stalls *stalls) RH_MUST;
int rh_stalls_sync(const struct rh_stalls *stalls) RH_MUST;

struct rh_stall_times {
	double compute, stalled[RH_STALL_KINDS];
	double ended; /* on the device's clock */
};
/* Where steps are not parted: adds the waits that are over, and forgets them. */
int rh_stalls_take(struct rh_stalls *stalls, struct rh_stall_times *times) RH_MUST;
/* Adds nothing if the step was not begun here. */
void rh_stalls_add(const struct rh_stalls *stalls, struct rh_stall_times *times);

#endif
