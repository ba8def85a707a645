/* When a run saves, and what follows if a save fails. A checkpoint is written while the next steps run. Training waits for it only at
 * the end of the run, and where the next checkpoint is due before it is whole. */
#include "train/training.h"

#include "checkpoint/disk_room.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/fault.h"
#include "core/file.h"
#include "core/log.h"
#include "core/stop.h"

#include <inttypes.h>
#include <stdio.h>

/* Half of a checkpoint: while the next step computes, about as much goes to the files. What stands still for checkpoints needs none. */
int64_t saving_plan_ring(struct training *run)
{
	if (!run->course.save_every || run->course.save_every >= run->data.steps || rh_checkpoint_stands_still(&run->session))
		return 0;
	return rh_run_plan_add_ring(&run->session.plan, rh_disk_room_of_checkpoint(&run->session) / 2);
}

/* Others may fill a disk in mid-run, and make room again: no reason to throw away what was trained. */
int saving_is_full(int rc)
{
	return rc == -ENOSPC || rc == -EDQUOT || rc == -EFBIG;
}

int saving_line(int rc)
{
	if (!saving_is_full(rc))
		return rc;
	rh_warn_once("%s; lines are left out where there is no room", rh_error(rc));
	rh_error_clear();
	return 0;
}

/* Nor is something in a checkpoint's place that is not this program's. */
static int is_passing(int rc)
{
	return saving_is_full(rc) || rc == -EEXIST || rc == -ENOTDIR;
}

int saving_is_due(const struct training *run, int64_t steps)
{
	return run->course.save_every && (steps % run->course.save_every == 0 || steps == run->data.steps);
}

/* A user who wants a checkpoint now creates a file SAVE in output_dir; the run removes it when the checkpoint is there. */
static char *save_path(const struct training *run)
{
	return rh_path_join(run->config->output_dir, "SAVE");
}

int saving_is_asked(struct training *run)
{
	char *path = run->saving.request == SAVING_UNASKED ? save_path(run) : NULL;
	int kind = path ? rh_path_kind(path) : RH_PATH_NONE;
	if (kind == RH_PATH_FILE)
		run->saving.request = SAVING_ASKED;
	else if (kind > RH_PATH_NONE)
		rh_warn_once("%s: is no file, and asks for no checkpoint; it is left alone: put a file in its place", path);
	else if (kind < 0) /* it cannot be looked at now */
		rh_error_clear();
	rh_free(path);
	return run->saving.request == SAVING_ASKED;
}

static int answer(struct training *run, int64_t step)
{
	char *path = save_path(run);
	rh_note("a checkpoint of step %" PRId64 " was asked for by the file SAVE", step); /* told before the file goes */
	int rc = path ? rh_file_remove(path) : -ENOMEM;
	rh_free(path);
	run->saving.request = SAVING_UNASKED;
	return rc == -ENOENT ? 0 : rc;
}

/* Handles the end of step `step`'s save. */
static int judge(struct training *run, int64_t step, int rc)
{
	int64_t steps = run->data.steps,
	        next = run->course.save_every ? (run->state.step / run->course.save_every + 1) * run->course.save_every : 0;
	/* where boxes are apart a file SAVE has a checkpoint of this box alone, which counts for nothing with the other one */
	int is_own = run->mode->is_apart && !saving_is_due(run, step) && !run->is_stopping;
	run->saving.count += !rc;
	run->shared.saved = rc || is_own ? run->shared.saved : step;
	if (rc)
		best_take_back(run, step);
	if (!is_passing(rc) || (run->is_stopping && step == run->state.step) || (saving_is_full(rc) && step == steps))
		return rc;
	if (step == steps || !run->course.save_every)
		rh_note("warning: no checkpoint of step %" PRId64 ": %s", step, rh_error(rc));
	else
		rh_note("warning: no checkpoint of step %" PRId64 ": %s; going on, the next is tried at step %" PRId64, step, rh_error(rc),
		        next < steps ? next : steps);
	rh_error_clear();
	return 0;
}

int saving_collect(struct training *run, enum rh_checkpoint_wait wait)
{
	int64_t step;
	double seconds;
	int rc = rh_checkpoint_writer_collect(run->shared.writer, wait, &step, &seconds);
	if (step < 0)
		return 0;
	run->saving.seconds += seconds;
	rc = judge(run, step, rc);
	return !rc && run->saving.request == SAVING_ANSWERED ? answer(run, step) : rc;
}

static int begin(struct training *run)
{
	run->trainer.global_step = run->state.step;
	run->trainer.epoch = (double)run->state.step / (double)run->data.steps_per_epoch;
	run->trainer.num_input_tokens_seen = run->state.tokens;
	int rc = rh_disk_room_check_one(&run->session);
	return rc ? rc : rh_checkpoint_writer_begin(run->shared.writer, &run->state, &run->trainer, run->shared.saved_by_all);
}

