/* Bandwidths of devices' copies and of host memory, and the optimizer's. */
#ifndef RH_MACHINE_COPIES_H
#define RH_MACHINE_COPIES_H

#include "config/optim.h"
#include "core/pool.h"
#include "machine/machine.h"

struct doctor_copies {
	double up, down, both;     /* bytes per second of the first device: one way alone, both at once in sum */
	double latency_s;          /* of a copy of 4 KiB */
	double all_up;             /* of all devices up at once, in sum; as `up` where there is one */
	int64_t registered, tried; /* bytes of host memory that could be registered, of those tried; 0: the devices need none */
};
/* `base`: device memory of each device, of at least `bytes`, whose content is lost. */
int doctor_measure_copies(const struct rh_devices *devices, void *const *base, int64_t bytes, struct doctor_copies *out) RH_MUST;

struct doctor_host {
	double read, copy; /* bytes per second of memory, all cores: read; read and written */
	double core_copy;  /* the same by one core */
};
/* In `bytes` of memory, which should be several times the caches. */
int doctor_measure_host(struct rh_pool *pool, int64_t bytes, struct doctor_host *out) RH_MUST;

/* Bytes of memory per second that an update of AdamW moves, all threads of the pool at work. `elements` of a scratch store;
 * -ENOMEM where there is no room for it. */
int doctor_measure_optimizer(struct rh_pool *pool, int64_t elements, enum rh_dtype dtype, enum rh_state_layout layout, double *out) RH_MUST;

#endif
