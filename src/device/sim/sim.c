/* The machine, and what is enqueued on its lanes. */
#include "device/sim/sim_internal.h"

#include "core/alloc.h"

#include <math.h>
#include <string.h>

/* Points are made many at once, and used again. */
enum { POINTS = 1024 };

struct sim_points {
	struct sim_points *next;
	struct sim_point point[POINTS];
};

static int copy_profile(const struct rh_hardware_device *from, struct rh_hardware_device *to)
{
	*to = *from;
	to->name = to->source = NULL;
	to->gemm = NULL;
	to->op = NULL;
	to->gemms = to->ops = to->gemm_capacity = to->op_capacity = 0;
	int rc = rh_grow(&to->gemm, &to->gemm_capacity, from->gemms + 1, sizeof *to->gemm);
	rc = rc ? rc : rh_grow(&to->op, &to->op_capacity, from->ops + 1, sizeof *to->op);
	if (rc)
		return rc;
	if (from->gemms)
		memcpy(to->gemm, from->gemm, from->gemms * sizeof *to->gemm);
	to->gemms = from->gemms;
	for (; !rc && to->ops < from->ops; to->ops += !rc) {
		to->op[to->ops] = from->op[to->ops];
		to->op[to->ops].op = rh_strdup(from->op[to->ops].op);
		rc = to->op[to->ops].op ? 0 : -ENOMEM;
	}
	return rc;
}

int rh_sim_create(const struct rh_sim_options *options, struct rh_sim **out)
{
	RH_ASSERT(options->devices >= 1 && options->devices <= SIM_DEVICES_MAX);
	struct rh_sim *sim = rh_alloc(1, sizeof *sim);
	if (!sim)
		return -ENOMEM;
	sim->holders = 1;
	sim->devices = options->devices;
	sim->hardware = *options->hardware;
	sim->share = options->hardware->device.on_host_cores ? 1.0 / options->devices : 1;
	sim->stream_holds = options->stream_holds;
	sim->ready_end = &sim->ready;
	int rc = copy_profile(&options->hardware->device, &sim->profile);
	rc = rc ? rc : sim_durations_create(&sim->durations);
	rc = rc ? rc : sim_shares_create(&sim->shares);
	if (rc) {
		rh_sim_release(sim);
		return rc;
	}
	sim_resources(sim, options->layout);
	*out = sim;
	return 0;
}

void sim_hold(struct rh_sim *sim)
{
	sim->holders++;
}

void rh_sim_release(struct rh_sim *sim)
{
	if (!sim || --sim->holders)
		return;
	for (size_t i = 0; i < sim->profile.ops; i++)
		rh_free(sim->profile.op[i].op);
	rh_free(sim->profile.op);
	rh_free(sim->profile.gemm);
	sim_durations_free(sim->durations);
	sim_shares_free(sim->shares);
	for (struct sim_points *points = sim->points, *next; points; points = next) {
		next = points->next;
		rh_free(points);
	}
	rh_free(sim);
}

double rh_sim_seconds(const struct rh_sim *sim)
{
	return sim->now_s;
}

void sim_lane_open(struct rh_sim *sim, struct sim_lane *lane)
{
	*lane = (struct sim_lane){.sim = sim};
}

int sim_lane_idle(const struct sim_lane *lane)
{
	return lane->first == lane->count;
}

void sim_serve(struct sim_lane *lane, const struct rh_host_worker *worker)
{
	lane->worker = *worker;
	lane->seen = -1;
	lane->next_worker = lane->sim->workers;
	lane->sim->workers = lane;
}

void sim_lane_close(struct sim_lane *lane)
{
	RH_ASSERT(lane->state == SIM_AT_REST);
	for (struct sim_lane **at = &lane->sim->workers; *at; at = &(*at)->next_worker)
		if (*at == lane) {
			*at = lane->next_worker;
			break;
		}
	rh_free(lane->command);
	rh_free(lane->job);
}

static struct sim_point *take_point(struct rh_sim *sim)
{
	if (!sim->spare_points) {
		struct sim_points *more = rh_alloc(1, sizeof *more);
		if (!more)
			return NULL;
		more->next = sim->points;
		sim->points = more;
		for (int i = 0; i < POINTS; i++) {
			more->point[i].next = sim->spare_points;
			sim->spare_points = &more->point[i];
		}
	}
	struct sim_point *point = sim->spare_points;
	sim->spare_points = point->next;
	*point = (struct sim_point){0};
	return point;
}

void sim_point_release(struct rh_sim *sim, struct sim_point *point)
{
	if (!point || --point->holders)
		return;
	point->next = sim->spare_points;
	sim->spare_points = point;
}

