/* PACI's admission: a stage takes a backward as soon as it is there, and a forward only while fewer than its admission limit are
 * unresolved. */
#include "schedule/listing.h"

static int admits(const struct listing_rule *rule, const struct rh_schedule_request *request, int stage, const int64_t *forwards,
                  const int64_t *released)
{
	int64_t admission_limit = rule->admission_limit ? rule->admission_limit[stage] : request->stages - stage;
	return forwards[stage] - released[stage] < admission_limit;
}

int schedule_paci_rule(const struct rh_schedule_request *request, struct listing_rule *out)
{
	*out = (struct listing_rule){
	        .order = {RH_SLOT_BACKWARD, RH_SLOT_FORWARD}, .orders = 2, .admits = admits, .admission_limit = request->admission_limit};
	for (int s = 0; request->admission_limit && s < request->stages; s++)
		if (request->admission_limit[s] < 1)
			return rh_fail(-EINVAL, "schedule paci: stage %d's admission limit is %lld; it must let in one micro-batch", s,
			               (long long)request->admission_limit[s]);
	return 0;
}

int schedule_paci(const struct rh_schedule_request *request, struct rh_program *out)
{
	struct listing_rule rule;
	int rc = schedule_paci_rule(request, &rule);
	return rc ? rc : listing_make(request, &rule, 0, request->micro_batches * request->steps, out);
}
