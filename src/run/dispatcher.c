#include "run/dispatcher.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "run/dispatcher_internal.h"

#include <string.h>

enum { BURST = 16, SERVE_EACH = 64 };

/* ---- what has been lowered ---- */

static void open_lane(struct run_dispatcher *dispatcher, const struct rh_lanes *lanes, int lane, int64_t position)
{
	dispatcher->head[lane] = position;
	dispatcher->blocked[lane] = -1;
	if (lanes->lane[lane].queue == RH_QUEUE_OPTIMIZER)
		dispatcher->serving[dispatcher->served++] = lane;
}

/* Somebody waits for these positions. */
static void want(struct run_dispatcher *dispatcher, const struct rh_lanes *lanes, const struct rh_command *command)
{
	int asks = lanes->lane[command->lane].queue != RH_QUEUE_STREAM;
	for (int i = 0; i < command->waits; i++) {
		int64_t position = lanes->wait[command->first_wait + i];
		if (position < lanes->first)
			continue;
		dispatch_at(dispatcher, position)->is_wanted = 1;
		dispatch_at(dispatcher, position)->is_asked |= (char)asks;
	}
}

/* Whoever reads a boundary or a result may be lowered after its copy has been issued. An event recorded only then would stand for all that
 * the stream was given since, and the reader would wait for that, too. */
static int is_read_later(const struct rh_lanes *lanes, const struct rh_command *command)
{
	const struct rh_lane *lane = &lanes->lane[command->lane];
	return lane->queue == RH_QUEUE_STREAM && lane->stream == RH_STREAM_ACTIVATIONS_DOWN;
}

int dispatcher_take(struct rh_executor *executor, int place)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	const struct lowering *lowering = &executor->lowering;
	const struct rh_lanes *lanes = &lowering->lanes;
	int64_t end = lanes->first + lanes->commands;
	int rc = rh_grow(&dispatcher->command, &dispatcher->capacity, (size_t)lanes->commands + 1, sizeof *dispatcher->command);
	if (rc)
		return rc;
	for (; dispatcher->taken < end; dispatcher->taken++) {
		const struct rh_command *command = rh_command_at(lanes, dispatcher->taken);
		int lane = command->lane;
		*dispatch_at(dispatcher, dispatcher->taken) = (struct dispatch_command){.next = -1,
		                                                                        .slot = dispatcher->present_slot,
		                                                                        .place = (signed char)place,
		                                                                        .is_wanted = (char)is_read_later(lanes, command)};
		want(dispatcher, lanes, command);
		if (place == DISPATCH_DONE || (lane == lowering->caller && command->kind != RH_COMMAND_HOST_ADD)) { /* the caller's own */
			dispatch_at(dispatcher, dispatcher->taken)->sequence = 1;
			continue;
		}
		if (dispatcher->head[lane] < 0)
			open_lane(dispatcher, lanes, lane, dispatcher->taken);
		else
			dispatch_at(dispatcher, dispatcher->tail[lane])->next = dispatcher->taken;
		dispatcher->tail[lane] = dispatcher->taken;
		if (lanes->lane[lane].queue == RH_QUEUE_SENDS || lanes->lane[lane].queue == RH_QUEUE_RECEIVES) {
			dispatcher->left++;
			dispatcher->left_of[place]++;
		}
		if (lanes->lane[lane].queue != RH_QUEUE_STREAM)
			continue;
		dispatcher->left++;
		*(place == DISPATCH_AHEAD ? &dispatcher->left_ahead : &dispatcher->left_of[place]) += 1;
		dispatcher->device[lanes->lane[lane].owner].blocks_left += lane >= lowering->free;
	}
	dispatcher->is_due = 1;
	return 0;
}

void dispatcher_advance(struct run_dispatcher *dispatcher, int lane)
{
	dispatcher->head[lane] = dispatch_at(dispatcher, dispatcher->head[lane])->next;
	dispatcher->blocked[lane] = -1;
}

