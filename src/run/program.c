#include "run/program.h"

#include "core/alloc.h"

/* The plan's stages bottom up, those that forward and backward share: the fused one is the last. */
static int model_stages(const struct rh_plan *plan, struct rh_stage **out)
{
	int stages = plan->forward_stages + 1;
	struct rh_stage *stage = rh_alloc((size_t)stages, sizeof *stage);
	if (!stage)
		return -ENOMEM;
	for (int s = 0; s < plan->forward_stages; s++)
		stage[s] = plan->forward[s];
	stage[stages - 1] = plan->backward[0];
	*out = stage;
	return stages;
}

/* Slots as the executor has them: the top stage is fused, frozen layers below the lowest trained one have no backward. */
static void as_run(const struct rh_model *model, struct rh_program *program)
{
	size_t kept = 0;
	for (size_t i = 0; i < program->slots; i++) {
		struct rh_slot slot = program->slot[i];
		int top = slot.hi == model->layers, forward = slot.kind == RH_SLOT_FORWARD;
		if (forward ? top : slot.hi <= model->first_trained)
			continue;
		if (!forward)
			slot.kind = top ? RH_SLOT_FUSED : RH_SLOT_BACKWARD;
		if (!forward && !top && slot.lo < model->first_trained)
			slot.lo = model->first_trained;
		program->slot[kept++] = slot;
	}
	program->slots = kept;
}

int run_program_make(const struct rh_executor_options *options, int trains, int64_t count, int *turn, struct rh_program *out)
{
	const struct rh_schedule *schedule = options->schedule;
	int64_t round = trains ? options->train_round : options->infer_round;
	if (!trains || !schedule || !schedule->stages_least)
		return rh_roundpipe_program(options->plan, trains, options->devices, count, round < count ? round : count, turn, out);
	struct rh_stage *stage = NULL;
	int stages = model_stages(options->plan, &stage);
	if (stages < 0)
		return stages;
	struct rh_schedule_request request = {
	        .devices = options->devices, .micro_batches = count, .steps = 1, .stage = stage, .stages = stages};
	int rc = rh_schedule_make(schedule, &request, out), instead = rc == -EINVAL;
	if (instead)
		rc = rh_schedule_make(rh_schedule_find("looped-bfs"), &request, out);
	if (!rc)
		as_run(options->model, out);
	rh_free(stage);
	return rc ? rc : instead;
}
