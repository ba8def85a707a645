/* What a step leaves in the logs, and on the terminal. */
#include "train/training.h"

#include "core/clock.h"
#include "core/minmax.h"

#include <math.h>

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

static void report_nvme(struct training *run, struct rh_step_report *report, int64_t steps)
{
	struct rh_space_stats now;
	if (!run->session.plan.bytes.nvme)
		return;
	rh_space_stats(run->session.space, &now);
	const struct rh_space_stats *before = &run->log.nvme_logged;
	report->nvme_drives = now.drives;
	report->nvme_wait_seconds = (now.wait_seconds - before->wait_seconds) / (double)steps;
	for (int d = 0; d < now.drives; d++) {
		report->nvme_read_bytes[d] = (now.read_bytes[d] - before->read_bytes[d]) / steps;
		report->nvme_written_bytes[d] = (now.written_bytes[d] - before->written_bytes[d]) / steps;
	}
	run->log.nvme_logged = now;
}

static int log_step(struct training *run, struct rh_step_report *report, double now)
{
	int64_t steps = rh_max(1, run->state.steps_since_log);
	report->loss = run->state.steps_since_log ? run->state.loss_since_log / (double)steps : (double)NAN; /* all were skipped */
	report->compute_seconds = run->log.times_since_log.compute / (double)steps;
	report->weights_seconds = run->log.times_since_log.weights / (double)steps;
	report->activations_seconds = run->log.times_since_log.activations / (double)steps;
	report->gradients_seconds = run->log.times_since_log.gradients / (double)steps;
	report->optimizer_seconds = run->log.times_since_log.optimizer / (double)steps;
	report->has_version_drift = training_is_local(run);
	report->version_drift = run->state.drift_since_log;
	run->state.drift_since_log = 0;
	run->log.times_since_log = (struct rh_step_times){0};
	report_nvme(run, report, steps);
	report->tokens_per_second = (double)run->log.tokens_since_log / (now - run->log.since_log);
	run->result->final_loss = report->loss;
	run->result->final_steps = run->state.steps_since_log;
	report->figures = run->state.figures_since_log;
	run->state.figures_since_log = (struct rh_figures){0};
	run->state.loss_since_log = 0;
	run->state.steps_since_log = 0;
	run->log.tokens_since_log = 0;
	run->log.since_log = now;
	rh_progress_logged(run->log.progress, report);
	int rc = saving_line(rh_metrics_step(run->log.metrics, report));
	if (!rc && run->log.reports)
		rc = saving_line(rh_reports_step(run->log.reports, report));
	return rc ? rc : rh_trainer_state_log_step(&run->trainer, report);
}

void train_book_times(struct training *run, const struct rh_step_times *step, double between)
{
	struct rh_step_times *sum = &run->log.times_since_log;
	sum->compute += step->compute;
	sum->weights += step->weights;
	sum->activations += step->activations;
	sum->gradients += step->gradients;
	sum->optimizer += step->optimizer + between;
	const double part[RH_TIME_PARTS] = {[RH_TIME_COMPUTE] = step->compute,
	                                    [RH_TIME_WEIGHTS] = step->weights,
	                                    [RH_TIME_ACTIVATIONS] = step->activations,
	                                    [RH_TIME_GRADIENTS] = step->gradients,
	                                    [RH_TIME_OPTIMIZER] = step->optimizer + between};
	rh_status_times(run->log.status, part);
}

/* Books and tells of the step that run->state.step has just counted. */
int train_step_done(struct training *run, double loss, double norm)
{
	const struct rh_flight *flight = rh_flight_of(&run->flights, run->state.step - 1);
	if (!run->trouble.bad_in_a_row) { /* else the step was skipped */
		run->state.loss_since_log += loss;
		run->state.run_loss += loss;
		run->state.steps_since_log++;
		rh_flight_tell(&run->flights, run->state.step - 1, &run->state.figures_since_log);
		trouble_watch(run, loss, norm);
	}
	run->state.tokens += flight->tokens;
	run->state.trained_tokens += flight->trained;
	run->log.tokens_since_log += flight->tokens;

	/* without a flush the results of a step come later, perhaps those of several at once */
	double now = flight->done_s > 0 ? flight->done_s : rh_clock_seconds(),
	       per_step = (now - run->log.began) / (double)(run->state.step - run->shared.first_step);
	struct rh_step_report report = {.step = run->state.step,
	                                .steps = run->data.steps,
	                                .epoch = (double)run->state.step / (double)run->data.steps_per_epoch,
	                                .loss = loss,
	                                .grad_norm = norm,
	                                .learning_rate = rh_lr_at(&run->course.lr, run->state.step - 1),
	                                .tokens_per_second = (double)(run->state.tokens - run->log.tokens_before) / (now - run->log.began),
	                                .planned_tokens_per_second =
	                                        run->result->rates_assumed ? 0 : run->result->predicted_tokens_per_second,
	                                .trained_tokens = run->state.trained_tokens,
	                                .elapsed_seconds = now - run->log.started,
	                                .seconds_left = per_step * (double)(run->data.steps - run->state.step)};
	if (run->flights.preference && !run->trouble.bad_in_a_row)
		rh_flight_tell(&run->flights, run->state.step - 1, &report.figures);
	train_tell_step_seconds(per_step);
	report_peaks(run, &report);
	rh_progress_step(run->log.progress, &report, now);
	rh_status_step(run->log.status, &report, rh_clock_seconds());
	int is_first = run->config->logging_first_step && run->state.step == 1;
	if (is_first || due(run->state.step, run->config->logging_steps) || run->state.step == run->data.steps)
		return log_step(run, &report, now);
	if (run->state.step == run->shared.first_step + 1)
		rh_progress_first(run->log.progress, &report);
	return 0;
}
