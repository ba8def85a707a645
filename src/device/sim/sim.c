/* The machine, and the commands that are enqueued on its queues. */
#include "device/sim/sim_internal.h"

#include "core/alloc.h"

#include <math.h>
#include <string.h>

enum { POOL_BLOCK = 32 << 10 };

struct sim_pool_block {
	struct sim_pool_block *next;
	_Alignas(max_align_t) char item[POOL_BLOCK];
};

/* All zero. NULL: no memory. */
static void *pool_take(struct sim_pool *pool)
{
	if (!pool->unused) {
		struct sim_pool_block *block = rh_alloc(1, sizeof *block);
		if (!block)
			return NULL;
		block->next = pool->blocks;
		pool->blocks = block;
		for (size_t at = 0; at + pool->bytes <= POOL_BLOCK; at += pool->bytes) {
			struct sim_pool_item *item = (void *)(block->item + at);
			item->next = pool->unused;
			pool->unused = item;
		}
	}
	struct sim_pool_item *item = pool->unused;
	pool->unused = item->next;
	return memset(item, 0, pool->bytes);
}

static void pool_give(struct sim_pool *pool, void *taken)
{
	struct sim_pool_item *item = taken;
	item->next = pool->unused;
	pool->unused = item;
}

static void pool_free(struct sim_pool *pool)
{
	for (struct sim_pool_block *block = pool->blocks, *next; block; block = next) {
		next = block->next;
		rh_free(block);
	}
}

static int copy_profile(const struct rh_hardware_device *from, struct rh_hardware_device *to)
{
	*to = *from;
	to->name = to->source = NULL;
	to->gemm = NULL;
	to->op = NULL;
	to->gemms = to->ops = to->gemm_capacity = to->op_capacity = 0;
	int rc = rh_grow(&to->gemm, &to->gemm_capacity, from->gemms + 1, sizeof *to->gemm);
	if (!rc)
		rc = rh_grow(&to->op, &to->op_capacity, from->ops + 1, sizeof *to->op);
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
	sim->references = 1;
	sim->points.bytes = sizeof(struct sim_point);
	sim->events.bytes = sizeof(struct sim_event);
	sim->devices = options->devices;
	sim->hardware = *options->hardware;
	sim->share = options->hardware->device.on_host_cores ? 1.0 / options->devices : 1;
	sim->stream_capacity = options->stream_capacity;
	sim->ready_end = &sim->ready;
	sim->clock = options->clock;
	if (sim->clock) {
		sim->now_s = rh_sim_clock_seconds(sim->clock);
		sim_clock_join(sim->clock, sim);
	}
	int rc = copy_profile(&options->hardware->device, &sim->profile);
	if (!rc)
		rc = sim_durations_create(&sim->durations);
	if (!rc)
		rc = sim_shares_create(&sim->shares);
	if (rc) {
		rh_sim_release(sim);
		return rc;
	}
	sim_resources(sim, options->layout);
	*out = sim;
	return 0;
}

void sim_reference(struct rh_sim *sim)
{
	sim->references++;
}

void rh_sim_release(struct rh_sim *sim)
{
	if (!sim || --sim->references)
		return;
	if (sim->clock)
		sim_clock_part(sim->clock, sim);
	for (size_t i = 0; i < sim->profile.ops; i++)
		rh_free(sim->profile.op[i].op);
	rh_free(sim->profile.op);
	rh_free(sim->profile.gemm);
	sim_durations_free(sim->durations);
	sim_shares_free(sim->shares);
	pool_free(&sim->points);
	pool_free(&sim->events);
	rh_free(sim);
}

double rh_sim_seconds(const struct rh_sim *sim)
{
	return sim->now_s;
}

void sim_queue_open(struct rh_sim *sim, struct sim_queue *queue)
{
	*queue = (struct sim_queue){.sim = sim};
}

int sim_queue_idle(const struct sim_queue *queue)
{
	return queue->first == queue->count;
}

void sim_serve(struct sim_queue *queue, const struct rh_host_worker *worker)
{
	queue->worker = *worker;
	queue->seen_changes = -1;
	queue->next_worker = queue->sim->workers;
	queue->sim->workers = queue;
}

void sim_queue_close(struct sim_queue *queue)
{
	RH_ASSERT(queue->state == SIM_IDLE);
	for (struct sim_queue **at = &queue->sim->workers; *at; at = &(*at)->next_worker)
		if (*at == queue) {
			*at = queue->next_worker;
			break;
		}
	rh_free(queue->command);
	rh_free(queue->host.job);
}

void sim_point_release(struct rh_sim *sim, struct sim_point *point)
{
	if (point && !--point->references)
		pool_give(&sim->points, point);
}

struct sim_event *sim_event_take(struct rh_sim *sim)
{
	struct sim_event *event = pool_take(&sim->events);
	if (event) {
		event->sim = sim;
		sim_reference(sim);
	}
	return event;
}

void sim_event_give(struct sim_event *event)
{
	struct rh_sim *sim = event->sim;
	sim_point_release(sim, event->point);
	pool_give(&sim->events, event);
	rh_sim_release(sim);
}

