/* The host queue seam: work of the host's that belongs to a run (optimizer updates, NVMe requests) and must take its time in a simulated
 * run as it does in a real one. A queue does its jobs one after another; queues among themselves run free. Where a device has none, whoever
 * needs one starts a thread of its own; simulated devices have one in virtual time (device/sim/sim.h).
 *
 * One host thread submits and awaits. */
#ifndef RH_DEVICE_HOST_QUEUE_H
#define RH_DEVICE_HOST_QUEUE_H

#include "core/error.h"

#include <stdint.h>

enum rh_host_work {
	RH_HOST_OPTIMIZER, /* `bytes` of memory moved by all cores at the optimizer's rate */
	RH_HOST_MEMORY,    /* moved by all cores at the memory's */
	RH_HOST_NVME_READ, /* bytes of the drive's */
	RH_HOST_NVME_WRITE,
	RH_HOST_NVME, /* read and written, half each */
	RH_HOST_WORKS
};

struct rh_event;

struct rh_host_job {
	enum rh_host_work work;
	double bytes;
	double nvme_bytes;           /* read and written meanwhile: the job takes as long as the longer of the two alone */
	struct rh_event *wait_event; /* not before the event's latest record; NULL: at once */
	/* What is done; negative errno: a fault, later jobs are not run. A virtual queue calls it too, when the job's time is over; there
	 * alone it may be NULL. */
	int (*run)(void *context, int64_t argument);
	void *context;
	int64_t argument;
};

/* Whoever has work that is not known before its time comes. */
struct rh_host_worker {
	/* 1: *job is what comes next; 0: nothing yet. Asked whenever the queue has nothing to do and something has happened. */
	int (*next)(void *context, struct rh_host_job *job);
	void *context;
	/* Moves on with all that happens but for jobs, and events that `next` found not to be reached: else the answer is the one before. NULL:
	 * nobody counts. */
	const int64_t *changes;
};

struct rh_host_queue {
	const struct rh_host_queue_ops *ops;
};

/* All required, but `serve` and `pass`, which queues in virtual time alone have. */
struct rh_host_queue_ops {
	/* Waits for all jobs. */
	void (*destroy)(struct rh_host_queue *queue);
	/* The job is copied. *ticket: 1 for the queue's first job, and so on. -ENOMEM. */
	int (*submit)(struct rh_host_queue *queue, const struct rh_host_job *job, int64_t *ticket);
	/* Waits until the job of this ticket is over. The first fault of it or an earlier job, if any. */
	int (*await)(struct rh_host_queue *queue, int64_t ticket);
	/* The worker, which is copied, is asked from now on, between jobs that were submitted. One worker a queue. */
	void (*serve)(struct rh_host_queue *queue, const struct rh_host_worker *worker);
	/* Waits until something has happened: on this queue, on another, on a device. */
	void (*pass)(struct rh_host_queue *queue);
	/* The clock by which the host waits. */
	double (*seconds)(struct rh_host_queue *queue);
};

#endif
