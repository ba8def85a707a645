/* Steps without a flush between them are one call, whose program is made piece by piece. A step begins when its first slot is about to be
 * lowered, and not before the step that had its index has ended. */
#include "run/executor_internal.h"

#include <math.h>

/* What a stretch's `begin` returns beside 0. */
enum { STEP_IS_NONE = 1, STEP_IS_LATER = 2 };

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

/* Of the time since the step before has ended: what devices waited for, and the rest of it. */
static int take_times(struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	struct run_stretch *stretch = &executor->stretch;
	struct rh_stall_times sum = {0};
	int devices = options->planned.devices, rc = 0;
	double now = options->updater ? rh_updater_seconds(options->updater) : 0, stalled = 0;
	for (int d = 0; !rc && d < devices; d++)
		rc = rh_stalls_take(&executor->device[d].flight[0].stalls, &sum);
	for (int k = 0; k < RH_STALL_KINDS; k++)
		stalled += sum.stalled[k] / devices;
	executor->times = (struct rh_step_times){.compute = fmax(now - stretch->told_s - stalled, 0),
	                                         .weights = sum.stalled[RH_STALL_WEIGHTS] / devices,
	                                         .activations = sum.stalled[RH_STALL_ACTIVATIONS] / devices,
	                                         .gradients = sum.stalled[RH_STALL_GRADIENTS] / devices,
	                                         .optimizer = executor->flight[0].awaited_s,
	                                         .ended = now};
	executor->flight[0].awaited_s = 0;
	stretch->told_s = now;
	return rc;
}

static int end_step(struct rh_executor *executor)
{
	struct run_stretch *stretch = &executor->stretch;
	const struct run_book *book = book_of(executor, stretch->ended);
	int64_t step = stretch->call->first_step + stretch->ended++;
	const struct rh_versions *versions = &executor->lowering.versions.of[book->first * executor->options.model->layers];
	int rc = run_collect_results(executor, book, step);
	if (!rc)
		rc = take_times(executor);
	return rc ? rc : stretch->call->end(stretch->call->context, step, versions);
}

static int lower_letters(struct rh_executor *executor, enum rh_letter_place place, int64_t step)
{
	const struct rh_letters *letters = executor->stretch.call->letters;
	struct rh_letter letter;
	int rc = 0;
	for (int i = 0; letters && (rc = letters->at(letters->context, place, executor->step + step, i, &letter)) > 0; i++)
		lower_letter(&executor->lowering, &letter);
	return rc ? rc : dispatcher_take(executor, 0);
}

static int begin_step(struct rh_executor *executor)
{
	struct run_stretch *stretch = &executor->stretch;
	struct run_book *book = book_of(executor, stretch->begun);
	const struct rh_micro_batch *batch;
	int64_t step = stretch->call->first_step + stretch->begun;
	int rc = stretch->call->begin(stretch->call->context, step, &batch, &book->loss_scale);
	if (rc == STEP_IS_NONE)
		stretch->until = stretch->begun;
	if (rc)
		return rc;
	run_copy_inputs(executor, book, batch, stretch->call->micro_batches);
	lower_input(&executor->lowering, step, book->first, book->count);
	rc = lower_letters(executor, RH_LETTER_AHEAD, stretch->begun);
	if (!rc && !executor->options.plan->backward_stages)
		rc = lower_letters(executor, RH_LETTER_BACKWARD, stretch->begun);
	stretch->begun++;
	return rc;
}

int run_stretch_collect(struct rh_executor *executor)
{
	const struct run_stretch *stretch = &executor->stretch;
	int rc = 0, over = 1;
	while (!rc && stretch->ended < stretch->begun && (over = is_over(executor, book_of(executor, stretch->ended))) > 0)
		rc = end_step(executor);
	return rc ? rc : over < 0 ? over : 0;
}

int run_stretch_reach(struct rh_executor *executor, const struct rh_slot *slot)
{
	struct run_stretch *stretch = &executor->stretch;
	int64_t step = slot->step;
	int rc = run_stretch_collect(executor);
	while (!rc && stretch->begun <= step && step < stretch->until) {
		if (stretch->begun - stretch->ended == executor->lowering.limits.steps_in_flight)
			return RUN_STEP_LATER;
		rc = begin_step(executor);
	}
	if (rc < 0 || rc == STEP_IS_LATER)
		return rc < 0 ? rc : RUN_STEP_LATER;
	if (step >= stretch->until)
		return RUN_STEP_NONE;
	if (!rh_slot_makes_gradients(slot) || stretch->backward > step)
		return RUN_STEP_BEGUN;
	stretch->backward = step + 1;
	rc = lower_letters(executor, RH_LETTER_BACKWARD, step);
	return rc ? rc : RUN_STEP_BEGUN;
}

int run_stretch_extend(struct rh_executor *executor)
{
	struct lowering *lowering = &executor->lowering;
	struct run_stretch *stretch = &executor->stretch;
	int is_whole = rh_dispatch_steps_whole(&lowering->steps) >= stretch->until;
	for (size_t i = lowering->next_slot; i < lowering->program.slots; i++)
		is_whole &= lowering->program.slot[i].step >= stretch->until;
	if (!is_whole) {
		size_t over = lowering->next_slot;
		lowering->next_slot = 0;
		return rh_dispatch_steps_more(&lowering->steps, over, &lowering->program);
	}
	lowering->is_open = 0;
	lowering->next_slot = lowering->program.slots;
	return stretch->begun ? lower_letters(executor, RH_LETTER_END, stretch->begun - 1) : 0;
}

/* Which activations go to NVMe is found for a whole program (schedule/reload.h). */
static int make_program(struct rh_executor *executor, const struct rh_stretch *stretch)
{
	struct lowering *lowering = &executor->lowering;
	const struct rh_dispatch *dispatch = &lowering->limits.dispatch;
	lowering->is_open = !executor->options.planned.spills_boundaries;
	lowering->program.slots = 0;
	if (!lowering->is_open)
		return rh_dispatch_stretch(dispatch, stretch->micro_batches, stretch->steps, &lowering->program);
	rh_dispatch_steps_close(&lowering->steps);
	int rc = rh_dispatch_steps_open(dispatch, stretch->micro_batches, &lowering->steps);
	return rc ? rc : rh_dispatch_steps_more(&lowering->steps, 0, &lowering->program);
}

int rh_executor_train_stretch(struct rh_executor *executor, const struct rh_stretch *stretch)
{
	int64_t count = stretch->micro_batches;
	RH_ASSERT(rh_dispatch_is_local(&executor->lowering.limits.dispatch) && count <= executor->options.planned.train_micro_batches);
	executor->trains = executor->is_stretch = 1;
	executor->first = 0;
	executor->step = stretch->first_step;
	executor->stretch = (struct run_stretch){.call = stretch, .until = stretch->steps};
	if (executor->options.updater)
		executor->stretch.told_s = rh_updater_seconds(executor->options.updater);
	const struct lower_call call = {
	        .trains = 1, .is_local = 1, .step = stretch->first_step, .number = ++executor->calls, .micro_batches = count, .updates = 1};
	int rc = make_program(executor, stretch);
	if (!rc)
		rc = run_begin(executor, &call);
	if (!rc)
		rc = dispatcher_run(executor, DISPATCH_ALL, 0);
	rc = run_end(executor, rc);
	while (!rc && executor->stretch.ended < executor->stretch.begun)
		rc = end_step(executor);
	executor->lowering.is_open = 0;
	return rc;
}
