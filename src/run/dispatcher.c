/* Chooses the next command of each device, lowers slots as devices run dry, and sleeps. */
#include "run/executor_internal.h"

#include <string.h>

enum { BURST = 16, SERVE_EACH = 64 }; /* commands before the next device's turn; rounds of turns between looks at the optimizer */

/* ---- what has been lowered ---- */

/* The list of ready lanes that a lane belongs to. NULL: lanes of its queue are looked at one by one. */
static struct dispatch_ready *ready_of(struct rh_executor *executor, int lane)
{
	const struct rh_lane *info = &executor->lowering.lanes.lane[lane];
	if (info->queue == RH_QUEUE_STREAM)
		return &executor->dispatcher.ready[info->owner];
	int is_served = info->queue == RH_QUEUE_OPTIMIZER || info->queue == RH_QUEUE_CALLER;
	return is_served ? &executor->dispatcher.ready[executor->options.planned.devices] : NULL;
}

static void list_ready(struct rh_executor *executor, int lane)
{
	struct dispatch_ready *ready = ready_of(executor, lane);
	if (!ready || executor->dispatcher.lane[lane].is_listed)
		return;
	executor->dispatcher.lane[lane].is_listed = 1;
	ready->lane[ready->count++] = lane;
}

void dispatcher_unlist(struct run_dispatcher *dispatcher, struct dispatch_ready *ready, int i)
{
	dispatcher->lane[ready->lane[i]].is_listed = 0;
	ready->lane[i] = ready->lane[--ready->count];
}

/* A gradient answers an activation that this box sent. Its receive is posted before the neighbour acknowledges the activation: otherwise
 * the gradient would wait for one more trip. No message still reads the buffer's earlier content (schedule/boundary.h, pools). */
static int is_answer(const struct rh_command *command, const struct rh_command *other)
{
	return command->kind == RH_COMMAND_RECEIVE && other->kind == RH_COMMAND_SEND;
}

/* Finds the command that blocks the lane's head, if any, and makes the lane its waiter: wake_waiters looks for the next one. */
static void find_block(struct rh_executor *executor, int lane)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	const struct ring_command *head = dispatcher->lane[lane].head;
	dispatcher->lane[lane].blocker = NULL;
	for (int i = 0; head && i < head->lowered.waits; i++) {
		struct ring_command *other = ring_wait(&executor->lowering.ring, &head->lowered, i);
		if (!other || other->sequence || is_answer(&head->lowered, &other->lowered))
			continue;
		dispatcher->lane[lane].blocker = other;
		dispatcher->lane[lane].next_waiter = other->waiter;
		other->waiter = lane;
		return;
	}
	if (head)
		list_ready(executor, lane);
}

/* The command is issued, or over: it blocks nobody any more. */
static void wake_waiters(struct rh_executor *executor, struct ring_command *command)
{
	for (int lane = command->waiter, next; lane >= 0; lane = next) {
		next = executor->dispatcher.lane[lane].next_waiter;
		find_block(executor, lane);
	}
	command->waiter = -1;
}

/* Takes the lane from its blocker's waiters: the lane's head is dropped. */
static void forget_block(struct run_dispatcher *dispatcher, int lane)
{
	struct ring_command *other = dispatcher->lane[lane].blocker;
	if (!other)
		return;
	int *at = &other->waiter;
	while (*at != lane)
		at = &dispatcher->lane[*at].next_waiter;
	*at = dispatcher->lane[lane].next_waiter;
}

/* Marks the commands that this one waits for. */
static void mark_waits(const struct lowering *lowering, const struct rh_command *command)
{
	int asks = lowering->lanes.lane[command->lane].queue != RH_QUEUE_STREAM;
	for (int i = 0; i < command->waits; i++) {
		struct ring_command *other = ring_wait(&lowering->ring, command, i);
		if (!other)
			continue;
		other->is_wanted = 1;
		other->is_asked |= (char)asks;
	}
}

/* A command that reads a boundary or a result may be lowered after the copy that sent it was issued. A mark recorded only then would stand
 * for all that the stream was given since, and the reader would wait for that, too. So these copies are marked at once. */
static int is_read_later(const struct rh_lanes *lanes, const struct rh_command *command)
{
	const struct rh_lane *lane = &lanes->lane[command->lane];
	return lane->queue == RH_QUEUE_STREAM && lane->stream == RH_STREAM_ACTIVATIONS_DOWN;
}

void dispatcher_end(struct rh_executor *executor, struct ring_command *command)
{
	command->sequence = 1;
	wake_waiters(executor, command);
	ring_end(&executor->lowering.ring, command);
}

