#include "schedule/step_clock.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "schedule/dispatch_internal.h"
#include "schedule/evaluate.h"

struct rh_step_clock {
	struct rh_dispatch dispatch;
	struct rh_program_timing how;
	int stages;
	int64_t count;             /* micro-batches of the program */
	struct rh_program program; /* whose slots know their stages */
	struct rh_program cut;     /* the same with layers, and without what no device runs */
	double *busy_s;            /* (devices) a micro-batch */
};

/* Enough micro-batches for what a schedule does between its fill and its drain. */
static int64_t enough(int64_t micro_batches, int devices)
{
	enum { TIMES = 4 };
	int64_t most = TIMES * (int64_t)devices;
	return micro_batches <= most ? micro_batches : most + micro_batches % devices; /* interleaved-1f1b goes by groups */
}

int rh_step_clock_open(const struct rh_dispatch *dispatch, int stages, const struct rh_cost_sums *sums, double upload_bytes_per_s,
                       struct rh_step_clock **out)
{
	struct rh_step_clock *clock = *out = rh_alloc(1, sizeof *clock);
	struct rh_stage *stage = rh_alloc((size_t)stages, sizeof *stage);
	if (!clock || !stage) {
		rh_free(stage);
		return -ENOMEM;
	}
	*clock = (struct rh_step_clock){.dispatch = *dispatch,
	                                .how = {.schedule = dispatch->schedule,
	                                        .sums = sums,
	                                        .devices = dispatch->devices,
	                                        .recompute = RH_RECOMPUTE_AHEAD,
	                                        .upload_bytes_per_s = upload_bytes_per_s},
	                                .stages = stages,
	                                .count = enough(dispatch->train_micro_batches, dispatch->devices)};
	const struct rh_schedule_request request = {
	        .devices = dispatch->devices, .micro_batches = clock->count, .steps = 1, .stage = stage, .stages = stages};
	clock->busy_s = rh_alloc((size_t)dispatch->devices, sizeof *clock->busy_s);
	int rc = clock->busy_s ? rh_schedule_make(dispatch->schedule, &request, &clock->program) : -ENOMEM;
	if (rc == RH_NO_ORDER) {
		rh_error_clear();
		rc = rh_schedule_make(rh_schedule_find("looped-bfs"), &request, &clock->program);
	}
	rh_free(stage);
	return rc;
}

static int take_slots(struct rh_step_clock *clock, const int *cut)
{
	struct rh_program *to = &clock->cut;
	int rc = rh_grow(&to->slot, &to->capacity, clock->program.slots, sizeof *to->slot);
	to->slots = 0;
	for (size_t i = 0; !rc && i < clock->program.slots; i++) {
		struct rh_slot slot = clock->program.slot[i];
		slot.lo = cut[slot.stage];
		slot.hi = cut[slot.stage + 1];
		if (dispatch_keeps_slot(clock->dispatch.model, clock->count, &slot))
			to->slot[to->slots++] = slot;
	}
	return rc;
}

static double slot_seconds(const struct rh_cost_sums *sums, const struct rh_slot *slot)
{
	double weight = rh_cost_weight_gradient(sums, slot->lo, slot->hi);
	switch (slot->kind) {
	case RH_SLOT_FORWARD:
		return rh_cost_stage(sums, RH_PASS_FORWARD, slot->lo, slot->hi);
	case RH_SLOT_FUSED:
		return rh_cost_stage(sums, RH_PASS_FUSED, slot->lo, slot->hi);
	case RH_SLOT_WEIGHT_GRADIENT:
		return weight;
	case RH_SLOT_INPUT_GRADIENT:
		return rh_cost_stage(sums, slot->hi == sums->costs->layers ? RH_PASS_FUSED : RH_PASS_BACKWARD, slot->lo, slot->hi) - weight;
	default:
		return rh_cost_stage(sums, RH_PASS_BACKWARD, slot->lo, slot->hi);
	}
}

/* Seconds a micro-batch of the device that has most to do. */
static double busiest(const struct rh_step_clock *clock)
{
	double most = 0;
	for (int d = 0; d < clock->how.devices; d++)
		clock->busy_s[d] = 0;
	for (size_t i = 0; i < clock->cut.slots; i++) {
		const struct rh_slot *slot = &clock->cut.slot[i];
		double *busy = &clock->busy_s[slot->device];
		*busy += slot_seconds(clock->how.sums, slot) * (double)slot->count;
		most = *busy > most ? *busy : most;
	}
	return most / (double)clock->count;
}

int rh_step_clock_time(struct rh_step_clock *clock, const int *cut, double *seconds)
{
	struct rh_timeline timeline = {0};
	int rc = take_slots(clock, cut);
	if (!rc)
		rc = rh_program_evaluate(&clock->cut, &clock->how, &timeline);
	if (!rc)
		*seconds = timeline.makespan_s + (double)(clock->dispatch.train_micro_batches - clock->count) * busiest(clock);
	rh_timeline_free(&timeline);
	return rc;
}

void rh_step_clock_close(struct rh_step_clock *clock)
{
	if (!clock)
		return;
	rh_program_free(&clock->program);
	rh_program_free(&clock->cut);
	rh_free(clock->busy_s);
	rh_free(clock);
}
