/* How time passes: what can begin does, then the clock goes to the next end. */
#include "device/sim/sim_internal.h"

#include <math.h>

/* What ends within so much of the next end, or share of the way to it, ends with it: sums of the same figures in another order. */
static const double SAME_S = 1e-12, SAME = 1e-9;

static void begin_task(struct sim_lane *lane)
{
	struct rh_sim *sim = lane->sim;
	const struct sim_command *command = &lane->command[lane->first];
	const struct sim_route *route = command->route;
	RH_ASSERT(sim->actives < (int)(sizeof sim->active / sizeof *sim->active));
	double rate = route->uses ? 0 : route->most > 0 ? route->most : HUGE_VAL, begins = sim->now_s + command->delay_s;
	lane->state = SIM_RUNNING;
	lane->flow = (struct sim_flow){.route = route, .rate = rate};
	lane->left = command->amount;
	lane->delayed = command->delay_s > 0;
	lane->since_s = sim->now_s;
	sim->active[sim->actives++] =
	        (struct sim_active){lane->delayed ? begins : sim->now_s + (route->uses ? 0 : lane->left / rate), lane};
	sim->changed |= !lane->delayed && route->uses;
}

static void end_job(struct sim_lane *lane, const struct rh_host_job *job)
{
	if (!rh_fault_code(&lane->fault) && job->run)
		rh_fault_keep(&lane->fault, job->run(job->context, job->argument));
	lane->done++;
	lane->sim->ask |= job->run || lane->worker.next; /* else only its time is over */
}

static void reach(struct rh_sim *sim, struct sim_point *point)
{
	point->done = 1;
	point->at_s = sim->now_s;
	sim->ask |= point->asked;
	for (struct sim_lane *lane = point->waiting, *next; lane; lane = next) {
		next = lane->next_waiting;
		sim_make_ready(lane);
	}
	point->waiting = NULL;
}

/* Goes as far as it can without time. */
static void step_lane(struct sim_lane *lane)
{
	struct rh_sim *sim = lane->sim;
	lane->state = SIM_AT_REST;
	while (lane->first < lane->count) {
		struct sim_command *command = &lane->command[lane->first];
		if (command->kind == SIM_TASK) {
			begin_task(lane);
			return;
		}
		if (command->kind == SIM_WAIT && !command->point->done) {
			lane->state = SIM_WAITING;
			lane->next_waiting = command->point->waiting;
			command->point->waiting = lane;
			return;
		}
		if (command->kind == SIM_RECORD)
			reach(sim, command->point);
		if (command->kind == SIM_JOB)
			end_job(lane, &lane->job[command->job]);
		else
			sim_point_release(sim, command->point);
		sim_next(lane);
	}
}

/* Asks an idle queue's worker. */
static void ask_worker(struct sim_lane *lane)
{
	struct rh_host_job job = {0};
	if (rh_fault_code(&lane->fault) || !sim_lane_idle(lane))
		return;
	lane->seen = lane->worker.changes ? *lane->worker.changes : -1;
	if (!lane->worker.next(lane->worker.context, &job))
		return;
	int rc = sim_work(lane, &job);
	if (!rc)
		rc = sim_job(lane, &job);
	rh_fault_keep(&lane->fault, rc);
	lane->jobs += !rc;
}

int sim_settle(struct rh_sim *sim)
{
	int any = 0;
	RH_ASSERT(!sim->settling); /* a job that waits would wait for itself */
	sim->settling = 1;
	do {
		for (struct sim_lane *lane; (lane = sim->ready); any = 1) {
			sim->ready = lane->next_ready;
			if (!sim->ready)
				sim->ready_end = &sim->ready;
			step_lane(lane);
		}
		if (sim->ask)
			for (struct sim_lane *lane = sim->workers; lane; lane = lane->next_worker)
				ask_worker(lane);
		sim->ask = 0;
	} while (sim->ready);
	sim->settling = 0;
	return any;
}

int sim_enter(struct rh_sim *sim)
{
	for (const struct sim_lane *lane = sim->workers; lane; lane = lane->next_worker)
		sim->ask |= !lane->worker.changes || *lane->worker.changes != lane->seen;
	return sim_settle(sim);
}

/* What shares anything goes on at other rates from now on. */
static void share(struct rh_sim *sim)
{
	struct sim_flow *flow[sizeof sim->active / sizeof *sim->active];
	struct sim_active *of[sizeof sim->active / sizeof *sim->active];
	int flows = 0;
	for (int i = 0; i < sim->actives; i++) {
		struct sim_lane *lane = sim->active[i].lane;
		if (lane->delayed || !lane->flow.route->uses)
			continue;
		if (lane->flow.rate < HUGE_VAL)
			lane->left = fmax(lane->left - lane->flow.rate * (sim->now_s - lane->since_s), 0);
		lane->since_s = sim->now_s;
		of[flows] = &sim->active[i];
		flow[flows++] = &lane->flow;
	}
	if (flows)
		sim_set_rates(sim, flow, flows);
	for (int i = 0; i < flows; i++)
		of[i]->ends_s = sim->now_s + (flow[i]->rate < HUGE_VAL ? of[i]->lane->left / flow[i]->rate : 0);
	sim->changed = 0;
}

/* Its delay is over, or all of it. */
static int ends(struct rh_sim *sim, struct sim_active *active)
{
	struct sim_lane *lane = active->lane;
	const struct sim_route *route = lane->flow.route;
	if (!lane->delayed) {
		sim->changed |= route->uses > 0;
		sim_next(lane);
		sim_make_ready(lane);
		return 1;
	}
	lane->delayed = 0;
	lane->since_s = sim->now_s;
	sim->changed |= route->uses > 0;
	active->ends_s = sim->now_s + (route->uses || lane->flow.rate >= HUGE_VAL ? 0 : lane->left / lane->flow.rate);
	return 0;
}

void sim_advance(struct rh_sim *sim)
{
	double next = HUGE_VAL;
	RH_ASSERT(sim->actives > 0); /* else the host waits for what nobody will do */
	if (sim->changed)
		share(sim);
	for (int i = 0; i < sim->actives; i++)
		next = fmin(next, sim->active[i].ends_s);
	double until = next + SAME_S + SAME * (next - sim->now_s);
	sim->now_s = next;
	int left = 0;
	for (int i = 0; i < sim->actives; i++)
		if (sim->active[i].ends_s > until || !ends(sim, &sim->active[i]))
			sim->active[left++] = sim->active[i];
	sim->actives = left;
}