int dispatcher_take(struct rh_executor *executor, int index)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	struct lowering *lowering = &executor->lowering;
	const struct rh_lanes *lanes = &lowering->lanes;
	for (; !lowering->rc && dispatcher->taken < lowering->ring.end; dispatcher->taken++) {
		struct ring_command *command = ring_find(&lowering->ring, dispatcher->taken);
		int lane = command->lowered.lane;
		command->index = (signed char)index;
		command->is_wanted = (char)is_read_later(lanes, &command->lowered);
		mark_waits(lowering, &command->lowered);
		if (index == DISPATCH_DONE ||
		    (lane == lowering->caller && command->lowered.kind != RH_COMMAND_HOST_ADD)) { /* the caller's own */
			dispatcher_end(executor, command);
			continue;
		}
		if (dispatcher->lane[lane].head) {
			dispatcher->lane[lane].tail->next = command;
		} else {
			dispatcher->lane[lane].head = command;
			find_block(executor, lane);
		}
		dispatcher->lane[lane].tail = command;
		enum rh_queue queue = lanes->lane[lane].queue;
		dispatcher->to_serve += queue == RH_QUEUE_OPTIMIZER;
		dispatcher->left[index] += queue == RH_QUEUE_STREAM || queue == RH_QUEUE_SENDS || queue == RH_QUEUE_RECEIVES;
		if (queue == RH_QUEUE_STREAM)
			dispatcher->device[lanes->lane[lane].owner].blocks_left += lane >= lowering->free;
	}
	dispatcher->is_due = 1;
	return lowering->rc;
}

void dispatcher_advance(struct rh_executor *executor, int lane)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	forget_block(dispatcher, lane);
	dispatcher->lane[lane].head = dispatcher->lane[lane].head->next;
	find_block(executor, lane);
}

void dispatcher_end_head(struct rh_executor *executor, int lane)
{
	struct ring_command *command = executor->dispatcher.lane[lane].head;
	executor->dispatcher.to_serve -= executor->lowering.lanes.lane[lane].queue == RH_QUEUE_OPTIMIZER;
	dispatcher_advance(executor, lane);
	dispatcher_end(executor, command);
}

/* ---- devices ---- */

static int is_full(const struct rh_executor *executor, int d)
{
	const struct dispatch_device *device = &executor->dispatcher.device[d];
	return device->launched - device->finished >= DISPATCH_LAUNCHES;
}

/* 1: the lane's head may be issued, if it is not blocked. */
static int may_issue(const struct rh_executor *executor, int d, int lane)
{
	if (lane == lower_lane(d, RH_STREAM_COMPUTE))
		return !is_full(executor, d);
	/* uploads that go behind activations must not delay those whose order is free, which are on the same stream */
	return lane != lower_lane(d, RH_STREAM_WEIGHTS) || !executor->dispatcher.device[d].blocks_left;
}

/* The device's next lane, -1: none has a command that may be issued. */
static int choose_lane(struct rh_executor *executor, int d)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	struct dispatch_ready *ready = &dispatcher->ready[d];
	int best = -1;
	for (int i = 0; i < ready->count; i++) {
		int lane = ready->lane[i];
		if (!dispatcher_is_ready(dispatcher, lane)) {
			dispatcher_unlist(dispatcher, ready, i--);
			continue;
		}
		const struct ring_command *head = dispatcher->lane[lane].head;
		if ((best < 0 || head->lowered.position < dispatcher->lane[best].head->lowered.position) && may_issue(executor, d, lane))
			best = lane;
	}
	return best;
}

static int issue_head(struct rh_executor *executor, int d, int lane)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	struct ring_command *command = dispatcher->lane[lane].head;
	const struct rh_lane *on = &executor->lowering.lanes.lane[lane];
	int rc = issue_command(executor, &command->lowered);
	dispatcher->left[command->index]--;
	dispatcher->is_due |= command->is_asked;
	dispatcher_advance(executor, lane);
	ring_push(&dispatcher->stream[lower_lane(on->owner, on->stream)].issued, command);
	wake_waiters(executor, command);
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

/* 1: the device has its maximum of slots that are lowered and not over. */
static int has_slots_enough(struct rh_executor *executor, int d)
{
	const struct dispatch_device *device = &executor->dispatcher.device[d];
	int64_t most = dispatch_slots(&executor->options);
	if (device->slots < most)
		return 0;
	int rc = dispatcher_has_ended(executor, device->end_of[(device->slots - most) % DISPATCH_SLOTS]);
	return rc < 0 ? rc : !rc;
}

