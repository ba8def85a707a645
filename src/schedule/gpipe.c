/* GPipe: all forwards, then all backwards. Backwards go in the order of the forwards, as gradients are summed in index order. */
#include "schedule/schedule_internal.h"

static void fill(struct weaving *weaving)
{
	for (int d = 0; d < weaving->request->devices; d++) {
		weaving_add(weaving, RH_SLOT_FORWARD, d, 0, weaving->micro_batches);
		weaving_add(weaving, RH_SLOT_BACKWARD, d, 0, weaving->micro_batches);
		weaving_next_device(weaving);
	}
}

int schedule_gpipe(const struct rh_schedule_request *request, struct rh_program *out)
{
	return weave_steps(request, fill, out);
}
