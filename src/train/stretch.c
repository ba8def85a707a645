/* The loop of steps without a flush between them, under a schedule whose stages update themselves: a stretch at a time. */
#include "train/training.h"

#include "core/file.h"
#include "core/minmax.h"
#include "session/update.h"

#include <math.h>

/* What a stretch's `begin` returns beside 0 (run/executor.h). */
enum { STEP_IS_NONE = 1, STEP_IS_LATER = 2 };

/* A box that updates itself clips by its share of the norm of all, which it knows of a step so long before. */
static double own_max_norm(const struct training *run, int64_t step)
{
	const struct rh_mode_steps *mode = &run->mode->steps;
	int64_t ahead = mode->share_ahead ? mode->share_ahead(&run->session) : 0;
	double known = rh_run_state_share_of(&run->state, step - ahead), share = known > 0 ? known : run->session.box.norm_share;
	return run->config->max_grad_norm * share;
}

static int begin_step(void *context, int64_t step, const struct rh_micro_batch **batch, float *loss_scale)
{
	struct training *run = context;
	if (pause_is_wanted(run) && step > run->stretch.first && !run->mode->steps.begin_stretch) /* else all boxes stop together */
		return STEP_IS_NONE;
	int64_t count = train_data(run, step);
	if (count <= 0)
		return count == -EAGAIN ? STEP_IS_LATER : count ? (int)count : STEP_IS_NONE;
	run->stretch.begun = step + 1;
	struct rh_update update = rh_update_of(run->config, step, rh_lr_at(&run->course.lr, step), 1);
	if (rh_session_clipping_devices(&run->session))
		device_shares_open(run, step, &update);
	else
		rh_updater_open(run->session.updater, &update, own_max_norm(run, step));
	*batch = run->flights.micro;
	*loss_scale = 1.0f / (float)rh_flight_divisor(&run->flights, step);
	return 0;
}

int stretch_tell(void *context, int64_t step)
{
	struct training *run = context;
	double loss = rh_flight_loss(&run->flights, step), norm = rh_flight_of(&run->flights, step)->norm;
	if (run->stretch.has_bad)
		return 0;
	if (run->mode->steps.share_results &&
	    (!isfinite(loss) || !isfinite(norm))) { /* boxes return to a checkpoint when all are at rest */
		run->stretch.has_bad = 1;
		run->stretch.bad = step;
		run->stretch.loss = loss;
		run->stretch.norm = norm;
		return 0;
	}
	int rc = trouble_judge(run, step, loss, norm);
	run->state.drift_since_log = rh_max(run->state.drift_since_log, rh_flight_of(&run->flights, step)->drift);
	train_book_times(run, &rh_flight_of(&run->flights, step)->times, 0);
	run->state.step = step + 1;
	if (rc)
		return rc;
	rc = train_step_done(run, loss, norm);
	return rc ? rc : saving_collect(run, RH_CHECKPOINT_LOOK);
}

static int end_step(void *context, int64_t step, const struct rh_versions *versions)
{
	struct training *run = context;
	const struct rh_mode_steps *mode = &run->mode->steps;
	struct rh_flight *flight = rh_flight_of(&run->flights, step);
	int rc = versions_note(run, step, versions);
	flight->times = *rh_executor_times(run->session.executor);
	flight->done_s = flight->times.ended;
	if (!rc)
		rc = rh_updater_norm(run->session.updater, &flight->norm);
	if (!rc && rh_session_clipping_devices(&run->session))
		device_shares_note(run, step, flight->norm);
	if (rc || !mode->ended)
		return rc ? rc : stretch_tell(run, step);
	pause_note_requests(run);
	run->shared.rest_requested = pause_is_wanted(run) || run->stretch.has_bad;
	mode->ended(&run->shared, step);
	return 0;
}

static int64_t micro_batches_at(const struct training *run, int64_t step)
{
	return rh_sampler_micro_batches(run->data.sampler, step % run->data.steps_per_epoch);
}

/* Until something wants all stages at rest, or a step is short: that runs alone. */
static void choose_stretch(const struct training *run, int64_t *until, int64_t *count)
{
	enum { MOST = 256 }; /* where a program is made whole, this bounds it in memory; a flush in so many steps costs next to nothing */
	int64_t first = run->state.step, next = first + 1, most = run->session.plan.executor.spills_boundaries ? MOST : INT64_MAX;
	*count = micro_batches_at(run, first);
	while (next < run->data.steps && next - first < most && !pause_is_due(run, next) && *count == run->flights.micro_batches &&
	       micro_batches_at(run, next) == *count && !trouble_leaves_out(run, next))
		next++;
	*until = next;
}

int stretch_steps(struct training *run)
{
	const struct rh_mode_steps *mode = &run->mode->steps;
	int rc = 0;
	int64_t first = run->state.step, until = INT64_MAX, count = 0, recorded = run->config->trace_step - 1;
	const struct rh_letters *letters = NULL;
	if (trouble_leaves_out(run, first))
		return pause_leave_out(run);
	run->stretch = (struct training_stretch){.first = first, .begun = first};
	if (!run->session.box.number)
		choose_stretch(run, &until, &count);
	if (mode->begin_stretch)
		rc = mode->begin_stretch(&run->shared, until, &count, &letters);
	const struct rh_stretch stretch = {.first_step = first,
	                                   .steps = mode->begin_stretch ? INT64_MAX : until - first,
	                                   .micro_batches = count,
	                                   .letters = letters,
	                                   .begin = begin_step,
	                                   .end = end_step,
	                                   .context = run};
	if (!rc && recorded >= first)
		rc = trace_step_begin(run, recorded);
	run->versions.first_step = first;
	if (!rc)
		rc = rh_executor_train_stretch(run->session.executor, &stretch);
	if (!rc)
		rc = rh_updater_flush(run->session.updater); /* all stages at rest */
	pause_note_requests(run);
	if (!rc && mode->share_results)
		rc = mode->share_results(&run->shared, first, run->stretch.begun - first);
	if (recorded < run->stretch.begun)
		trace_step_end(run);
	if (!rc && run->stretch.has_bad)
		return returning_at_rest(run, run->stretch.bad, run->stretch.loss, run->stretch.norm);
	return rc ? rc : pause_steps(run);
}