/* Lowers one more slot when a device has none beyond the one that is being issued. One of several boxes lowers as many as it may, because a
 * neighbour sends a slot's input only after its receive is posted, a round trip before. Buffers were planned for as many. */
static int lower_more(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	struct lowering *lowering = &executor->lowering;
	int rc = 0, index = (int)executor->first;
	for (int again = 1; !rc && again && !lower_is_over(lowering);) {
		if (!lower_has_slot(lowering)) {
			rc = run_stretch_extend(executor);
			continue;
		}
		again = executor->options.boxes && executor->options.boxes->unit && executor->trains;
		for (int d = 0; d < executor->options.planned.devices; d++) {
			const struct ring_command *head = dispatcher->lane[lower_lane(d, RH_STREAM_COMPUTE)].head;
			again |= lowering->device[d].last_slot >= (int64_t)lowering->next_slot &&
			         (!head || head->lowered.position >= dispatcher->device[d].lowered);
		}
		if (again)
			rc = has_slots_enough(executor, lowering->program.slot[lowering->next_slot].device);
		if (again && !rc)
			rc = run_lower_slot(executor, index);
	}
	dispatcher->is_lowering_later = rc > 0;
	return rc < 0 ? rc : 0;
}

/* ---- sleep ---- */

enum rh_stall_kind dispatcher_stall_kind(const struct rh_command *command)
{
	switch (command->kind == RH_COMMAND_COPY ? command->target.room : RH_ROOM_NONE) {
	case RH_ROOM_WEIGHTS:
		return RH_STALL_WEIGHTS;
	case RH_ROOM_SUMS:
	case RH_ROOM_HOST_SUM:
	case RH_ROOM_HOST_GRADIENT:
	case RH_ROOM_HOST_FOLD:
	case RH_ROOM_HOST_ROWS:
		return RH_STALL_GRADIENTS;
	default:
		return RH_STALL_ACTIVATIONS;
	}
}

/* Opens a stall for each device whose next computation is blocked. */
static int open_stalls(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	int rc = 0;
	for (int d = 0; !rc && d < executor->options.planned.devices; d++) {
		int lane = lower_lane(d, RH_STREAM_COMPUTE);
		if (!dispatcher->lane[lane].head || dispatcher->device[d].is_stalled || dispatcher_is_ready(dispatcher, lane))
			continue;
		rc = rh_stalls_open(run_stalls_of(executor, &dispatcher->lane[lane].head->lowered),
		                    dispatcher_stall_kind(&dispatcher->lane[lane].blocker->lowered));
		dispatcher->device[d].is_stalled = 1;
	}
	return rc;
}

/* Ends the stream's commands up to its latest reached mark. */
static void finish_reached(struct rh_executor *executor, int stream)
{
	struct dispatch_stream *at = &executor->dispatcher.stream[stream];
	if (stream % RH_STREAMS == RH_STREAM_COMPUTE)
		executor->dispatcher.device[stream / RH_STREAMS].finished = at->marks.latest_reached.launched;
	while (at->issued.oldest && at->issued.oldest->sequence <= at->marks.latest_reached.issued)
		ring_end(&executor->lowering.ring, ring_pop(&at->issued));
}

/* 1: the stream has come farther than was known. */
static int look_at(struct rh_executor *executor, int stream)
{
	int any = rh_marks_look(&executor->dispatcher.stream[stream].marks);
	if (any)
		finish_reached(executor, stream);
	return any;
}

int dispatcher_has_ended(struct rh_executor *executor, int64_t position)
{
	const struct ring_command *command = ring_find(&executor->lowering.ring, position);
	if (!command || !command->sequence)
		return !command;
	const struct rh_lane *lane = &executor->lowering.lanes.lane[command->lowered.lane];
	if (lane->queue != RH_QUEUE_STREAM)
		return 1;
	int stream = lower_lane(lane->owner, lane->stream);
	int64_t sequence = command->sequence;
	const struct rh_stream_mark *over = &executor->dispatcher.stream[stream].marks.latest_reached;
	int rc = sequence > over->issued ? look_at(executor, stream) : 0;
	return rc < 0 ? rc : sequence <= over->issued;
}

int dispatcher_await(struct rh_executor *executor, int64_t position)
{
	const struct ring_command *command = ring_find(&executor->lowering.ring, position);
	const struct rh_stream_mark *mark;
	int rc = command ? issue_mark(executor, command, &mark) : 0;
	return rc || !command ? rc : mark->event->ops->event_sync(mark->event);
}

