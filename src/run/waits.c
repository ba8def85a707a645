#include "run/waits.h"

#include "core/alloc.h"

int run_waits_create(struct rh_device *device, struct run_waits *out)
{
	int rc = device->ops->event_create(device, RH_EVENT_TIMED, &out->first);
	return rc ? rc : device->ops->event_create(device, RH_EVENT_TIMED, &out->last);
}

/* One more than any step has had. */
static int add_wait(struct run_waits *waits, struct rh_device *device)
{
	int rc = rh_grow(&waits->wait, &waits->capacity, waits->waits + 1, sizeof *waits->wait);
	if (rc)
		return rc;
	struct run_wait *added = &waits->wait[waits->waits++];
	*added = (struct run_wait){0};
	rc = device->ops->event_create(device, RH_EVENT_TIMED, &added->before);
	return rc ? rc : device->ops->event_create(device, RH_EVENT_TIMED, &added->after);
}

void run_waits_destroy(struct run_waits *waits)
{
	for (size_t i = 0; i < waits->waits; i++) {
		rh_event_free(waits->wait[i].before);
		rh_event_free(waits->wait[i].after);
	}
	rh_event_free(waits->first);
	rh_event_free(waits->last);
	rh_free(waits->wait);
	*waits = (struct run_waits){0};
}

int run_waits_hold(struct run_waits *waits, struct rh_device *device, enum run_wait_kind kind)
{
	waits->held = NULL;
	if (!waits->begun || waits->ended || waits->used == RUN_WAITS_MOST)
		return 0;
	int rc = waits->used == waits->waits ? add_wait(waits, device) : 0;
	if (rc)
		return rc;
	waits->held = &waits->wait[waits->used++];
	waits->held->kind = kind;
	return device->ops->record(device, RH_STREAM_COMPUTE, waits->held->before);
}

int run_waits_release(struct run_waits *waits, struct rh_device *device)
{
	return waits->held ? device->ops->record(device, RH_STREAM_COMPUTE, waits->held->after) : 0;
}

int run_waits_for(struct run_waits *waits, struct rh_device *device, enum run_wait_kind kind, struct rh_event *event)
{
	int rc = run_waits_hold(waits, device, kind);
	if (!rc)
		rc = device->ops->wait(device, RH_STREAM_COMPUTE, event);
	return rc ? rc : run_waits_release(waits, device);
}

void run_waits_reset(struct run_waits *waits)
{
	waits->used = 0;
	waits->begun = waits->ended = 0;
}

int run_waits_begin(struct run_waits *waits, struct rh_device *device)
{
	if (waits->begun)
		return 0;
	waits->begun = 1;
	return device->ops->record(device, RH_STREAM_COMPUTE, waits->first);
}

int run_waits_end(struct run_waits *waits, struct rh_device *device)
{
	waits->ended = 1;
	return waits->begun ? device->ops->record(device, RH_STREAM_COMPUTE, waits->last) : 0;
}

int run_waits_sync(const struct run_waits *waits)
{
	return waits->begun ? waits->last->ops->event_sync(waits->last) : 0;
}

static double seconds(const struct rh_event *from, const struct rh_event *to)
{
	return (double)(to->ops->event_time_ns((struct rh_event *)(uintptr_t)to) -
	                from->ops->event_time_ns((struct rh_event *)(uintptr_t)from)) *
	       1e-9;
}

void run_waits_add(const struct run_waits *waits, struct rh_step_times *times)
{
	double *const part[RUN_WAIT_KINDS] = {&times->weights, &times->activations, &times->gradients};
	if (!waits->begun)
		return;
	times->compute += seconds(waits->first, waits->last);
	times->ended += (double)waits->last->ops->event_time_ns(waits->last) * 1e-9;
	for (size_t i = 0; i < waits->used; i++) {
		double waited = seconds(waits->wait[i].before, waits->wait[i].after);
		*part[waits->wait[i].kind] += waited;
		times->compute -= waited;
	}
}
