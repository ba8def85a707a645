#include "run/record_internal.h"

#include "core/alloc.h"

#include <stdlib.h>
#include <string.h>

enum { LOG_EVENTS = 1 << 20 };

static struct rh_recorder *recorder_of(struct rh_device *device)
{
	return (struct rh_recorder *)(uintptr_t)device->ops;
}

/* A device sees that its events are of its own kind: the call itself is made as if nobody listened. */
#define AS_ITSELF(device, call)                                                                                                            \
	({                                                                                                                                 \
		const struct rh_device_ops *listening = (device)->ops;                                                                     \
		(device)->ops = recorder->real;                                                                                            \
		int as_itself_rc = recorder->real->call;                                                                                   \
		(device)->ops = listening;                                                                                                 \
		as_itself_rc;                                                                                                              \
	})

/* What is enqueued comes after all that the host has done and waited for. */
static int64_t *enqueue(struct rh_recorder *recorder, const struct rh_device *device, enum rh_stream stream)
{
	record_updater(recorder);
	if (stream == RH_STREAM_COMPUTE)
		record_flush(recorder, device->index, -1);
	int64_t *known = record_known(recorder, device->index * RH_STREAMS + (int)stream);
	record_join(recorder, known, record_host(recorder));
	return known;
}

static int recorded_record(struct rh_device *device, enum rh_stream stream, struct rh_event *event)
{
	struct rh_recorder *recorder = recorder_of(device);
	const int64_t *known = enqueue(recorder, device, stream);
	int64_t *stamp = record_stamp(recorder, event, 1);
	if (stamp)
		memcpy(stamp, known, (size_t)record_lanes(recorder) * sizeof *stamp);
	return AS_ITSELF(device, record(device, stream, event));
}

static int recorded_wait(struct rh_device *device, enum rh_stream stream, struct rh_event *event)
{
	struct rh_recorder *recorder = recorder_of(device);
	int64_t *known = enqueue(recorder, device, stream);
	const int64_t *stamp = record_stamp(recorder, event, 0);
	if (stamp)
		record_join(recorder, known, stamp);
	return AS_ITSELF(device, wait(device, stream, event));
}

/* The piece of host memory that an address lies in. */
static struct rh_place host_place(const struct rh_recorder *recorder, const void *at, int64_t bytes)
{
	int low = 0, high = recorder->ranges;
	while (low < high) {
		int middle = (low + high) / 2;
		if (recorder->range[middle].memory <= (const char *)at)
			low = middle + 1;
		else
			high = middle;
	}
	RH_ASSERT(low > 0);
	const struct record_range *range = &recorder->range[low - 1];
	RH_ASSERT((const char *)at + bytes <= range->memory + range->bytes);
	return (struct rh_place){
	        .room = range->room, .device = -1, .number = range->number, .first = (const char *)at - range->memory, .bytes = bytes};
}

/* The step and micro-batch that the device's present slot is at, and of what goes between slots the step. */
static void set_step(const struct rh_recorder *recorder, int device, struct rh_command *command)
{
	const struct rh_executor *executor = recorder->executor;
	const struct work *work = &executor->work[device];
	int64_t place = 0;
	if (work->slot)
		place = (work->micro_batch >= 0 ? work->micro_batch : work->slot->first) +
		        work->slot->step % executor->steps_held * executor->options.train_micro_batches;
	command->step = recorder->place[place].step;
	command->micro_batch = work->slot && work->micro_batch >= 0 ? recorder->place[place].micro_batch : -1;
	command->tokens = work->slot && work->micro_batch >= 0 ? work->emit.shape.tokens : 0;
}

static enum rh_boundary_kind *kind_at(const struct rh_recorder *recorder, const struct rh_place *place)
{
	const struct rh_executor *executor = recorder->executor;
	int ring = executor->boundaries.count + place->device * executor->options.plan->boundary_buffers;
	return &recorder->kind[place->room == RH_ROOM_BOUNDARY ? ring + place->number : place->number];
}