int dispatcher_waits_have_ended(struct rh_executor *executor, const struct rh_command *command)
{
	int rc = 1;
	for (int i = 0; rc > 0 && i < command->waits; i++) {
		const struct ring_command *other = ring_wait(&executor->lowering.ring, command, i);
		rc = other && !is_answer(command, &other->lowered) ? dispatcher_has_ended(executor, other->lowered.position) : 1;
	}
	return rc;
}

int dispatcher_look(struct rh_executor *executor, int d)
{
	int rc = 0;
	for (int s = 0; rc >= 0 && s < RH_STREAMS; s++)
		rc = look_at(executor, lower_lane(d, (enum rh_stream)s));
	return rc < 0 ? rc : 0;
}

/* Lets virtual time go on; in real time, waits briefly for the optimizer. Returns 1: every lane is to be looked at again. */
static int wait_briefly(struct rh_executor *executor)
{
	rh_updater_await_briefly(executor->options.updater, executor->dispatcher.changes);
	executor->dispatcher.is_due = 1;
	return 1;
}

/* Waits until a full device has room, or the optimizer may have news. 1: so it is; 0: no device is full. */
static int await_room(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	int oldest = -1, full = 0, any = 0;
	for (int d = 0; d < executor->options.planned.devices; d++) {
		const struct ring_command *head = dispatcher->lane[lower_lane(d, RH_STREAM_COMPUTE)].head;
		if (!is_full(executor, d) || !head)
			continue;
		if (oldest < 0 || head->lowered.position < dispatcher->lane[lower_lane(oldest, RH_STREAM_COMPUTE)].head->lowered.position)
			oldest = d;
		full++;
	}
	int others = dispatcher->to_serve || dispatcher_drives_are_busy(dispatcher);
	for (int d = 0; (full > 1 || others) && any >= 0 && d < executor->options.planned.devices; d++) {
		int rc = is_full(executor, d) ? look_at(executor, lower_lane(d, RH_STREAM_COMPUTE)) : 0;
		any = rc < 0 ? rc : any | rc;
	}
	if (any || !full)
		return any;
	if (others && executor->options.updater)
		return wait_briefly(executor);
	int stream = lower_lane(oldest, RH_STREAM_COMPUTE), rc = rh_marks_await(&dispatcher->stream[stream].marks);
	finish_reached(executor, stream);
	return rc ? rc : 1;
}

/* Serves the optimizer's commands. If none can be served, waits for a full device, the optimizer, drives or links. */
static int sleep_until_served(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	struct rh_updater *updater = executor->options.updater;
	int polls = dispatcher_is_linked(executor);
	int rc = dispatcher_serve(executor, 0);
	if (!rc)
		rc = await_room(executor);
	if (!rc && !polls)
		rc = dispatcher_serve(executor, 1);
	if (!rc && !polls && dispatcher->is_lowering_later)
		return wait_briefly(executor);
	if (!rc)
		rc = open_stalls(executor);
	if (rc)
		return rc;
	if (polls)
		return wait_briefly(executor);
	if (dispatcher_drives_are_busy(dispatcher))
		return dispatcher_await_drives(executor);
	RH_ASSERT(updater && dispatcher->to_serve); /* else a command waits for one that is not lowered */
	double began = rh_updater_seconds(updater);
	rc = rh_updater_await_change(updater, dispatcher->changes);
	executor->flight[executor->finished % executor->flights].awaited_s += rh_updater_seconds(updater) - began;
	dispatcher->is_due = 1;
	return rc;
}

/* ---- runs ---- */

/* 1: the optimizer has not been told of all gradients up to this step's: a caller that asked for the norm would wait for them. */
static int is_arriving(const struct rh_executor *executor, int64_t step)
{
	const struct run_dispatcher *dispatcher = &executor->dispatcher;
	for (int b = 0; dispatcher->to_serve && b < executor->options.model->blocks; b++)
		for (const struct ring_command *at = dispatcher->lane[executor->lowering.optimizer + b].head; at; at = at->next)
			if (at->lowered.kind == RH_COMMAND_GRADIENT_ARRIVED && at->lowered.step <= step)
				return 1;
	return 0;
}

static int is_over(struct rh_executor *executor, enum dispatch_until until, int index)
{
	const struct run_dispatcher *dispatcher = &executor->dispatcher;
	const struct lowering *lowering = &executor->lowering;
	int waits = dispatcher->lane[lowering->caller].head != NULL;
	if (until == DISPATCH_ALL)
		return lower_is_over(lowering) && !dispatcher->left[0] && !dispatcher->left[1] && !waits;
	if (until == DISPATCH_STEP)
		return !dispatcher->left[index] && !waits && (index != (int)executor->first || lower_is_over(lowering)) &&
		       !is_arriving(executor, executor->flight[index].step);
	if (!lower_is_over(lowering))
		return 0;
	for (int d = 0; d < executor->options.planned.devices; d++)
		if (!dispatcher->lane[lower_lane(d, RH_STREAM_COMPUTE)].head)
			return 1;
	return 0;
}

