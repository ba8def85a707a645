/* Between two steps: evaluations, checkpoints, and whether the run stops here. */
#include "train/training.h"

#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/stop.h"
#include "core/text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* A line for a person: the answer's beginning, without line breaks. */
static void tell_sample(const struct rh_sample_report *report)
{
	enum { PROMPT = 32, ANSWER = 100 };
	char prompt[PROMPT + 4], answer[ANSWER + 4];
	rh_text_shorten(report->prompt, prompt, sizeof prompt);
	rh_text_shorten(report->answer, answer, sizeof answer);
	rh_note("step %" PRId64 ": '%s' -> '%s'", report->step, prompt, answer);
}

static int answer_samples(struct training *run, double epoch)
{
	struct rh_samples *samples = &run->data.samples;
	int rc = samples->count ? rh_samples_answer(samples, &run->session) : 0;
	for (size_t i = 0; !rc && i < samples->count; i++) {
		const struct rh_sample *sample = &samples->sample[i];
		struct rh_text text = {0};
		rc = rh_sample_text(sample, run->session.tokenizer, &text);
		const struct rh_sample_report report = {.step = run->state.step,
		                                        .epoch = epoch,
		                                        .number = (int64_t)i,
		                                        .prompt = sample->prompt,
		                                        .answer = text.bytes ? text.bytes : "",
		                                        .tokens = (int64_t)(sample->ids.count - sample->prompt_tokens),
		                                        .has_ended = sample->has_ended};
		if (!rc)
			rc = saving_line(rh_metrics_sample(run->log.metrics, &report));
		if (!rc)
			tell_sample(&report);
		rh_text_free(&text);
	}
	return rc;
}

static int evaluate(struct training *run, double epoch)
{
	struct rh_evaluation eval;
	rh_status_phase(run->log.status, RH_PHASE_EVALUATING, NULL);
	int rc = rh_evaluate(&run->session, &run->data.held_out, &run->data.choices, run->log.progress, &eval);
	if (rc)
		return rc;
	struct rh_eval_report report = {.step = run->state.step,
	                                .epoch = epoch,
	                                .loss = eval.loss,
	                                .tokens = eval.trained,
	                                .rows = eval.rows,
	                                .seconds = eval.seconds,
	                                .elapsed_seconds = rh_clock_seconds() - run->log.started,
	                                .figures = eval.figures};
	run->result->has_eval = 1;
	run->result->eval = eval;
	char accuracy[128] = "";
	if (eval.choice_accuracy >= 0)
		snprintf(accuracy, sizeof accuracy, ", accuracy %.4f (commonest answer %.4f)", eval.choice_accuracy, eval.majority);
	size_t used = strlen(accuracy);
	if (eval.classifies)
		snprintf(accuracy + used, sizeof accuracy - used, ", F1 %.4f, Matthews %.4f", eval.f1, eval.matthews);
	const char *whose = run->mode->output.evaluated ? run->mode->output.evaluated(&run->session) : "";
	if (eval.is_judged)
		rh_note("step %" PRId64 ": eval_loss%s %.6f (a row), %s %.4f, margin %.4f", run->state.step, whose, eval.loss,
		        eval.figures.count[RH_FIGURE_REWARDS_ACCURACIES] ? "accuracy" : "kl",
		        rh_figure_of(&eval.figures,
		                     eval.figures.count[RH_FIGURE_REWARDS_ACCURACIES] ? RH_FIGURE_REWARDS_ACCURACIES : RH_FIGURE_KL),
		        rh_figure_of(&eval.figures, RH_FIGURE_REWARDS_MARGINS));
	else
		rh_note("step %" PRId64 ": eval_loss%s %.6f (weighted by token), token accuracy %.4f%s", run->state.step, whose, eval.loss,
		        eval.token_accuracy, accuracy);
	rc = saving_line(rh_metrics_eval(run->log.metrics, &report));
	if (!rc && run->log.reports)
		rc = saving_line(rh_reports_eval(run->log.reports, &report));
	if (!rc)
		rc = rh_trainer_state_log_eval(&run->trainer, &report);
	if (!rc)
		rc = answer_samples(run, epoch);
	if (!rc)
		rc = best_judge(run, &eval, saving_is_due(run, run->state.step));
	rh_status_eval(run->log.status, &report, run->trainer.best_step, run->trainer.best_metric);
	return rc;
}

