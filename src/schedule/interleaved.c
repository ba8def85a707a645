/* Interleaved 1F1B: device d has v stages d, d + N, ...; micro-batches go in groups of N, through one stage of the device after the other.
 */
#include "schedule/schedule_internal.h"

static void fill(struct weaving *weaving)
{
	int64_t devices = weaving->request->devices, loops = weaving->request->stages / devices, all = weaving->micro_batches * loops;
	for (int64_t d = 0; d < devices; d++) {
		int64_t ahead = 2 * (devices - 1 - d) + (loops - 1) * devices;
		ahead = loops == 1 ? devices - 1 - d : ahead; /* then it is 1F1B */
		for (int64_t i = 0; i < all + ahead; i++) {
			int64_t b = i - ahead;
			if (i < all)
				weaving_add(weaving, RH_SLOT_FORWARD, (int)(d + i / devices % loops * devices),
				            i / (devices * loops) * devices + i % devices, 1);
			if (b >= 0)
				weaving_add(weaving, RH_SLOT_BACKWARD, (int)(d + (loops - 1 - b / devices % loops) * devices),
				            b / (devices * loops) * devices + b % devices, 1);
		}
		weaving_next_device(weaving);
	}
}

int schedule_interleaved(const struct rh_schedule_request *request, struct rh_program *out)
{
	if (request->stages > request->devices && request->micro_batches % request->devices)
		return rh_fail(RH_NO_ORDER,
		               "schedule interleaved-1f1b: %lld micro-batches are no multiple of %d devices; change "
		               "gradient_accumulation_steps",
		               (long long)request->micro_batches, request->devices);
	return weave_steps(request, fill, out);
}
