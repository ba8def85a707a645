/* Calls: a step of training, enqueued and later seen to its end, or forward only. Steps follow one another in the order of slots; where
 * they are joined (rh_executor_begin) the next is enqueued before the one before is over, and their slots wait only for what they need of
 * one another. */
#include "run/spool.h"
#include "run/trace.h"
#include "run/turns.h"
#include "run/work.h"

#include "core/fault.h"
#include "core/log.h"
#include "core/minmax.h"

#include <string.h>

/* The integers of a micro-batch, laid out as devices expect them. */
void run_stage_micro(struct rh_executor *executor, int64_t place, const struct rh_micro_batch *batch)
{
	char *to = executor->micro[place];
	executor->batch[place] = *batch;
	run_recorded_input(executor, place);
	struct rh_micro_layout at = rh_micro_layout(&batch->shape);
	memcpy(to + at.ids, batch->ids, (size_t)batch->shape.tokens * 4);
	memcpy(to + at.position, batch->position, (size_t)batch->shape.tokens * 4);
	memcpy(to + at.start_q, batch->start_q, (size_t)(batch->shape.documents + 1) * 4);
	memcpy(to + at.start_k, batch->start_k, (size_t)(batch->shape.documents + 1) * 4);
	memcpy(to + at.head_row, batch->head_row, (size_t)batch->shape.head_rows * 4);
	if (batch->target)
		memcpy(to + at.target, batch->target, (size_t)batch->shape.head_rows * 4);
	if (batch->choice)
		memcpy(to + at.choice, batch->choice, (size_t)batch->shape.choices * 4);
}

void run_collect_result(struct rh_executor *executor, int64_t place)
{
	const struct rh_micro_batch *batch = &executor->batch[place];
	const char *from = executor->result[place];
	int64_t cols = executor->trains ? 0 : executor->options.score_cols, rows = batch->shape.head_rows;
	struct rh_result_layout at = rh_plan_result_layout(&batch->shape, cols);
	run_recorded_output(executor, place);
	if (batch->loss)
		memcpy(batch->loss, from + at.loss, (size_t)rows * 4);
	if (batch->hit)
		memcpy(batch->hit, from + at.hit, (size_t)rows * 4);
	if (batch->scores)
		memcpy(batch->scores, from + at.scores, (size_t)(rows * cols) * 4);
}

static void add_use(struct rh_executor *executor, int64_t first, int64_t count, const float *sum)
{
	struct rh_updater *updater = executor->options.updater;
	if (updater)
		rh_updater_pause(updater);
	run_recorded_add(executor, first, count, sum);
	rh_store_add_use(executor->options.store, executor->left.block, first, count, sum);
	if (updater)
		rh_updater_resume(updater);
}

/* The embedding's sum of a tied table is the last thing that a step makes, and the head's is down by then: it comes in pieces, each added
 * to the head's on arrival, so that the host holds one sum and not two. All devices are idle. */
static int fold_embedding(struct rh_executor *executor)
{
	if (executor->left.block < 0)
		return 0;
	struct rh_device *device = executor->options.device[executor->left.device];
	struct rh_event **down = &executor->on[executor->left.device].downloaded[2 * executor->left.block]; /* two, that nobody waits for */
	int64_t elements = executor->options.model->block[executor->left.block].elements, first = 0, had = 0;
	for (int turn = 0; first < elements + had; turn ^= 1) { /* one piece is added while the next is on its way */
		int64_t count = rh_min(elements - first, RUN_FOLD_ELEMENTS);
		int rc = 0;
		if (count > 0)
			rc = run_copy_down(executor, device, RH_STREAM_GRADIENTS, executor->fold[turn], executor->left.sum + first * 4,
			                   count * 4);
		if (!rc && count > 0)
			rc = device->ops->record(device, RH_STREAM_GRADIENTS, down[turn]);
		if (!rc && had)
			rc = run_await(executor, down[!turn]);
		if (rc) {
			(void)device->ops->synchronize(device);
			return rc;
		}
		if (had)
			add_use(executor, first - had, had, executor->fold[!turn]);
		first += count;
		had = count;
	}
	return 0;
}

