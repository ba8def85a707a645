/* The interface of host queues. They run a run's work on the host (optimizer updates, NVMe requests), which must take its time in a
 * simulated run as it does in a real one. A queue runs its jobs one after another; queues have no order among themselves. A device
 * without host queues leaves such work to threads of the host; simulated devices have queues in virtual time (device/sim/sim.h).
 *
 * Only one host thread may submit and await. */
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
	double nvme_bytes;           /* read and written at the same time: the job takes as long as the slower of the two */
	struct rh_event *wait_event; /* the job starts after this event's latest record; NULL: at once */
	/* The work. A negative errno is a fault: later jobs are not run. A virtual queue calls it too, when the job's time has passed;
	 * only there it may be NULL. */
	int (*run)(void *context, int64_t argument);
	void *context;
	int64_t argument;
};

/* A source of jobs that are not known in advance. */
struct rh_host_worker {
	/* 1: *job is the next job; 0: none yet. Called whenever the queue is idle and something has happened. */
	int (*next)(void *context, struct rh_host_job *job);
	void *context;
	/* A counter: `next` would answer as before while it stays the same, unless a job has ended, or an event that `next` waits for
	 * was reached. NULL: there is none. */
	const int64_t *changes;
};

struct rh_host_queue {
	const struct rh_host_queue_ops *ops;
};

/* All slots are required, except `serve` and `await_change`, which only queues in virtual time have. */
struct rh_host_queue_ops {
	/* Waits for all jobs. */
	void (*destroy)(struct rh_host_queue *queue);
	/* The job is copied. *ticket: 1 for the queue's first job, and so on. -ENOMEM. */
	int (*submit)(struct rh_host_queue *queue, const struct rh_host_job *job, int64_t *ticket);
	/* Waits until the job of this ticket is over. The first fault of it or an earlier job, if any. */
	int (*await)(struct rh_host_queue *queue, int64_t ticket);
	/* From now on the worker is asked for jobs, between jobs that are submitted. It is copied. One worker a queue. */
	void (*serve)(struct rh_host_queue *queue, const struct rh_host_worker *worker);
	/* Waits until something has happened: on this queue, on another, on a device. */
	void (*await_change)(struct rh_host_queue *queue);
	/* The clock by which the host waits. */
	double (*seconds)(struct rh_host_queue *queue);
};

#endif
