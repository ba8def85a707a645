/* The event loop: begins every command that can begin, then advances the clock to the next end. */
#include "device/sim/sim_internal.h"

#include "core/minmax.h"

#include <math.h>

/* Ends that differ by at most SAME_S, or by SAME of the time to the next end, count as simultaneous: they are the same sum, added in
 * another order. */
static const double SAME_S = 1e-12, SAME = 1e-9;

static void begin_task(struct sim_queue *queue)
{
	struct rh_sim *sim = queue->sim;
	const struct sim_command *command = &queue->command[queue->first];
	const struct sim_route *route = command->route;
	RH_ASSERT(sim->actives < (int)(sizeof sim->active / sizeof *sim->active));
	double rate = route->uses ? 0 : route->most > 0 ? route->most : HUGE_VAL, begins = sim->now_s + command->delay_s;
	queue->state = SIM_RUNNING;
	queue->flow = (struct sim_flow){.route = route, .rate = rate};
	queue->remaining = command->amount;
	queue->delayed = command->delay_s > 0;
	queue->since_s = sim->now_s;
	sim->active[sim->actives++] =
	        (struct sim_active){queue->delayed ? begins : sim->now_s + (route->uses ? 0 : queue->remaining / rate), queue};
	sim->rates_are_stale |= !queue->delayed && route->uses;
}

static void end_job(struct sim_queue *queue, const struct rh_host_job *job)
{
	if (!rh_fault_code(&queue->host.fault) && job->run)
		rh_fault_keep(&queue->host.fault, job->run(job->context, job->argument));
	queue->host.done++;
	queue->sim->ask_workers |= job->run || queue->worker.next; /* a job without `run` and worker only takes time */
}

static void reach(struct rh_sim *sim, struct sim_point *point)
{
	point->done = 1;
	point->at_s = sim->now_s;
	sim->ask_workers |= point->was_queried;
	for (struct sim_queue *queue = point->waiting, *next; queue; queue = next) {
		next = queue->next_waiting;
		sim_make_ready(queue);
	}
	point->waiting = NULL;
}

/* Runs commands until one takes time, or waits. */
static void step_queue(struct sim_queue *queue)
{
	struct rh_sim *sim = queue->sim;
	queue->state = SIM_IDLE;
	while (queue->first < queue->count) {
		struct sim_command *command = &queue->command[queue->first];
		if (command->kind == SIM_TASK) {
			begin_task(queue);
			return;
		}
		if (command->kind == SIM_WAIT && !command->point->done) {
			queue->state = SIM_WAITING;
			queue->next_waiting = command->point->waiting;
			command->point->waiting = queue;
			return;
		}
		if (command->kind == SIM_RECORD)
			reach(sim, command->point);
		if (command->kind == SIM_JOB)
			end_job(queue, &queue->host.job[command->job]);
		else
			sim_point_release(sim, command->point);
		sim_pop(queue);
	}
}

/* Asks the worker of an idle queue for a job. */
static void ask_worker(struct sim_queue *queue)
{
	struct rh_host_job job = {0};
	if (rh_fault_code(&queue->host.fault) || !sim_queue_idle(queue))
		return;
	queue->seen_changes = queue->worker.changes ? *queue->worker.changes : -1;
	if (!queue->worker.next(queue->worker.context, &job))
		return;
	int rc = sim_work(queue, &job);
	if (!rc)
		rc = sim_job(queue, &job);
	rh_fault_keep(&queue->host.fault, rc);
	queue->host.submitted += !rc;
}

int sim_settle(struct rh_sim *sim)
{
	int any = 0;
	RH_ASSERT(!sim->is_settling); /* a job must not wait: it would wait for itself */
	sim->is_settling = 1;
	do {
		for (struct sim_queue *queue; (queue = sim->ready); any = 1) {
			sim->ready = queue->next_ready;
			if (!sim->ready)
				sim->ready_end = &sim->ready;
			step_queue(queue);
		}
		if (sim->ask_workers)
			for (struct sim_queue *queue = sim->workers; queue; queue = queue->next_worker)
				ask_worker(queue);
		sim->ask_workers = 0;
	} while (sim->ready);
	sim->is_settling = 0;
	return any;
}

int sim_enter(struct rh_sim *sim)
{
	for (const struct sim_queue *queue = sim->workers; queue; queue = queue->next_worker)
		sim->ask_workers |= !queue->worker.changes || *queue->worker.changes != queue->seen_changes;
	return sim_settle(sim);
}

/* Recomputes the rates of all flows that share resources, and when they end. */
static void share(struct rh_sim *sim)
{
	struct sim_flow *flow[sizeof sim->active / sizeof *sim->active];
	struct sim_active *of[sizeof sim->active / sizeof *sim->active];
	int flows = 0;
	for (int i = 0; i < sim->actives; i++) {
		struct sim_queue *queue = sim->active[i].queue;
		if (queue->delayed || !queue->flow.route->uses)
			continue;
		if (queue->flow.rate < HUGE_VAL)
			queue->remaining = rh_max_double(queue->remaining - queue->flow.rate * (sim->now_s - queue->since_s), 0);
		queue->since_s = sim->now_s;
		of[flows] = &sim->active[i];
		flow[flows++] = &queue->flow;
	}
	if (flows)
		sim_set_rates(sim, flow, flows);
	for (int i = 0; i < flows; i++)
		of[i]->ends_s = sim->now_s + (of[i]->queue->flow.rate < HUGE_VAL ? of[i]->queue->remaining / of[i]->queue->flow.rate : 0);
	sim->rates_are_stale = 0;
}

/* The end of a delay (0: the task now flows) or of a task (1). */
static int end_task(struct rh_sim *sim, struct sim_active *active)
{
	struct sim_queue *queue = active->queue;
	const struct sim_route *route = queue->flow.route;
	if (!queue->delayed) {
		sim->rates_are_stale |= route->uses > 0;
		sim_pop(queue);
		sim_make_ready(queue);
		return 1;
	}
	queue->delayed = 0;
	queue->since_s = sim->now_s;
	sim->rates_are_stale |= route->uses > 0;
	active->ends_s = sim->now_s + (route->uses || queue->flow.rate >= HUGE_VAL ? 0 : queue->remaining / queue->flow.rate);
	return 0;
}

double sim_next_end(struct rh_sim *sim)
{
	double next = HUGE_VAL;
	if (sim->rates_are_stale)
		share(sim);
	for (int i = 0; i < sim->actives; i++)
		next = rh_min_double(next, sim->active[i].ends_s);
	return next;
}

int sim_move(struct rh_sim *sim, double next_s)
{
	double until = next_s + SAME_S + SAME * (next_s - sim->now_s);
	sim->now_s = next_s;
	sim->vain_queries = 0;
	int left = 0, ended = 0;
	for (int i = 0; i < sim->actives; i++) {
		int is_due = sim->active[i].ends_s <= until;
		ended += is_due;
		if (!is_due || !end_task(sim, &sim->active[i]))
			sim->active[left++] = sim->active[i];
	}
	sim->actives = left;
	return ended;
}

void sim_advance(struct rh_sim *sim)
{
	if (sim->clock) {
		sim_clock_advance(sim->clock);
		return;
	}
	RH_ASSERT(sim->actives > 0); /* else the host waits for something that no command will do */
	sim_move(sim, sim_next_end(sim));
}
