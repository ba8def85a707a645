/* ZB-V: device d has stages d and 2N - 1 - d, so that the first device ends the forward and begins the backward, and an activation's stay
 * is as long on every device. Within 2N stage activations a device (N of two stages) each takes what is ready: forwards before input
 * gradients before weight gradients; the lower stage runs ahead of the upper one by no more than the way up and down takes. */
#include "schedule/listing.h"

static int device_of(const struct rh_schedule_request *request, int stage)
{
	return stage < request->devices ? stage : 2 * request->devices - 1 - stage;
}

static int admits(const struct listing_rule *rule, const struct rh_schedule_request *request, int stage, const int64_t *forwards,
                  const int64_t *released)
{
	int devices = request->devices, other = 2 * devices - 1 - stage;
	int64_t held = forwards[stage] - released[stage] + forwards[other] - released[other];
	(void)rule;
	if (stage >= devices)
		return held < 2 * devices;
	return held < 2 * devices - 1 && forwards[stage] - forwards[other] < 2 * (devices - stage) - 1;
}

int schedule_zb_v(const struct rh_schedule_request *request, struct rh_program *out)
{
	static const struct listing_rule rule = {.device_of = device_of,
	                                         .order = {{RH_SLOT_FORWARD, 0},
	                                                   {RH_SLOT_FORWARD, 1},
	                                                   {RH_SLOT_INPUT_GRADIENT, 0},
	                                                   {RH_SLOT_INPUT_GRADIENT, 1},
	                                                   {RH_SLOT_WEIGHT_GRADIENT, 0},
	                                                   {RH_SLOT_WEIGHT_GRADIENT, 1}},
	                                         .orders = 6,
	                                         .admits = admits};
	int rc = 0;
	for (int64_t step = 0; !rc && step < request->steps; step++)
		rc = listing_make(request, &rule, step * request->micro_batches, request->micro_batches, out);
	return rc;
}
