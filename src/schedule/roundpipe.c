/* RoundPipe: a plan's stages, round after round, dealt out to the devices in turn. */
#include "schedule/schedule_internal.h"

#include "core/alloc.h"

void rh_program_free(struct rh_program *program)
{
	rh_free(program->slot);
	*program = (struct rh_program){0};
}

int64_t rh_roundpipe_default_round(int64_t micro_batches, int devices)
{
	int64_t least = 2 * devices > 8 ? 2 * devices : 8;
	return micro_batches < least ? micro_batches : least;
}

/* Appends one step's slots, dealt out from *turn on. */
static int deal(const struct rh_stage_plan *plan, int trains, int devices, int64_t micro_batches, int64_t round_micro_batches, int *turn,
                struct rh_program *out)
{
	int64_t rounds = rh_round_count(micro_batches, round_micro_batches);
	int forward = plan->forward_stages, backward = rh_stage_plan_backward_stages(plan, trains);
	size_t before = out->slots;
	int rc = rh_grow(&out->slot, &out->capacity, before + (size_t)(rounds * (forward + backward)), sizeof *out->slot);
	if (rc)
		return rc;
	for (int64_t r = 0; r < rounds; r++)
		for (int s = 0; s < forward + backward; s++) {
			struct rh_slot *slot = &out->slot[out->slots];
			struct rh_stage stage = s < forward ? plan->forward[s] : plan->backward[s - forward];
			*slot = (struct rh_slot){
			        .lo = stage.lo, .hi = stage.hi, .first_round = r == 0, .last_round = r + 1 == rounds, .stage = s};
			slot->kind = s < forward   ? RH_SLOT_FORWARD
			             : s > forward ? RH_SLOT_BACKWARD
			             : trains      ? RH_SLOT_FUSED
			                           : RH_SLOT_INFER;
			slot->device = (int)((*turn + (int64_t)(out->slots - before)) % devices);
			rh_round_range(micro_batches, rounds, r, &slot->first, &slot->count);
			out->slots++;
		}
	*turn = (int)((*turn + (int64_t)(out->slots - before)) % devices);
	return 0;
}

int rh_roundpipe_program(const struct rh_stage_plan *plan, int trains, int devices, int64_t micro_batches, int64_t round_micro_batches,
                         int *turn, struct rh_program *out)
{
	out->slots = 0;
	return deal(plan, trains, devices, micro_batches, round_micro_batches, turn, out);
}

int schedule_roundpipe(const struct rh_schedule_request *request, struct rh_program *out)
{
	int turn = 0;
	for (int64_t step = 0; step < request->steps; step++) {
		size_t first = out->slots;
		int rc = deal(request->plan, 1, request->devices, request->micro_batches, request->round_micro_batches, &turn, out);
		if (rc)
			return rc;
		for (size_t i = first; i < out->slots; i++)
			out->slot[i].step = step;
	}
	return 0;
}