/* Rooms in which a number names what lies there take it from the other side. */
static void name_contents(struct rh_place *device, struct rh_place *host, int up)
{
	if (device->room == RH_ROOM_WEIGHTS || device->room == RH_ROOM_SUMS)
		device->number = host->number;
	if (device->room == RH_ROOM_SUMS && host->room == RH_ROOM_HOST_GRADIENT)
		device->number = 2 * host->number;
	if (device->room == RH_ROOM_ROUNDED) {
		RH_ASSERT(!up);
		host->number = host->room == RH_ROOM_HOST_SUM ? host->number / 2 : host->number;
		host->room = RH_ROOM_HOST_GRADIENT;
		device->number = 2 * host->number;
	}
}

static void add_copy(struct rh_recorder *recorder, struct rh_device *device, enum rh_stream stream, const void *on_device,
                     const void *on_host, int64_t bytes, int up)
{
	(void)enqueue(recorder, device, stream);
	struct rh_place here = record_device_place(recorder, device->index, on_device, bytes), there = host_place(recorder, on_host, bytes);
	struct rh_command command = {.kind = RH_COMMAND_COPY, .lane = device->index * RH_STREAMS + (int)stream, .block = -1};
	set_step(recorder, device->index, &command);
	name_contents(&here, &there, up);
	if (here.room == RH_ROOM_BOUNDARY && up)
		*kind_at(recorder, &here) = *kind_at(recorder, &there);
	else if (here.room == RH_ROOM_BOUNDARY)
		*kind_at(recorder, &there) = *kind_at(recorder, &here);
	if (here.room == RH_ROOM_WEIGHTS || there.room == RH_ROOM_HOST_GRADIENT)
		command.block = there.number;
	command.from = up ? there : here;
	command.to = up ? here : there;
	record_add(recorder, &command);
}

static int recorded_up(struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	struct rh_recorder *recorder = recorder_of(device);
	add_copy(recorder, device, stream, to, from, bytes, 1);
	return AS_ITSELF(device, copy_up(device, stream, to, from, bytes));
}

static int recorded_down(struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	struct rh_recorder *recorder = recorder_of(device);
	add_copy(recorder, device, stream, from, to, bytes, 0);
	return AS_ITSELF(device, copy_down(device, stream, to, from, bytes));
}

static int recorded_launch(struct rh_device *device, enum rh_stream stream, const struct rh_op *op)
{
	struct rh_recorder *recorder = recorder_of(device);
	record_updater(recorder);
	record_join(recorder, record_known(recorder, device->index * RH_STREAMS + (int)stream), record_host(recorder));
	record_launch(recorder, device->index, op);
	return AS_ITSELF(device, launch(device, stream, op));
}

static int recorded_synchronize(struct rh_device *device)
{
	struct rh_recorder *recorder = recorder_of(device);
	int rc = AS_ITSELF(device, synchronize(device));
	for (int s = 0; s < RH_STREAMS; s++)
		record_join(recorder, record_host(recorder), enqueue(recorder, device, (enum rh_stream)s));
	return rc;
}

/* ---- what the executor tells ---- */

void run_recorded_sync(struct rh_executor *executor, const struct rh_event *event)
{
	struct rh_recorder *recorder = executor->recorder;
	if (!recorder)
		return;
	record_updater(recorder);
	const int64_t *stamp = record_stamp(recorder, event, 0);
	if (stamp)
		record_join(recorder, record_host(recorder), stamp);
}

void run_recorded_layer(struct rh_executor *executor, int device, int layer)
{
	if (executor->recorder)
		record_flush(executor->recorder, device, layer);
}

