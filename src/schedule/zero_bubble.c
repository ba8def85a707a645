/* Zero-bubble orders by hand: 1F1B whose weight gradients wait. H1 keeps 1F1B's memory: device d begins with N - d forwards and owes up to
 * d weight gradients. H2 begins with twice as many, less one, and owes up to 2d, so that the last device, too, is busy from its first
 * forward on. */
#include "schedule/schedule_internal.h"

static void fill(struct weaving *weaving, int64_t ahead, int64_t owed)
{
	int d = weaving->device;
	int64_t count = weaving->micro_batches, forwards = 0, weights = 0;
	for (; forwards < count && forwards < ahead; forwards++)
		weaving_add(weaving, RH_SLOT_FORWARD, d, forwards, 1);
	for (int64_t b = 0; b < count; b++) {
		weaving_add(weaving, RH_SLOT_INPUT_GRADIENT, d, b, 1);
		if (b + 1 - weights > owed)
			weaving_add(weaving, RH_SLOT_WEIGHT_GRADIENT, d, weights++, 1);
		if (forwards < count)
			weaving_add(weaving, RH_SLOT_FORWARD, d, forwards++, 1);
	}
	while (weights < count)
		weaving_add(weaving, RH_SLOT_WEIGHT_GRADIENT, d, weights++, 1);
	weaving_next_device(weaving);
}

static void fill_h1(struct weaving *weaving)
{
	int64_t devices = weaving->request->devices;
	for (int64_t d = 0; d < devices; d++)
		fill(weaving, devices - d, d);
}

static void fill_h2(struct weaving *weaving)
{
	int64_t devices = weaving->request->devices;
	for (int64_t d = 0; d < devices; d++)
		fill(weaving, 2 * (devices - d) - 1, 2 * d);
}

int schedule_zb_h1(const struct rh_schedule_request *request, struct rh_program *out)
{
	return weave_steps(request, fill_h1, out);
}

int schedule_zb_h2(const struct rh_schedule_request *request, struct rh_program *out)
{
	return weave_steps(request, fill_h2, out);
}
