#include "train/train.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"
#include "observe/metrics.h"
#include "observe/progress.h"
#include "train/checkpoint.h"
#include "train/lr.h"
#include "train/room.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All of one run. */
struct run {
	const struct rh_config *config;
	struct rh_session session;
	struct rh_dataset train, held_out;
	int has_held_out;
	struct rh_choices choices;
	struct rh_sampler *sampler;
	int64_t steps_per_epoch, steps, warmup; /* steps: of the whole run */
	int64_t eval_every, save_every;         /* in steps; 0: never */
	struct rh_batch *batch;                 /* of a step */
	struct rh_micro_batch *micro;
	float **loss; /* of each micro-batch */
	struct rh_run_state state;
	struct rh_trainer_state trainer;
	struct rh_progress *progress;
	struct rh_metrics *metrics;
	double began, since_log; /* clock */
	struct rh_step_times times_since_log;
	struct rh_space_stats nvme_logged; /* up to the last line */
	int64_t first_step, tokens_since_log, tokens_before;
	int64_t room_at_start; /* bytes that control groups left when all was reserved */
	int stopping;          /* a signal asked for it, or memory: the checkpoint of that step is written */
	struct rh_train_result *result;
};

static volatile sig_atomic_t asked_to_stop;

static void ask_to_stop(int signal_number)
{
	(void)signal_number;
	asked_to_stop = 1;
}

/* Both signals: the first asks, the second ends the process as usual. */
static void watch_signals(void)
{
	struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = (int)SA_RESETHAND};
	asked_to_stop = 0;
	sigemptyset(&action.sa_mask);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

static int64_t every(enum rh_when when, double steps, int64_t all, int64_t per_epoch)
{
	if (when == RH_WHEN_NO)
		return 0;
	if (when == RH_WHEN_EPOCH)
		return per_epoch;
	return steps < 1 ? (int64_t)ceil(steps * (double)all) : (int64_t)steps;
}

static int load_data(struct run *run)
{
	const struct rh_config *config = run->config;
	int rc = rh_dataset_load(config->train_file, config, run->session.tokenizer, &run->train);
	if (!rc)
		rh_dataset_report(&run->train, config->train_file);
	if (!rc && config->validation_file) {
		rc = rh_evaluate_load(config, run->session.tokenizer, &run->held_out);
		run->has_held_out = !rc;
	} else if (!rc && config->eval_split > 0) {
		rc = rh_dataset_split(&run->train, config->eval_split, config->data_seed, &run->held_out);
		run->has_held_out = !rc;
	}
	if (!rc && config->eval_strategy != RH_WHEN_NO && !run->has_held_out)
		rc = rh_fail(-EINVAL, "eval_strategy: there is nothing to evaluate on; give validation_file or eval_split");
	if (!rc && run->has_held_out)
		run->choices = rh_choices_find(&run->held_out);
	return rc;
}

static int make_schedule(struct run *run)
{
	const struct rh_config *config = run->config;
	int rc = rh_sampler_create(run->train.rows, config->per_device_train_batch_size, config->gradient_accumulation_steps,
	                           config->train_sampling_strategy, config->data_seed, &run->sampler);
	if (rc)
		return rc;
	run->steps_per_epoch = rh_sampler_steps_per_epoch(run->sampler);
	run->steps = config->max_steps > 0 ? config->max_steps : (int64_t)ceil(config->num_train_epochs * (double)run->steps_per_epoch);
	run->warmup = rh_lr_warmup_steps(config->warmup_steps, run->steps);
	run->eval_every = every(config->eval_strategy, config->eval_steps, run->steps, run->steps_per_epoch);
	run->save_every = every(config->save_strategy, config->save_steps, run->steps, run->steps_per_epoch);
	return 0;
}