void sim_make_ready(struct sim_queue *queue)
{
	struct rh_sim *sim = queue->sim;
	queue->state = SIM_READY;
	queue->next_ready = NULL;
	*sim->ready_end = queue;
	sim->ready_end = &queue->next_ready;
}

void sim_pop(struct sim_queue *queue)
{
	queue->pending -= queue->command[queue->first++].count;
}

/* Waits, like a driver whose launch queue is full, until the queue can take one more command. */
static void await_capacity(struct sim_queue *queue)
{
	if (!queue->pending_max || queue->pending < queue->pending_max)
		return;
	for (sim_enter(queue->sim); queue->pending >= queue->pending_max; sim_settle(queue->sim))
		sim_advance(queue->sim);
}

/* A new last command; reuses the memory of finished ones. */
static struct sim_command *append(struct sim_queue *queue)
{
	if (queue->first == queue->count)
		queue->first = queue->count = queue->host.count = 0;
	if (queue->count == queue->capacity && queue->first > queue->count / 2) {
		memmove(queue->command, queue->command + queue->first, (queue->count - queue->first) * sizeof *queue->command);
		queue->count -= queue->first;
		queue->first = 0;
	}
	if (rh_grow(&queue->command, &queue->capacity, queue->count + 1, sizeof *queue->command))
		return NULL;
	if (queue->state == SIM_IDLE)
		sim_make_ready(queue);
	queue->pending++;
	return &queue->command[queue->count++];
}

int sim_task(struct sim_queue *queue, const struct sim_route *route, double amount)
{
	enum { PARTS = 16 }; /* a merged command stays short of 1/PARTS of the capacity */
	await_capacity(queue);
	size_t begun = queue->first + (queue->state == SIM_RUNNING);
	struct sim_command *last = queue->count > begun ? &queue->command[queue->count - 1] : NULL;
	int is_short = last && (!queue->pending_max || last->count < queue->pending_max / PARTS);
	if (is_short && last->kind == SIM_TASK && last->route == route) { /* back to back on one route: merged, the time is the same */
		last->amount += amount;
		last->delay_s += route->delay_s;
		last->count++;
		queue->pending++;
		return 0;
	}
	struct sim_command *command = append(queue);
	if (!command)
		return -ENOMEM;
	*command = (struct sim_command){.kind = SIM_TASK, .count = 1, .amount = amount, .delay_s = route->delay_s, .route = route};
	return 0;
}

/* Timed events only observe: were they counted, a recorded step would fill its streams sooner, and take longer than others do. */
int sim_record(struct sim_queue *queue, struct sim_event *event)
{
	int counted = event->use != RH_EVENT_TIMED;
	if (counted)
		await_capacity(queue);
	struct sim_point *point = pool_take(&queue->sim->points);
	if (!point)
		return -ENOMEM;
	struct sim_command *command = append(queue);
	point->references = command ? 2 : 1; /* the event and the command */
	if (!command) {
		sim_point_release(queue->sim, point);
		return -ENOMEM;
	}
	sim_point_release(queue->sim, event->point);
	event->point = point;
	queue->pending -= !counted;
	*command = (struct sim_command){.kind = SIM_RECORD, .count = counted, .point = point};
	return 0;
}

int sim_wait(struct sim_queue *queue, struct sim_event *event)
{
	await_capacity(queue);
	if (!event->point || event->point->done)
		return 0;
	struct sim_command *command = append(queue);
	if (!command)
		return -ENOMEM;
	event->point->references++;
	*command = (struct sim_command){.kind = SIM_WAIT, .count = 1, .point = event->point};
	return 0;
}

int sim_job(struct sim_queue *queue, const struct rh_host_job *job)
{
	/* first, so that no command is appended whose job has no memory */
	if (rh_grow(&queue->host.job, &queue->host.capacity, queue->host.count + 1, sizeof *queue->host.job))
		return -ENOMEM;
	struct sim_command *command = append(queue);
	if (!command)
		return -ENOMEM;
	*command = (struct sim_command){.kind = SIM_JOB, .count = 1, .job = queue->host.count};
	queue->host.job[queue->host.count++] = *job;
	return 0;
}

/* Seconds that `amount` takes on a route when nothing else runs. */
static double alone(const struct rh_sim *sim, const struct sim_route *route, double amount)
{
	double rate = route->most > 0 ? route->most : HUGE_VAL;
	for (int u = 0; u < route->uses; u++)
		rate = fmin(rate, sim->capacity[route->use[u].resource] / route->use[u].weight);
	return amount / rate;
}

int sim_work(struct sim_queue *queue, const struct rh_host_job *job)
{
	const struct sim_route *route = &queue->sim->work[job->work], *nvme = &queue->sim->work[RH_HOST_NVME];
	if (job->nvme_bytes > 0 && alone(queue->sim, nvme, job->nvme_bytes) > alone(queue->sim, route, job->bytes))
		return sim_task(queue, nvme, job->nvme_bytes);
	return job->bytes > 0 ? sim_task(queue, route, job->bytes) : 0;
}
