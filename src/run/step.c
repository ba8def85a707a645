/* Calls: a training step, which is begun and later finished, or a forward-only batch. Where steps are joined (rh_executor_begin) the next
 * one is begun before the one before is over, and their slots wait only for what they need of one another. */
#include "run/executor_internal.h"

#include "core/fault.h"
#include "core/log.h"
#include "core/minmax.h"

void run_copy_inputs(struct rh_executor *executor, struct run_book *book, const struct rh_micro_batch *batch, int64_t count)
{
	book->count = count;
	const struct rh_model *model = executor->options.model;
	const struct rh_store *store = executor->options.store;
	int reads_rows = rh_model_row_bytes(model) && !rh_store_options(store)->addresses_only;
	for (int64_t m = 0; m < count; m++) {
		struct rh_micro_batch *own = &executor->lowering.batch[book->first + m];
		char *to = run_piece(executor->room, RH_ROOM_HOST_MICRO, book->first + m);
		*own = batch[m];
		own->shape = rh_micro_shape_of(model, &batch[m].shape);
		rh_micro_pack(own, to);
		if (reads_rows)
			rh_micro_pack_rows(model, own, rh_store_weights(store, model->layer[0].block[RH_BLOCK_TABLE]), to);
	}
}

int run_collect_results(struct rh_executor *executor, const struct run_book *book, int64_t step)
{
	const struct rh_executor_options *options = &executor->options;
	int64_t count = options->plan->feeds ? 0 : book->count; /* else another box has them */
	lower_output(&executor->lowering, step, book->first, count);
	int rc = dispatcher_take(executor, 0);
	for (int64_t index = book->first; !rc && index < book->first + count; index++) {
		const struct rh_micro_batch *batch = &executor->lowering.batch[index];
		int64_t cols = rh_executor_score_cols(options, executor->trains, &batch->shape);
		rh_result_unpack(options->model, batch, cols, run_piece(executor->room, RH_ROOM_HOST_RESULT, index));
	}
	return rc;
}

/* Adds up the devices' stall times of the step of this index. */
static void sum_times(struct rh_executor *executor, int64_t index)
{
	int devices = executor->options.planned.devices, worked = 0;
	struct rh_stall_times sum = {0};
	for (int d = 0; d < devices; d++) {
		rh_stalls_add(&executor->device[d].flight[index].stalls, &sum);
		worked += executor->device[d].flight[index].stalls.begun;
	}
	executor->times = (struct rh_step_times){.compute = sum.compute / devices,
	                                         .weights = sum.stalled[RH_STALL_WEIGHTS] / devices,
	                                         .activations = sum.stalled[RH_STALL_ACTIVATIONS] / devices,
	                                         .gradients = sum.stalled[RH_STALL_GRADIENTS] / devices,
	                                         .optimizer = executor->flight[index].awaited_s,
	                                         .ended = sum.ended / (worked ? worked : 1)};
}

const struct rh_step_times *rh_executor_times(const struct rh_executor *executor)
{
	return &executor->times;
}

/* Why steps cannot be joined, NULL: they can. A tied table's two sums are added up between steps. */
static const char *what_parts_steps(const struct rh_executor_plan *planned, const struct rh_model *model)
{
	if (planned->spills_boundaries)
		return "activations go to NVMe";
	return rh_model_trains_tied(model) ? "the embedding is trained and tied to the head" : NULL;
}

int rh_executor_joins(const struct rh_executor_plan *planned, const struct rh_model *model)
{
	return planned->train_micro_batches && planned->stale && !planned->update_delay && !what_parts_steps(planned, model);
}

int64_t rh_executor_steps_in_flight(const struct rh_executor *executor)
{
	/* the staging's thread announces the copies that go through it, and nobody waits for it in the middle of a step */
	return executor->flights > 1 && executor->copies.staging ? 1 : executor->lowering.limits.steps_in_flight;
}

const char *rh_executor_unjoined(const struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	const char *why = what_parts_steps(&options->planned, options->model);
	if (!options->planned.train_micro_batches || !options->planned.stale || options->planned.update_delay)
		return NULL;
	return why ? why : executor->copies.staging ? "the system lets too little memory be registered" : NULL;
}

/* ---- commands and steps ---- */

static int flight_of(const struct rh_executor *executor, const struct rh_command *command)
{
	int index = ring_of(command)->index;
	return executor->is_stretch || index >= RUN_FLIGHT ? 0 : index;
}

const struct run_book *run_book_of(const struct rh_executor *executor, const struct rh_command *command)
{
	int64_t steps = executor->lowering.limits.steps_in_flight;
	return &executor->book[executor->is_stretch ? (command->step - executor->step) % steps : flight_of(executor, command)];
}

