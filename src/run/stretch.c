/* Steps without a flush between them are one call, which has one program. A step begins when its first slot is about to be lowered, and not
 * before the step that had its index has ended. */
#include "run/executor_internal.h"

static struct run_book *book_of(const struct rh_executor *executor, int64_t step)
{
	return &executor->book[step % executor->lowering.limits.steps_in_flight];
}

/* 1: on every device the step's micro-batches are over, and all its gradients have been taken; 0: not yet; or a device's fault. */
static int is_over(struct rh_executor *executor, const struct run_book *book)
{
	for (int64_t index = book->first + book->count; index-- > book->first;) {
		int64_t last = executor->lowering.micro[index].last_command;
		int rc = last == LOWER_NEVER ? 0 : dispatcher_has_ended(executor, last);
		if (rc <= 0)
			return rc;
	}
	return rh_updater_has_norm(executor->options.updater);
}

static int end_step(struct rh_executor *executor)
{
	struct run_stretch *stretch = &executor->stretch;
	const struct run_book *book = book_of(executor, stretch->ended);
	int64_t step = stretch->call->first_step + stretch->ended++;
	const struct rh_versions *versions = &executor->lowering.versions.of[book->first * executor->options.model->layers];
	int rc = run_collect_results(executor, book, step);
	return rc ? rc : stretch->call->end(stretch->call->context, step, versions);
}

static int begin_step(struct rh_executor *executor)
{
	struct run_stretch *stretch = &executor->stretch;
	struct run_book *book = book_of(executor, stretch->begun);
	const struct rh_micro_batch *batch;
	int64_t step = stretch->call->first_step + stretch->begun;
	int rc = stretch->call->begin(stretch->call->context, step, &batch, &book->loss_scale);
	if (rc > 0)
		stretch->until = stretch->begun;
	if (rc)
		return rc > 0 ? 0 : rc;
	run_copy_inputs(executor, book, batch, stretch->call->micro_batches);
	stretch->begun++;
	lower_input(&executor->lowering, step, book->first, book->count);
	return dispatcher_take(executor, 0);
}

int run_stretch_reach(struct rh_executor *executor, int64_t step)
{
	struct run_stretch *stretch = &executor->stretch;
	int rc = 0, over = 1;
	while (!rc && stretch->ended < stretch->begun && (over = is_over(executor, book_of(executor, stretch->ended))) > 0)
		rc = end_step(executor);
	while (!rc && over >= 0 && stretch->begun <= step && step < stretch->until) {
		if (stretch->begun - stretch->ended == executor->lowering.limits.steps_in_flight)
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
	          (count == options->planned.train_micro_batches || (count < options->planned.train_micro_batches && stretch->steps == 1)));
	executor->trains = executor->is_stretch = 1;
	executor->first = 0;
	executor->step = stretch->first_step;
	executor->stretch = (struct run_stretch){.call = stretch, .until = stretch->steps};
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
