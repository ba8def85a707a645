/* Inside the simulated machine: queues of commands (one for each stream of a device, one for each host queue), and the event loop that
 * advances virtual time. */
#ifndef RH_DEVICE_SIM_INTERNAL_H
#define RH_DEVICE_SIM_INTERNAL_H

#include "core/fault.h"
#include "device/sim/clock.h"
#include "device/sim/flow.h"
#include "device/sim/sim.h"

#include <stddef.h>

/* One record of an event. Whoever waits keeps a reference, so that recording the event again does not move the wait. */
struct sim_point {
	int references, done;
	int was_queried; /* a worker queried it before it was done */
	double at_s;
	struct sim_queue *waiting; /* list of the queues whose next command waits for this point */
};

struct sim_event {
	struct rh_event base;
	struct rh_sim *sim;
	enum rh_event_use use;
	struct sim_point *point; /* of the latest record; NULL: never recorded */
};

enum sim_command_kind { SIM_TASK, SIM_RECORD, SIM_WAIT, SIM_JOB };

/* SIM_TASK: moves `amount` of the route's units after `delay_s`. SIM_RECORD, SIM_WAIT: own a reference to `point`. SIM_JOB: runs job number
 * `job` of the queue, after the task that stands for its time. */
struct sim_command {
	enum sim_command_kind kind;
	int count; /* device commands that were merged into this one */
	double amount, delay_s;
	union {
		const struct sim_route *route;
		struct sim_point *point;
		size_t job;
	};
};

/* Runs its commands in order, one task at a time.
 *
 *   idle --append--> ready --step_queue, a task--> running --end_task--> ready
 *                          --step_queue, a wait--> waiting (in the list of the point) --reach--> ready
 *                          --step_queue, no command left--> idle */
struct sim_queue {
	struct rh_sim *sim;
	struct sim_command *command; /* [first, count) are pending */
	size_t first, count, capacity;
	int64_t pending, pending_max; /* device commands enqueued and not finished; their bound, 0: none */
	enum { SIM_IDLE, SIM_READY, SIM_RUNNING, SIM_WAITING } state;
	struct sim_flow flow;      /* of the task at `first`, while it runs */
	double remaining, since_s; /* units of this task that were left at time since_s */
	int delayed;               /* delay_s has not passed yet: nothing flows */
	struct {
		struct rh_host_job *job; /* of its SIM_JOB commands */
		size_t count, capacity;
		int64_t submitted, done;
		struct rh_fault fault; /* of a job */
	} host;                        /* of a host queue */
	struct rh_host_worker worker;
	int64_t seen_changes;           /* value of *worker.changes when the worker was asked last */
	struct sim_queue *next_worker;  /* list of the queues with a worker */
	struct sim_queue *next_ready;   /* list of the ready queues */
	struct sim_queue *next_waiting; /* list of the queues that wait for the same point */
};

/* Items of one size, which are allocated in blocks and used again. */
struct sim_pool {
	size_t bytes; /* of an item */
	struct sim_pool_block *blocks;
	struct sim_pool_item {
		struct sim_pool_item *next;
	} * unused;
};

/* A running task. */
struct sim_active {
	double ends_s; /* at the present rates: when its delay ends, or else the task */
	struct sim_queue *queue;
};

enum sim_way { SIM_UP, SIM_DOWN, SIM_WAYS };

struct sim_device {
	struct rh_device base;
	struct rh_sim *sim;
	struct sim_queue stream[RH_STREAMS];
	struct sim_route compute, copy[SIM_WAYS];
	int64_t cap_bytes, reserved_bytes;
};

struct sim_host_queue {
	struct rh_host_queue base;
	struct sim_queue queue;
};

enum { SIM_DEVICES_MAX = 64, SIM_RESOURCES = 6 * SIM_DEVICES_MAX + 8 };