struct rh_stalls *run_stalls_of(struct rh_executor *executor, const struct rh_command *command)
{
	const struct rh_lane *lane = &executor->lowering.lanes.lane[command->lane];
	return &executor->device[lane->owner].flight[flight_of(executor, command)].stalls;
}

static void note_downloads(struct rh_executor *executor, int d, int index)
{
	executor->device[d].flight[index].results = executor->lowering.lane[lower_lane(d, RH_STREAM_ACTIVATIONS_DOWN)].last;
	executor->device[d].flight[index].gradients = executor->lowering.lane[lower_lane(d, RH_STREAM_GRADIENTS)].last;
}

/* Notes that all of the device's slots of the step are lowered. */
static int note_end(struct rh_executor *executor, int d, int index)
{
	struct run_flight *flight = &executor->device[d].flight[index];
	int64_t last = executor->lowering.lane[lower_lane(d, RH_STREAM_COMPUTE)].last;
	const struct ring_command *command = ring_find(&executor->lowering.ring, last);
	note_downloads(executor, d, index);
	if (!command || command->sequence)
		return rh_stalls_end(&flight->stalls);
	flight->computed = last;
	return 0;
}

/* Notes the last computation of the device's latest slot: the slot is over when it is. */
static void note_slot(struct rh_executor *executor, int d)
{
	struct dispatch_device *device = &executor->dispatcher.device[d];
	int64_t last = executor->lowering.lane[lower_lane(d, RH_STREAM_COMPUTE)].last;
	ring_find(&executor->lowering.ring, last)->is_wanted = 1;
	device->end_of[device->slots++ % DISPATCH_SLOTS] = last;
}

/* The program's last slot is lowered. */
static void lower_followers(struct rh_executor *executor)
{
	for (int way = 0; way < LOWER_LINKS; way++) {
		for (int i = 0; i < executor->follow[way].count; i++)
			lower_follower(&executor->lowering, (enum lower_link)way, executor->step);
		executor->follow[way].posted = 0;
		executor->follow[way].count = 0;
	}
}

int run_lower_slot(struct rh_executor *executor, int index)
{
	struct lowering *lowering = &executor->lowering;
	int64_t number = (int64_t)lowering->next_slot;
	int d = lowering->program.slot[number].device;
	int rc = executor->is_stretch ? run_stretch_reach(executor, &lowering->program.slot[number]) : 0;
	if (rc == RUN_STEP_NONE)
		lowering->next_slot++; /* skipped: the order of the others holds without it */
	if (rc)
		return rc == RUN_STEP_NONE ? 0 : rc;
	executor->dispatcher.device[d].lowered = lowering->ring.end;
	lower_next_slot(lowering);
	if (executor->trains && lower_is_over(lowering))
		lower_followers(executor);
	rc = dispatcher_take(executor, index);
	if (!rc)
		rc = dispatcher_look(executor, d);
	if (rc)
		return rc;
	note_slot(executor, d);
	int is_last = executor->trains && !executor->is_stretch && lowering->device[d].last_slot == number;
	return is_last ? note_end(executor, d, index) : 0;
}

/* 1: an upload of the block has been lowered, but not issued. */
static int has_upload_ahead(const struct rh_executor *executor, int b)
{
	int any = 0;
	for (int d = 0; d < executor->options.planned.devices; d++) {
		const struct ring_command *sent = ring_find(&executor->lowering.ring, executor->lowering.device[d].weights.sent[b]);
		any |= sent && !sent->sequence;
	}
	return any;
}

/* Marks blocks that devices must load again: weights may have been set by hand since their upload, and an update from before this run may
 * be unpublished. An update that still runs may be counted as unpublished: its gradient has arrived, so the result is the same. */
static void forget_changed(struct rh_executor *executor)
{
	for (int b = 0; b < executor->options.model->blocks; b++) {
		struct lower_block *block = &executor->lowering.block[b];
		if (executor->trains && rh_store_is_behind(executor->options.store, b))
			block->arrived = 1; /* its newest update is published only after the call's uploads */
		if (executor->version[b] != rh_store_version(executor->options.store, b) && !has_upload_ahead(executor, b))
			block->version++; /* no device has it */
	}
}

