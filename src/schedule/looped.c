/* Breadth-first over looped stages: device d has stages d, d + N, ...; each runs all micro-batches before the next. With stages swapped in
 * from the host this is Mobius' order too. */
#include "schedule/schedule_internal.h"

static void fill(struct weaving *weaving)
{
	int devices = weaving->request->devices, stages = weaving->request->stages;
	for (int d = 0; d < devices; d++) {
		for (int s = d; s < stages; s += devices)
			weaving_add(weaving, RH_SLOT_FORWARD, s, 0, weaving->micro_batches);
		for (int s = stages - devices + d; s >= 0; s -= devices)
			weaving_add(weaving, RH_SLOT_BACKWARD, s, 0, weaving->micro_batches);
		weaving_next_device(weaving);
	}
}

int schedule_looped(const struct rh_schedule_request *request, struct rh_program *out)
{
	return weave_steps(request, fill, out);
}
