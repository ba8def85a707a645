/* Lanes to and from drives. Each has a queue (offload/space_queue.h). A READ or WRITE is submitted once every command that it waits for has
 * been issued on a device, or is over elsewhere; the transfer waits for the device. Commands that wait for it go on once it is over:
 *
 *   in its lane --submit_ready--> submitted --the queue--> ended --end_transfers--> over: `sequence` is set */
#include "run/executor_internal.h"

/* The latest mark of the one stream that the command waits for; NULL: it waits for none. */
static int find_event(struct rh_executor *executor, const struct rh_command *command, struct rh_event **out)
{
	const struct lowering *lowering = &executor->lowering;
	*out = NULL;
	for (int i = 0; i < command->waits; i++) {
		const struct ring_command *other = ring_wait(&lowering->ring, command, i);
		const struct rh_stream_mark *mark;
		if (!other || lowering->lanes.lane[other->lowered.lane].queue != RH_QUEUE_STREAM)
			continue;
		RH_ASSERT(!*out);
		int rc = issue_mark(executor, other, &mark);
		if (rc)
			return rc;
		*out = mark->event;
	}
	return 0;
}

static int submit_head(struct rh_executor *executor, struct dispatch_drive *drive)
{
	struct ring_command *head = executor->dispatcher.lane[drive->lane].head;
	struct rh_place disk = drive->is_write ? head->lowered.target : head->lowered.source,
	                host = drive->is_write ? head->lowered.source : head->lowered.target;
	struct rh_space_transfer transfer = {.record = executor->options.first_record + disk.number,
	                                     .memory = run_host_address(executor, host)};
	if (host.room == RH_ROOM_HOST_FRAME)
		transfer.record = rh_store_pages(executor->options.store, disk.number) + (int)(disk.first / executor->options.page_bytes);
	else
		transfer.bytes = lower_record_bytes(&executor->lowering, disk.number);
	int rc = find_event(executor, &head->lowered, &transfer.after);
	if (!rc)
		rc = rh_space_queue_submit(drive->queue, &transfer);
	if (rc)
		return rc;
	dispatcher_advance(executor, drive->lane);
	ring_push(&drive->submitted, head);
	return 0;
}

/* 1: something was submitted. */
static int submit_ready(struct rh_executor *executor, struct dispatch_drive *drive)
{
	int any = 0;
	for (; rh_space_queue_has_room(drive->queue) && dispatcher_is_ready(&executor->dispatcher, drive->lane); any = 1) {
		int rc = submit_head(executor, drive);
		if (rc)
			return rc;
	}
	return any;
}

static int end_transfer(struct rh_executor *executor, struct dispatch_drive *drive)
{
	int rc = rh_space_queue_take(drive->queue);
	dispatcher_end(executor, ring_pop(&drive->submitted));
	return rc;
}

/* 1: some are over; or their fault. */
static int end_transfers(struct rh_executor *executor, struct dispatch_drive *drive)
{
	int any = 0, rc = 0;
	for (; !rc && rh_space_queue_has_ended(drive->queue); any = 1)
		rc = end_transfer(executor, drive);
	return rc ? rc : any;
}

int dispatcher_serve_drives(struct rh_executor *executor)
{
	int any = 0;
	for (int again = 1; again;) {
		again = 0;
		for (int i = 0; i < DISPATCH_DRIVES; i++) {
			struct dispatch_drive *drive = &executor->dispatcher.drive[i];
			int ended = end_transfers(executor, drive);
			int begun = ended < 0 ? ended : submit_ready(executor, drive);
			if (begun < 0)
				return begun;
			again |= ended | begun;
		}
		any |= again;
	}
	return any;
}

int dispatcher_drives_are_busy(const struct run_dispatcher *dispatcher)
{
	int any_busy = 0;
	for (int i = 0; i < DISPATCH_DRIVES; i++)
		any_busy |= rh_space_queue_is_busy(dispatcher->drive[i].queue);
	return any_busy;
}

int dispatcher_await_drives(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	struct dispatch_drive *waited = NULL;
	int is_moving = 0, rc = 0; /* else the transfer still waits for its device */
	for (int i = DISPATCH_DRIVES - 1; i >= 0; i--) {
		struct dispatch_drive *drive = &dispatcher->drive[i];
		is_moving |= rh_space_queue_is_moving(drive->queue);
		waited = rh_space_queue_is_busy(drive->queue) ? drive : waited;
	}
	if (!waited)
		return 0;
	double began = rh_space_queue_seconds(waited->queue);
	if (executor->options.updater)
		rc = rh_updater_await_change(executor->options.updater, dispatcher->changes);
	else
		rc = end_transfer(executor, waited);
	if (is_moving)
		rh_space_queue_waited(waited->queue, rh_space_queue_seconds(waited->queue) - began);
	dispatcher->is_due = 1;
	return rc ? rc : 1;
}

int dispatcher_rest_drives(struct rh_executor *executor)
{
	int first = 0;
	for (int i = 0; i < DISPATCH_DRIVES; i++)
		while (rh_space_queue_is_busy(executor->dispatcher.drive[i].queue)) {
			int rc = end_transfer(executor, &executor->dispatcher.drive[i]);
			first = first ? first : rc;
		}
	return first;
}

static void wake(void *updater)
{
	rh_updater_wake(updater);
}

int dispatcher_create_drives(struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	const struct lower_drives *lowered = &executor->lowering.drives;
	struct rh_space *of_weights = rh_store_options(options->store)->space, *of_boundaries = options->space;
	int64_t page = options->page_bytes, boundary = executor->lowering.limits.boundaries.bytes_each;
	const int lane[] = {lowered->pages, lowered->reads, lowered->writes};
	const int capacity[] = {page ? LOWER_FRAMES : 0, lowered->read_buffers, lowered->write_buffers};
	int rc = 0;
	for (int i = 0; i < DISPATCH_DRIVES; i++) {
		struct dispatch_drive *drive = &executor->dispatcher.drive[i];
		struct rh_space_queue_options queue = {.device = options->device[0],
		                                       .space = i == DISPATCH_PAGES ? of_weights : of_boundaries,
		                                       .bytes = i == DISPATCH_PAGES ? page : boundary,
		                                       .capacity = capacity[i],
		                                       .is_write = i == DISPATCH_WRITES,
		                                       .ended = options->updater ? wake : NULL,
		                                       .context = options->updater};
		*drive = (struct dispatch_drive){.lane = lane[i], .is_write = queue.is_write};
		if (!rc && capacity[i])
			rc = rh_space_queue_create(&queue, &drive->queue);
	}
	if (!rc && of_weights && page)
		rh_space_attach(of_weights, executor->frame_memory.base, LOWER_FRAMES * page);
	if (!rc && of_boundaries && lowered->write_buffers)
		rh_space_attach(of_boundaries, executor->boundary_memory.base, (lowered->write_buffers + lowered->read_buffers) * boundary);
	return rc;
}