/* The calling thread does this. */
static void add_caller(struct rh_recorder *recorder, struct rh_command *command)
{
	int lane = record_caller(recorder);
	record_updater(recorder);
	record_join(recorder, record_known(recorder, lane), record_host(recorder));
	command->lane = lane;
	record_add(recorder, command);
	record_join(recorder, record_host(recorder), record_known(recorder, lane));
}

static struct rh_command of_place(const struct rh_recorder *recorder, enum rh_command_kind kind, int64_t place)
{
	return (struct rh_command){
	        .kind = kind, .block = -1, .step = recorder->place[place].step, .micro_batch = recorder->place[place].micro_batch};
}

void run_recorded_input(struct rh_executor *executor, int64_t place)
{
	struct rh_recorder *recorder = executor->recorder;
	if (!recorder)
		return;
	int64_t m = executor->trains ? place % executor->options.train_micro_batches : place;
	recorder->trained += executor->trains && !m;
	recorder->inferred += !executor->trains && !m;
	recorder->place[place].step = executor->trains ? recorder->trained - 1 : -recorder->inferred;
	recorder->place[place].micro_batch = m;
	struct rh_command command = of_place(recorder, RH_COMMAND_INPUT, place);
	command.to = (struct rh_place){RH_ROOM_HOST_MICRO, -1, (int)place, 0, executor->options.plan->micro_bytes};
	add_caller(recorder, &command);
}

void run_recorded_output(struct rh_executor *executor, int64_t place)
{
	struct rh_recorder *recorder = executor->recorder;
	if (!recorder)
		return;
	struct rh_command command = of_place(recorder, RH_COMMAND_OUTPUT, place);
	command.from = (struct rh_place){RH_ROOM_HOST_RESULT, -1, (int)place, 0, executor->options.plan->result_bytes};
	add_caller(recorder, &command);
}

void run_recorded_add(struct rh_executor *executor, int64_t first, int64_t count, const float *sum)
{
	struct rh_recorder *recorder = executor->recorder;
	const struct rh_model *model = executor->options.model;
	if (!recorder)
		return;
	struct rh_command command = of_place(recorder, RH_COMMAND_HOST_ADD, 0);
	int64_t element = rh_dtype_bytes(model->dtype, 1);
	command.micro_batch = -1;
	command.block = executor->left.block;
	command.step = recorder->trained - 1;
	command.from = host_place(recorder, sum, 4 * count);
	command.to = (struct rh_place){RH_ROOM_HOST_GRADIENT, -1, executor->left.block, first * element, count * element};
	add_caller(recorder, &command);
}

int rh_recorder_update(struct rh_recorder *recorder, int64_t step, int block)
{
	static const enum rh_command_kind kinds[] = {RH_COMMAND_GRADIENT_ARRIVED, RH_COMMAND_WEIGHTS_READY, RH_COMMAND_GRADIENT_TAKEN};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		add_caller(recorder, &(struct rh_command){.kind = kinds[i], .block = block, .step = step, .micro_batch = -1});
	return recorder->rc;
}

int rh_recorder_flushed(struct rh_recorder *recorder, int64_t step)
{
	const struct rh_model *model = recorder->executor->options.model;
	for (int b = 0; b < model->blocks; b++)
		if (model->block[b].trainable)
			add_caller(recorder,
			           &(struct rh_command){.kind = RH_COMMAND_WEIGHTS_READY, .block = b, .step = step, .micro_batch = -1});
	return recorder->rc;
}

/* ---- its own beginning and end ---- */

static void add_range(struct rh_recorder *recorder, const void *memory, int64_t bytes, enum rh_room room, int number)
{
	if (memory)
		recorder->range[recorder->ranges++] = (struct record_range){memory, bytes, room, number};
}

static int compare_ranges(const void *a, const void *b)
{
	const struct record_range *x = a, *y = b;
	return x->memory < y->memory ? -1 : x->memory > y->memory;
}