static int run_once(struct rh_executor *executor)
{
	int any = 0, rc = lower_more(executor);
	if (!rc && executor->is_stretch)
		rc = run_stretch_collect(executor);
	if (!rc && executor->dispatcher.is_due)
		rc = dispatcher_serve(executor, 0);
	if (rc >= 0 && executor->lowering.links >= 0)
		any = rc = dispatcher_serve_links(executor);
	if (rc < 0)
		return rc;
	for (int d = 0; rc >= 0 && d < executor->options.planned.devices; d++) {
		rc = issue_to(executor, d);
		any |= rc > 0;
	}
	return rc < 0 ? rc : any;
}

/* 1: the optimizer or, where there is none, a drive may have news since they were served last. */
static int has_changed(const struct rh_executor *executor)
{
	struct rh_updater *updater = executor->options.updater;
	return updater ? rh_updater_changes(updater) != executor->dispatcher.changes : dispatcher_drives_are_busy(&executor->dispatcher);
}

int dispatcher_run(struct rh_executor *executor, enum dispatch_until until, int index)
{
	int rc = 0;
	for (int64_t i = 1; rc >= 0; i++) {
		rc = lower_more(executor); /* before is_over, which asks whether all is lowered */
		if (rc < 0 || is_over(executor, until, index))
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
	while (rc >= 0 && executor->dispatcher.left[DISPATCH_AHEAD]) {
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

void dispatcher_drop(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	for (int lane = 0; lane < executor->lowering.lanes.lanes; lane++)
		while (dispatcher->lane[lane].head)
			dispatcher_end_head(executor, lane);
	run_spans_drop(executor);
	for (int d = 0; d < executor->options.planned.devices; d++)
		dispatcher->device[d].blocks_left = dispatcher->device[d].is_stalled = 0;
	memset(dispatcher->left, 0, sizeof dispatcher->left);
}

void dispatcher_mark_done(struct rh_executor *executor, int64_t before)
{
	for (int i = 0; i < executor->options.planned.devices * RH_STREAMS; i++) {
		struct dispatch_stream *at = &executor->dispatcher.stream[i];
		while (at->issued.oldest && at->issued.oldest->lowered.position < before) {
			at->marks.latest_reached.issued = at->issued.oldest->sequence;
			ring_end(&executor->lowering.ring, ring_pop(&at->issued));
		}
	}
	for (int d = 0; d < executor->options.planned.devices; d++)
		executor->dispatcher.device[d].finished = executor->dispatcher.device[d].launched;
}

/* ---- creation ---- */

int dispatcher_create(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	struct rh_region *memory = &executor->memory;
	int devices = executor->options.planned.devices, streams = devices * RH_STREAMS;
	dispatcher->lane = rh_region_take(memory, executor->lowering.lanes.lanes, sizeof *dispatcher->lane);
	dispatcher->ready = rh_region_take(memory, devices + 1, sizeof *dispatcher->ready);
	dispatcher->stream = rh_region_take(memory, streams, sizeof *dispatcher->stream);
	dispatcher->device = rh_region_take(memory, devices, sizeof *dispatcher->device);
	for (int i = 0; !memory->rc && i <= devices; i++)
		dispatcher->ready[i].lane = rh_region_take(memory, RH_STREAMS + 2 * executor->options.model->blocks + 1, sizeof(int));
	for (int i = 0; !memory->rc && i < streams; i++)
		dispatcher->stream[i].seen = rh_region_take(memory, streams, sizeof(int64_t));
	int rc = memory->rc;
	dispatcher->taken = executor->lowering.ring.end;
	for (int d = 0; !rc && d < devices; d++)
		dispatcher->device[d].lowered = -1;
	for (int i = 0; !rc && i < streams; i++)
		rc = rh_marks_create(executor->options.device[i / RH_STREAMS], (enum rh_stream)(i % RH_STREAMS),
		                     &dispatcher->stream[i].marks);
	return rc ? rc : dispatcher_create_drives(executor);
}

void dispatcher_destroy(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	for (int i = 0; dispatcher->stream && i < executor->options.planned.devices * RH_STREAMS; i++)
		rh_marks_destroy(&dispatcher->stream[i].marks);
	for (int i = 0; i < DISPATCH_DRIVES; i++)
		rh_space_queue_destroy(dispatcher->drive[i].queue);
}
