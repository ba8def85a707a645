/* 1F1B: a device runs as many forwards ahead as there are stages above it, then one forward and one backward in turn, then the backwards
 * that are left. Flushed after each step, or, asynchronous, on and on. */
#include "schedule/schedule_internal.h"

static void fill(struct weaving *weaving)
{
	int devices = weaving->request->devices;
	for (int d = 0; d < devices; d++) {
		int64_t ahead = devices - 1 - d, count = weaving->micro_batches;
		for (int64_t i = 0; i < count + ahead; i++) {
			if (i < count)
				weaving_add(weaving, RH_SLOT_FORWARD, d, i, 1);
			if (i >= ahead)
				weaving_add(weaving, RH_SLOT_BACKWARD, d, i - ahead, 1);
		}
		weaving_next_device(weaving);
	}
}

int schedule_1f1b(const struct rh_schedule_request *request, struct rh_program *out)
{
	return weave_steps(request, fill, out);
}

int schedule_1f1b_async(const struct rh_schedule_request *request, struct rh_program *out)
{
	struct weaving weaving;
	int rc = weaving_open(request, request->micro_batches * request->steps, &weaving);
	if (rc)
		return rc;
	fill(&weaving);
	return weaving_close(&weaving, out);
}
