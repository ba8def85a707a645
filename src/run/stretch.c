/* Steps without a flush between them are one call: a program of all of them. A step begins when its first slot is about to be lowered, and
 * not before the step that had its place has ended. */
#include "run/executor_internal.h"

static int64_t first_place(const struct rh_executor *executor, int64_t step)
{
	return step % executor->lowering.limits.steps_held * executor->options.train_micro_batches;
}

/* Its micro-batches are through, on whatever devices they were, and its gradients have been taken. 1, 0, or a device's fault. */
static int is_over(struct rh_executor *executor, int64_t step)
{
	int64_t first = first_place(executor, step);
	for (int64_t m = executor->stretch.is->micro_batches - 1; m >= 0; m--) {
		int64_t last = executor->lowering.place[first + m].through;
		int rc = last == LOWER_NEVER ? 0 : dispatcher_has_ended(executor, last);
		if (rc <= 0)
			return rc;
	}
	return rh_updater_has_norm(executor->options.updater);
}

static int end_step(struct rh_executor *executor)
{
	struct run_stretch *stretch = &executor->stretch;
	int64_t step = stretch->is->first_step + stretch->ended, first = first_place(executor, stretch->ended);
	lower_output(&executor->lowering, step, first, stretch->is->micro_batches);
	int rc = dispatcher_take(executor, 0);
	for (int64_t m = 0; !rc && m < stretch->is->micro_batches; m++)
		run_collect_result(executor, first + m);
	stretch->ended++;
	return rc ? rc : stretch->is->end(stretch->is->context, step, &executor->lowering.versions.drift[first]);
}

static int begin_step(struct rh_executor *executor)
{
	struct run_stretch *stretch = &executor->stretch;
	const struct rh_micro_batch *batch;
	int64_t step = stretch->is->first_step + stretch->begun, first = first_place(executor, stretch->begun);
	int rc = stretch->is->begin(stretch->is->context, step, &batch,
	                            &executor->loss_scale[stretch->begun % executor->lowering.limits.steps_held]);
	if (rc > 0) {
		stretch->until = stretch->begun;
		return 0;
	}
	if (rc)
		return rc;
	for (int64_t m = 0; m < stretch->is->micro_batches; m++)
		run_stage_micro(executor, first + m, &batch[m]);
	stretch->begun++;
	lower_input(&executor->lowering, step, first, stretch->is->micro_batches);
	return dispatcher_take(executor, 0);
}

int run_stretch_reach(struct rh_executor *executor, int64_t step)
{
	struct run_stretch *stretch = &executor->stretch;
	int rc = 0, over = 1;
	while (!rc && stretch->ended < stretch->begun && (over = is_over(executor, stretch->ended)) > 0)
		rc = end_step(executor);
	while (!rc && over >= 0 && stretch->begun <= step && step < stretch->until) {
		if (stretch->begun - stretch->ended == executor->lowering.limits.steps_held)
			return RUN_STEP_LATER;
		rc = begin_step(executor);
	}
	return rc ? rc : over < 0 ? over : step < stretch->until ? RUN_STEP_BEGUN : RUN_STEP_NONE;
}

int rh_executor_train_stretch(struct rh_executor *executor, const struct rh_stretch *stretch)
{
	const struct rh_executor_options *options = &executor->options;
	const struct rh_dispatch *dispatch = &executor->lowering.limits.dispatch;
	int64_t count = stretch->micro_batches;
	RH_ASSERT(rh_dispatch_is_local(dispatch) &&
	          (count == options->train_micro_batches || (count < options->train_micro_batches && stretch->steps == 1)));
	executor->trains = executor->is_stretch = 1;
	executor->first = 0;
	executor->step = stretch->first_step;
	executor->stretch.is = stretch;
	executor->stretch.begun = executor->stretch.ended = 0;
	executor->stretch.until = stretch->steps;
	const struct lower_call call = {
	        .trains = 1, .is_local = 1, .step = stretch->first_step, .number = ++executor->calls, .micro_batches = count, .updates = 1};
	int rc = rh_dispatch_stretch(dispatch, count, stretch->steps, &executor->lowering.program);
	if (!rc)
		rc = run_begin(executor, &call);
	if (!rc)
		rc = dispatcher_run(executor, DISPATCH_ALL, 0);
	rc = run_end(executor, rc);
	while (!rc && executor->stretch.ended < executor->stretch.begun)
		rc = end_step(executor);
	return rc;
}
