/* The loop of steps that end before the next one begins, or before the one behind that: a schedule with a flush, or stale weights. */
#include "train/training.h"

#include "core/clock.h"
#include "session/update.h"

static int begin_one(struct training *run)
{
	int64_t step = run->begun;
	int64_t count = train_data(run, step);
	int rc = count < 0 ? (int)count : 0;
	if (!rc)
		rc = trace_step_begin(run, step);
	if (!rc && !pause_is_due(run, step + 1)) /* else its update is over before the next step */
		rc = trace_step_begin(run, step + 1);
	if (rc)
		return rc;
	struct rh_update update = rh_update_of(run->config, step + run->state.idle_steps, rh_lr_at(&run->course.lr, step), 1);
	rh_updater_open(run->session.updater, &update, run->config->max_grad_norm);
	run->begun++;
	return rh_executor_begin(run->session.executor, run->flights.micro, count, step,
	                         1.0f / (float)rh_flight_divisor(&run->flights, step));
}

/* The first step in flight: its update has begun, or is over where something wants it to be. */
static int finish_one(struct training *run)
{
	int64_t step = run->state.step, done = step + 1;
	double norm = 0;
	int rc = rh_executor_finish(run->session.executor);
	pause_note_requests(run);
	run->shared.continues = done < run->data.steps && !pause_is_due(run, done) && !trouble_leaves_out(run, done);
	if (!rc && run->mode->steps.share_results)
		rc = run->mode->steps.share_results(&run->shared, step, 1);
	if (rc)
		return rc;
	double loss = rh_flight_loss(&run->flights, step), computed = rh_clock_seconds();
	rc = rh_updater_norm(run->session.updater, &norm);
	int skipped = rc ? rc : trouble_judge(run, step, loss, norm);
	if (skipped < 0)
		return skipped;
	if (run->config->trace_step == done)
		trace_step_end(run);
	run->state.step = done;
	if (pause_is_due(run, done) || done == run->data.steps)
		rc = rh_updater_flush(run->session.updater);
	if (rc)
		return rc;
	train_book_times(run, rh_executor_times(run->session.executor), rh_clock_seconds() - computed);
	return train_step_done(run, loss, norm);
}

/* May the next step begin before this one is finished? */
static int joins_next(struct training *run)
{
	int64_t next = run->begun;
	return run->flights.count > 1 && next < run->data.steps && !pause_is_due(run, next) && !pause_is_wanted(run) &&
	       !trouble_leaves_out(run, next);
}

int flushed_step(struct training *run)
{
	int rc = saving_collect(run, RH_CHECKPOINT_LOOK);
	if (!rc && run->mode->steps.before_step)
		rc = run->mode->steps.before_step(&run->shared);
	if (!rc && run->begun == run->state.step && trouble_leaves_out(run, run->begun)) {
		run->begun++;
		return pause_leave_out(run);
	}
	if (!rc && run->begun == run->state.step)
		rc = begin_one(run);
	if (!rc && joins_next(run))
		rc = begin_one(run);
	if (!rc)
		rc = finish_one(run);
	if (rc)
		return rh_executor_abandon(run->session.executor, rc);
	return run->begun > run->state.step ? trace_step_write(run) : pause_steps(run);
}
