/* PACI's admission: a stage takes a backward as soon as it is there, and a forward only while fewer than its window are unresolved. */
#include "schedule/listing.h"

static int admits(const struct listing_rule *rule, const struct rh_schedule_request *request, int stage, const int64_t *forwards,
                  const int64_t *released)
{
	int64_t window = rule->window ? rule->window[stage] : request->stages - stage;
	return forwards[stage] - released[stage] < window;
}

int schedule_paci(const struct rh_schedule_request *request, struct rh_program *out)
{
	const struct listing_rule rule = {
	        .order = {RH_SLOT_BACKWARD, RH_SLOT_FORWARD}, .orders = 2, .admits = admits, .window = request->window};
	for (int s = 0; request->window && s < request->stages; s++)
		if (request->window[s] < 1)
			return rh_fail(-EINVAL, "schedule paci: stage %d's window is %lld; it must let in one micro-batch", s,
			               (long long)request->window[s]);
	return listing_make(request, &rule, 0, request->micro_batches * request->steps, out);
}
