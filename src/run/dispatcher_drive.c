/* Lanes to and from drives. Each has a host queue, which runs its jobs one after another: a thread's, or, in virtual time, the simulated
 * machine's. A READ or WRITE is submitted once every command that it waits for has been issued on a device, or is over elsewhere; its job
 * waits for the device. Others may go on once the job is over.
 *
 *   in its lane --submit_ready--> submitted --queue: run_job--> ended --end_jobs--> done: `sequence` is set */
#include "run/dispatcher_internal.h"

static int is_busy(const struct dispatch_drive *drive)
{
	return drive->done < drive->submitted;
}

/* On the queue's thread. The job's own wait for its device comes first: a fault there must wake the dispatcher, too. */
static int run_job(void *context, int64_t number)
{
	struct dispatch_drive *drive = context;
	const struct dispatch_job *job = &drive->job[number % drive->capacity];
	int rc = 0;
	if (drive->io) {
		rc = job->after ? job->after->ops->event_sync(job->after) : 0;
		atomic_store_explicit(&drive->begun, number + 1, memory_order_relaxed);
		if (!rc && drive->is_write)
			rh_space_write(drive->io, job->record, job->memory);
		else if (!rc)
			rh_space_read(drive->io, job->record, job->memory);
		rc = rc ? rc : rh_space_io_wait(drive->io);
	}
	atomic_store_explicit(&drive->ended, number + 1, memory_order_release);
	if (drive->updater)
		rh_updater_wake(drive->updater);
	return rc;
}

/* What the command moves, and the latest record of the one stream that it waits for. */
static int make_job(struct rh_executor *executor, const struct dispatch_drive *drive, const struct rh_command *command,
                    struct dispatch_job *out)
{
	const struct lowering *lowering = &executor->lowering;
	struct rh_place disk = drive->is_write ? command->to : command->from, host = drive->is_write ? command->from : command->to;
	*out = (struct dispatch_job){.command = ring_of(command)};
	if (host.room == RH_ROOM_HOST_FRAME) {
		out->record = rh_store_pages(executor->options.store, disk.number) + (int)(disk.first / drive->bytes);
		out->memory = executor->frame_memory.base + host.number * drive->bytes;
	} else {
		out->record = executor->options.first_record + disk.number;
		out->memory = run_boundary_memory(executor, host.number);
	}
	for (int i = 0; i < command->waits; i++) {
		const struct ring_command *other = ring_wait(&lowering->ring, command, i);
		const struct rh_stream_mark *mark;
		if (!other || lowering->lanes.lane[other->is.lane].queue != RH_QUEUE_STREAM)
			continue;
		RH_ASSERT(!out->after);
		int rc = issue_mark(executor, other, &mark);
		if (rc)
			return rc;
		out->after = mark->event;
	}
	return 0;
}

static int submit(struct rh_executor *executor, struct dispatch_drive *drive, const struct rh_command *command)
{
	int64_t number = drive->submitted;
	struct dispatch_job *job = &drive->job[number % drive->capacity];
	int rc = make_job(executor, drive, command, job);
	const struct rh_host_job on_queue = {.work = drive->is_write ? RH_HOST_NVME_WRITE : RH_HOST_NVME_READ,
	                                     .bytes = (double)drive->bytes,
	                                     .after = drive->io ? NULL : job->after,
	                                     .run = run_job,
	                                     .context = drive,
	                                     .argument = number};
	rc = rc ? rc : drive->queue->ops->submit(drive->queue, &on_queue, &job->ticket);
	drive->submitted += !rc;
	return rc;
}

/* 1: something was submitted. */
static int submit_ready(struct rh_executor *executor, struct dispatch_drive *drive)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	int any = 0;
	for (; drive->submitted - drive->done < drive->capacity && dispatcher_is_ready(dispatcher, drive->lane); any = 1) {
		int rc = submit(executor, drive, &dispatcher->lane[drive->lane].head->is);
		if (rc)
			return rc;
		dispatcher_advance(executor, drive->lane);
	}
	return any;
}

static int end_job(struct rh_executor *executor, struct dispatch_drive *drive)
{
	const struct dispatch_job *job = &drive->job[drive->done % drive->capacity];
	int rc = drive->queue->ops->await(drive->queue, job->ticket);
	drive->done++;
	dispatcher_end(executor, job->command);
	return rc;
}

/* 1: some are over; or their fault. */
static int end_jobs(struct rh_executor *executor, struct dispatch_drive *drive)
{
	int any = 0, rc = 0;
	for (; !rc && is_busy(drive) && drive->done < atomic_load_explicit(&drive->ended, memory_order_acquire); any = 1)
		rc = end_job(executor, drive);
	return rc ? rc : any;
}

