/* Steps without a flush between them: the program of all of them is walked once, and the host comes between two slots where a step begins,
 * where a stage has a step's gradients and updates itself, and where a step's results are asked for. */
#include "run/executor_internal.h"

/* Of a stretch: a micro-batch enters when the one that entered `window` before it has left: so many, and a whole step more. */
int64_t run_steps_held(const struct rh_executor_options *options)
{
	const struct rh_dispatch dispatch = run_dispatch(options);
	int64_t most = 0, count = options->train_micro_batches;
	if (!rh_dispatch_is_local(&dispatch))
		return run_flights(options);
	for (int s = 0; s < options->devices; s++) {
		int64_t window = rh_dispatch_window(&dispatch, s);
		most = window > most ? window : most;
	}
	return (most + count - 1) / count + 1;
}

/* A micro-batch that a stage has in flight has an activation at each boundary that the stage leaves behind, or above it a gradient instead,
 * and once both. */
int run_stretch_boundaries(const struct rh_executor_options *options)
{
	const struct rh_dispatch dispatch = run_dispatch(options);
	const struct rh_plan *plan = options->plan;
	int64_t count = 0;
	for (int s = 0; rh_dispatch_is_local(&dispatch) && s < plan->forward_stages; s++)
		for (int l = plan->forward[s].lo + 1; l <= plan->forward[s].hi; l++)
			count += rh_boundary_readers(plan, 1, l) ? rh_dispatch_window(&dispatch, s) + 1 : 0;
	return (int)count;
}

struct walk {
	struct rh_executor *executor;
	const struct rh_stretch *stretch;
	int64_t begun, ended, until; /* steps */
};

static int64_t first_place(const struct walk *walk, int64_t step)
{
	return step % walk->executor->steps_held * walk->executor->options.train_micro_batches;
}

/* Its results have come down. */
static int await_results(struct rh_executor *executor, int64_t first, int64_t count)
{
	const struct rh_lanes *lanes = &executor->lowering.lanes;
	int rc = 0;
	for (int64_t m = first; !rc && m < first + count; m++) {
		int64_t position = executor->lowering.output[m], sequence;
		struct rh_event *event;
		if (position < lanes->first)
			continue;
		rc = issue_event(executor, rh_command_at(lanes, position), &event, &sequence);
		rc = rc ? rc : event->ops->event_sync(event);
	}
	return rc;
}

/* All its slots are issued. */
static int end_step(struct walk *walk)
{
	struct rh_executor *executor = walk->executor;
	int64_t first = first_place(walk, walk->ended);
	int rc = dispatcher_settle(executor);
	rc = rc ? rc : await_results(executor, first, walk->stretch->micro_batches);
	rc = rc ? rc : lower_output(&executor->lowering, walk->stretch->first_step + walk->ended, first, walk->stretch->micro_batches);
	rc = rc ? rc : dispatcher_take(executor, 0);
	for (int64_t m = 0; !rc && m < walk->stretch->micro_batches; m++)
		run_collect_result(executor, first + m);
	return rc ? rc : walk->stretch->end(walk->stretch->context, walk->stretch->first_step + walk->ended++);
}

/* Lanes of many steps are let go, once devices have come to the end of them. */
static int forget_steps(struct rh_executor *executor)
{
	int rc = 0;
	if (executor->lowering.lanes.commands < RUN_STRETCH_COMMANDS)
		return 0;
	for (int d = 0; !rc && d < executor->options.devices; d++)
		rc = executor->options.device[d]->ops->synchronize(executor->options.device[d]);
	if (!rc)
		dispatcher_forget(executor, executor->lowering.lanes.first + executor->lowering.lanes.commands);
	return rc;
}

static int begin_step(struct walk *walk)
{
	struct rh_executor *executor = walk->executor;
	const struct rh_micro_batch *batch;
	int64_t step = walk->begun, first = first_place(walk, step);
	int rc = step >= executor->steps_held ? end_step(walk) : 0;
	rc = rc ? rc : forget_steps(executor);
	if (!rc)
		rc = walk->stretch->begin(walk->stretch->context, walk->stretch->first_step + step, &batch,
		                          &executor->loss_scale[step % executor->steps_held]);
	if (rc > 0) {
		walk->until = step;
		return 0;
	}
	for (int64_t m = 0; !rc && m < walk->stretch->micro_batches; m++)
		run_stage_micro(executor, first + m, &batch[m]);
	walk->begun++;
	rc = rc ? rc : lower_input(&executor->lowering, walk->stretch->first_step + step, first, walk->stretch->micro_batches);
	return rc ? rc : dispatcher_take(executor, 0);
}

int rh_executor_train_stretch(struct rh_executor *executor, const struct rh_stretch *stretch)
{
	const struct rh_executor_options *options = &executor->options;
	struct walk walk = {.executor = executor, .stretch = stretch, .until = stretch->steps};
	const struct rh_dispatch dispatch = run_dispatch(options);
	int64_t count = stretch->micro_batches;
	RH_ASSERT(rh_dispatch_is_local(&dispatch) &&
	          (count == options->train_micro_batches || (count < options->train_micro_batches && stretch->steps == 1)));
	executor->trains = executor->is_stretch = 1;
	executor->first = 0;
	executor->step = stretch->first_step;
	executor->stretch = stretch;
	const struct lower_call call = {
	        .trains = 1, .is_local = 1, .step = stretch->first_step, .number = ++executor->calls, .micro_batches = count, .updates = 1};
	int rc = rh_dispatch_stretch(&dispatch, count, stretch->steps, &executor->program);
	rc = rc ? rc : run_begin(executor, &call);
	for (size_t i = 0; !rc && i < executor->program.slots; i++) {
		int64_t step = executor->program.slot[i].step;
		while (!rc && walk.begun <= step && step < walk.until)
			rc = begin_step(&walk);
		if (step >= walk.until) { /* the order of the others holds without it */
			lower_skip_slot(&executor->lowering);
			continue;
		}
		rc = rc ? rc : run_lower_slot(executor, 0);
		rc = rc ? rc : dispatcher_run(executor, DISPATCH_LOWERED, 0);
	}
	if (executor->feed)
		run_feed_end(executor->feed);
	rc = run_end(executor, rc);
	while (!rc && walk.ended < walk.begun)
		rc = end_step(&walk);
	return rc;
}
