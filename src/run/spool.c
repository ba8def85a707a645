#include "run/spool.h"

#include "core/alloc.h"
#include "offload/host_thread.h"
#include "run/course.h"

#include <stdatomic.h>

enum way { DOWN, UP, WAYS }; /* from devices to NVMe, and back */

/* One ring, and the thread between it and NVMe. */
struct ring {
	struct rh_boundary_buffer *buffer;
	int count;
	/* of each buffer: its transfer, and what that waits for; ticket 0: none */
	struct {
		int64_t ticket;
		struct rh_event *after;
	} * under_way;
	struct rh_host_queue *queue;
	struct rh_space_io *io; /* NULL: simulated */
	int64_t latest;         /* ticket */
};

struct run_spool {
	struct run_spool_options options;
	struct ring ring[WAYS];
	struct run_course course;
	atomic_int *whole; /* of each write of the course: its record is written. Set by the thread of writes */
	size_t whole_capacity;
	size_t at;                   /* touch of the course that comes next */
	int64_t asked, came, latest; /* reloads begun, and given out; the latest write */
};

/* ---- the threads' part ---- */

static int write_record(void *context, int64_t write)
{
	struct run_spool *spool = context;
	struct ring *ring = &spool->ring[DOWN];
	int rc = 0;
	if (ring->io) {
		rh_space_write(ring->io, spool->options.first_record + spool->course.write[write].record,
		               ring->buffer[write % ring->count].memory);
		rc = rh_space_io_wait(ring->io);
	}
	if (!rc) /* the record's blocks and checksums come before it */
		atomic_store_explicit(&spool->whole[write], 1, memory_order_release);
	return rc;
}

static int read_record(void *context, int64_t reload)
{
	struct run_spool *spool = context;
	struct ring *ring = &spool->ring[UP];
	if (!ring->io)
		return 0;
	int record = spool->course.write[spool->course.reload[reload]].record;
	rh_space_read(ring->io, spool->options.first_record + record, ring->buffer[reload % ring->count].memory);
	return rh_space_io_wait(ring->io);
}

/* ---- rings ---- */

static int ring_create(struct run_spool *spool, enum way way, struct rh_boundary_buffer *buffer, int count)
{
	struct ring *ring = &spool->ring[way];
	struct rh_device *device = spool->options.device;
	struct rh_space *space = spool->options.space;
	ring->buffer = buffer;
	ring->count = count;
	ring->under_way = rh_alloc((size_t)count, sizeof *ring->under_way);
	int rc = ring->under_way ? 0 : -ENOMEM;
	if (!rc)
		rc = device->ops->host_queue ? device->ops->host_queue(device, &ring->queue) : rh_host_thread_open(count, &ring->queue);
	if (!rc && space)
		rc = rh_space_io_create(space, spool->options.bytes, &ring->io);
	if (!rc && space)
		rh_space_io_aside(ring->io);
	return rc;
}

static void ring_destroy(struct ring *ring)
{
	if (ring->queue)
		ring->queue->ops->destroy(ring->queue);
	rh_space_io_destroy(ring->io);
	rh_free(ring->under_way);
}

int run_spool_create(const struct run_spool_options *options, struct rh_boundary_buffer *buffer, struct run_spool **out)
{
	struct run_spool *spool = rh_alloc(1, sizeof *spool);
	if (!spool)
		return -ENOMEM;
	spool->options = *options;
	int rc = ring_create(spool, DOWN, buffer, options->down);
	if (!rc)
		rc = ring_create(spool, UP, buffer + options->down, options->up);
	if (!rc && options->space)
		rh_space_attach(options->space, buffer->memory, (options->down + options->up) * options->bytes);
	if (rc)
		run_spool_destroy(spool);
	else
		*out = spool;
	return rc;
}

void run_spool_destroy(struct run_spool *spool)
{
	if (!spool)
		return;
	for (int w = 0; w < WAYS; w++)
		ring_destroy(&spool->ring[w]);
	run_course_free(&spool->course);
	rh_free(spool->whole);
	rh_free(spool);
}

static int submit(struct ring *ring, int64_t number, const struct rh_host_job *job)
{
	int rc = ring->queue->ops->submit(ring->queue, job, &ring->latest);
	ring->under_way[number % ring->count].ticket = rc ? 0 : ring->latest;
	ring->under_way[number % ring->count].after = job->after;
	return rc;
}

/* Waits for the transfer of a buffer, if there is one. What the device does before it is not NVMe's time. */
static int settle(struct run_spool *spool, struct ring *ring, int64_t number)
{
	int64_t ticket = ring->under_way[number % ring->count].ticket;
	struct rh_event *after = ring->under_way[number % ring->count].after;
	ring->under_way[number % ring->count].ticket = 0;
	int rc = ticket && after ? after->ops->event_sync(after) : 0;
	if (!ticket || rc)
		return rc;
	double began = ring->queue->ops->seconds(ring->queue);
	rc = ring->queue->ops->await(ring->queue, ticket);
	if (spool->options.space)
		rh_space_waited(spool->options.space, ring->queue->ops->seconds(ring->queue) - began);
	return rc;
}

static struct rh_event *written_event(const struct rh_boundary_buffer *buffer)
{
	return buffer->written_by < 0 ? NULL : buffer->written[buffer->written_by];
}

