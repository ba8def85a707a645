#include "schedule/schedule.h"

#include "schedule/schedule_internal.h"

#include <string.h>

const struct rh_schedule rh_schedules[] = {
        {"roundpipe", "arXiv 2604.27085", RH_UPDATE_FLUSHES, 0, 0, 0, 1, schedule_roundpipe},
        {"roundpipe-async", "arXiv 2604.27085, 3.3", RH_UPDATE_STALE, 0, 0, 0, 1, schedule_roundpipe},
        {"gpipe", "arXiv 1811.06965", RH_UPDATE_FLUSHES, 1, 1, 0, 0, schedule_gpipe},
        {"1f1b", "arXiv 2006.09503 (PipeDream-Flush)", RH_UPDATE_FLUSHES, 1, 1, 0, 0, schedule_1f1b},
        {"interleaved-1f1b", "arXiv 2104.04473, 2.2", RH_UPDATE_FLUSHES, 1, 1 << 20, 0, 0, schedule_interleaved},
        {"looped-bfs", "arXiv 2211.05953", RH_UPDATE_FLUSHES, 1, 1 << 20, 0, 0, schedule_looped},
        {"mobius", "Feng et al., ASPLOS 2023", RH_UPDATE_FLUSHES, 1, 1 << 20, 0, 1, schedule_looped},
        {"zb-h1", "arXiv 2401.10241, 2.1", RH_UPDATE_FLUSHES, 1, 1, 1, 0, schedule_zb_h1},
        {"zb-h2", "arXiv 2401.10241, 2.2", RH_UPDATE_FLUSHES, 1, 1, 1, 0, schedule_zb_h2},
        {"zb-1p", "arXiv 2401.10241, 3", RH_UPDATE_FLUSHES, 1, 1, 1, 0, schedule_zb_1p},
        {"zb-2p", "arXiv 2401.10241, 3", RH_UPDATE_FLUSHES, 1, 1, 1, 0, schedule_zb_2p},
        {"zb-v", "arXiv 2401.10241, 6", RH_UPDATE_FLUSHES, 2, 2, 1, 0, schedule_zb_v},
        {"1f1b-async", "arXiv 1806.03377 (PipeDream)", RH_UPDATE_LOCAL, 1, 1, 0, 0, schedule_1f1b_async},
        {"paci", "arXiv 2606.07881, D.3", RH_UPDATE_LOCAL, 1, 1, 0, 0, schedule_paci},
};
const int rh_schedule_count = sizeof rh_schedules / sizeof rh_schedules[0];

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
	if (!least && (!request->plan || request->round_micro_batches < 1))
		return rh_fail(-EINVAL, "schedule %s: needs a plan and micro-batches in a round", schedule->name);
	if (least && (request->stages % devices || request->stages < least * devices || request->stages / devices > schedule->stages_most))
		return rh_fail(-EINVAL, "schedule %s: %d model stages do not go onto %d devices; give each %d%s", schedule->name,
		               request->stages, devices, least, schedule->stages_most > least ? " or more, all the same" : "");
	return schedule->make(request, out);
}
