/* Steps without a flush between them: the program of all of them is walked once, and the host comes between two slots where a step begins,
 * where a stage has a step's gradients and updates itself, and where a step's results are asked for. */
#include "run/work.h"

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

/* All its slots are enqueued. */
static int end_step(struct walk *walk)
{
	struct rh_executor *executor = walk->executor;
	int64_t first = first_place(walk, walk->ended);
	int rc = 0;
	for (int d = 0; d < executor->options.devices; d++) {
		struct run_device *on = &executor->on[d];
		rc = rc ? rc : run_await(executor, on->gradients.freed);
		for (int i = 0; !rc && i < on->result.count; i++)
			rc = run_await(executor, on->result.buffer[i].freed);
	}
	for (int64_t m = 0; !rc && m < walk->stretch->micro_batches; m++)
		run_collect_result(executor, first + m);
	return rc ? rc : walk->stretch->end(walk->stretch->context, walk->stretch->first_step + walk->ended++);
}

static int begin_step(struct walk *walk)
{
	struct rh_executor *executor = walk->executor;
	const struct rh_micro_batch *batch;
	int64_t step = walk->begun, first = first_place(walk, step);
	int rc = step >= executor->steps_held ? end_step(walk) : 0;
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
	return rc;
}

/* The update that the device's stage owes, once its gradients are down. */
static int settle(struct walk *walk, struct run_device *on)
{
	const struct rh_executor_options *options = &walk->executor->options;
	int64_t *offset = walk->executor->offset;
	if (!on->owes.is)
		return 0;
	on->owes.is = 0;
	int rc = bulk_flush(walk->executor, (int)(on - walk->executor->on));
	(void)rh_plan_gradient_layout(options->model, on->owes.lo, on->owes.hi, offset);
	for (int b = 0; !rc && b < options->model->blocks; b++) {
		if (offset[2 * b] < 0)
			continue;
		rc = run_await(walk->executor, on->downloaded[2 * b]);
		if (!rc && walk->executor->staging)
			rc = rh_staging_finish(walk->executor->staging);
		if (!rc)
			rc = walk->stretch->update(walk->stretch->context, walk->stretch->first_step + on->owes.step, b);
	}
	return rc;
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
	run_begin(executor);
	int rc = rh_dispatch_stretch(&dispatch, count, stretch->steps, &executor->program);
	rc = rc ? rc : run_begin_boundaries(executor);
	rc = rc ? rc : bulk_step_begins(executor);
	for (size_t i = 0; !rc && i < executor->program.slots; i++) {
		const struct rh_slot *slot = &executor->program.slot[i];
		struct run_device *on = &executor->on[slot->device];
		while (!rc && walk.begun <= slot->step && slot->step < walk.until)
			rc = begin_step(&walk);
		if (slot->step >= walk.until) /* the order of the others holds without it */
			continue;
		rc = rc ? rc : settle(&walk, on);
		rc = rc ? rc : run_slot(executor, slot);
		if (rh_slot_makes_gradients(slot) && slot->last_round) {
			on->owes.is = 1;
			on->owes.step = slot->step;
			on->owes.lo = slot->lo;
			on->owes.hi = slot->hi;
		}
	}
	for (int d = 0; !rc && d < options->devices; d++)
		rc = settle(&walk, &executor->on[d]);
	rc = run_end(executor, rc ? rc : run_enqueued(executor));
	while (!rc && walk.ended < walk.begun)
		rc = end_step(&walk);
	for (int d = 0; d < options->devices; d++)
		executor->on[d].owes.is = 0;
	return rc;
}
