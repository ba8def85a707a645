#include "offload/staging.h"

#include "core/alloc.h"
#include "offload/host_thread.h"

#include <string.h>

enum { BUFFERS = 4, JOBS = 2 * BUFFERS }; /* each way; of the thread at a time */

struct buffer {
	char *memory;
	struct rh_event **copied; /* of each device: its latest copy from or to here */
	int device;               /* that made it; -1: none yet */
	/* downwards: the thread's job, 0: none yet; where the bytes belong */
	int64_t ticket;
	void *target;
	int64_t bytes;
};

struct rh_staging {
	int devices;
	int64_t buffer_bytes;
	struct buffer up[BUFFERS], down[BUFFERS];
	uint64_t sent_up, sent_down;
	struct rh_host_queue *queue; /* the thread */
	int64_t latest;              /* ticket */
	struct {
		void (*done)(void *context, int argument);
		void *context;
		int argument;
	} callback[JOBS]; /* by ticket */
};

int64_t rh_staging_bytes(int64_t buffer_bytes)
{
	return 2 * BUFFERS * rh_align_up(buffer_bytes, RH_ALIGN);
}

/* The thread's part. */

static int empty_buffer(void *context, int64_t index)
{
	const struct buffer *buffer = &((struct rh_staging *)context)->down[index];
	memcpy(buffer->target, buffer->memory, (size_t)buffer->bytes);
	return 0;
}

static int call(void *context, int64_t ticket)
{
	struct rh_staging *staging = context;
	staging->callback[ticket % JOBS].done(staging->callback[ticket % JOBS].context, staging->callback[ticket % JOBS].argument);
	return 0;
}

/* Until the thread's jobs up to this one are over. */
static int await(struct rh_staging *staging, int64_t ticket)
{
	return ticket > 0 ? staging->queue->ops->await(staging->queue, ticket) : 0;
}

/* Once there is room for one more. */
static int submit(struct rh_staging *staging, const struct rh_host_job *job)
{
	int rc = await(staging, staging->latest - JOBS + 1);
	return rc ? rc : staging->queue->ops->submit(staging->queue, job, &staging->latest);
}

static int buffer_create(struct rh_device *const *device, int devices, int64_t bytes, struct rh_arena *memory, struct buffer *out)
{
	out->memory = rh_arena_take(memory, bytes);
	out->device = -1;
	out->copied = rh_alloc((size_t)devices, sizeof *out->copied);
	int rc = out->copied ? 0 : -ENOMEM;
	for (int d = 0; !rc && d < devices; d++)
		rc = device[d]->ops->event_create(device[d], RH_EVENT_HOST, &out->copied[d]);
	return rc;
}

static void buffer_destroy(struct buffer *buffer, int devices)
{
	for (int d = 0; buffer->copied && d < devices; d++)
		if (buffer->copied[d])
			buffer->copied[d]->ops->event_destroy(buffer->copied[d]);
	rh_free(buffer->copied);
}

int rh_staging_create(struct rh_device *const *device, int devices, int64_t buffer_bytes, struct rh_arena *memory, struct rh_staging **out)
{
	struct rh_staging *staging = rh_alloc(1, sizeof *staging);
	if (!staging)
		return -ENOMEM;
	staging->devices = devices;
	staging->buffer_bytes = buffer_bytes;
	int rc = rh_host_thread_open(JOBS, &staging->queue);
	for (int i = 0; !rc && i < BUFFERS; i++) {
		rc = buffer_create(device, devices, buffer_bytes, memory, &staging->up[i]);
		if (!rc)
			rc = buffer_create(device, devices, buffer_bytes, memory, &staging->down[i]);
	}
	if (rc)
		rh_staging_destroy(staging);
	else
		*out = staging;
	return rc;
}

void rh_staging_destroy(struct rh_staging *staging)
{
	if (!staging)
		return;
	if (staging->queue)
		staging->queue->ops->destroy(staging->queue);
	for (int i = 0; i < BUFFERS; i++) {
		buffer_destroy(&staging->up[i], staging->devices);
		buffer_destroy(&staging->down[i], staging->devices);
	}
	rh_free(staging);
}

static int64_t part(const struct rh_staging *staging, int64_t first, int64_t bytes)
{
	return bytes - first < staging->buffer_bytes ? bytes - first : staging->buffer_bytes;
}

int rh_staging_up(struct rh_staging *staging, struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	int rc = 0;
	for (int64_t first = 0; !rc && first < bytes; first += staging->buffer_bytes) {
		struct buffer *buffer = &staging->up[staging->sent_up++ % BUFFERS];
		if (buffer->device >= 0)
			rc = buffer->copied[buffer->device]->ops->event_sync(buffer->copied[buffer->device]);
		if (rc)
			break;
		memcpy(buffer->memory, (const char *)from + first, (size_t)part(staging, first, bytes));
		rc = device->ops->copy_up(device, stream, (char *)to + first, buffer->memory, part(staging, first, bytes));
		buffer->device = device->index;
		if (!rc)
			rc = device->ops->record(device, stream, buffer->copied[device->index]);
	}
	return rc;
}

int rh_staging_down(struct rh_staging *staging, struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	int rc = 0;
	for (int64_t first = 0; !rc && first < bytes; first += staging->buffer_bytes) {
		int64_t index = (int64_t)(staging->sent_down % BUFFERS);
		struct buffer *buffer = &staging->down[index];
		rc = await(staging, buffer->ticket);
		if (!rc)
			rc = device->ops->copy_down(device, stream, buffer->memory, (const char *)from + first,
			                            part(staging, first, bytes));
		if (!rc)
			rc = device->ops->record(device, stream, buffer->copied[device->index]);
		if (rc)
			break;
		buffer->device = device->index;
		buffer->target = (char *)to + first;
		buffer->bytes = part(staging, first, bytes);
		rc = submit(staging, &(struct rh_host_job){.wait_event = buffer->copied[device->index],
		                                           .run = empty_buffer,
		                                           .context = staging,
		                                           .argument = index});
		buffer->ticket = staging->latest;
		staging->sent_down++;
	}
	return rc;
}

int rh_staging_then(struct rh_staging *staging, void (*done)(void *context, int argument), void *context, int argument)
{
	int rc = await(staging, staging->latest + 1 - JOBS);
	if (rc)
		return rc;
	int64_t ticket = staging->latest + 1;
	staging->callback[ticket % JOBS].done = done;
	staging->callback[ticket % JOBS].context = context;
	staging->callback[ticket % JOBS].argument = argument;
	rc = submit(staging, &(struct rh_host_job){.run = call, .context = staging, .argument = ticket});
	RH_ASSERT(rc || staging->latest == ticket);
	return rc;
}

int rh_staging_finish(struct rh_staging *staging)
{
	return await(staging, staging->latest);
}
