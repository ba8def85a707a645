#include "schedule/schedule.h"

#include "schedule/schedule_internal.h"

#include <string.h>

#define ROW(...) {__VA_ARGS__},
const struct rh_schedule rh_schedules[] = {SCHEDULES(ROW)};
const int rh_schedule_count = sizeof rh_schedules / sizeof rh_schedules[0];

#define NAME_RH_UPDATE_FLUSHES(name)    ", " name
#define NAME_RH_UPDATE_STALE(name)      ""
#define NAME_RH_UPDATE_LOCAL(name)      ", " name " (no flush)"
#define NAME(name, source, update, ...) NAME_##update(name)
static const char listed[] = SCHEDULES(NAME);

const char *rh_schedule_names(void)
{
	return listed + 2;
}

const struct rh_schedule *rh_schedule_find(const char *name)
{
	for (int i = 0; i < rh_schedule_count; i++)
		if (!strcmp(rh_schedules[i].name, name))
			return &rh_schedules[i];
	return NULL;
}

int rh_schedule_make(const struct rh_schedule *schedule, const struct rh_schedule_request *request, struct rh_program *out)
{
	int devices = request->devices, least = schedule->stages_least;
	out->slots = 0;
	if (devices < 1 || request->micro_batches < 1 || request->steps < 1)
		return rh_fail(-EINVAL, "schedule %s: devices, micro-batches and steps are counts from 1", schedule->name);
	if (rh_schedule_is_roundpipe(schedule) && (!request->plan || request->round_micro_batches < 1))
		return rh_fail(-EINVAL, "schedule %s: needs a plan and micro-batches in a round", schedule->name);
	if (least && (request->stages % devices || request->stages < least * devices || request->stages / devices > schedule->stages_most))
		return rh_fail(-EINVAL, "schedule %s: %d model stages do not go onto %d devices; give each %d%s", schedule->name,
		               request->stages, devices, least, schedule->stages_most > least ? " or more, all the same" : "");
	return schedule->make(request, out);
}