/* A gradient that lies in a sum is found as the sum: the checker knows that they are one. */
static int find_ranges(struct rh_recorder *recorder)
{
	const struct rh_executor *executor = recorder->executor;
	const struct rh_model *model = executor->options.model;
	const struct rh_store *store = executor->options.store;
	size_t most = 4 * (size_t)model->blocks + (size_t)executor->boundaries.count + 2 * (size_t)executor->micro_batches + 2;
	recorder->range = rh_alloc(most, sizeof *recorder->range);
	if (!recorder->range)
		return -ENOMEM;
	for (int b = 0; b < model->blocks; b++) {
		int64_t elements = model->block[b].elements, bytes = rh_dtype_bytes(model->dtype, elements);
		const void *gradient = model->block[b].trainable ? rh_store_gradient(store, b) : NULL;
		add_range(recorder, rh_store_weights(store, b), bytes, RH_ROOM_HOST_WEIGHTS, b);
		for (int use = 0; use < 2 && model->block[b].trainable; use++) {
			const void *sum = rh_store_sum(store, b, use);
			add_range(recorder, sum, 4 * elements, RH_ROOM_HOST_SUM, 2 * b + use);
			gradient = sum == gradient ? NULL : gradient;
		}
		add_range(recorder, gradient, bytes, RH_ROOM_HOST_GRADIENT, b);
	}
	for (int i = 0; i < executor->boundaries.count; i++)
		add_range(recorder, executor->boundaries.buffer[i].memory, executor->options.plan->boundary_bytes, RH_ROOM_HOST_BOUNDARY,
		          i);
	for (int64_t m = 0; m < executor->micro_batches; m++) {
		add_range(recorder, executor->micro[m], executor->options.plan->micro_bytes, RH_ROOM_HOST_MICRO, (int)m);
		add_range(recorder, executor->result[m], executor->options.plan->result_bytes, RH_ROOM_HOST_RESULT, (int)m);
	}
	for (int i = 0; i < 2 && executor->fold[1] > executor->fold[0]; i++)
		add_range(recorder, executor->fold[i], 4 * (executor->fold[1] - executor->fold[0]), RH_ROOM_HOST_FOLD, i);
	qsort(recorder->range, (size_t)recorder->ranges, sizeof *recorder->range, compare_ranges);
	return 0;
}

/* Any number tells tokens of events from the updater's own. */
static int64_t event_token(struct rh_event *event)
{
	return (int64_t)(uintptr_t)event - 1;
}

static int make_books(struct rh_recorder *recorder)
{
	const struct rh_executor *executor = recorder->executor;
	const struct rh_executor_options *options = &executor->options;
	size_t lanes = (size_t)record_lanes(recorder), blocks = (size_t)options->model->blocks, devices = (size_t)options->devices;
	size_t buffers = (size_t)executor->boundaries.count + devices * (size_t)options->plan->boundary_buffers;
	recorder->known = rh_alloc((lanes + 1) * lanes, sizeof *recorder->known);
	recorder->place = rh_alloc((size_t)executor->micro_batches, sizeof *recorder->place);
	recorder->compute = rh_alloc(devices, sizeof *recorder->compute);
	recorder->kind = rh_alloc(buffers + 1, sizeof *recorder->kind);
	recorder->arrivals = rh_alloc(blocks, sizeof *recorder->arrivals);
	recorder->taking = rh_alloc(blocks, sizeof *recorder->taking);
	if (!recorder->known || !recorder->place || !recorder->compute || !recorder->kind || !recorder->arrivals || !recorder->taking)
		return -ENOMEM;
	for (size_t i = 0; i < (lanes + 1) * lanes; i++)
		recorder->known[i] = -1;
	return find_ranges(recorder);
}