int dispatcher_serve_drives(struct rh_executor *executor)
{
	int any = 0;
	for (int again = 1; again;) {
		again = 0;
		for (int i = 0; i < DISPATCH_DRIVES; i++) {
			struct dispatch_drive *drive = &executor->dispatcher.drive[i];
			int ended = drive->queue ? end_jobs(executor, drive) : 0;
			int begun = drive->queue && ended >= 0 ? submit_ready(executor, drive) : 0;
			if (ended < 0 || begun < 0)
				return ended < 0 ? ended : begun;
			again |= ended | begun;
		}
		any |= again;
	}
	return any;
}

int dispatcher_drives_are_busy(const struct run_dispatcher *dispatcher)
{
	int are = 0;
	for (int i = 0; i < DISPATCH_DRIVES; i++)
		are |= is_busy(&dispatcher->drive[i]);
	return are;
}

/* Until a job is over or, where there is an updater, it has something new. */
int dispatcher_await_drives(struct rh_executor *executor)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	struct dispatch_drive *waited = NULL;
	int is_moving = 0, rc = 0; /* bytes, to or from a drive: else the job still waits for its device */
	for (int i = DISPATCH_DRIVES - 1; i >= 0; i--) {
		struct dispatch_drive *drive = &dispatcher->drive[i];
		is_moving |= is_busy(drive) && atomic_load_explicit(&drive->begun, memory_order_relaxed) > drive->done;
		waited = is_busy(drive) ? drive : waited;
	}
	if (!waited)
		return 0;
	double began = waited->queue->ops->seconds(waited->queue);
	if (executor->options.updater)
		rc = rh_updater_await_change(executor->options.updater, dispatcher->changes);
	else
		rc = end_job(executor, waited);
	if (is_moving)
		rh_space_waited(waited->space, waited->queue->ops->seconds(waited->queue) - began);
	dispatcher->is_due = 1;
	return rc ? rc : 1;
}

int dispatcher_rest_drives(struct rh_executor *executor)
{
	int first = 0;
	for (int i = 0; i < DISPATCH_DRIVES; i++)
		while (is_busy(&executor->dispatcher.drive[i])) {
			int rc = end_job(executor, &executor->dispatcher.drive[i]);
			first = first ? first : rc;
		}
	return first;
}

static int drive_create(struct rh_executor *executor, int capacity, int64_t bytes, struct rh_space *space, struct dispatch_drive *out)
{
	struct rh_device *device = executor->options.device[0];
	if (!capacity)
		return 0;
	out->space = space;
	out->capacity = capacity;
	out->bytes = bytes;
	out->updater = executor->options.updater;
	out->job = rh_region_take(&executor->memory, capacity, sizeof *out->job);
	int rc = executor->memory.rc;
	if (!rc)
		rc = device->ops->host_queue ? device->ops->host_queue(device, &out->queue)
		                             : rh_host_thread_open(capacity + 1, &out->queue);
	if (!rc && space)
		rc = rh_space_io_create(space, bytes, &out->io);
	if (!rc && space)
		rh_space_io_aside(out->io);
	return rc;
}

int dispatcher_create_drives(struct rh_executor *executor)
{
	struct dispatch_drive *drive = executor->dispatcher.drive;
	const struct lower_drives *lowered = &executor->lowering.drives;
	struct rh_space *of_weights = rh_store_options(executor->options.store)->space, *of_boundaries = executor->options.space;
	int64_t page = executor->options.page_bytes, boundary = executor->lowering.limits.boundaries.bytes_each;
	drive[DISPATCH_PAGES].lane = lowered->pages;
	drive[DISPATCH_READS].lane = lowered->reads;
	drive[DISPATCH_WRITES].lane = lowered->writes;
	drive[DISPATCH_WRITES].is_write = 1;
	int rc = drive_create(executor, page ? LOWER_FRAMES : 0, page, of_weights, &drive[DISPATCH_PAGES]);
	rc = rc ? rc : drive_create(executor, lowered->up, boundary, of_boundaries, &drive[DISPATCH_READS]);
	rc = rc ? rc : drive_create(executor, lowered->down, boundary, of_boundaries, &drive[DISPATCH_WRITES]);
	if (!rc && of_weights && page)
		rh_space_attach(of_weights, executor->frame_memory.base, LOWER_FRAMES * page);
	if (!rc && of_boundaries && lowered->down)
		rh_space_attach(of_boundaries, run_boundary_memory(executor, 0), (lowered->down + lowered->up) * boundary);
	return rc;
}

void dispatcher_destroy_drives(struct run_dispatcher *dispatcher)
{
	for (int i = 0; i < DISPATCH_DRIVES; i++) {
		struct dispatch_drive *drive = &dispatcher->drive[i];
		if (drive->queue)
			drive->queue->ops->destroy(drive->queue);
		rh_space_io_destroy(drive->io);
	}
}