/* The first wait of a command that is not over, -1: none. */
static int64_t find_block(const struct rh_executor *executor, const struct rh_command *command)
{
	const struct rh_lanes *lanes = &executor->lowering.lanes;
	for (int i = 0; i < command->waits; i++) {
		int64_t position = lanes->wait[command->first_wait + i];
		if (position >= lanes->first && !dispatch_at(&executor->dispatcher, position)->sequence)
			return position;
	}
	return -1;
}

int dispatcher_is_ready(struct rh_executor *executor, int lane)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	if (dispatcher->blocked[lane] >= dispatcher->first && !dispatch_at(dispatcher, dispatcher->blocked[lane])->sequence)
		return 0;
	dispatcher->blocked[lane] = find_block(executor, rh_command_at(&executor->lowering.lanes, dispatcher->head[lane]));
	return dispatcher->blocked[lane] < 0;
}

/* ---- devices ---- */

static int is_full(const struct rh_executor *executor, int d)
{
	const struct dispatch_device *device = &executor->dispatcher.device[d];
	return device->launched - device->finished >= DISPATCH_LAUNCHES;
}

/* A boundary that stays in memory needs a buffer of the host's. */
static int may_copy(struct rh_executor *executor, int64_t position)
{
	const struct rh_command *command = rh_command_at(&executor->lowering.lanes, position);
	return executor->lowering.drives.down || command->to.room != RH_ROOM_HOST_BOUNDARY || dispatcher_has_buffer(executor, command);
}

/* The device's next lane, -1: none has a command that may be issued. */
static int choose_lane(struct rh_executor *executor, int d)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	const struct dispatch_device *device = &dispatcher->device[d];
	int best = -1, blocks = device->blocks_left ? executor->options.model->blocks : 0;
	for (int i = 0; i < RH_STREAMS + blocks; i++) {
		int lane = i < RH_STREAMS ? lower_lane(d, (enum rh_stream)i)
		                          : executor->lowering.free + d * executor->options.model->blocks + i - RH_STREAMS;
		int64_t head = dispatcher->head[lane];
		if (head < 0 || (best >= 0 && head > dispatcher->head[best]) || (i == RH_STREAM_COMPUTE && is_full(executor, d)))
			continue;
		if (i == RH_STREAM_WEIGHTS &&
		    device->blocks_left) /* what goes behind activations must not stand in their way on the stream */
			continue;
		int is_critical = i == RH_STREAM_ACTIVATIONS_UP || i == RH_STREAM_ACTIVATIONS_DOWN;
		if (dispatcher_is_ready(executor, lane) && (!is_critical || may_copy(executor, head)))
			best = lane;
	}
	return best;
}

static int issue_head(struct rh_executor *executor, int d, int lane)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	struct dispatch_command *at = dispatch_at(dispatcher, dispatcher->head[lane]);
	const struct rh_command *command = rh_command_at(&executor->lowering.lanes, dispatcher->head[lane]);
	int rc = issue_command(executor, command);
	dispatcher->left--;
	*(at->place == DISPATCH_AHEAD ? &dispatcher->left_ahead : &dispatcher->left_of[at->place]) -= 1;
	dispatcher->is_due |= at->is_asked;
	dispatcher_advance(dispatcher, lane);
	if (lane >= executor->lowering.free)
		dispatcher->device[d].blocks_left--;
	return rc;
}

/* 1: something was issued. */
static int issue_to(struct rh_executor *executor, int d)
{
	int any = 0;
	for (int i = 0, lane; i < BURST && (lane = choose_lane(executor, d)) >= 0; i++) {
		int rc = issue_head(executor, d, lane);
		if (rc)
			return rc;
		any = 1;
		if (executor->dispatcher.is_due && (rc = dispatcher_serve(executor, 0)) < 0)
			return rc;
	}
	return any;
}

