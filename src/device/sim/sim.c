#include "device/sim/sim_internal.h"

#include "core/alloc.h"

#include <math.h>
#include <string.h>

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
	int rc = copy_profile(&options->hardware->device, &sim->profile);
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
	rh_free(sim);
}

double rh_sim_seconds(const struct rh_sim *sim)
{
	return sim->now_s;
}

void sim_lane_open(struct rh_sim *sim, struct sim_lane *lane)
{
	*lane = (struct sim_lane){.sim = sim, .next = sim->lanes};
	sim->lanes = lane;
}

int sim_lane_idle(const struct sim_lane *lane)
{
	return lane->first == lane->count;
}

void sim_lane_close(struct sim_lane *lane)
{
	struct sim_lane **at = &lane->sim->lanes;
	RH_ASSERT(sim_lane_idle(lane));
	while (*at != lane)
		at = &(*at)->next;
	*at = lane->next;
	rh_free(lane->command);
}

void sim_point_release(struct sim_point *point)
{
	if (point && !--point->holders)
		rh_free(point);
}

/* A place at the lane's end; those of commands that are over are used again. */
static struct sim_command *append(struct sim_lane *lane)
{
	if (lane->first == lane->count)
		lane->first = lane->count = 0;
	if (lane->count == lane->capacity && lane->first > lane->count / 2) {
		memmove(lane->command, lane->command + lane->first, (lane->count - lane->first) * sizeof *lane->command);
		lane->count -= lane->first;
		lane->first = 0;
	}
	if (rh_grow(&lane->command, &lane->capacity, lane->count + 1, sizeof *lane->command))
		return NULL;
	lane->command[lane->count] = (struct sim_command){0};
	return &lane->command[lane->count++];
}

int sim_task(struct sim_lane *lane, const struct sim_route *route, double amount)
{
	struct sim_command *last = lane->count > lane->first + (size_t)lane->running ? &lane->command[lane->count - 1] : NULL;
	if (last && last->kind == SIM_TASK && last->route == route && !(route->delay_s > 0)) {
		last->amount += amount; /* one after the other is as good as one */
		return 0;
	}
	struct sim_command *command = append(lane);
	if (!command)
		return -ENOMEM;
	*command = (struct sim_command){.kind = SIM_TASK, .amount = amount, .route = route};
	return 0;
}

int sim_record(struct sim_lane *lane, struct sim_event *event)
{
	struct sim_point *point = rh_alloc(1, sizeof *point);
	struct sim_command *command = point ? append(lane) : NULL;
	if (!command) {
		rh_free(point);
		return -ENOMEM;
	}
	sim_point_release(event->point);
	event->point = point;
	point->holders = 2; /* the event and the command */
	*command = (struct sim_command){.kind = SIM_RECORD, .point = point};
	return 0;
}

int sim_wait(struct sim_lane *lane, struct sim_event *event)
{
	if (!event->point || event->point->done)
		return 0;
	struct sim_command *command = append(lane);
	if (!command)
		return -ENOMEM;
	event->point->holders++;
	*command = (struct sim_command){.kind = SIM_WAIT, .point = event->point};
	return 0;
}