int saving_save(struct training *run, int asked)
{
	double start = rh_clock_seconds();
	int ends = run->is_stopping || run->stopped_early || run->state.step == run->data.steps;
	int rc = saving_collect(run, RH_CHECKPOINT_WAIT);
	if (asked)
		run->saving.request = SAVING_ANSWERED;
	if (!rc && (rc = begin(run))) {
		rc = judge(run, run->state.step, rc);
		return !rc && asked ? answer(run, run->state.step) : rc;
	}
	double begun = rh_clock_seconds();
	run->saving.stood_still += begun - start;
	if (!rc && ends)
		rc = saving_collect(run, RH_CHECKPOINT_WAIT);
	run->saving.end_seconds += rh_clock_seconds() - begun;
	return rc;
}

/* Saves a last checkpoint into the renamed directory, which its descriptor still reaches. */
int saving_without_directory(struct training *run)
{
	int rc = saving_save(run, 0);
	if (!rc)
		return rh_fail(-ENOENT,
		               "output_dir: %s was renamed while this run wrote to it; stopped after step %" PRId64
		               ", whose checkpoint is in the renamed directory",
		               run->config->output_dir, run->state.step);
	char line[RH_ERROR_LINE / 2];
	snprintf(line, sizeof line, "%s", rh_error(rc));
	return rh_fail(-ENOENT,
	               "output_dir: %s was renamed or removed while this run wrote to it; stopped after step %" PRId64
	               ", no checkpoint of it was written: %s",
	               run->config->output_dir, run->state.step, line);
}

/* No block was updated by the step in flight: with clipping that waits for the norm, which all boxes make together. */
static int save_last_step(struct training *run)
{
	int rc = rh_updater_abandon(run->session.updater);
	run->is_stopping = 1;
	return rc ? rc : saving_save(run, 0);
}

int saving_without_link(struct training *run, int rc)
{
	int64_t done = run->state.step;
	char line[RH_ERROR_LINE / 2], why[RH_ERROR_LINE / 4] = "";
	/* a neighbour that was started again, or has ended, goes on from what it has */
	if (rc != -ETIMEDOUT && rc != -ECONNABORTED)
		return rc;
	snprintf(line, sizeof line, "%s", rh_error(rc));
	int failed = saving_collect(run, RH_CHECKPOINT_WAIT);
	int is_whole = run->config->max_grad_norm > 0 && run->mode->shares_norm;
	if (!failed && is_whole && done > run->shared.first_step && done > run->shared.saved)
		failed = save_last_step(run);
	if (failed)
		snprintf(why, sizeof why, ", but no checkpoint of it was written: %s", rh_error(failed));
	else if (run->shared.saved == done)
		snprintf(why, sizeof why, ", whose checkpoint is written");
	else if (run->shared.saved > 0)
		snprintf(why, sizeof why, ", and the newest checkpoint is that of step %" PRId64, run->shared.saved);
	else
		snprintf(why, sizeof why, ", and no checkpoint was written");
	if (rh_stop_is_asked() && !failed && run->shared.saved == done) {
		rh_note("%s", line);
		run->is_stopping = run->is_alone = 1;
		return 0;
	}
	if (rc == -ECONNABORTED) /* the peer's line says how to go on */
		return rh_fail(rc, "%s; this box stopped after step %" PRId64 "%s", line, done, why);
	return rh_fail(rc, "%s; stopped after step %" PRId64 "%s: start all boxes again with resume_from_checkpoint: true", line, done,
	               why);
}

int saving_end(struct training *run, int rc)
{
	struct rh_fault first = {0};
	rh_fault_keep(&first, rc);
	rh_fault_keep(&first, saving_collect(run, RH_CHECKPOINT_WAIT));
	return rh_fault_get(&first);
}

void saving_report(const struct training *run)
{
	const struct saving *saving = &run->saving;
	double held = rh_updater_held_seconds(run->session.updater), stood = saving->stood_still + held;
	int64_t steps = run->state.step - run->shared.first_step;
	double step_seconds = steps > 0 ? (rh_clock_seconds() - run->log.began) / (double)steps : 0;
	if (!saving->count)
		return;
	rh_note("%" PRId64
	        " checkpoint%s written in %.2f s in the background; training waited %.2f s for this (%.2f of a step for each), and at the "
	        "end %.2f s for the last one",
	        saving->count, saving->count == 1 ? "" : "s", saving->seconds, stood,
	        step_seconds > 0 ? stood / step_seconds / (double)saving->count : 0, saving->end_seconds);
}