/* One slot more where a device has no more than the one that it is being given. */
static int lower_more(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	struct lowering *lowering = &executor->lowering;
	int rc = 0, place = (int)executor->first;
	for (int again = 1; !rc && again && !lower_is_over(lowering);) {
		again = 0;
		for (int d = 0; d < executor->options.devices; d++) {
			int64_t head = dispatcher->head[lower_lane(d, RH_STREAM_COMPUTE)];
			again |= lowering->on[d].last_slot >= (int64_t)lowering->next_slot &&
			         (head < 0 || head >= dispatcher->device[d].lowered);
		}
		rc = again ? run_lower_slot(executor, place) : 0;
	}
	dispatcher->is_lowering_later = rc > 0;
	return rc < 0 ? rc : 0;
}

/* ---- sleep ---- */

enum run_wait_kind dispatcher_wait_kind(const struct rh_command *command)
{
	switch (command->kind == RH_COMMAND_COPY ? command->to.room : RH_ROOM_NONE) {
	case RH_ROOM_WEIGHTS:
		return RUN_WAIT_WEIGHTS;
	case RH_ROOM_SUMS:
	case RH_ROOM_HOST_SUM:
	case RH_ROOM_HOST_GRADIENT:
	case RH_ROOM_HOST_FOLD:
		return RUN_WAIT_GRADIENTS;
	default:
		return RUN_WAIT_ACTIVATIONS;
	}
}

/* Devices' computation waits from now on for what has not been issued. */
static int book_holds(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	int rc = 0;
	for (int d = 0; !rc && d < executor->options.devices; d++) {
		int lane = lower_lane(d, RH_STREAM_COMPUTE);
		if (dispatcher->head[lane] < 0 || dispatcher->device[d].is_held || dispatcher_is_ready(executor, lane))
			continue;
		const struct rh_command *command = rh_command_at(&executor->lowering.lanes, dispatcher->head[lane]);
		const struct rh_command *other = rh_command_at(&executor->lowering.lanes, dispatcher->blocked[lane]);
		rc = run_waits_hold(run_waits_of(executor, command), executor->options.device[d], dispatcher_wait_kind(other));
		dispatcher->device[d].is_held = 1;
	}
	return rc;
}

static void finish_marker(struct dispatch_device *device)
{
	device->finished = device->marker[device->first_marker].launched;
	device->first_marker = (device->first_marker + 1) % DISPATCH_MARKERS;
	device->markers--;
}

/* Markers that have been reached. */
static int finish_markers(struct rh_executor *executor, int d)
{
	struct dispatch_device *device = &executor->dispatcher.device[d];
	int any = 0;
	while (device->markers) {
		struct rh_event *event = device->marker[device->first_marker].event;
		int done = event->ops->event_query(event);
		if (done <= 0)
			return done < 0 ? done : any;
		finish_marker(device);
		any = 1;
	}
	return any;
}

int dispatcher_has_ended(struct rh_executor *executor, int64_t position)
{
	const struct rh_lanes *lanes = &executor->lowering.lanes;
	struct rh_event *event;
	int64_t sequence;
	if (position < lanes->first)
		return 1;
	if (!dispatch_at(&executor->dispatcher, position)->sequence)
		return 0;
	int rc = issue_event(executor, rh_command_at(lanes, position), &event, &sequence);
	return rc ? rc : event->ops->event_query(event);
}

