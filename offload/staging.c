#include "offload/staging.h"

#include "core/alloc.h"
#include "offload/host_thread.h"

#include <string.h>

enum { SLOTS = 4, JOBS = 2 * SLOTS }; /* each way; of the thread at a time */

struct slot {
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
	int64_t slot_bytes;
	struct slot up[SLOTS], down[SLOTS];
	uint64_t sent_up, sent_down;
	struct rh_host_queue *queue; /* the thread */
	int64_t latest;              /* ticket */
	struct {
		void (*done)(void *context, int argument);
		void *context;
		int argument;
	} callback[JOBS]; /* by ticket */
};

int64_t rh_staging_bytes(int64_t slot_bytes)
{
	return 2 * SLOTS * rh_align_up(slot_bytes, RH_ALIGN);
}

/* The thread's part. */

static int empty_slot(void *context, int64_t index)
{
	const struct slot *slot = &((struct rh_staging *)context)->down[index];
	memcpy(slot->target, slot->memory, (size_t)slot->bytes);
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

static int slot_create(struct rh_device *const *device, int devices, int64_t bytes, struct rh_arena *memory, struct slot *out)
{
	out->memory = rh_arena_take(memory, bytes);
	out->device = -1;
	out->copied = rh_alloc((size_t)devices, sizeof *out->copied);
	int rc = out->copied ? 0 : -ENOMEM;
	for (int d = 0; !rc && d < devices; d++)
		rc = device[d]->ops->event_create(device[d], RH_EVENT_HOST, &out->copied[d]);
	return rc;
}

static void slot_destroy(struct slot *slot, int devices)
{
	for (int d = 0; slot->copied && d < devices; d++)
		if (slot->copied[d])
			slot->copied[d]->ops->event_destroy(slot->copied[d]);
	rh_free(slot->copied);
}

int rh_staging_create(struct rh_device *const *device, int devices, int64_t slot_bytes, struct rh_arena *memory, struct rh_staging **out)
{
	struct rh_staging *staging = rh_alloc(1, sizeof *staging);
	if (!staging)
		return -ENOMEM;
	staging->devices = devices;
	staging->slot_bytes = slot_bytes;
	int rc = rh_host_thread_open(JOBS, &staging->queue);
	for (int i = 0; !rc && i < SLOTS; i++) {
		rc = slot_create(device, devices, slot_bytes, memory, &staging->up[i]);
		if (!rc)
			rc = slot_create(device, devices, slot_bytes, memory, &staging->down[i]);
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
	for (int i = 0; i < SLOTS; i++) {
		slot_destroy(&staging->up[i], staging->devices);
		slot_destroy(&staging->down[i], staging->devices);
	}
	rh_free(staging);
}

static int64_t part(const struct rh_staging *staging, int64_t first, int64_t bytes)
{
	return bytes - first < staging->slot_bytes ? bytes - first : staging->slot_bytes;
}

int rh_staging_up(struct rh_staging *staging, struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	int rc = 0;
	for (int64_t first = 0; !rc && first < bytes; first += staging->slot_bytes) {
		struct slot *slot = &staging->up[staging->sent_up++ % SLOTS];
		if (slot->device >= 0)
			rc = slot->copied[slot->device]->ops->event_sync(slot->copied[slot->device]);
		if (rc)
			break;
		memcpy(slot->memory, (const char *)from + first, (size_t)part(staging, first, bytes));
		rc = device->ops->copy_up(device, stream, (char *)to + first, slot->memory, part(staging, first, bytes));
		slot->device = device->index;
		if (!rc)
			rc = device->ops->record(device, stream, slot->copied[device->index]);
	}
	return rc;
}

int rh_staging_down(struct rh_staging *staging, struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	int rc = 0;
	for (int64_t first = 0; !rc && first < bytes; first += staging->slot_bytes) {
		int64_t index = (int64_t)(staging->sent_down % SLOTS);
		struct slot *slot = &staging->down[index];
		rc = await(staging, slot->ticket);
		if (!rc)
			rc = device->ops->copy_down(device, stream, slot->memory, (const char *)from + first, part(staging, first, bytes));
		if (!rc)
			rc = device->ops->record(device, stream, slot->copied[device->index]);
		if (rc)
			break;
		slot->device = device->index;
		slot->target = (char *)to + first;
		slot->bytes = part(staging, first, bytes);
		rc = submit(staging,
		            &(struct rh_host_job){
		                    .wait_event = slot->copied[device->index], .run = empty_slot, .context = staging, .argument = index});
		slot->ticket = staging->latest;
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