/* Blocks whose gradient has two parts have both now. */
static void announce_two_uses(struct rh_executor *executor)
{
	const struct rh_model *model = executor->options.model;
	for (int b = 0; executor->options.updater && b < model->blocks; b++)
		if (model->block[b].trainable && model->block[b].uses == 2)
			rh_updater_arrives(executor->options.updater, b, NULL);
}

/* Of the step that has this place among those in flight. */
static void sum_times(struct rh_executor *executor, int64_t place)
{
	int devices = executor->options.devices, worked = 0;
	double *const part[] = {&executor->times.compute, &executor->times.weights, &executor->times.activations,
	                        &executor->times.gradients};
	executor->times = (struct rh_step_times){.optimizer = executor->flight[place].awaited_s};
	for (int d = 0; d < devices; d++) {
		run_waits_add(&executor->on[d].flight[place].waits, &executor->times);
		worked += executor->on[d].flight[place].waits.begun;
	}
	executor->times.ended /= worked ? worked : 1;
	for (size_t i = 0; i < sizeof part / sizeof *part; i++)
		*part[i] /= devices;
}

const struct rh_step_times *rh_executor_times(const struct rh_executor *executor)
{
	return &executor->times;
}

/* A tied table's two parts are added up between steps. */
static int has_two_uses(const struct rh_model *model)
{
	int has = 0;
	for (int b = 0; b < model->blocks; b++)
		has |= model->block[b].trainable && model->block[b].uses == 2;
	return has;
}

/* NULL: nothing. */
static const char *what_parts_steps(const struct rh_executor_options *options)
{
	return options->spills_boundaries     ? "activations go to NVMe"
	       : has_two_uses(options->model) ? "the embedding is trained and tied to the head"
	                                      : NULL;
}

int64_t run_flights(const struct rh_executor_options *options)
{
	return options->train_micro_batches && options->stale && !what_parts_steps(options) ? RUN_FLIGHT : 1;
}

int rh_executor_joins(const struct rh_executor_options *options)
{
	return run_flights(options) > 1;
}

int64_t rh_executor_steps_in_flight(const struct rh_executor *executor)
{
	/* what comes down through the staging is announced by its thread, which nobody waits for in the middle of a step */
	return executor->flights > 1 && executor->staging ? 1 : executor->steps_held;
}

const char *rh_executor_unjoined(const struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	const char *why = what_parts_steps(options);
	if (!options->train_micro_batches || !options->stale)
		return NULL;
	return why ? why : executor->staging ? "the system lets too little memory be registered" : NULL;
}

void run_begin(struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	executor->left.block = -1;
	executor->flight[executor->first].awaited_s = 0;
	for (int d = 0; d < options->devices; d++)
		run_waits_reset(&executor->on[d].flight[executor->first].waits);
	for (int i = 0; executor->begun - executor->finished <= 1 && i < 2 * options->model->blocks; i++)
		executor->summed_on[i] = -1; /* else a step is still at it */
	if (executor->feed)
		run_feed_begin(executor->feed, executor->trains);
}

int run_begin_boundaries(struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	struct rh_boundary_walk walk = {.plan = options->plan,
	                                .layers = options->model->layers,
	                                .program = &executor->program,
	                                .steps_held = executor->steps_held,
	                                .step_micro_batches = options->train_micro_batches};
	return rh_boundaries_begin(&executor->boundaries, &walk);
}

int run_device_enqueued(struct rh_executor *executor, int d, int64_t place)
{
	struct rh_device *device = executor->options.device[d];
	struct run_flight *flight = &executor->on[d].flight[place];
	int rc = run_waits_end(&flight->waits, device);
	if (!rc)
		rc = device->ops->record(device, RH_STREAM_ACTIVATIONS_DOWN, flight->results);
	return rc ? rc : device->ops->record(device, RH_STREAM_GRADIENTS, flight->gradients);
}