int run_begin(struct rh_executor *executor, const struct lower_call *call)
{
	const struct rh_executor_options *options = &executor->options;
	int index = (int)executor->first;
	executor->flight[index].awaited_s = 0;
	for (int d = 0; d < options->planned.devices; d++) {
		rh_stalls_reset(&executor->device[d].flight[index].stalls);
		executor->dispatcher.device[d].lowered = -1;
	}
	if (executor->begun - executor->finished <= 1) /* else an earlier step still runs */
		forget_changed(executor);
	lower_begin(&executor->lowering, call);
	int rc = dispatcher_take(executor, index);
	for (int d = 0; !rc && executor->trains && !executor->is_stretch && d < options->planned.devices; d++)
		if (executor->lowering.device[d].last_slot < 0)
			rc = note_end(executor, d, index);
	return rc;
}

/* Waits until the device's slots of the step of this index are over, and their results and gradients have come down. */
static int await_device(struct rh_executor *executor, int d, int64_t index)
{
	struct run_flight *flight = &executor->device[d].flight[index];
	int rc = rh_stalls_sync(&flight->stalls);
	if (!rc)
		rc = dispatcher_await(executor, flight->results);
	return rc ? rc : dispatcher_await(executor, flight->gradients);
}

/* Whatever rc is, on return nothing runs any more: neither the staging's thread, which calls the updater, nor a device, nor a transfer to
 * or from a drive. Only uploads_ahead may run after a step without a fault. Returns the first fault. */
static int come_to_rest(struct rh_executor *executor, int rc)
{
	const struct rh_executor_options *options = &executor->options;
	struct rh_fault fault = {0};
	rh_fault_keep(&fault, rc);
	rh_fault_keep(&fault, rh_host_copies_finish(&executor->copies));
	for (int d = 0; d < options->planned.devices; d++) {
		int is_whole = executor->uploads_ahead && !rh_fault_code(&fault);
		rc = is_whole ? await_device(executor, d, executor->first) : options->device[d]->ops->synchronize(options->device[d]);
		rh_fault_keep(&fault, rc);
	}
	rh_fault_keep(&fault, dispatcher_rest_drives(executor));
	rh_store_throttle(options->store, 0);
	return rh_fault_get(&fault);
}

/* 1: another synchronous step is likely, so its first uploads may begin. A step that is traced gets none: its trace ends with it. */
static int expects_another_step(const struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	return executor->trains && !executor->is_stretch && !executor->traced.trace && !options->planned.stale && options->updater &&
	       rh_updater_is_open(options->updater);
}

/* Uploads blocks of the next step's first slots as they are updated, while this step's gradients come down. */
static int issue_ahead(struct rh_executor *executor)
{
	for (int d = 0; d < executor->options.planned.devices; d++)
		note_downloads(executor, d, (int)executor->first);
	lower_ahead(&executor->lowering);
	int rc = dispatcher_take(executor, DISPATCH_AHEAD);
	return rc ? rc : dispatcher_run_ahead(executor);
}

int run_end(struct rh_executor *executor, int rc)
{
	if (!rc) { /* sends down what devices still have */
		lower_end(&executor->lowering);
		rc = dispatcher_take(executor, (int)executor->first);
	}
	if (!rc)
		rc = dispatcher_run(executor, DISPATCH_ALL, (int)executor->first);
	int64_t end = executor->lowering.ring.end;
	for (int more = 1; !rc && more > 0;) { /* until the optimizer can answer no more commands */
		more = dispatcher_serve(executor, 1);
		rc = more < 0 ? more : 0;
	}
	executor->uploads_ahead = !rc && expects_another_step(executor);
	if (executor->uploads_ahead)
		rc = issue_ahead(executor);
	rc = come_to_rest(executor, rc);
	run_spans_settle(executor);
	if (!rc)
		dispatcher_mark_done(executor, end);
	return rc;
}

void run_rest(struct rh_executor *executor)
{
	int had_uploads_ahead = executor->uploads_ahead;
	executor->uploads_ahead = 0;
	if (had_uploads_ahead && come_to_rest(executor, 0))
		rh_error_clear(); /* nobody waits for these uploads */
}

/* Waits for a step after which another has begun: until its slots are over, and their results and gradients have come down. */
static int await_slots(struct rh_executor *executor, int64_t index)
{
	int rc = 0;
	for (int d = 0; !rc && d < executor->options.planned.devices; d++)
		rc = await_device(executor, d, index);
	if (executor->traced_step == executor->flight[index].step)
		run_spans_settle(executor);
	return rc;
}

