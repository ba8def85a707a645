#include "schedule/schedule.h"

#include "schedule/schedule_internal.h"

#include "core/arena.h"
#include "core/minmax.h"

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
	if (rh_schedule_has_rounds(schedule) && (!request->plan || request->round_micro_batches < 1))
		return rh_fail(-EINVAL, "schedule %s: needs a plan and micro-batches in a round", schedule->name);
	if (least && (request->stages % devices || request->stages < least * devices || request->stages / devices > schedule->stages_most))
		return rh_fail(-EINVAL, "schedule %s: %d model stages do not go onto %d devices; give each %d%s", schedule->name,
		               request->stages, devices, least, schedule->stages_most > least ? " or more, all the same" : "");
	return schedule->make(request, out);
}

/* The number of micro-batches after which the middle of a step repeats; 0: none. */
static int64_t find_period(const struct rh_program *program, int64_t micro_batches)
{
	int64_t each = (int64_t)program->slots / micro_batches, from = micro_batches / 4 * each, until = 3 * from;
	for (int64_t period = 1; period <= micro_batches / 4; period++) {
		int64_t i = from;
		for (; i < until; i++) {
			const struct rh_slot *slot = &program->slot[i], *later = &program->slot[i + period * each];
			if (later->kind != slot->kind || later->stage != slot->stage || later->first != slot->first + period)
				break;
		}
		if (i == until)
			return period;
	}
	return 0;
}

/* The probe has LONG times `filled` micro-batches. Filling and draining take fewer than 3 * `filled` each, and a period fewer than
 * 2 * `filled`, so the probe's middle half shows whole periods. */
int rh_schedule_fewer(const struct rh_schedule *schedule, const struct rh_schedule_request *request, int64_t *fewer, int64_t *period)
{
	enum { LONG = 16 };
	struct rh_schedule_request probe = *request;
	struct rh_program program = {0};
	int64_t filled = request->devices, count = request->micro_batches;
	*fewer = count;
	*period = 1;
	for (int s = 0; request->admission_limit && s < request->stages; s++)
		filled = rh_min(filled + request->admission_limit[s], count);
	probe.micro_batches = LONG * rh_align_up(filled, request->devices) + count % request->devices; /* interleaved-1f1b goes by groups */
	probe.steps = 1;
	if (count <= probe.micro_batches)
		return 0;
	int rc = rh_schedule_make(schedule, &probe, &program);
	if (!rc) {
		int whole = program.slot[0].count > 1; /* slots are of all micro-batches */
		int64_t found = whole ? 1 : find_period(&program, probe.micro_batches);
		*period = found ? found : count;
		*fewer = found ? probe.micro_batches + (count - probe.micro_batches) % found : count;
	}
	rh_program_free(&program);
	return rc;
}