static int start_session(struct run *run)
{
	const struct rh_config *config = run->config;
	struct rh_workload work = {0};
	struct rh_batch_limits limits;
	int devices = rh_devices_count(config->device);
	int rc = devices < 0 ? devices : rh_dataset_limits(&run->train, config->per_device_train_batch_size, &limits);
	if (rc)
		return rc;
	work.train = (struct rh_micro_shape){
	        .tokens = limits.tokens, .documents = limits.documents, .longest = limits.longest, .head_rows = limits.trained};
	work.data_bytes = rh_dataset_bytes(&run->train) + rh_dataset_bytes(&run->held_out);
	work.train_steps = run->steps;
	work.train_micro_batches = rh_sampler_micro_batches(run->sampler, 0); /* the first step is a whole one */
	if (run->eval_every) {
		rc = rh_evaluate_shape(&run->held_out, config, &run->choices, &work.infer);
		work.infer_micro_batches = rh_evaluate_micro_batches(&run->held_out, config, devices);
	}
	if (!rc)
		rc = rh_session_start(&run->session, &work);
	size_t count = (size_t)work.train_micro_batches;
	if (rc || !(run->batch = rh_alloc(count, sizeof *run->batch)) || !(run->micro = rh_alloc(count, sizeof *run->micro)) ||
	    !(run->loss = rh_alloc(count, sizeof(float *))))
		return rc ? rc : -ENOMEM;
	for (size_t m = 0; !rc && m < count; m++) {
		rc = rh_batch_reserve(&run->batch[m], &limits);
		if (!rc && !(run->loss[m] = rh_alloc((size_t)limits.trained, sizeof(float))))
			rc = -ENOMEM;
	}
	return rc;
}

static void report_peaks(struct run *run, struct rh_step_report *report)
{
	report->ram_peak_bytes = rh_machine_peak_rss();
	report->nvme_peak_bytes = run->result->nvme_bytes = run->session.bytes.nvme;
	for (int d = 0; d < run->session.devices.count; d++) {
		struct rh_device_memory memory;
		run->session.devices.device[d]->ops->memory(run->session.devices.device[d], &memory);
		if (memory.peak_bytes > report->vram_peak_bytes)
			report->vram_peak_bytes = memory.peak_bytes;
	}
	run->result->device_peak_bytes = report->vram_peak_bytes;
	run->result->ram_peak_bytes = report->ram_peak_bytes;
}

static int evaluate(struct run *run, double epoch)
{
	struct rh_evaluation eval;
	int rc = rh_evaluate(&run->session, &run->held_out, &run->choices, &eval);
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
	char accuracy[64] = "";
	if (eval.choice_accuracy >= 0)
		snprintf(accuracy, sizeof accuracy, ", accuracy %.4f (commonest answer %.4f)", eval.choice_accuracy, eval.majority);
	rh_note("step %" PRId64 ": eval_loss %.6f (weighted by token), token accuracy %.4f%s", run->state.step, eval.loss,
	        eval.token_accuracy, accuracy);
	rc = rh_metrics_eval(run->metrics, &report);
	return rc ? rc : rh_trainer_state_log_eval(&run->trainer, &report);
}

/* Fills the step's batches; returns their number. *trained: targets of the whole step. */
static int64_t fill_step(struct run *run, int64_t step, int64_t *tokens, int64_t *trained)
{
	int64_t epoch = step / run->steps_per_epoch, within = step % run->steps_per_epoch;
	int64_t count = rh_sampler_micro_batches(run->sampler, within);
	*tokens = *trained = 0;
	for (int64_t m = 0; m < count; m++) {
		const int64_t *rows;
		int64_t n = rh_sampler_rows(run->sampler, epoch, within, m, &rows);
		int rc = rh_batch_make(&run->train, rows, n, &run->batch[m]);
		if (rc)
			return rc;
		run->micro[m] = rh_micro_of(&run->batch[m]);
		run->micro[m].loss = run->loss[m];
		*tokens += run->batch[m].tokens;
		*trained += run->batch[m].trained;
	}
	return count;
}

/* Per micro-batch, then in index order. */
static double step_loss(const struct run *run, int64_t count, int64_t trained)
{
	double total = 0;
	for (int64_t m = 0; m < count; m++) {
		double sum = 0;
		for (int64_t i = 0; i < run->batch[m].trained; i++)
			sum += (double)run->loss[m][i];
		total += sum;
	}
	return total / (double)trained;
}

static struct rh_update update_of(const struct rh_config *config, int64_t step, double rate, double scale)
{
	return (struct rh_update){
	        .settings = {config->adam_beta1, config->adam_beta2, config->adam_epsilon, config->weight_decay, config->momentum},
	        .learning_rate = rate,
	        .scale = scale,
	        .step = step + 1};
}

/* Clipping needs the norm of all gradients before the first update; without it each is used as it comes down. */
static int updates_early(const struct rh_config *config)
{
	return config->max_grad_norm == 0;
}