static int issue(struct rh_executor *executor, const struct rh_micro_batch *batch, int64_t count)
{
	const struct rh_executor_options *options = &executor->options;
	struct rh_updater *updater = options->updater;
	RH_ASSERT(count > 0 &&
	          count <= (executor->trains ? options->planned.train_micro_batches : executor->lowering.limits.micro_batches));
	executor->is_stretch = 0;
	if (options->planned.cache_rows && !executor->trains) /* each stage stays where its device's KV cache has what it wrote */
		executor->turn = 0;
	struct lower_call call = {.trains = executor->trains,
	                          /* copies through the staging have an order of their own */
	                          .is_joined = executor->trains && executor->flights > 1 && !executor->copies.staging,
	                          .step = executor->trains ? executor->step : -++executor->inferred,
	                          .number = ++executor->calls,
	                          .first_index = executor->book[executor->first].first,
	                          .micro_batches = count,
	                          .updates = executor->trains && updater && rh_updater_is_open(updater),
	                          .clips = executor->trains && updater && rh_updater_clips(updater)};
	run_copy_inputs(executor, &executor->book[executor->first], batch, count);
	call.table = run_table_begin(executor, &executor->book[executor->first]);
	struct lowering *lowering = &executor->lowering;
	int turn = executor->turn,
	    rc = rh_dispatch_call(&lowering->limits.dispatch, executor->trains, count, &executor->turn, &lowering->program);
	call.shift = (executor->turn - turn + options->planned.devices) % options->planned.devices;
	if (!rc && lowering->program.replacement_reason[0])
		rh_warn_once("%s; such steps run as looped-bfs", lowering->program.replacement_reason);
	rh_store_throttle(options->store, options->throttled_threads);
	if (!rc)
		rc = run_begin(executor, &call);
	return rc ? rc : dispatcher_run(executor, call.is_joined ? DISPATCH_IDLE : DISPATCH_ALL, (int)executor->first);
}

int rh_executor_begin(struct rh_executor *executor, const struct rh_micro_batch *batch, int64_t count, int64_t step, float loss_scale)
{
	RH_ASSERT(executor->begun - executor->finished < rh_min(executor->flights, rh_executor_steps_in_flight(executor)));
	executor->trains = 1;
	executor->step = step;
	executor->first = executor->begun++ % executor->flights;
	executor->book[executor->first].loss_scale = loss_scale;
	executor->flight[executor->first].step = step;
	int rc = issue(executor, batch, count);
	return rc ? rh_executor_abandon(executor, rc) : 0;
}

int rh_executor_finish(struct rh_executor *executor)
{
	RH_ASSERT(executor->finished < executor->begun);
	int64_t index = executor->finished % executor->flights;
	int latest = executor->begun - executor->finished == 1;
	executor->dispatcher.is_ending = latest;
	int rc = dispatcher_run(executor, latest ? DISPATCH_ALL : DISPATCH_STEP, (int)index);
	if (!rc)
		rc = latest ? run_end(executor, 0) : await_slots(executor, index);
	executor->dispatcher.is_ending = 0;
	if (!rc)
		rc = run_collect_results(executor, &executor->book[index], executor->flight[index].step);
	if (rc)
		return rh_executor_abandon(executor, rc);
	sum_times(executor, index);
	executor->finished++;
	return 0;
}

void rh_executor_follow(struct rh_executor *executor, enum rh_letter_way way, const struct rh_follower *follower, int count)
{
	RH_ASSERT(way == RH_LETTER_FROM_BELOW || way == RH_LETTER_FROM_ABOVE);
	executor->follow[way].message = follower;
	executor->follow[way].count = count;
}

int rh_executor_expect(struct rh_executor *executor, int64_t step, const int64_t *tokens, int64_t count)
{
	RH_ASSERT(executor->begun == executor->finished && count <= executor->options.planned.train_micro_batches);
	int64_t index = executor->begun % executor->flights;
	lower_expect(&executor->lowering, step, executor->book[index].first, tokens, count);
	int rc = dispatcher_take(executor, (int)index);
	while (!rc && (rc = dispatcher_serve_links(executor)) > 0)
		rc = 0;
	return rc;
}

int rh_executor_abandon(struct rh_executor *executor, int rc)
{
	executor->uploads_ahead = 0;
	if (executor->begun > executor->finished)
		rc = come_to_rest(executor, rc);
	dispatcher_drop(executor);
	executor->finished = executor->begun;
	return rc;
}

int rh_executor_infer(struct rh_executor *executor, const struct rh_micro_batch *batch, int64_t count)
{
	RH_ASSERT(executor->begun == executor->finished);
	executor->trains = 0;
	executor->first = 0;
	executor->book[0].loss_scale = 0;
	int rc = run_end(executor, issue(executor, batch, count));
	return rc ? rc : run_collect_results(executor, &executor->book[0], executor->lowering.call.step);
}
