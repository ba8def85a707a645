#include "device/stalls.h"

#include "core/alloc.h"

static int record(const struct rh_stalls *stalls, struct rh_event *event)
{
	return stalls->device->ops->record(stalls->device, RH_STREAM_COMPUTE, event);
}

static int create_events(struct rh_device *device, struct rh_event **first, struct rh_event **second)
{
	int rc = device->ops->event_create(device, RH_EVENT_TIMED, first);
	return rc ? rc : device->ops->event_create(device, RH_EVENT_TIMED, second);
}

int rh_stalls_create(struct rh_device *device, struct rh_stalls *out)
{
	*out = (struct rh_stalls){.device = device};
	return create_events(device, &out->first, &out->last);
}

void rh_stalls_destroy(struct rh_stalls *stalls)
{
	for (size_t i = 0; i < stalls->stalls; i++) {
		rh_event_free(stalls->stall[i].begin);
		rh_event_free(stalls->stall[i].end);
	}
	rh_event_free(stalls->first);
	rh_event_free(stalls->last);
	rh_free(stalls->stall);
	*stalls = (struct rh_stalls){0};
}

/* One more than any step has had. */
static int add_stall(struct rh_stalls *stalls)
{
	int rc = rh_grow(&stalls->stall, &stalls->capacity, stalls->stalls + 1, sizeof *stalls->stall);
	if (rc)
		return rc;
	struct rh_stall *added = &stalls->stall[stalls->stalls++];
	*added = (struct rh_stall){0};
	return create_events(stalls->device, &added->begin, &added->end);
}

int rh_stalls_open(struct rh_stalls *stalls, enum rh_stall_kind kind)
{
	stalls->open = NULL;
	if (!stalls->begun || stalls->ended || stalls->used == RH_STALLS_MOST)
		return 0;
	int rc = stalls->used == stalls->stalls ? add_stall(stalls) : 0;
	if (rc)
		return rc;
	stalls->open = &stalls->stall[stalls->used++];
	stalls->open->kind = kind;
	return record(stalls, stalls->open->begin);
}

int rh_stalls_close(struct rh_stalls *stalls)
{
	int rc = stalls->open ? record(stalls, stalls->open->end) : 0;
	stalls->open = NULL;
	return rc;
}

void rh_stalls_reset(struct rh_stalls *stalls)
{
	stalls->used = 0;
	stalls->open = NULL;
	stalls->begun = stalls->ended = 0;
}

int rh_stalls_begin(struct rh_stalls *stalls)
{
	if (stalls->begun)
		return 0;
	stalls->begun = 1;
	return record(stalls, stalls->first);
}

int rh_stalls_end(struct rh_stalls *stalls)
{
	stalls->ended = 1;
	return stalls->begun ? record(stalls, stalls->last) : 0;
}

int rh_stalls_sync(const struct rh_stalls *stalls)
{
	return stalls->begun ? stalls->last->ops->event_sync(stalls->last) : 0;
}

static double seconds(struct rh_event *event)
{
	return (double)event->ops->event_time_ns(event) * 1e-9;
}

static double seconds_between(struct rh_event *from, struct rh_event *to)
{
	return (double)(to->ops->event_time_ns(to) - from->ops->event_time_ns(from)) * 1e-9;
}

int rh_stalls_take(struct rh_stalls *stalls, struct rh_stall_times *times)
{
	size_t over = 0;
	for (; over < stalls->used && &stalls->stall[over] != stalls->open; over++) {
		struct rh_stall *stall = &stalls->stall[over];
		int rc = stall->end->ops->event_query(stall->end);
		if (rc < 0)
			return rc;
		if (!rc)
			break;
		times->stalled[stall->kind] += seconds_between(stall->begin, stall->end);
	}
	for (size_t i = over; over && i < stalls->used; i++) { /* events go round, so that none is made anew */
		struct rh_stall free = stalls->stall[i - over];
		stalls->stall[i - over] = stalls->stall[i];
		stalls->stall[i] = free;
	}
	if (stalls->open)
		stalls->open -= over;
	stalls->used -= over;
	return 0;
}

void rh_stalls_add(const struct rh_stalls *stalls, struct rh_stall_times *times)
{
	if (!stalls->begun)
		return;
	times->compute += seconds_between(stalls->first, stalls->last);
	times->ended += seconds(stalls->last);
	for (size_t i = 0; i < stalls->used; i++) {
		double stalled = seconds_between(stalls->stall[i].begin, stalls->stall[i].end);
		times->stalled[stalls->stall[i].kind] += stalled;
		times->compute -= stalled;
	}
}