/* Until a device that is full has room, or the optimizer has something new. 1: so it is; 0: no device is full. */
static int await_room(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	int oldest = -1, full = 0, any = 0;
	for (int d = 0; d < executor->options.devices; d++) {
		int lane = lower_lane(d, RH_STREAM_COMPUTE);
		if (!is_full(executor, d) || dispatcher->head[lane] < 0)
			continue;
		oldest = oldest < 0 || dispatcher->head[lane] < dispatcher->head[lower_lane(oldest, RH_STREAM_COMPUTE)] ? d : oldest;
		full++;
	}
	int others = dispatcher->served || dispatcher_drives_are_busy(dispatcher);
	for (int d = 0; (full > 1 || others) && any >= 0 && d < executor->options.devices; d++) {
		int rc = is_full(executor, d) ? finish_markers(executor, d) : 0;
		any = rc < 0 ? rc : any | rc;
	}
	if (any || !full)
		return any;
	if (others && executor->options.updater) {
		rh_updater_pass(executor->options.updater, dispatcher->changes);
		dispatcher->is_due = 1;
		return 1;
	}
	struct dispatch_device *device = &dispatcher->device[oldest];
	struct rh_event *event = device->marker[device->first_marker].event;
	RH_ASSERT(device->markers > 0);
	int rc = event->ops->event_sync(event);
	finish_marker(device);
	return rc ? rc : 1;
}

/* The optimizer is asked, then waited for. */
static int sleep_until_served(struct rh_executor *executor)
{
	struct rh_updater *updater = executor->options.updater;
	int place = (int)(executor->finished % executor->flights);
	int rc = dispatcher_serve(executor, 0);
	rc = rc ? rc : dispatcher_add_pieces(executor);
	rc = rc ? rc : await_room(executor);
	if (!rc && dispatcher_is_linked(executor)) {
		rc = book_holds(executor);
		rh_updater_pass(updater, executor->dispatcher.changes);
		executor->dispatcher.is_due = 1;
		return rc;
	}
	rc = rc ? rc : dispatcher_serve(executor, 1);
	if (rc)
		return rc < 0 ? rc : 0;
	if (executor->dispatcher.is_lowering_later) {
		rh_updater_pass(updater, executor->dispatcher.changes);
		executor->dispatcher.is_due = 1;
		return 0;
	}
	if (dispatcher_drives_are_busy(&executor->dispatcher)) {
		rc = book_holds(executor);
		rc = rc ? rc : dispatcher_await_drives(executor);
		return rc < 0 ? rc : 0;
	}
	RH_ASSERT(updater && executor->dispatcher.served); /* else what is lowered waits for what is not */
	rc = book_holds(executor);
	double began = rh_updater_seconds(updater);
	rc = rc ? rc : rh_updater_await_change(updater, executor->dispatcher.changes);
	executor->flight[place].awaited_s += rh_updater_seconds(updater) - began;
	executor->dispatcher.is_due = 1;
	return rc;
}

/* ---- runs ---- */

/* The optimizer has still to be told of a gradient of this step or one before: who asks for the norm would wait for it. */
static int is_arriving(const struct rh_executor *executor, int64_t step)
{
	const struct run_dispatcher *dispatcher = &executor->dispatcher;
	for (int i = 0; i < dispatcher->served; i++)
		for (int64_t at = dispatcher->head[dispatcher->serving[i]]; at >= 0; at = dispatch_at(dispatcher, at)->next) {
			const struct rh_command *command = rh_command_at(&executor->lowering.lanes, at);
			if (command->kind == RH_COMMAND_GRADIENT_ARRIVED && command->step <= step)
				return 1;
		}
	return 0;
}

static int is_over(struct rh_executor *executor, enum dispatch_until until, int place)
{
	const struct run_dispatcher *dispatcher = &executor->dispatcher;
	const struct lowering *lowering = &executor->lowering;
	int waits = dispatcher->head[lowering->caller] >= 0;
	if (until == DISPATCH_ALL)
		return lower_is_over(lowering) && dispatcher->left == dispatcher->left_ahead && !waits;
	if (until == DISPATCH_STEP)
		return dispatcher->left_of[place] == 0 && !waits && (place != (int)executor->first || lower_is_over(lowering)) &&
		       !is_arriving(executor, executor->flight[place].step);
	if (!lower_is_over(lowering))
		return 0;
	for (int d = 0; d < executor->options.devices; d++)
		if (dispatcher->head[lower_lane(d, RH_STREAM_COMPUTE)] < 0)
			return 1;
	return 0;
}