/* What it has enqueued until now. */
static int record_ends(struct rh_executor *executor)
{
	int rc = 0;
	for (int d = 0; !rc && d < executor->options.devices; d++)
		rc = run_device_enqueued(executor, d, executor->first);
	return rc;
}

int run_enqueued(struct rh_executor *executor)
{
	if (executor->feed)
		run_feed_end(executor->feed);
	return record_ends(executor);
}

/* ITS_WORK: of a training step, without faults: weights may go on up that the next one wants. */
enum rest { EVERYTHING, ITS_WORK };

/* Its slots are over, and its results are here. */
static int await_device(struct rh_executor *executor, int d, int64_t place)
{
	struct run_flight *flight = &executor->on[d].flight[place];
	int rc = run_waits_sync(&flight->waits);
	if (flight->waits.begun)
		run_recorded_sync(executor, flight->waits.last);
	rc = rc ? rc : run_await(executor, flight->results);
	return rc ? rc : run_await(executor, flight->gradients);
}

/* Whatever rc is, nothing is running any more on return: not the staging's thread, which calls the updater, no device, and no boundary is
 * on its way to or from NVMe (frozen weights may be read ahead). The first fault comes back, with its line. */
static int come_to_rest(struct rh_executor *executor, enum rest rest, int rc)
{
	const struct rh_executor_options *options = &executor->options;
	struct rh_fault fault = {0};
	rh_fault_keep(&fault, rc);
	for (int d = -1; d <= options->devices; d++) {
		rc = 0;
		if (d == options->devices)
			rc = rh_boundaries_end(&executor->boundaries);
		else if (d >= 0 && rest == ITS_WORK && !rh_fault_code(&fault))
			rc = await_device(executor, d, executor->first);
		else if (d >= 0)
			rc = options->device[d]->ops->synchronize(options->device[d]);
		else if (executor->staging)
			rc = rh_staging_finish(executor->staging);
		rh_fault_keep(&fault, rc);
	}
	rh_store_throttle(options->store, 0);
	return rh_fault_get(&fault);
}

/* Another synchronous step is likely to follow. A recording waits for all that it is told of. */
static int goes_on(const struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	return executor->trains && !executor->is_stretch && !executor->trace && !options->stale && options->updater &&
	       rh_updater_is_open(options->updater);
}

int run_end(struct rh_executor *executor, int rc)
{
	enum rest ends = EVERYTHING;
	run_turns_drop(executor);
	for (int d = 0; !rc && d < executor->options.devices; d++)
		rc = bulk_flush(executor, d);
	if (!rc && goes_on(executor)) {
		ends = ITS_WORK;
		rc = record_ends(executor);
	}
	rc = rc ? rc : made_late(executor);
	if (!rc && ends == ITS_WORK)
		rc = bulk_next_step(executor);
	executor->goes_on = ends == ITS_WORK;
	rc = come_to_rest(executor, ends, rc);
	if (executor->trace)
		rh_trace_settle(executor->trace);
	return rc ? rc : fold_embedding(executor);
}

void run_stop_ahead(struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	int rc = executor->goes_on && executor->staging ? rh_staging_finish(executor->staging) : 0;
	for (int d = 0; executor->goes_on && d < options->devices; d++) {
		int failed = options->device[d]->ops->synchronize(options->device[d]);
		rc = rc ? rc : failed;
	}
	if (rc)
		rh_error_clear(); /* nobody waits for them */
	executor->goes_on = 0;
}

/* Of a step that another has begun after: its slots are over, and its results are here. */
static int await_slots(struct rh_executor *executor, int64_t place)
{
	int rc = 0;
	for (int d = 0; !rc && d < executor->options.devices; d++)
		rc = await_device(executor, d, place);
	if (executor->trace && executor->traced_step == executor->flight[place].step)
		rh_trace_settle(executor->trace);
	return rc;
}