/* The end of a step: its update has begun. */
static int update(struct run *run, int64_t step, double loss, double rate, double *norm)
{
	const struct rh_config *config = run->config;
	int early = updates_early(config);
	int rc = rh_updater_norm(run->session.updater, norm);
	if (rc)
		return rc;
	if (!isfinite(loss) || !isfinite(*norm))
		return rh_fail(-EDOM,
		               "step %" PRId64
		               ": the loss is %g and the gradient norm %g; training cannot go on (lower learning_rate, or check the data); "
		               "checkpoints written before are good",
		               step + 1, loss, *norm);
	struct rh_update next = update_of(config, step, rate, rh_optimizer_clip(*norm, config->max_grad_norm));
	if (!early)
		rh_updater_begin(run->session.updater, &next);
	return 0;
}

static void report_nvme(struct run *run, struct rh_step_report *report, int64_t steps)
{
	struct rh_space_stats now;
	if (!run->session.bytes.nvme)
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

static int log_step(struct run *run, struct rh_step_report *report, double now)
{
	int64_t steps = run->state.steps_since_log;
	report->loss = run->state.loss_since_log / (double)steps;
	report->compute_seconds = run->times_since_log.compute / (double)steps;
	report->weights_seconds = run->times_since_log.weights / (double)steps;
	report->activations_seconds = run->times_since_log.activations / (double)steps;
	report->gradients_seconds = run->times_since_log.gradients / (double)steps;
	report->optimizer_seconds = run->times_since_log.optimizer / (double)steps;
	run->times_since_log = (struct rh_step_times){0};
	report_nvme(run, report, steps);
	report->tokens_per_second = (double)run->tokens_since_log / (now - run->since_log);
	run->result->final_loss = report->loss;
	run->state.loss_since_log = 0;
	run->state.steps_since_log = 0;
	run->tokens_since_log = 0;
	run->since_log = now;
	rh_progress_logged(run->progress, report);
	int rc = rh_metrics_step(run->metrics, report);
	return rc ? rc : rh_trainer_state_log_step(&run->trainer, report);
}

static int save(struct run *run)
{
	run->trainer.global_step = run->state.step;
	run->trainer.epoch = (double)run->state.step / (double)run->steps_per_epoch;
	run->trainer.num_input_tokens_seen = run->state.tokens;
	return rh_checkpoint_save(&run->session, &run->state, &run->trainer);
}

/* The latest step's times; `between`: what its end took, where the optimizer has the host. */
static void book_times(struct run *run, double between)
{
	const struct rh_step_times *step = rh_executor_times(run->session.executor);
	struct rh_step_times *sum = &run->times_since_log;
	sum->compute += step->compute;
	sum->weights += step->weights;
	sum->activations += step->activations;
	sum->gradients += step->gradients;
	sum->optimizer += step->optimizer + between;
}

/* A control group's limit was lowered under the run, to where the next larger allocation ends it, or every one is slow. What a run needs is
 * reserved when it starts: a step takes next to nothing more. */
static int is_squeezed(const struct run *run)
{
	enum { LEAST = 32 << 20 };
	int64_t least = run->room_at_start / 4 < LEAST ? run->room_at_start / 4 : LEAST;
	return rh_machine_group_room() < least;
}

static int say_squeezed(const struct run *run)
{
	return rh_fail(
	        -ENOMEM,
	        "stopped after step %" PRId64
	        ", whose checkpoint is written: this process's control group leaves it %.1f MiB of memory and left it %.1f when the run "
	        "began; raise memory.max and memory.high, or lower max_ram, and go on with resume_from_checkpoint: true",
	        run->state.step, (double)rh_machine_group_room() / 1048576, (double)run->room_at_start / 1048576);
}

static int due(int64_t step, int64_t each)
{
	return each > 0 && step % each == 0;
}

static int one_step(struct run *run)
{
	int64_t step = run->state.step, tokens, trained;
	int64_t count = fill_step(run, step, &tokens, &trained);
	if (count < 0)
		return (int)count;
	double rate = rh_lr_at(run->config->lr_scheduler_type, run->config->learning_rate, run->warmup, run->steps, step), norm = 0;
	struct rh_update early = update_of(run->config, step, rate, 1);
	if (updates_early(run->config))
		rh_updater_open(run->session.updater, &early);
	int rc = rh_executor_train(run->session.executor, run->micro, count, step, 1.0f / (float)trained);
	if (rc)
		return rc;
	double loss = step_loss(run, count, trained), computed = rh_clock_seconds();
	rc = update(run, step, loss, rate, &norm);
	run->state.step++;
	int last = run->state.step == run->steps, evaluates = run->eval_every && (due(run->state.step, run->eval_every) || last);
	int saves = run->save_every && (due(run->state.step, run->save_every) || last);
	if (!rc && (evaluates || saves || last))
		rc = rh_updater_flush(run->session.updater);
	if (rc)
		return rc;
	book_times(run, rh_clock_seconds() - computed);
	run->state.loss_since_log += loss;
	run->state.run_loss += loss;
	run->state.steps_since_log++;
	run->state.tokens += tokens;
	run->state.trained_tokens += trained;
	run->tokens_since_log += tokens;

	double now = rh_clock_seconds(), per_step = (now - run->began) / (double)(run->state.step - run->first_step);
	struct rh_step_report report = {.step = run->state.step,
	                                .steps = run->steps,
	                                .epoch = (double)run->state.step / (double)run->steps_per_epoch,
	                                .loss = loss,
	                                .grad_norm = norm,
	                                .learning_rate = rate,
	                                .tokens_per_second = (double)(run->state.tokens - run->tokens_before) / (now - run->began),
	                                .trained_tokens = run->state.trained_tokens,
	                                .seconds_left = per_step * (double)(run->steps - run->state.step)};
	report_peaks(run, &report);
	rh_progress_step(run->progress, &report, now);
	if (due(run->state.step, run->config->logging_steps) || last)
		rc = log_step(run, &report, now);
	if (!rc && evaluates)
		rc = evaluate(run, report.epoch);
	int squeezed = !last && is_squeezed(run);
	run->stopping = asked_to_stop || squeezed; /* read once: a signal that comes later is for the next step */
	if (!rc && run->stopping)
		rc = rh_updater_flush(run->session.updater);
	if (!rc && (saves || run->stopping))
		rc = save(run);
	if (!rc && squeezed)
		rc = say_squeezed(run);
	double aside = rh_clock_seconds() - now; /* speeds are of training alone */
	run->began += aside;
	run->since_log += aside;
	return rc;
}

/* Whether a checkpoint's directory lies in output_dir. */
static int is_inside(const char *output_dir, const char *checkpoint)
{
	char *outer = realpath(output_dir, NULL), *inner = realpath(checkpoint, NULL);
	size_t length = outer ? strlen(outer) : 0;
	int inside = outer && inner && !strncmp(outer, inner, length) && inner[length] == '/';
	free(outer);
	free(inner);
	return inside;
}

/* Nothing may be in the way, unless the run goes on from what is there. */
static int check_output(const struct rh_config *config, const char *checkpoint)
{
	int empty = rh_dir_empty(config->output_dir);
	if (empty < 0)
		return empty;
	if (empty || (checkpoint && is_inside(config->output_dir, checkpoint)))
		return 0;
	int64_t newest;
	int rc = rh_checkpoint_newest(config->output_dir, &newest);
	if (rc)
		return rc;
	return rh_fail(-EEXIST, "output_dir: %s is not empty%s", config->output_dir,
	               newest < 0 ? " and holds no complete checkpoint to go on from; remove what is in it, or choose another"
	                          : "; choose another, or go on from what is there with resume_from_checkpoint: true");
}

static int open_outputs(struct run *run, const char *checkpoint)
{
	const struct rh_config *config = run->config;
	int rc = rh_trainer_state_create(&run->trainer);
	if (!rc && checkpoint) {
		rh_trainer_state_free(&run->trainer);
		rc = rh_checkpoint_load(checkpoint, &run->session, &run->state, &run->trainer);
		if (!rc)
			rh_note("going on from %s, step %" PRId64 " of %" PRId64, checkpoint, run->state.step, run->steps);
	}
	if (!rc)
		rc = rh_dir_make(config->output_dir);
	if (!rc)
		rc = rh_checkpoint_tidy(config->output_dir);
	if (rc)
		return rc;
	run->trainer.max_steps = run->steps;
	run->trainer.num_train_epochs = (run->steps + run->steps_per_epoch - 1) / run->steps_per_epoch;
	run->trainer.train_batch_size = config->per_device_train_batch_size;
	run->trainer.logging_steps = config->logging_steps;
	run->trainer.eval_steps = run->eval_every;
	run->trainer.save_steps = run->save_every;
	char *path = rh_path_join(config->output_dir, "metrics.jsonl");
	rc = path ? rh_metrics_open(path, run->state.step, &run->metrics) : -ENOMEM;
	rh_free(path);
	return rc ? rc : rh_progress_open(STDERR_FILENO, rh_progress_style_of(STDERR_FILENO), 0, &run->progress);
}

static int finish(struct run *run)
{
	const struct rh_config *config = run->config;
	struct rh_run_report end = {.step = run->state.step,
	                            .epoch = (double)run->state.step / (double)run->steps_per_epoch,
	                            .loss = run->state.run_loss / (double)run->state.step,
	                            .rows = run->train.rows,
	                            .seconds = rh_clock_seconds() - run->began};
	run->trainer.global_step = run->state.step;
	run->trainer.epoch = end.epoch;
	run->trainer.num_input_tokens_seen = run->state.tokens;
	int rc = rh_trainer_state_log_end(&run->trainer, &end);
	if (!rc)
		rc = rh_output_save(&run->session, config->output_dir);
	char *path = rh_path_join(config->output_dir, "trainer_state.json");
	if (!rc)
		rc = path ? rh_trainer_state_save(&run->trainer, path) : -ENOMEM;
	rh_free(path);
	if (!rc)
		rh_note("written to %s", config->output_dir);
	return rc;
}

static void close_run(struct run *run)
{
	rh_progress_close(run->progress);
	rh_metrics_close(run->metrics);
	rh_trainer_state_free(&run->trainer);
	size_t count = run->sampler ? (size_t)rh_sampler_micro_batches(run->sampler, 0) : 0;
	for (size_t m = 0; m < count; m++) {
		if (run->batch)
			rh_batch_free(&run->batch[m]);
		if (run->loss)
			rh_free(run->loss[m]);
	}
	rh_free(run->batch);
	rh_free(run->micro);
	rh_free(run->loss);
	rh_sampler_destroy(run->sampler);
	rh_dataset_free(&run->train);
	rh_dataset_free(&run->held_out);
	rh_session_close(&run->session);
}

static int prepare(struct run *run, char **checkpoint)
{
	int rc = rh_checkpoint_find(run->config, checkpoint);
	if (!rc)
		rc = check_output(run->config, *checkpoint);
	if (!rc)
		rc = rh_session_open(run->config, RH_SESSION_TRAINS, &run->session);
	if (!rc)
		rc = rh_session_check_length(&run->session);
	if (!rc)
		rc = rh_session_load_tokenizer(&run->session);
	if (!rc)
		rc = load_data(run);
	if (!rc)
		rc = make_schedule(run);
	if (!rc) /* the last step saves too */
		rc = rh_room_check(&run->session, run->save_every ? (run->steps + run->save_every - 1) / run->save_every : 0);
	if (!rc)
		rc = start_session(run);
	if (!rc)
		rh_session_report(&run->session);
	return rc ? rc : open_outputs(run, *checkpoint);
}

int rh_train(const struct rh_config *config, struct rh_train_result *out)
{
	struct run run = {.config = config, .result = out};
	char *checkpoint = NULL;
	*out = (struct rh_train_result){.final_loss = NAN};
	int rc = prepare(&run, &checkpoint);
	if (!rc) {
		out->device_planned_bytes = run.session.bytes.device;
		out->ram_planned_bytes = run.session.bytes.total;
		watch_signals();
		run.room_at_start = rh_machine_group_room();
		run.began = run.since_log = rh_clock_seconds();
		if (run.session.space)
			rh_space_stats(run.session.space, &run.nvme_logged); /* what loading wrote is no step's */
		run.first_step = run.state.step;
		run.tokens_before = run.state.tokens;
	}
	while (!rc && run.state.step < run.steps && !run.stopping)
		rc = one_step(&run);
	if (!rc) {
		out->steps = run.state.step;
		out->seconds = rh_clock_seconds() - run.began;
		out->tokens_per_second = out->seconds > 0 ? (double)(run.state.tokens - run.tokens_before) / out->seconds : 0;
		out->interrupted = run.state.step < run.steps;
		if (out->interrupted)
			rh_note("stopped by a signal after step %" PRId64 "; go on with resume_from_checkpoint: true", run.state.step);
		else
			rc = finish(&run);
	}
	close_run(&run);
	rh_free(checkpoint);
	return rc;
}