/* The device that a buffer of the ring of reads was copied to last. */
static struct rh_event *read_event(const struct rh_boundary_buffer *buffer)
{
	return buffer->read_by ? buffer->read[__builtin_ctzll(buffer->read_by)] : NULL;
}

/* ---- the program's part ---- */

/* Reload number `asked` begins. What was in its buffer has been given out, and its copy is enqueued. */
static int ask(struct run_spool *spool)
{
	struct ring *ring = &spool->ring[UP];
	int64_t reload = spool->asked;
	struct rh_boundary_buffer *buffer = &ring->buffer[reload % ring->count];
	struct rh_host_job job = {.work = RH_HOST_NVME_READ,
	                          .bytes = (double)spool->options.bytes,
	                          .after = read_event(buffer),
	                          .run = read_record,
	                          .context = spool,
	                          .argument = reload};
	int rc = submit(ring, reload, &job);
	buffer->read_by = 0;
	spool->asked += !rc;
	return rc;
}

static int read_ahead(struct run_spool *spool)
{
	const struct run_course *course = &spool->course;
	int rc = 0;
	while (!rc && spool->asked < (int64_t)course->reloads && spool->asked < spool->came + spool->ring[UP].count &&
	       atomic_load_explicit(&spool->whole[course->reload[spool->asked]], memory_order_acquire))
		rc = ask(spool);
	return rc;
}

/* Where the program stands. A program of many steps may end before the last one: what its dropped slots would have done is passed over. */
static const struct run_touch *next_touch(struct run_spool *spool, int is_write, enum rh_boundary_kind kind, int layer, int64_t micro_batch)
{
	const struct run_course *course = &spool->course;
	for (; spool->at < course->touches; spool->at++) {
		const struct run_touch *touch = &course->touch[spool->at];
		if (touch->is_write == is_write && touch->kind == (int)kind && touch->layer == layer && touch->micro_batch == micro_batch)
			return &course->touch[spool->at++];
	}
	RH_ASSERT(!"a boundary that the program does not have");
	return NULL;
}

int run_spool_write(struct run_spool *spool, enum rh_boundary_kind kind, int layer, int64_t micro_batch, struct rh_boundary_buffer **out)
{
	struct ring *ring = &spool->ring[DOWN];
	int64_t write = next_touch(spool, 1, kind, layer, micro_batch)->write;
	struct rh_boundary_buffer *buffer = &ring->buffer[write % ring->count];
	int rc = read_ahead(spool);
	if (!rc)
		rc = settle(spool, ring, write);
	spool->latest = write;
	*out = buffer;
	return rc;
}

int run_spool_written(struct run_spool *spool, struct rh_boundary_buffer *buffer)
{
	if (spool->course.write[spool->latest].record < 0)
		return 0;
	struct rh_host_job job = {.work = RH_HOST_NVME_WRITE,
	                          .bytes = (double)spool->options.bytes,
	                          .after = written_event(buffer),
	                          .run = write_record,
	                          .context = spool,
	                          .argument = spool->latest};
	return submit(&spool->ring[DOWN], spool->latest, &job);
}

/* A reload: it has been asked for long since, or is now. */
static int bring(struct run_spool *spool, int64_t reload, int64_t write)
{
	struct ring *down = &spool->ring[DOWN], *up = &spool->ring[UP];
	int rc = read_ahead(spool);
	if (!rc && spool->asked <= reload) {
		spool->asked = reload;
		/* where later writes were dropped the record may still be on its way, from the buffer that is still its own */
		if (!atomic_load_explicit(&spool->whole[write], memory_order_acquire))
			rc = settle(spool, down, write);
		if (!rc)
			rc = ask(spool);
	}
	struct rh_boundary_buffer *buffer = &up->buffer[reload % up->count];
	if (!rc)
		rc = settle(spool, up, reload);
	spool->came = reload + 1;
	buffer->written_by = -1;
	return rc;
}

int run_spool_read(struct run_spool *spool, enum rh_boundary_kind kind, int layer, int64_t micro_batch, struct rh_boundary_buffer **out)
{
	const struct run_touch *touch = next_touch(spool, 0, kind, layer, micro_batch);
	if (touch->reload < 0) {
		*out = &spool->ring[DOWN].buffer[touch->write % spool->ring[DOWN].count];
		return read_ahead(spool);
	}
	*out = &spool->ring[UP].buffer[touch->reload % spool->ring[UP].count];
	return bring(spool, touch->reload, touch->write);
}

int run_spool_begin(struct run_spool *spool, const struct rh_boundary_walk *walk)
{
	int rc = run_course_make(&spool->course, walk, spool->options.micro_batches, spool->options.down);
	if (!rc)
		rc = rh_grow(&spool->whole, &spool->whole_capacity, spool->course.writes, sizeof *spool->whole);
	for (size_t i = 0; !rc && i < spool->course.writes; i++)
		atomic_init(&spool->whole[i], 0);
	spool->at = 0;
	spool->asked = spool->came = 0;
	return rc;
}

int run_spool_end(struct run_spool *spool)
{
	int rc = 0;
	for (int w = 0; w < WAYS; w++) {
		struct ring *ring = &spool->ring[w];
		int fault = ring->latest ? ring->queue->ops->await(ring->queue, ring->latest) : 0;
		rc = rc ? rc : fault;
		for (int i = 0; i < ring->count; i++)
			ring->under_way[i].ticket = 0;
	}
	return rc;
}