static int make_lanes(struct rh_recorder *recorder)
{
	int devices = recorder->executor->options.devices, lane = 0;
	for (int l = 0; lane >= 0 && l < record_lanes(recorder); l++) {
		struct rh_lane is = {.queue = RH_QUEUE_STREAM, .stream = (enum rh_stream)(l % RH_STREAMS), .owner = l / RH_STREAMS};
		if (l >= devices * RH_STREAMS)
			is = (struct rh_lane){.queue = l == record_caller(recorder) ? RH_QUEUE_CALLER : RH_QUEUE_OPTIMIZER};
		lane = rh_lanes_add_lane(&recorder->lanes, is);
	}
	return lane < 0 ? lane : 0;
}

int rh_recorder_create(struct rh_executor *executor, struct rh_recorder **out)
{
	struct rh_recorder *recorder = rh_alloc(1, sizeof *recorder);
	if (!recorder)
		return -ENOMEM;
	RH_ASSERT(!executor->staging && !executor->feed && !executor->boundaries.spool && !executor->options.plan->made_blocks);
	recorder->executor = executor;
	recorder->real = executor->options.device[0]->ops;
	recorder->ops = *recorder->real;
	recorder->ops.record = recorded_record;
	recorder->ops.wait = recorded_wait;
	recorder->ops.copy_up = recorded_up;
	recorder->ops.copy_down = recorded_down;
	recorder->ops.launch = recorded_launch;
	recorder->ops.synchronize = recorded_synchronize;
	recorder->arriving = -1;
	int rc = make_books(recorder);
	rc = rc ? rc : make_lanes(recorder);
	if (!rc && executor->options.updater)
		rc = rh_order_log_create(LOG_EVENTS, &recorder->log);
	if (rc) {
		rh_recorder_destroy(recorder);
		return rc;
	}
	executor->recorder = recorder;
	for (int d = 0; d < executor->options.devices; d++)
		executor->options.device[d]->ops = &recorder->ops;
	if (recorder->log)
		rh_updater_record(executor->options.updater, recorder->log, record_optimizer(recorder), 0, event_token);
	*out = recorder;
	return 0;
}

void rh_recorder_destroy(struct rh_recorder *recorder)
{
	if (!recorder)
		return;
	struct rh_executor *executor = recorder->executor;
	for (int d = 0; executor->recorder && d < executor->options.devices; d++)
		executor->options.device[d]->ops = recorder->real;
	if (executor->recorder && recorder->log)
		rh_updater_record(executor->options.updater, NULL, 0, 0, NULL);
	executor->recorder = NULL;
	rh_order_log_destroy(recorder->log);
	for (size_t i = 0; i < recorder->stamp_capacity; i++)
		rh_free(recorder->stamp[i].known);
	rh_free(recorder->stamp);
	rh_free(recorder->range);
	rh_free(recorder->known);
	rh_free(recorder->row);
	rh_free(recorder->place);
	rh_free(recorder->compute);
	rh_free(recorder->kind);
	rh_free(recorder->arrivals);
	rh_free(recorder->taking);
	rh_lanes_free(&recorder->lanes);
	rh_free(recorder);
}

int rh_recorder_lanes(struct rh_recorder *recorder, struct rh_lanes **out)
{
	record_updater(recorder);
	*out = &recorder->lanes;
	return recorder->rc;
}

void rh_recorder_rooms(const struct rh_recorder *recorder, struct rh_check_options *out)
{
	const struct rh_executor *executor = recorder->executor;
	const struct rh_executor_options *options = &executor->options;
	*out = (struct rh_check_options){.model = options->model,
	                                 .plan = options->plan,
	                                 .devices = options->devices,
	                                 .stale = options->stale,
	                                 .crosses_rounds = rh_store_options(options->store)->crosses_rounds};
	rh_check_rooms(out, executor->micro_batches);
	out->room[RH_ROOM_HOST_BOUNDARY] = (struct rh_check_room){executor->boundaries.count, options->plan->boundary_bytes};
	out->room[RH_ROOM_HOST_FOLD] = (struct rh_check_room){2, RUN_FOLD_ELEMENTS * 4};
}