/* The simulated machine: its clock, its queues, and one entry a resource that flows share. More than 20 members: the resources by name. */
struct rh_sim {
	int references; /* of the creator, devices, events and host queues */
	double now_s;
	struct rh_sim_clock *clock; /* NULL: its own */
	struct sim_queue *ready, **ready_end, *workers;
	int ask_workers; /* something happened that a worker may wait for */
	struct sim_pool points, events;
	struct sim_durations *durations;
	struct sim_shares *shares;
	struct rh_hardware_device profile; /* a copy with its own tables */
	struct rh_hardware hardware;       /* its numbers only: its strings and tables belong to the creator and may be gone */
	int devices;
	double share;            /* of the profile's device, for each device */
	int64_t stream_capacity; /* rh_sim_options */
	struct sim_route work[RH_HOST_WORKS];
	double capacity[SIM_RESOURCES], spare[SIM_RESOURCES], load[SIM_RESOURCES];
	int resources;
	int is_settling;
	int vain_queries;    /* of events, since the time is what it is */
	int rates_are_stale; /* a flow began or ended since the rates were set */
	struct sim_active active[SIM_DEVICES_MAX * RH_STREAMS + 64];
	int actives;
	int dram, cores, nvme_read, nvme_write, nvme_mixed; /* numbers of resources, -1: unlimited */
	int link_up[SIM_DEVICES_MAX], link_down[SIM_DEVICES_MAX], link_both[SIM_DEVICES_MAX];
	int switch_up[SIM_DEVICES_MAX], switch_down[SIM_DEVICES_MAX], switch_both[SIM_DEVICES_MAX]; /* one for each switch */
};

/* resources.c: resources of the machine, and which of them each kind of transfer and work uses. */
void sim_resources(struct rh_sim *sim, enum rh_state_layout layout);
void sim_device_routes(struct rh_sim *sim, struct sim_device *device);

/* sim.c: enqueueing. */
void sim_reference(struct rh_sim *sim);
void sim_queue_open(struct rh_sim *sim, struct sim_queue *queue);
void sim_queue_close(struct sim_queue *queue); /* must be idle */
int sim_task(struct sim_queue *queue, const struct sim_route *route, double amount);
int sim_record(struct sim_queue *queue, struct sim_event *event);
int sim_wait(struct sim_queue *queue, struct sim_event *event);
/* Appends the task that takes the job's time; sim_job appends the job itself. */
int sim_work(struct sim_queue *queue, const struct rh_host_job *job);
int sim_job(struct sim_queue *queue, const struct rh_host_job *job);
void sim_point_release(struct rh_sim *sim, struct sim_point *point);
struct sim_event *sim_event_take(struct rh_sim *sim); /* all zero; NULL: no memory */
void sim_event_give(struct sim_event *event);
/* Removes the first command, which has finished. */
void sim_pop(struct sim_queue *queue);
/* The queue's next command may begin. */
void sim_make_ready(struct sim_queue *queue);
/* From now on the worker is asked for a job whenever the queue is idle. */
void sim_serve(struct sim_queue *queue, const struct rh_host_worker *worker);
/* The first call when the host begins to wait: begins every command that can begin at the present time. The host may have changed what
 * workers look at, so they are asked too. 1: anything began. */
int sim_enter(struct rh_sim *sim);
/* The same for the later calls of one wait. */
int sim_settle(struct rh_sim *sim);
/* Advances time to the next end of a task or delay; asserts that there is one. On a common clock, lets time advance (clock.h). */
void sim_advance(struct rh_sim *sim);
/* Its two halves: the next end, HUGE_VAL where nothing runs; and time becomes next_s, at most the next end. Returns how
 * many tasks have ended. */
double sim_next_end(struct rh_sim *sim);
int sim_move(struct rh_sim *sim, double next_s);
int sim_queue_idle(const struct sim_queue *queue);

/* clock.c: the host that has the turn waits until time has advanced; a machine's place on the clock is that host's. */
void sim_clock_advance(struct rh_sim_clock *clock);
void sim_clock_join(struct rh_sim_clock *clock, struct rh_sim *sim);
void sim_clock_part(struct rh_sim_clock *clock, const struct rh_sim *sim);

/* durations.c: a cache of rh_sim_op_seconds by shapes, because a run emits the same few thousand shapes again and again. */
int sim_durations_create(struct sim_durations **out) RH_MUST;
void sim_durations_free(struct sim_durations *durations);
double sim_op_seconds(struct rh_sim *sim, const struct rh_op *op);

/* shares.c: sim_share, with a cache by the routes of the flows. It sorts the flows by route. */
int sim_shares_create(struct sim_shares **out) RH_MUST;
void sim_shares_free(struct sim_shares *shares);
void sim_set_rates(struct rh_sim *sim, struct sim_flow **flow, int flows);

#endif
