#include "schedule/endless.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "schedule/listing.h"

#include <string.h>

/* A stage of asynchronous 1F1B: slots that it has emitted, and how many of these were forwards and backwards. */
struct emitted {
	int64_t slots, forwards, backwards;
};

struct rh_endless {
	const struct rh_schedule *schedule;
	struct rh_schedule_request request;
	struct rh_stage *stage;
	int64_t *admission_limit;
	struct listing_rule rule;
	struct listing *listing; /* NULL: a stage's own order is known */
	struct emitted *emitted; /* (stages), of that order */
};

static int copy(struct rh_endless *endless)
{
	struct rh_schedule_request *request = &endless->request;
	size_t stages = (size_t)request->stages;
	endless->stage = rh_alloc(stages, sizeof *endless->stage);
	endless->admission_limit = rh_alloc(stages, sizeof *endless->admission_limit);
	endless->emitted = rh_alloc(stages, sizeof *endless->emitted);
	if (!endless->stage || !endless->admission_limit || !endless->emitted)
		return -ENOMEM;
	memcpy(endless->stage, request->stage, stages * sizeof *endless->stage);
	request->stage = endless->stage;
	if (request->admission_limit) {
		memcpy(endless->admission_limit, request->admission_limit, stages * sizeof *endless->admission_limit);
		request->admission_limit = endless->admission_limit;
	}
	return 0;
}

int rh_endless_open(const struct rh_schedule *schedule, const struct rh_schedule_request *request, struct rh_endless **out)
{
	struct rh_endless *endless = *out = rh_alloc(1, sizeof *endless);
	RH_ASSERT(schedule->update == RH_UPDATE_LOCAL && request->stages == request->devices);
	if (!endless)
		return -ENOMEM;
	*endless = (struct rh_endless){.schedule = schedule, .request = *request};
	endless->request.micro_batches = INT64_MAX;
	endless->request.steps = 1;
	int rc = copy(endless);
	if (rc || schedule->make != schedule_paci)
		return rc;
	/* micro-batches in flight in any stage are in flight in the lowest one */
	int64_t window = (request->admission_limit ? request->admission_limit[0] : request->stages) + 1;
	rc = schedule_paci_rule(&endless->request, &endless->rule);
	return rc ? rc : listing_open(&endless->request, &endless->rule, 0, INT64_MAX, window, &endless->listing);
}

/* The stage's next slot: as many forwards ahead as there are stages above it, then one forward and one backward in turn. 1: what it reads
 * has been written. */
static int next_is_ready(const struct rh_endless *endless, int stage, struct rh_slot *out)
{
	const struct emitted *at = &endless->emitted[stage];
	int64_t ahead = endless->request.stages - 1 - stage;
	int is_forward = at->slots < ahead || (at->slots - ahead) % 2 == 0;
	*out = (struct rh_slot){.kind = is_forward ? RH_SLOT_FORWARD : RH_SLOT_BACKWARD,
	                        .lo = endless->stage[stage].lo,
	                        .hi = endless->stage[stage].hi,
	                        .device = stage,
	                        .first = is_forward ? at->forwards : at->backwards,
	                        .count = 1,
	                        .stage = stage};
	if (is_forward)
		return !stage || endless->emitted[stage - 1].forwards > at->forwards;
	return at->forwards > at->backwards &&
	       (stage + 1 == endless->request.stages || endless->emitted[stage + 1].backwards > at->backwards);
}

/* Stage by stage, each as far as it gets; one that waits for no other gets as far as is wanted. */
static int emit(struct rh_endless *endless, size_t slots, struct rh_program *out)
{
	while (out->slots < slots)
		for (int s = 0; s < endless->request.stages; s++) {
			struct emitted *at = &endless->emitted[s];
			int is_alone = endless->request.stages == 1;
			for (struct rh_slot slot; (!is_alone || out->slots < slots) && next_is_ready(endless, s, &slot);) {
				int rc = rh_grow(&out->slot, &out->capacity, out->slots + 1, sizeof *out->slot);
				if (rc)
					return rc;
				out->slot[out->slots++] = slot;
				at->slots++;
				at->forwards += slot.kind == RH_SLOT_FORWARD;
				at->backwards += slot.kind != RH_SLOT_FORWARD;
			}
		}
	return 0;
}

int rh_endless_more(struct rh_endless *endless, size_t slots, struct rh_program *out)
{
	out->slots = 0;
	return endless->listing ? listing_more(endless->listing, slots, out) : emit(endless, slots, out);
}

void rh_endless_close(struct rh_endless *endless)
{
	if (!endless)
		return;
	listing_close(endless->listing);
	rh_free(endless->stage);
	rh_free(endless->admission_limit);
	rh_free(endless->emitted);
	rh_free(endless);
}