/* To the next step: not where what comes from NVMe, or goes through the staging, has an order of its own. */
static int leaves_slots(const struct rh_executor *executor)
{
	return executor->trains && executor->flights > 1 && !executor->staging && !executor->feed && !executor->boundaries.spool;
}

static int enqueue(struct rh_executor *executor, const struct rh_micro_batch *batch, int64_t count)
{
	const struct rh_executor_options *options = &executor->options;
	RH_ASSERT(count > 0 && count <= (executor->trains ? options->train_micro_batches : executor->micro_batches));
	executor->is_stretch = 0;
	if (options->cache_rows) /* a device's KV cache holds what its own stages wrote: each stage stays where it was */
		executor->turn = 0;
	run_begin(executor);
	for (int64_t m = 0; m < count; m++)
		run_stage_micro(executor, executor->first * options->train_micro_batches + m, &batch[m]);
	const struct rh_dispatch dispatch = run_dispatch(options);
	int turn = executor->turn, rc = rh_dispatch_call(&dispatch, executor->trains, count, &executor->turn, &executor->program);
	executor->shift = (executor->turn - turn + options->devices) % options->devices;
	if (!rc && executor->program.instead[0])
		rh_warn_once("%s; such steps run as looped-bfs", executor->program.instead);
	rc = rc ? rc : run_begin_boundaries(executor);
	rh_store_throttle(options->store, options->throttled_threads);
	rc = rc ? rc : bulk_step_begins(executor);
	rc = rc ? rc : run_turns_add(executor, (int)executor->first);
	rc = rc ? rc : run_turns(executor, (int)executor->first, leaves_slots(executor) ? RUN_UNTIL_NEXT_IS_DUE : RUN_UNTIL_OVER);
	if (!rc && executor->trains)
		bulk_uploads_end(executor);
	if (!rc && executor->feed)
		run_feed_end(executor->feed);
	return rc;
}

int rh_executor_begin(struct rh_executor *executor, const struct rh_micro_batch *batch, int64_t count, int64_t step, float loss_scale)
{
	RH_ASSERT(executor->begun - executor->finished < rh_min(executor->flights, rh_executor_steps_in_flight(executor)));
	executor->trains = 1;
	executor->step = step;
	executor->first = executor->begun++ % executor->flights;
	executor->loss_scale[executor->first] = loss_scale;
	executor->flight[executor->first].step = step;
	executor->flight[executor->first].count = count;
	executor->flight[executor->first].number = executor->begun;
	int rc = enqueue(executor, batch, count);
	return rc ? rh_executor_abandon(executor, rc) : 0;
}

int rh_executor_finish(struct rh_executor *executor)
{
	RH_ASSERT(executor->finished < executor->begun);
	int64_t place = executor->finished % executor->flights, first = place * executor->options.train_micro_batches;
	int latest = executor->begun - executor->finished == 1, rc = run_turns(executor, (int)place, RUN_UNTIL_OVER);
	if (!rc)
		rc = latest ? run_end(executor, 0) : await_slots(executor, place);
	if (rc)
		return rh_executor_abandon(executor, rc);
	if (latest)
		announce_two_uses(executor);
	sum_times(executor, place);
	for (int64_t m = 0; m < executor->flight[place].count; m++)
		run_collect_result(executor, first + m);
	executor->finished++;
	return 0;
}

int rh_executor_abandon(struct rh_executor *executor, int rc)
{
	if (executor->begun > executor->finished)
		rc = come_to_rest(executor, EVERYTHING, rc);
	executor->goes_on = 0;
	run_turns_drop(executor);
	executor->finished = executor->begun;
	return rc;
}

int rh_executor_infer(struct rh_executor *executor, const struct rh_micro_batch *batch, int64_t count)
{
	RH_ASSERT(executor->begun == executor->finished);
	executor->trains = 0;
	executor->first = 0;
	executor->loss_scale[0] = 0;
	int rc = run_end(executor, enqueue(executor, batch, count));
	for (int64_t m = 0; !rc && m < count; m++)
		run_collect_result(executor, m);
	return rc;
}