int pause_is_due(const struct training *run, int64_t steps)
{
	return rh_mode_evaluates_at(&run->shared, steps) || saving_is_due(run, steps);
}

/* A control group leaves so little memory that the next larger allocation ends the run, or every one is slow: its limit was lowered, or
 * others in it took what there was. What a run needs is reserved when it starts: a step takes next to nothing more. */
static int is_squeezed(const struct training *run)
{
	enum { LEAST = 32 << 20 };
	int64_t least = run->room_at_start / 4 < LEAST ? run->room_at_start / 4 : LEAST;
	return rh_machine_group_room() < least;
}

static int say_squeezed(const struct training *run)
{
	return rh_fail(
	        -ENOMEM,
	        "stopped after step %" PRId64
	        ", whose checkpoint is written: this process's control group leaves it %.1f MiB of memory and left it %.1f when the run "
	        "began; raise memory.max and memory.high, or end what else takes memory there, or lower max_ram, and go on with "
	        "resume_from_checkpoint: true",
	        run->state.step, (double)rh_machine_group_room() / 1048576, (double)run->room_at_start / 1048576);
}

/* Updates are over. Between the steps of stale weights the last one stays unpublished: a run that goes on from here, or from the checkpoint
 * of here, computes what it would have without the pause. */
static int drain_updates(struct training *run)
{
	return training_is_local(run) ? rh_updater_flush(run->session.updater) : rh_updater_finish(run->session.updater);
}

int pause_steps(struct training *run)
{
	double now = rh_clock_seconds();
	int asked = run->shared.save_requested;
	int rc = rh_mode_evaluates_at(&run->shared, run->state.step)
	                 ? evaluate(run, (double)run->state.step / (double)run->data.steps_per_epoch)
	                 : 0;
	int squeezed = run->state.step < run->data.steps && is_squeezed(run), bad = trouble_is_too_much(run),
	    lost = !rh_dir_bound_is_there();
	run->is_stopping = (run->shared.stop_requested && run->state.step < run->data.steps) || squeezed || bad ||
	                   lost; /* read once: a signal that comes later is for the next step */
	int saves = saving_is_due(run, run->state.step) || run->is_stopping || asked || (run->stopped_early && run->course.save_every);
	if (!rc && saves)
		rc = drain_updates(run);
	if (!rc && lost)
		return saving_without_directory(run);
	if (!rc && saves)
		rc = saving_save(run, asked);
	if (!rc)
		rc = trace_step_write(run);
	if (!rc && squeezed)
		rc = say_squeezed(run);
	if (!rc && bad)
		rc = trouble_stop(run);
	double aside = rh_clock_seconds() - now; /* speeds are of training alone */
	run->log.began += aside;
	run->log.since_log += aside;
	return rc;
}

int pause_is_wanted(struct training *run)
{
	return rh_stop_is_asked() || is_squeezed(run) || !rh_dir_bound_is_there() || saving_is_asked(run);
}

void pause_note_requests(struct training *run)
{
	run->shared.stop_requested = rh_stop_is_asked();
	run->shared.save_requested = saving_is_asked(run);
}

int pause_leave_out(struct training *run)
{
	int64_t step = run->state.step++;
	if (run->mode->steps.share_results) /* boxes hear of each other's requests behind the next step */
		run->shared.stop_requested = run->shared.save_requested = 0;
	else
		pause_note_requests(run);
	*rh_flight_of(&run->flights, step) = (struct rh_flight){0};
	run->trouble.bad_in_a_row++;
	run->state.skipped_steps++;
	rh_note("warning: step %" PRId64 " is left out: its gradient was not finite; %" PRId64 " in a row, %" PRId64 " in all", step + 1,
	        run->trouble.bad_in_a_row, run->state.skipped_steps);
	int rc = train_step_done(run, NAN, NAN);
	return rc ? rc : pause_steps(run);
}