void sim_make_ready(struct sim_lane *lane)
{
	struct rh_sim *sim = lane->sim;
	lane->state = SIM_READY;
	lane->next_ready = NULL;
	*sim->ready_end = lane;
	sim->ready_end = &lane->next_ready;
}

void sim_next(struct sim_lane *lane)
{
	lane->held -= lane->command[lane->first++].count;
}

/* The host waits until the lane holds one command less. */
static void make_room(struct sim_lane *lane)
{
	if (!lane->room || lane->held < lane->room)
		return;
	for (sim_enter(lane->sim); lane->held >= lane->room; sim_settle(lane->sim))
		sim_advance(lane->sim);
}

/* A place at the lane's end; those of commands that are over are used again. */
static struct sim_command *append(struct sim_lane *lane)
{
	if (lane->first == lane->count)
		lane->first = lane->count = lane->job_count = 0;
	if (lane->count == lane->capacity && lane->first > lane->count / 2) {
		memmove(lane->command, lane->command + lane->first, (lane->count - lane->first) * sizeof *lane->command);
		lane->count -= lane->first;
		lane->first = 0;
	}
	if (rh_grow(&lane->command, &lane->capacity, lane->count + 1, sizeof *lane->command))
		return NULL;
	if (lane->state == SIM_AT_REST)
		sim_make_ready(lane);
	lane->held++;
	return &lane->command[lane->count++];
}

int sim_task(struct sim_lane *lane, const struct sim_route *route, double amount)
{
	enum { PARTS = 16 }; /* of a lane's room */
	make_room(lane);
	size_t begun = lane->first + (lane->state == SIM_RUNNING);
	struct sim_command *last = lane->count > begun ? &lane->command[lane->count - 1] : NULL;
	int is_short = last && (!lane->room || last->count < lane->room / PARTS);
	if (is_short && last->kind == SIM_TASK && last->route == route) { /* one after the other is as good as one */
		last->amount += amount;
		last->delay_s += route->delay_s;
		last->count++;
		lane->held++;
		return 0;
	}
	struct sim_command *command = append(lane);
	if (!command)
		return -ENOMEM;
	*command = (struct sim_command){.kind = SIM_TASK, .count = 1, .amount = amount, .delay_s = route->delay_s, .route = route};
	return 0;
}

int sim_record(struct sim_lane *lane, struct sim_event *event)
{
	make_room(lane);
	struct sim_point *point = take_point(lane->sim);
	if (!point)
		return -ENOMEM;
	struct sim_command *command = append(lane);
	point->holders = command ? 2 : 1; /* the event and the command */
	if (!command) {
		sim_point_release(lane->sim, point);
		return -ENOMEM;
	}
	sim_point_release(lane->sim, event->point);
	event->point = point;
	*command = (struct sim_command){.kind = SIM_RECORD, .count = 1, .point = point};
	return 0;
}

int sim_wait(struct sim_lane *lane, struct sim_event *event)
{
	make_room(lane);
	if (!event->point || event->point->done)
		return 0;
	struct sim_command *command = append(lane);
	if (!command)
		return -ENOMEM;
	event->point->holders++;
	*command = (struct sim_command){.kind = SIM_WAIT, .count = 1, .point = event->point};
	return 0;
}

int sim_job(struct sim_lane *lane, const struct rh_host_job *job)
{
	/* the job's place first: a command without one must not be appended */
	if (rh_grow(&lane->job, &lane->job_capacity, lane->job_count + 1, sizeof *lane->job))
		return -ENOMEM;
	struct sim_command *command = append(lane);
	if (!command)
		return -ENOMEM;
	*command = (struct sim_command){.kind = SIM_JOB, .count = 1, .job = lane->job_count};
	lane->job[lane->job_count++] = *job;
	return 0;
}

/* Seconds that so much of a route takes alone. */
static double alone(const struct rh_sim *sim, const struct sim_route *route, double amount)
{
	double rate = route->most > 0 ? route->most : HUGE_VAL;
	for (int u = 0; u < route->uses; u++)
		rate = fmin(rate, sim->capacity[route->use[u].resource] / route->use[u].weight);
	return amount / rate;
}

int sim_work(struct sim_lane *lane, const struct rh_host_job *job)
{
	const struct sim_route *route = &lane->sim->work[job->work], *nvme = &lane->sim->work[RH_HOST_NVME];
	if (job->nvme_bytes > 0 && alone(lane->sim, nvme, job->nvme_bytes) > alone(lane->sim, route, job->bytes))
		return sim_task(lane, nvme, job->nvme_bytes);
	return job->bytes > 0 ? sim_task(lane, route, job->bytes) : 0;
}
