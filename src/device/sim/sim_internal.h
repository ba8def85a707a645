/* Inside the simulated machine: lanes (a device's streams, host queues) of commands, and the loop that lets time pass. */
#ifndef RH_DEVICE_SIM_INTERNAL_H
#define RH_DEVICE_SIM_INTERNAL_H

#include "device/sim/flow.h"
#include "device/sim/sim.h"

#include <stddef.h>

/* One record of an event: what waits for it holds it, however often the event is recorded again. */
struct sim_point {
	int holders, done;
	double at_s;
};

struct sim_event {
	struct rh_event base;
	struct rh_sim *sim;
	struct sim_point *point; /* the latest record's; NULL: never recorded */
};

enum sim_command_kind { SIM_TASK, SIM_RECORD, SIM_WAIT, SIM_JOB };

/* SIM_TASK: `amount` of the route's units. SIM_RECORD, SIM_WAIT: a held point. SIM_JOB: what a host queue's job does, after its task. */
struct sim_command {
	enum sim_command_kind kind;
	double amount;
	const struct sim_route *route;
	struct sim_point *point;
	struct rh_host_job job;
};

/* Commands in order; one task at a time. */
struct sim_lane {
	struct rh_sim *sim;
	struct sim_command *command; /* [first, count) are still to come */
	size_t first, count, capacity;
	int running;          /* the task at `first` */
	struct sim_flow flow; /* of it */
	double delay_s, left; /* of it: before it flows; units still to flow */
	int64_t jobs, done;   /* of a host queue: submitted, over */
	int rc;               /* first fault of a job */
	char line[256];       /* what it said */
	struct rh_host_worker worker;
	struct sim_lane *next; /* of the machine's */
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
	struct sim_lane *lanes;
	struct rh_hardware_device profile; /* a copy with its own tables */
	struct rh_hardware hardware;       /* numbers alone: strings and tables are the creator's, not to be read */
	int devices;
	double share; /* of the profile's device that each device is */
	struct sim_route work[RH_HOST_WORKS];
	double capacity[SIM_RESOURCES], spare[SIM_RESOURCES], load[SIM_RESOURCES];
	int resources;
	int settling;
	int changed; /* flows began or ended since rates were set */
	struct sim_lane *flowing[SIM_DEVICES_MAX * RH_STREAMS + 64];
	int flowings;
	int dram, cores, nvme_read, nvme_write, nvme_mixed; /* resources, -1: no limit */
	int up[SIM_DEVICES_MAX], down[SIM_DEVICES_MAX], both[SIM_DEVICES_MAX];
	int switch_up[SIM_DEVICES_MAX], switch_down[SIM_DEVICES_MAX], switch_both[SIM_DEVICES_MAX]; /* of each switch */
};

/* resources.c: what there is, and what holds it. */
void sim_resources(struct rh_sim *sim, enum rh_state_layout layout);
void sim_device_routes(struct rh_sim *sim, struct sim_device *device);

/* sim.c */
void sim_hold(struct rh_sim *sim);
void sim_lane_open(struct rh_sim *sim, struct sim_lane *lane);
void sim_lane_close(struct sim_lane *lane); /* it is idle */
int sim_task(struct sim_lane *lane, const struct sim_route *route, double amount);
int sim_record(struct sim_lane *lane, struct sim_event *event);
int sim_wait(struct sim_lane *lane, struct sim_event *event);
/* The time that a job takes. */
int sim_work(struct sim_lane *lane, const struct rh_host_job *job);
int sim_job(struct sim_lane *lane, const struct rh_host_job *job);
void sim_point_release(struct sim_point *point);
/* Begins all that can begin now, without letting time pass. 1 if anything did. */
int sim_settle(struct rh_sim *sim);
/* Lets time pass to the next end of something; asserts that there is one. */
void sim_advance(struct rh_sim *sim);
int sim_lane_idle(const struct sim_lane *lane);

#endif
