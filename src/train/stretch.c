/* The loop of steps without a flush between them, under a schedule whose stages update themselves: a stretch at a time. */
#include "train/training.h"

#include "core/file.h"
#include "session/update.h"

#include <math.h>

/* A box that updates itself clips by its share of the norm of all, as that was last known. */
static double own_max_norm(const struct training *run)
{
	double share = run->state.norm_share > 0 ? run->state.norm_share : run->session.box.norm_share;
	return run->config->max_grad_norm * share;
}

static int begin_step(void *context, int64_t step, const struct rh_micro_batch **batch, float *loss_scale)
{
	struct training *run = context;
	if (pause_is_wanted(run) && step > run->state.step &&
	    !run->mode->steps.begin_stretch) /* else boxes stop between stretches, together */
		return 1;
	int64_t count = train_data(run, step);
	if (count < 0)
		return (int)count;
	struct rh_update update = rh_update_of(run->config, step, rh_lr_at(&run->course.lr, step), 1);
	rh_updater_open(run->session.updater, &update, own_max_norm(run));
	*batch = run->flights.micro;
	*loss_scale = 1.0f / (float)rh_flight_of(&run->flights, step)->trained;
	return 0;
}

/* Its losses and its norm are known. */
static int tell_step(struct training *run, int64_t step)
{
	double loss = rh_flight_loss(&run->flights, step), norm = rh_flight_of(&run->flights, step)->norm;
	int rc = trouble_judge(run, step, loss, norm);
	run->state.step = step + 1;
	if (rc)
		return rc;
	rc = train_step_done(run, loss, norm);
	return rc ? rc : saving_collect(run, RH_CHECKPOINT_LOOK);
}

static int end_step(void *context, int64_t step, const struct rh_versions *versions)
{
	struct training *run = context;
	int rc = versions_note(run, step, versions);
	if (!rc)
		rc = rh_updater_norm(run->session.updater, &rh_flight_of(&run->flights, step)->norm);
	return rc || run->mode->steps.share_results ? rc : tell_step(run, step);
}

static int64_t micro_batches_at(const struct training *run, int64_t step)
{
	return rh_sampler_micro_batches(run->data.sampler, step % run->data.steps_per_epoch);
}

/* Until something wants all stages at rest, or a step is short: that runs alone. */
static void choose_stretch(const struct training *run, int64_t *steps, int64_t *count)
{
	enum { MOST = 256 }; /* bounds the program in memory; a flush in so many steps costs next to nothing */
	int64_t first = run->state.step, next = first + 1, most = run->mode->longest_stretch ? run->mode->longest_stretch : MOST;
	*count = micro_batches_at(run, first);
	while (next < run->data.steps && next - first < most && !pause_is_due(run, next) && *count == run->flights.micro_batches &&
	       micro_batches_at(run, next) == *count && !trouble_leaves_out(run, next))
		next++;
	*steps = next - first;
}

/* All stages, in all boxes, are at rest: what each box did not know alone. */
static int share_results(struct training *run, int64_t steps)
{
	int64_t first = run->state.step;
	int rc = run->mode->steps.share_results(&run->shared, first, steps);
	for (int64_t step = first; !rc && step < first + steps; step++) {
		double loss = rh_flight_loss(&run->flights, step), norm = rh_flight_of(&run->flights, step)->norm;
		if (!isfinite(loss) || !isfinite(norm))
			return returning_at_rest(run, step, loss, norm);
		rc = tell_step(run, step);
	}
	return rc;
}

int stretch_steps(struct training *run)
{
	const struct rh_mode_steps *mode = &run->mode->steps;
	int rc = 0;
	int64_t first = run->state.step, steps = 0, count = 0;
	if (trouble_leaves_out(run, first))
		return pause_leave_out(run);
	if (!run->session.box.number)
		choose_stretch(run, &steps, &count);
	if (mode->begin_stretch)
		rc = mode->begin_stretch(&run->shared, &steps, &count);
	const struct rh_stretch stretch = {
	        .first_step = first, .steps = steps, .micro_batches = count, .begin = begin_step, .end = end_step, .context = run};
	int64_t recorded = run->config->trace_step - 1;
	if (!rc && recorded >= first && recorded < first + steps)
		rc = trace_step_begin(run, recorded);
	run->versions.first_step = first;
	if (!rc)
		rc = rh_executor_train_stretch(run->session.executor, &stretch);
	if (!rc)
		rc = rh_updater_flush(run->session.updater); /* all stages at rest */
	pause_note_requests(run);
	if (!rc && mode->share_results)
		rc = share_results(run, steps);
	trace_step_end(run);
	return rc || run->state.step <= first ? rc : pause_steps(run); /* else the boxes have returned to a checkpoint */
}
