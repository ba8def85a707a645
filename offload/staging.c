#include "offload/staging.h"

#include "core/alloc.h"

#include <pthread.h>
#include <string.h>

enum { SLOTS = 4 }; /* each way */

struct slot {
	char *memory;
	struct rh_event **copied; /* of each device: its latest copy from or to here */
	int device;               /* that made it; -1: none yet */
	/* downwards: where the bytes belong; and what is to be called then */
	void *to;
	int64_t bytes;
	void (*done)(void *context, int argument);
	void *context;
	int argument;
};

struct rh_staging {
	int devices;
	int64_t slot_bytes;
	struct slot up[SLOTS], down[SLOTS];
	uint64_t sent_up;
	pthread_t thread;
	int started;
	pthread_mutex_t lock; /* of what follows; a slot downwards is the thread's in [emptied, filled), else the driver's */
	pthread_cond_t changed;
	uint64_t filled, emptied;
	int ending, rc;
	char line[512];
};

int64_t rh_staging_bytes(int64_t slot_bytes)
{
	return 2 * SLOTS * rh_align_up(slot_bytes, RH_ALIGN);
}

static void *empty(void *context)
{
	struct rh_staging *staging = context;
	pthread_mutex_lock(&staging->lock);
	for (;;) {
		while (staging->emptied == staging->filled && !staging->ending)
			pthread_cond_wait(&staging->changed, &staging->lock);
		if (staging->emptied == staging->filled)
			break;
		struct slot *slot = &staging->down[staging->emptied % SLOTS];
		int fault = staging->rc;
		pthread_mutex_unlock(&staging->lock);
		int rc = slot->copied[slot->device]->ops->event_sync(slot->copied[slot->device]);
		if (!rc && !fault)
			memcpy(slot->to, slot->memory, (size_t)slot->bytes);
		pthread_mutex_lock(&staging->lock);
		if (rc && !staging->rc) {
			staging->rc = rc;
			strncpy(staging->line, rh_error(rc), sizeof staging->line - 1);
		}
		/* the lock is what rh_staging_then is held off by */
		if (slot->done && !staging->rc)
			slot->done(slot->context, slot->argument);
		staging->emptied++;
		pthread_cond_broadcast(&staging->changed);
	}
	pthread_mutex_unlock(&staging->lock);
	return NULL;
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
	pthread_mutex_init(&staging->lock, NULL);
	pthread_cond_init(&staging->changed, NULL);
	int rc = 0;
	for (int i = 0; !rc && i < SLOTS; i++) {
		rc = slot_create(device, devices, slot_bytes, memory, &staging->up[i]);
		if (!rc)
			rc = slot_create(device, devices, slot_bytes, memory, &staging->down[i]);
	}
	if (!rc) {
		int fault = pthread_create(&staging->thread, NULL, empty, staging);
		staging->started = !fault;
		if (fault)
			rc = rh_fail(-fault, "cannot start the staging ring's thread: %s", strerror(fault));
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
	pthread_mutex_lock(&staging->lock);
	staging->ending = 1;
	pthread_cond_broadcast(&staging->changed);
	pthread_mutex_unlock(&staging->lock);
	if (staging->started)
		pthread_join(staging->thread, NULL);
	for (int i = 0; i < SLOTS; i++) {
		slot_destroy(&staging->up[i], staging->devices);
		slot_destroy(&staging->down[i], staging->devices);
	}
	pthread_cond_destroy(&staging->changed);
	pthread_mutex_destroy(&staging->lock);
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

/* The next slot downwards, once it is empty. */
static struct slot *claim(struct rh_staging *staging)
{
	pthread_mutex_lock(&staging->lock);
	while (staging->filled - staging->emptied == SLOTS)
		pthread_cond_wait(&staging->changed, &staging->lock);
	pthread_mutex_unlock(&staging->lock);
	return &staging->down[staging->filled % SLOTS];
}

int rh_staging_down(struct rh_staging *staging, struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	int rc = 0;
	for (int64_t first = 0; !rc && first < bytes; first += staging->slot_bytes) {
		struct slot *slot = claim(staging);
		rc = device->ops->copy_down(device, stream, slot->memory, (const char *)from + first, part(staging, first, bytes));
		if (!rc)
			rc = device->ops->record(device, stream, slot->copied[device->index]);
		if (rc)
			break;
		slot->device = device->index;
		slot->to = (char *)to + first;
		slot->bytes = part(staging, first, bytes);
		slot->done = NULL;
		pthread_mutex_lock(&staging->lock);
		staging->filled++;
		pthread_cond_broadcast(&staging->changed);
		pthread_mutex_unlock(&staging->lock);
	}
	return rc;
}

void rh_staging_then(struct rh_staging *staging, void (*done)(void *context, int argument), void *context, int argument)
{
	pthread_mutex_lock(&staging->lock);
	struct slot *latest = &staging->down[(staging->filled - 1) % SLOTS];
	while (latest->done && staging->emptied != staging->filled) /* one call a slot: nothing was sent since the one before */
		pthread_cond_wait(&staging->changed, &staging->lock);
	int now = staging->emptied == staging->filled, fault = staging->rc;
	if (!now) {
		latest->done = done;
		latest->context = context;
		latest->argument = argument;
	}
	pthread_mutex_unlock(&staging->lock);
	if (now && !fault)
		done(context, argument);
}

int rh_staging_finish(struct rh_staging *staging)
{
	pthread_mutex_lock(&staging->lock);
	while (staging->emptied != staging->filled)
		pthread_cond_wait(&staging->changed, &staging->lock);
	int rc = staging->rc ? rh_fail_copy(staging->rc, staging->line) : 0;
	pthread_mutex_unlock(&staging->lock);
	return rc;
}
