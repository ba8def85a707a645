/* Inside the simulated machine: lanes (a device's streams, host queues) of commands, and the loop that lets time pass. */
#ifndef RH_DEVICE_SIM_INTERNAL_H
#define RH_DEVICE_SIM_INTERNAL_H

#include "core/fault.h"
#include "device/sim/flow.h"
#include "device/sim/sim.h"

#include <stddef.h>

/* One record of an event: what waits for it holds it, however often the event is recorded again. */
struct sim_point {
	int holders, done;
	int asked; /* by a worker, before it was done */
	double at_s;
	struct sim_lane *waiting; /* lanes that have come to a wait for it */
	struct sim_point *next;   /* of those to be used again */
};

struct sim_event {
	struct rh_event base;
	struct rh_sim *sim;
	enum rh_event_use use;
	struct sim_point *point; /* the latest record's; NULL: never recorded */
};

enum sim_command_kind { SIM_TASK, SIM_RECORD, SIM_WAIT, SIM_JOB };

/* SIM_TASK: `amount` of the route's units, after `delay_s`. SIM_RECORD, SIM_WAIT: a held point. SIM_JOB: what a host queue's job does,
 * after its task: number `job` of the lane's. */
struct sim_command {
	enum sim_command_kind kind;
	int count; /* of the device's commands that it is */
	double amount, delay_s;
	union {
		const struct sim_route *route;
		struct sim_point *point;
		size_t job;
	};
};

/* Commands in order; one task at a time.
 *
 *   at rest --a command is appended--> ready --step_lane--> running (a task) --its end--> ready
 *                                            --step_lane--> waiting (in a point's list) --the point is done--> ready
 *                                            --step_lane, nothing left--> at rest */
struct sim_lane {
	struct rh_sim *sim;
	struct sim_command *command; /* [first, count) are still to come */
	size_t first, count, capacity;
	int64_t held, room; /* commands enqueued and not over; the most there may be, 0: any */
	enum { SIM_AT_REST, SIM_READY, SIM_RUNNING, SIM_WAITING } state;
	struct sim_flow flow; /* of the task at `first`, while it runs */
	double left, since_s; /* of it: units to flow from then on; while it is delayed all of them */
	int delayed;
	struct rh_host_job *job; /* of a host queue: those of its commands */
	size_t job_count, job_capacity;
	int64_t jobs, done;    /* submitted, over */
	struct rh_fault fault; /* of a job */
	struct rh_host_worker worker;
	int64_t seen;                  /* of the worker's changes, when it was asked last */
	struct sim_lane *next_worker;  /* of the machine's lanes with one */
	struct sim_lane *next_ready;   /* while ready */
	struct sim_lane *next_waiting; /* for the same point */
};

/* A task on its way. */
struct sim_active {
	double ends_s; /* as things stand: of its delay, or of all of it */
	struct sim_lane *lane;
};

enum sim_way { SIM_UP, SIM_DOWN, SIM_WAYS };

struct sim_device {
	struct rh_device base;
	struct rh_sim *sim;
	struct sim_lane lane[RH_STREAMS];
	struct sim_route compute, copy[SIM_WAYS];
	int64_t cap_bytes, reserved_bytes;
};

struct sim_queue {
	struct rh_host_queue base;
	struct sim_lane lane;
};

enum { SIM_DEVICES_MAX = 64, SIM_RESOURCES = 6 * SIM_DEVICES_MAX + 8 };

struct rh_sim {
	int holders; /* the creator, devices, queues */
	double now_s;
	struct sim_lane *ready, **ready_end, *workers;
	int ask; /* something happened here that workers may have waited for */
	struct sim_point *spare_points;
	struct sim_points *points; /* all there are, spare or not */
	struct sim_durations *durations;
	struct sim_shares *shares;
	struct rh_hardware_device profile; /* a copy with its own tables */
	struct rh_hardware hardware;       /* numbers alone: strings and tables are the creator's, not to be read */
	int devices;
	double share;         /* of the profile's device that each device is */
	int64_t stream_holds; /* rh_sim_options */
	struct sim_route work[RH_HOST_WORKS];
	double capacity[SIM_RESOURCES], spare[SIM_RESOURCES], load[SIM_RESOURCES];
	int resources;
	int settling;
	int changed; /* flows began or ended since rates were set */
	struct sim_active active[SIM_DEVICES_MAX * RH_STREAMS + 64];
	int actives;
	int dram, cores, nvme_read, nvme_write, nvme_mixed; /* resources, -1: no limit */
	int up[SIM_DEVICES_MAX], down[SIM_DEVICES_MAX], both[SIM_DEVICES_MAX];
	int switch_up[SIM_DEVICES_MAX], switch_down[SIM_DEVICES_MAX], switch_both[SIM_DEVICES_MAX]; /* of each switch */
};

/* resources.c: what there is, and what holds it. */
void sim_resources(struct rh_sim *sim, enum rh_state_layout layout);
void sim_device_routes(struct rh_sim *sim, struct sim_device *device);

/* sim.c: what is enqueued. */
void sim_hold(struct rh_sim *sim);
void sim_lane_open(struct rh_sim *sim, struct sim_lane *lane);
void sim_lane_close(struct sim_lane *lane); /* it is idle */
int sim_task(struct sim_lane *lane, const struct sim_route *route, double amount);
int sim_record(struct sim_lane *lane, struct sim_event *event);
int sim_wait(struct sim_lane *lane, struct sim_event *event);
/* The time that a job takes. */
int sim_work(struct sim_lane *lane, const struct rh_host_job *job);
int sim_job(struct sim_lane *lane, const struct rh_host_job *job);
void sim_point_release(struct rh_sim *sim, struct sim_point *point);
/* Its first command is over. */
void sim_next(struct sim_lane *lane);
/* Its next command may be begun. */
void sim_make_ready(struct sim_lane *lane);
/* The lane's queue is idle: this worker is asked what comes next. */
void sim_serve(struct sim_lane *lane, const struct rh_host_worker *worker);
/* The host, which may have done anything since it was here last, waits: begins all that can begin now, without letting time pass. 1 if
 * anything did. */
int sim_enter(struct rh_sim *sim);
/* The same within one wait. */
int sim_settle(struct rh_sim *sim);
/* Lets time pass to the next end of something; asserts that there is one. */
void sim_advance(struct rh_sim *sim);
int sim_lane_idle(const struct sim_lane *lane);

/* durations.c: what rh_sim_op_seconds said of ops of the same shapes. Emission goes through the same few thousand again and again. */
int sim_durations_create(struct sim_durations **out) RH_MUST;
void sim_durations_free(struct sim_durations *durations);
double sim_op_seconds(struct rh_sim *sim, const struct rh_op *op);

/* shares.c: sim_share of the machine's resources, remembered for flows of the same routes in the same order. */
int sim_shares_create(struct sim_shares **out) RH_MUST;
void sim_shares_free(struct sim_shares *shares);
void sim_shares_forget(struct sim_shares *shares); /* a route ends, another may take its place */
void sim_set_rates(struct rh_sim *sim, struct sim_flow *const *flow, int flows);

#endif