static int run_once(struct rh_executor *executor)
{
	int any = 0, rc = lower_more(executor);
	if (!rc && executor->dispatcher.is_due)
		rc = dispatcher_serve(executor, 0);
	if (rc >= 0 && executor->lowering.links >= 0)
		any = rc = dispatcher_serve_links(executor);
	if (rc < 0)
		return rc;
	for (int d = 0; rc >= 0 && d < executor->options.devices; d++) {
		rc = issue_to(executor, d);
		any |= rc > 0;
	}
	return rc < 0 ? rc : any;
}

/* Since the optimizer was asked last. */
static int has_changed(const struct rh_executor *executor)
{
	struct rh_updater *updater = executor->options.updater;
	return updater ? rh_updater_changes(updater) != executor->dispatcher.changes : dispatcher_drives_are_busy(&executor->dispatcher);
}

int dispatcher_run(struct rh_executor *executor, enum dispatch_until until, int place)
{
	int rc = 0;
	for (int64_t i = 1; rc >= 0; i++) {
		rc = lower_more(executor); /* what is over is known when all is lowered */
		if (rc < 0 || is_over(executor, until, place))
			break;
		rc = run_once(executor);
		if (!rc)
			rc = sleep_until_served(executor);
		else if (rc > 0 && i % SERVE_EACH == 0)
			executor->dispatcher.is_due |= has_changed(executor);
	}
	return rc < 0 ? rc : 0;
}

int dispatcher_run_ahead(struct rh_executor *executor)
{
	struct rh_updater *updater = executor->options.updater;
	int rc = 0;
	while (rc >= 0 && executor->dispatcher.left_ahead) {
		executor->dispatcher.is_due = 1;
		rc = run_once(executor); /* notes the updater's changes before it asks */
		if (rc || executor->dispatcher.is_due)
			continue;
		if (!rh_updater_is_taking(updater))
			return 0;
		rc = rh_updater_await_change(updater, executor->dispatcher.changes);
	}
	return rc < 0 ? rc : 0;
}

static void drop_lane(struct rh_executor *executor, int lane)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	for (; dispatcher->head[lane] >= 0; dispatcher_advance(dispatcher, lane))
		dispatch_at(dispatcher, dispatcher->head[lane])->sequence = 1;
	dispatcher->tail[lane] = -1;
}

void dispatcher_drop_ahead(struct rh_executor *executor, int device)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	int blocks = executor->options.model->blocks;
	for (int i = 0; i < blocks; i++)
		drop_lane(executor, executor->lowering.free + device * blocks + i);
	dispatcher->left -= dispatcher->device[device].blocks_left;
	dispatcher->left_ahead -= dispatcher->device[device].blocks_left;
	dispatcher->device[device].blocks_left = 0;
}

void dispatcher_drop(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	for (int lane = 0; lane < executor->lowering.lanes.lanes; lane++)
		drop_lane(executor, lane);
	for (int i = 0; i < executor->options.devices * RH_STREAMS; i++)
		dispatcher->stream[i].span = NULL;
	for (int d = 0; d < executor->options.devices; d++) {
		dispatcher->device[d].blocks_left = dispatcher->device[d].is_held = 0;
		memset(dispatcher->device[d].end, 0, sizeof dispatcher->device[d].end);
	}
	dispatcher->served = 0;
	dispatcher->left = dispatcher->left_ahead = dispatcher->left_of[0] = dispatcher->left_of[1] = 0;
}

void dispatcher_rest(struct rh_executor *executor)
{
	for (int d = 0; d < executor->options.devices; d++) {
		struct dispatch_device *device = &executor->dispatcher.device[d];
		device->finished = device->launched;
		device->markers = 0;
	}
}