int sim_job(struct sim_lane *lane, const struct rh_host_job *job)
{
	struct sim_command *command = append(lane);
	if (!command)
		return -ENOMEM;
	*command = (struct sim_command){.kind = SIM_JOB, .job = *job};
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

static void begin_task(struct sim_lane *lane)
{
	struct rh_sim *sim = lane->sim;
	const struct sim_command *command = &lane->command[lane->first];
	RH_ASSERT(sim->flowings < (int)(sizeof sim->flowing / sizeof *sim->flowing));
	lane->running = 1;
	lane->flow = (struct sim_flow){.route = command->route};
	lane->delay_s = command->route->delay_s;
	lane->left = command->amount;
	sim->flowing[sim->flowings++] = lane;
	if (command->route->uses)
		sim->changed = 1;
	else
		lane->flow.rate = command->route->most > 0 ? command->route->most : HUGE_VAL;
}

static void end_job(struct sim_lane *lane, const struct rh_host_job *job)
{
	if (!lane->rc && job->run) {
		lane->rc = job->run(job->context, job->argument);
		if (lane->rc)
			strncpy(lane->line, rh_error(lane->rc), sizeof lane->line - 1);
	}
	lane->done++;
}

/* Asks an idle queue's worker; 1 if there is something to do now. */
static int ask_worker(struct sim_lane *lane)
{
	struct rh_host_job job = {0};
	if (!lane->worker.next || lane->rc || !sim_lane_idle(lane) || !lane->worker.next(lane->worker.context, &job))
		return 0;
	lane->rc = sim_work(lane, &job);
	if (!lane->rc)
		lane->rc = sim_job(lane, &job);
	lane->jobs += !lane->rc;
	return !lane->rc;
}

/* Goes as far as it can without time; 1 if that was anywhere. */
static int step_lane(struct sim_lane *lane)
{
	if (lane->running)
		return 0;
	size_t before = lane->first;
	int was_running = 0, asked = ask_worker(lane);
	while (lane->first < lane->count && !lane->running) {
		struct sim_command *command = &lane->command[lane->first];
		if (command->kind == SIM_TASK) {
			begin_task(lane);
			break;
		}
		if (command->kind == SIM_WAIT && !command->point->done)
			break;
		if (command->kind == SIM_RECORD) {
			command->point->done = 1;
			command->point->at_s = lane->sim->now_s;
		}
		if (command->kind == SIM_JOB)
			end_job(lane, &command->job);
		sim_point_release(command->point);
		lane->first++;
	}
	return asked || lane->first != before || lane->running != was_running;
}

int sim_settle(struct rh_sim *sim)
{
	int any = 0;
	RH_ASSERT(!sim->settling); /* a job that waits would wait for itself */
	sim->settling = 1;
	for (int moved = 1; moved; any |= moved) {
		moved = 0;
		for (struct sim_lane *lane = sim->lanes; lane; lane = lane->next)
			moved |= step_lane(lane);
	}
	sim->settling = 0;
	return any;
}

static void share(struct rh_sim *sim)
{
	struct sim_flow *flow[sizeof sim->flowing / sizeof *sim->flowing];
	int flows = 0;
	for (int i = 0; i < sim->flowings; i++)
		if (!(sim->flowing[i]->delay_s > 0))
			flow[flows++] = &sim->flowing[i]->flow;
	sim_share(flow, flows, sim->capacity, sim->resources, sim->spare, sim->load);
	sim->changed = 0;
}

static double seconds_left(const struct sim_lane *lane)
{
	if (lane->delay_s > 0)
		return lane->delay_s;
	return lane->left > 0 && lane->flow.rate < HUGE_VAL ? lane->left / lane->flow.rate : 0;
}

void sim_advance(struct rh_sim *sim)
{
	double next = HUGE_VAL;
	int left = 0;
	RH_ASSERT(sim->flowings > 0); /* else the host waits for what nobody will do */
	if (sim->changed)
		share(sim);
	for (int i = 0; i < sim->flowings; i++)
		next = fmin(next, seconds_left(sim->flowing[i]));
	sim->now_s += next;
	for (int i = 0; i < sim->flowings; i++) {
		struct sim_lane *lane = sim->flowing[i];
		int ends = seconds_left(lane) <= next * (1 + 1e-9);
		if (lane->delay_s > 0) {
			lane->delay_s = ends ? 0 : lane->delay_s - next;
			sim->changed |= ends;
			ends = 0;
		} else if (!ends) {
			lane->left -= lane->flow.rate * next;
		}
		if (ends) {
			lane->running = 0;
			lane->first++;
			sim->changed |= lane->flow.route->uses > 0;
		} else {
			sim->flowing[left++] = lane;
		}
	}
	sim->flowings = left;
}
