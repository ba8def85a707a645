/* The steps of a run: it feeds batches, takes loss and norm, updates, logs, and does what is due between two steps. */
#include "train/training.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/minmax.h"
#include "modes/boxes/box_step.h"
#include "modes/fluidpipe/fluidpipe_step.h"
#include "modes/fluidpipe/idle_steps.h"
#include "session/evaluate.h"
#include "session/update.h"
#include "train/lr.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t asked_to_stop;
static volatile sig_atomic_t step_seconds; /* what one takes, rounded up; 0: not known yet */
static volatile sig_atomic_t on_terminal;  /* whose last line is a bar's, or ^C */

/* Runs in an interrupted thread: it may call write, but no formatting of the C library. */
static void ask_to_stop(int signal_number)
{
	char text[160] = "\nstopping after this step", digits[12];
	const char *from = text + !on_terminal;
	int code = errno;
	size_t length = strlen(text), count = 0;
	(void)signal_number;
	asked_to_stop = 1;
	for (unsigned left = (unsigned)step_seconds; left; left /= 10)
		digits[count++] = (char)('0' + left % 10);
	if (count) {
		memcpy(text + length, " (one takes about ", 18);
		for (length += 18; count;)
			text[length++] = digits[--count];
		memcpy(text + length, " s)", 3);
		length += 3;
	}
	static const char end[] = " with a checkpoint; the same signal again: now, without one\n";
	memcpy(text + length, end, sizeof end - 1);
	(void)!write(STDERR_FILENO, from, (size_t)(text + length - from) + sizeof end - 1);
	errno = code;
}

static void tell_step_seconds(double seconds)
{
	step_seconds = seconds < 1e6 ? (sig_atomic_t)ceil(seconds) : 0;
}