void dispatcher_forget(struct rh_executor *executor, int64_t before)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	for (int i = 0; i < dispatcher->served; i++)
		before = rh_min(before, dispatcher->head[dispatcher->serving[i]]);
	before = dispatcher_first_of_drives(dispatcher, before);
	int64_t gone = before - dispatcher->first;
	if (gone <= 0 || executor->lowering.keeps)
		return;
	rh_lanes_forget_before(&executor->lowering.lanes, before);
	memmove(dispatcher->command, dispatcher->command + gone, (size_t)(dispatcher->taken - before) * sizeof *dispatcher->command);
	dispatcher->first = before;
	dispatcher_forget_slots(dispatcher);
}

/* ---- creation ---- */

static int create_stream(struct rh_device *device, int streams, struct dispatch_stream *out)
{
	out->seen = rh_alloc((size_t)streams, sizeof *out->seen);
	int rc = out->seen ? 0 : -ENOMEM;
	for (int i = 0; !rc && i < DISPATCH_EVENTS; i++)
		rc = device->ops->event_create(device, RH_EVENT_HOST, &out->event[i]);
	return rc;
}

int dispatcher_create(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	int devices = executor->options.devices, lanes = executor->lowering.lanes.lanes, rc = 0;
	dispatcher->head = rh_alloc((size_t)lanes, sizeof *dispatcher->head);
	dispatcher->tail = rh_alloc((size_t)lanes, sizeof *dispatcher->tail);
	dispatcher->blocked = rh_alloc((size_t)lanes, sizeof *dispatcher->blocked);
	dispatcher->serving = rh_alloc((size_t)lanes, sizeof *dispatcher->serving);
	dispatcher->stream = rh_alloc((size_t)(devices * RH_STREAMS), sizeof *dispatcher->stream);
	dispatcher->device = rh_alloc((size_t)devices, sizeof *dispatcher->device);
	dispatcher->read = rh_alloc((size_t)(executor->boundaries.count * devices) + 1, sizeof *dispatcher->read);
	for (int i = 0; dispatcher->read && i < executor->boundaries.count * devices; i++)
		dispatcher->read[i] = LOWER_NEVER;
	if (!dispatcher->read || !dispatcher->head || !dispatcher->tail || !dispatcher->blocked || !dispatcher->serving ||
	    !dispatcher->stream || !dispatcher->device)
		return -ENOMEM;
	for (int i = 0; i < lanes; i++)
		dispatcher->head[i] = dispatcher->tail[i] = dispatcher->blocked[i] = -1;
	for (int d = 0; !rc && d < devices; d++) {
		struct rh_device *device = executor->options.device[d];
		dispatcher->device[d].lowered = -1;
		for (int s = 0; !rc && s < RH_STREAMS; s++)
			rc = create_stream(device, devices * RH_STREAMS, &dispatcher->stream[lower_lane(d, (enum rh_stream)s)]);
		for (int i = 0; !rc && i < DISPATCH_MARKERS; i++)
			rc = device->ops->event_create(device, RH_EVENT_HOST, &dispatcher->device[d].marker[i].event);
	}
	return rc ? rc : dispatcher_create_drives(executor);
}

void dispatcher_destroy(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	int devices = executor->options.devices;
	for (int i = 0; dispatcher->stream && i < devices * RH_STREAMS; i++) {
		for (int e = 0; e < DISPATCH_EVENTS; e++)
			rh_event_free(dispatcher->stream[i].event[e]);
		rh_free(dispatcher->stream[i].seen);
	}
	for (int d = 0; dispatcher->device && d < devices; d++)
		for (int i = 0; i < DISPATCH_MARKERS; i++)
			rh_event_free(dispatcher->device[d].marker[i].event);
	rh_free(dispatcher->stream);
	rh_free(dispatcher->device);
	rh_free(dispatcher->command);
	rh_free(dispatcher->head);
	rh_free(dispatcher->tail);
	rh_free(dispatcher->blocked);
	rh_free(dispatcher->serving);
	rh_free(dispatcher->slot);
	dispatcher_destroy_drives(dispatcher);
	rh_free(dispatcher->read);
}