void train_watch_signals(void)
{
	struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = (int)SA_RESETHAND};
	asked_to_stop = 0;
	step_seconds = 0;
	on_terminal = isatty(STDERR_FILENO);
	static const int asking[] = {SIGINT, SIGTERM, SIGHUP, SIGXCPU};
	sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < sizeof asking / sizeof *asking; i++) {
		struct sigaction before;
		if (sigaction(asking[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN)
			continue; /* nohup, or a shell's background job: whoever started the run wants it so */
		sigaction(asking[i], &action, NULL);
	}
}

static void report_peaks(struct training *run, struct rh_step_report *report)
{
	report->ram_peak_bytes = rh_machine_peak_ram();
	report->nvme_peak_bytes = run->result->nvme_bytes = run->session.plan.bytes.nvme;
	for (int d = 0; d < run->session.devices.count; d++) {
		struct rh_device_memory memory;
		run->session.devices.device[d]->ops->memory(run->session.devices.device[d], &memory);
		if (memory.peak_bytes > report->vram_peak_bytes)
			report->vram_peak_bytes = memory.peak_bytes;
	}
	run->result->device_peak_bytes = report->vram_peak_bytes;
	run->result->ram_peak_bytes = report->ram_peak_bytes;
}

static int due(int64_t step, int64_t each)
{
	return each > 0 && step % each == 0;
}

static int evaluate(struct training *run, double epoch)
{
	struct rh_evaluation eval;
	int rc = rh_evaluate(&run->session, &run->data.held_out, &run->data.choices, run->progress, &eval);
	if (rc)
		return rc;
	struct rh_eval_report report = {.step = run->state.step,
	                                .epoch = epoch,
	                                .loss = eval.loss,
	                                .tokens = eval.trained,
	                                .rows = eval.rows,
	                                .seconds = eval.seconds};
	run->result->has_eval = 1;
	run->result->eval = eval;
	char accuracy[128] = "";
	if (eval.choice_accuracy >= 0)
		snprintf(accuracy, sizeof accuracy, ", accuracy %.4f (commonest answer %.4f)", eval.choice_accuracy, eval.majority);
	size_t used = strlen(accuracy);
	if (eval.classifies)
		snprintf(accuracy + used, sizeof accuracy - used, ", F1 %.4f, Matthews %.4f", eval.f1, eval.matthews);
	const char *whose = !training_is_fluidpipe(run) ? "" : run->session.box.number ? " of the full model" : " of the partial model";
	rh_note("step %" PRId64 ": eval_loss%s %.6f (weighted by token), token accuracy %.4f%s", run->state.step, whose, eval.loss,
	        eval.token_accuracy, accuracy);
	rc = saving_line(rh_metrics_eval(run->metrics, &report));
	if (!rc && run->reports)
		rc = saving_line(rh_reports_eval(run->reports, &report));
	if (!rc)
		rc = rh_trainer_state_log_eval(&run->trainer, &report);
	return rc ? rc : best_judge(run, &eval, saving_is_due(run, run->state.step));
}

void train_use_batches(struct training *run, int64_t step, int64_t count)
{
	int64_t first = step % run->flights * run->micro_batches;
	struct train_step *flight = &run->flight[step % run->flights];
	*flight = (struct train_step){.count = count};
	for (int64_t m = 0; m < count; m++) {
		run->micro[m] = rh_micro_of(&run->batch[m]);
		run->micro[m].loss = rh_model_has_head(run->session.model) ? run->loss[first + m] : NULL;
		run->micro[m].load_balancing_loss = &run->load_balancing_loss[first + m];
		run->targets[first + m] = run->batch[m].trained;
		flight->tokens += run->batch[m].tokens;
		flight->trained += run->batch[m].trained;
	}
}

/* Fills the step's batches; returns their number. */
static int64_t fill_own(struct training *run, int64_t step)
{
	int64_t epoch = step / run->data.steps_per_epoch, within = step % run->data.steps_per_epoch;
	int64_t count = rh_sampler_micro_batches(run->data.sampler, within);
	for (int64_t m = 0; m < count; m++) {
		const int64_t *rows;
		int64_t n = rh_sampler_rows(run->data.sampler, epoch, within, m, &rows);
		run->batch[m].draw = (uint32_t)epoch + 1;
		int rc = rh_batch_make(&run->data.train, rows, n, &run->batch[m]);
		if (rc)
			return rc;
	}
	train_use_batches(run, step, count);
	return count;
}

/* Box 0 makes the step's batches, and all boxes get them. */
static int share_data(struct training *run, int64_t step)
{
	int64_t count = run->session.box.number ? 0 : fill_own(run, step);
	return count < 0 ? (int)count : box_share_data(run, step, count);
}

static int64_t fill_step(struct training *run, int64_t step)
{
	return run->session.box.number ? box_take_data(run, step) : fill_own(run, step);
}

/* Where steps end together all boxes have a step's data before it begins; else box 2 has it when it gets there. */
static int64_t next_data(struct training *run, int64_t step)
{
	int is_linked = rh_box_is_linked(&run->session.box), number = run->session.box.number, rc = 0;
	if (training_is_fluidpipe(run)) {
		rc = fluidpipe_begin_epoch(run, step);
		if (rc)
			return rc;
	}
	if (training_is_fluidpipe(run) && number)
		return fluidpipe_take_step(run, step);
	if (is_linked && !training_is_fluidpipe(run))
		rc = share_data(run, step);
	int64_t count = rc ? rc : fill_step(run, step);
	if (count > 0 && training_is_fluidpipe(run))
		rc = fluidpipe_give_step(run, step, count);
	return rc ? rc : count;
}

double train_step_loss(const struct training *run, int64_t step)
{
	const struct train_step *flight = &run->flight[step % run->flights];
	int64_t first = step % run->flights * run->micro_batches;
	double total = 0, balance = 0;
	for (int64_t m = first; m < first + flight->count; m++) {
		double sum = 0;
		balance += run->load_balancing_loss[m];
		for (int64_t i = 0; i < run->targets[m]; i++)
			sum += (double)run->loss[m][i];
		total += sum;
	}
	return total / (double)flight->trained + balance / (double)flight->count;
}

double train_rate_at(const struct training *run, int64_t step)
{
	const struct rh_config *config = run->config;
	if (config->fluidpipe_freeze && !run->session.box.number)
		return 0; /* AdamW's decay is a share of it, too */
	const struct rh_lr lr = {.scheduler = config->lr_scheduler_type,
	                         .base = config->learning_rate,
	                         .min_rate = config->min_lr_rate,
	                         .warmup_steps = run->warmup,
	                         .total_steps = run->data.steps};
	return rh_lr_at(&lr, step);
}

static int drains_at(const struct training *run, int64_t steps)
{
	return training_evaluates_at(run, steps) || saving_is_due(run, steps);
}

static void report_nvme(struct training *run, struct rh_step_report *report, int64_t steps)
{
	struct rh_space_stats now;
	if (!run->session.plan.bytes.nvme)
		return;
	rh_space_stats(run->session.space, &now);
	const struct rh_space_stats *before = &run->nvme_logged;
	report->nvme_drives = now.drives;
	report->nvme_wait_seconds = (now.wait_seconds - before->wait_seconds) / (double)steps;
	for (int d = 0; d < now.drives; d++) {
		report->nvme_read_bytes[d] = (now.read_bytes[d] - before->read_bytes[d]) / steps;
		report->nvme_written_bytes[d] = (now.written_bytes[d] - before->written_bytes[d]) / steps;
	}
	run->nvme_logged = now;
}

static int log_step(struct training *run, struct rh_step_report *report, double now)
{
	int64_t steps = rh_max(1, run->state.steps_since_log);
	report->loss = run->state.steps_since_log ? run->state.loss_since_log / (double)steps : (double)NAN; /* all were skipped */
	report->compute_seconds = run->times_since_log.compute / (double)steps;
	report->weights_seconds = run->times_since_log.weights / (double)steps;
	report->activations_seconds = run->times_since_log.activations / (double)steps;
	report->gradients_seconds = run->times_since_log.gradients / (double)steps;
	report->optimizer_seconds = run->times_since_log.optimizer / (double)steps;
	report->has_version_drift = training_is_local(run);
	report->version_drift = run->state.drift_since_log;
	run->state.drift_since_log = 0;
	if (training_is_local(run)) /* no time is one step's alone */
		report->compute_seconds = report->weights_seconds = report->activations_seconds = report->gradients_seconds =
		        report->optimizer_seconds = NAN;
	run->times_since_log = (struct rh_step_times){0};
	report_nvme(run, report, steps);
	report->tokens_per_second = (double)run->tokens_since_log / (now - run->since_log);
	run->result->final_loss = report->loss;
	run->state.loss_since_log = 0;
	run->state.steps_since_log = 0;
	run->tokens_since_log = 0;
	run->since_log = now;
	rh_progress_logged(run->progress, report);
	int rc = saving_line(rh_metrics_step(run->metrics, report));
	if (!rc && run->reports)
		rc = saving_line(rh_reports_step(run->reports, report));
	return rc ? rc : rh_trainer_state_log_step(&run->trainer, report);
}

/* The latest step's times; `between`: what its end took, where the optimizer has the host. */
static void book_times(struct training *run, double between)
{
	const struct rh_step_times *step = rh_executor_times(run->session.executor);
	struct rh_step_times *sum = &run->times_since_log;
	sum->compute += step->compute;
	sum->weights += step->weights;
	sum->activations += step->activations;
	sum->gradients += step->gradients;
	sum->optimizer += step->optimizer + between;
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

/* Books and tells of the step that run->state.step has just counted. */
static int step_done(struct training *run, double loss, double norm)
{
	const struct train_step *flight = &run->flight[(run->state.step - 1) % run->flights];
	if (!run->trouble.bad_in_a_row) { /* else the step was skipped */
		run->state.loss_since_log += loss;
		run->state.run_loss += loss;
		run->state.steps_since_log++;
		trouble_watch(run, loss);
	}
	run->state.tokens += flight->tokens;
	run->state.trained_tokens += flight->trained;
	run->tokens_since_log += flight->tokens;

	double now = rh_clock_seconds(), per_step = (now - run->began) / (double)(run->state.step - run->first_step);
	struct rh_step_report report = {.step = run->state.step,
	                                .steps = run->data.steps,
	                                .epoch = (double)run->state.step / (double)run->data.steps_per_epoch,
	                                .loss = loss,
	                                .grad_norm = norm,
	                                .learning_rate = train_rate_at(run, run->state.step - 1),
	                                .tokens_per_second = (double)(run->state.tokens - run->tokens_before) / (now - run->began),
	                                .trained_tokens = run->state.trained_tokens,
	                                .seconds_left = per_step * (double)(run->data.steps - run->state.step)};
	tell_step_seconds(per_step);
	report_peaks(run, &report);
	rh_progress_step(run->progress, &report, now);
	if (due(run->state.step, run->config->logging_steps) || run->state.step == run->data.steps)
		return log_step(run, &report, now);
	if (run->state.step == run->first_step + 1)
		rh_progress_first(run->progress, &report);
	return 0;
}

/* Updates are over. Between the steps of stale weights the last one stays unpublished: a run that goes on from here, or from the checkpoint
 * of here, computes what it would have without the pause. */
static int drain_updates(struct training *run)
{
	return training_is_local(run) ? rh_updater_flush(run->session.updater) : rh_updater_finish(run->session.updater);
}

/* Between steps: what is due now. */
static int pause_steps(struct training *run)
{
	double now = rh_clock_seconds();
	int asked = run->save_requested;
	int rc = training_evaluates_at(run, run->state.step) ? evaluate(run, (double)run->state.step / (double)run->data.steps_per_epoch)
	                                                     : 0;
	int squeezed = run->state.step < run->data.steps && is_squeezed(run), bad = trouble_is_too_much(run),
	    lost = !rh_dir_bound_is_there();
	run->is_stopping = (run->stop_requested && run->state.step < run->data.steps) || squeezed || bad ||
	                   lost; /* read once: a signal that comes later is for the next step */
	int saves = saving_is_due(run, run->state.step) || run->is_stopping || asked || (run->stopped_early && run->save_every);
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
	run->began += aside;
	run->since_log += aside;
	return rc;
}

/* What this box was asked for. */
static void note_requests(struct training *run)
{
	run->stop_requested = asked_to_stop;
	run->save_requested = saving_is_asked(run);
}

static int begin_one(struct training *run)
{
	int64_t step = run->begun;
	int64_t count = next_data(run, step);
	int rc = count < 0 ? (int)count : run->idle ? idle_steps_expect(run, step) : 0;
	if (!rc)
		rc = trace_step_begin(run, step);
	if (!rc && !drains_at(run, step + 1)) /* else its update is over before the next step */
		rc = trace_step_begin(run, step + 1);
	if (rc)
		return rc;
	struct rh_update update = rh_update_of(run->config, step + run->state.idle_steps, train_rate_at(run, step), 1);
	rh_updater_open(run->session.updater, &update, run->config->max_grad_norm);
	run->begun++;
	return rh_executor_begin(run->session.executor, run->micro, count, step, 1.0f / (float)run->flight[step % run->flights].trained);
}

/* The first step in flight: its update has begun, or is over where something wants it to be. */
static int finish_one(struct training *run)
{
	int64_t step = run->state.step, done = step + 1;
	double norm = 0;
	int rc = rh_executor_finish(run->session.executor);
	note_requests(run);
	if (!rc && training_is_fluidpipe(run))
		rc = fluidpipe_listen(run, asked_to_stop);
	else if (!rc && rh_box_is_linked(&run->session.box))
		rc = box_share_results(run, step, 1);
	if (rc)
		return rc;
	double loss = train_step_loss(run, step), computed = rh_clock_seconds();
	rc = rh_updater_norm(run->session.updater, &norm);
	int skipped = rc ? rc : trouble_judge(run, step, loss, norm);
	if (skipped < 0)
		return skipped;
	if (run->idle)
		idle_steps_record(run, step);
	if (run->config->trace_step == done)
		trace_step_end(run);
	run->state.step = done;
	if (drains_at(run, done) || done == run->data.steps)
		rc = rh_updater_flush(run->session.updater);
	if (rc)
		return rc;
	book_times(run, rh_clock_seconds() - computed);
	return step_done(run, loss, norm);
}

/* Something from outside asks for a pause, or ends the run: no step begins before it. */
static int must_pause(struct training *run)
{
	return asked_to_stop || is_squeezed(run) || saving_is_asked(run) || !rh_dir_bound_is_there();
}

/* May the next step begin before this one is finished? */
static int joins_next(struct training *run)
{
	int64_t next = run->begun;
	return run->flights > 1 && next < run->data.steps && !drains_at(run, next) && !must_pause(run) && !trouble_leaves_out(run, next);
}

/* A step that the run, or all boxes, leave out: it counts, and nothing of it does. Boxes hear of each other's requests behind the next
 * step. */
static int leave_out(struct training *run)
{
	int64_t step = run->state.step++;
	if (rh_box_is_linked(&run->session.box))
		run->stop_requested = run->save_requested = 0;
	else
		note_requests(run);
	run->flight[step % run->flights] = (struct train_step){0};
	run->trouble.bad_in_a_row++;
	run->state.skipped_steps++;
	rh_note("warning: step %" PRId64 " is left out: its gradient was not finite; %" PRId64 " in a row, %" PRId64 " in all", step + 1,
	        run->trouble.bad_in_a_row, run->state.skipped_steps);
	int rc = step_done(run, NAN, NAN);
	return rc ? rc : pause_steps(run);
}

static int one_step(struct training *run)
{
	int rc = saving_collect(run, RH_CHECKPOINT_LOOK);
	if (!rc && run->idle)
		rc = idle_steps_make(run);
	if (!rc && run->begun == run->state.step && trouble_leaves_out(run, run->begun)) {
		run->begun++;
		return leave_out(run);
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

/* ---- local updates ---- */

/* A box that updates itself clips by its share of the norm of all, as that was last known. */
static double own_max_norm(const struct training *run)
{
	double share = run->state.norm_share > 0 ? run->state.norm_share : run->session.box.norm_share;
	return run->config->max_grad_norm * share;
}

static int begin_step(void *context, int64_t step, const struct rh_micro_batch **batch, float *loss_scale)
{
	struct training *run = context;
	if (step > run->state.step && !rh_box_is_linked(&run->session.box) &&
	    must_pause(run)) /* boxes stop between two stretches, together */
		return 1;
	int64_t count = fill_step(run, step);
	if (count < 0)
		return (int)count;
	struct rh_update update = rh_update_of(run->config, step, train_rate_at(run, step), 1);
	rh_updater_open(run->session.updater, &update, own_max_norm(run));
	*batch = run->micro;
	*loss_scale = 1.0f / (float)run->flight[step % run->flights].trained;
	return 0;
}

/* Its losses and its norm are known. */
static int tell_step(struct training *run, int64_t step)
{
	double loss = train_step_loss(run, step), norm = run->flight[step % run->flights].norm;
	int rc = trouble_judge(run, step, loss, norm);
	run->state.step = step + 1;
	if (rc)
		return rc;
	rc = step_done(run, loss, norm);
	return rc ? rc : saving_collect(run, RH_CHECKPOINT_LOOK);
}

static int end_step(void *context, int64_t step, const struct rh_versions *versions)
{
	struct training *run = context;
	int rc = versions_note(run, step, versions);
	if (!rc)
		rc = rh_updater_norm(run->session.updater, &run->flight[step % run->flights].norm);
	return rc || rh_box_is_linked(&run->session.box) ? rc : tell_step(run, step);
}

static int64_t micro_batches_at(const struct training *run, int64_t step)
{
	return rh_sampler_micro_batches(run->data.sampler, step % run->data.steps_per_epoch);
}

/* Until something wants all stages at rest, or a step is short: that runs alone. */
static void choose_stretch(const struct training *run, int64_t *steps, int64_t *count)
{
	enum { MOST = 256 }; /* bounds the program in memory; a flush in so many steps costs next to nothing */
	int64_t first = run->state.step, next = first + 1, most = rh_box_is_linked(&run->session.box) ? run->flights : MOST;
	*count = micro_batches_at(run, first);
	while (next < run->data.steps && next - first < most && !drains_at(run, next) && *count == run->micro_batches &&
	       micro_batches_at(run, next) == *count && !trouble_leaves_out(run, next))
		next++;
	*steps = next - first;
}

static int share_stretch(struct training *run, int64_t *steps, int64_t *count)
{
	int64_t first = run->state.step;
	int rc = box_share_stretch(run, first, steps, count);
	for (int64_t step = first; !rc && step < first + *steps; step++)
		rc = share_data(run, step);
	return rc;
}

/* Ends a stretch of several boxes: shares what each box did not know alone. */
static int end_stretch(struct training *run, int64_t steps)
{
	int64_t first = run->state.step;
	int rc = box_share_results(run, first, steps);
	for (int64_t step = first; !rc && step < first + steps; step++) {
		double loss = train_step_loss(run, step), norm = run->flight[step % run->flights].norm;
		if (!isfinite(loss) || !isfinite(norm))
			return box_return(run, step, loss, norm);
		rc = tell_step(run, step);
	}
	return rc;
}

static int one_stretch(struct training *run)
{
	int is_linked = rh_box_is_linked(&run->session.box), rc = 0;
	int64_t first = run->state.step, steps = 0, count = 0;
	if (trouble_leaves_out(run, first))
		return leave_out(run);
	if (!run->session.box.number)
		choose_stretch(run, &steps, &count);
	if (is_linked)
		rc = share_stretch(run, &steps, &count);
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
	note_requests(run);
	if (!rc && is_linked)
		rc = end_stretch(run, steps);
	trace_step_end(run);
	return rc || run->state.step <= first ? rc : pause_steps(run); /* else the boxes have returned to a checkpoint */
}

int train_steps(struct training *run)
{
	int rc = training_is_local(run) ? one_stretch(run) : one_step(run);
	return rc && rh_box_is_linked(&run->session.box) ? saving_without_link(run, rc) : rc;
}
