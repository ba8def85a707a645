#include "train/training.h"

#include "checkpoint/disk_room.h"
#include "checkpoint/output.h"
#include "ckpt/prompts.h"
#include "ckpt/verify.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/hooks.h"
#include "core/log.h"
#include "core/minmax.h"
#include "data/chat.h"
#include "forecast/judge.h"
#include "forecast/machine_find.h"
#include "session/chunks.h"
#include "session/generate.h"
#include "session/lr.h"
#include "session/preference.h"
#include "train/page.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t every(enum rh_when when, double steps, int64_t all, int64_t per_epoch)
{
	if (when == RH_WHEN_NO)
		return 0;
	if (when == RH_WHEN_EPOCH)
		return per_epoch;
	return steps < 1 ? (int64_t)ceil(steps * (double)all) : (int64_t)steps;
}

/* The same text, whether or not a line break ends it. */
static int is_same_text(const char *left, const char *right)
{
	size_t a = strlen(left), b = strlen(right);
	a -= a && left[a - 1] == '\n';
	b -= b && right[b - 1] == '\n';
	return a == b && !memcmp(left, right, a);
}

/* A model that is trained with a named template must be prompted with it, whatever its base brings. */
static int choose_template(struct training *run)
{
	const char *name = run->data.train.chat_template;
	run->session.chat_trained = name != NULL;
	if (!name || !run->config->chat_template)
		return 0;
	const char *own = rh_tokenizer_chat_template(run->session.tokenizer);
	int rc = rh_chat_template_open(run->config->chat_template, NULL, &run->chat);
	if (rc || (own && is_same_text(own, rh_chat_template_text(run->chat))))
		return rc;
	run->session.chat_jinja = rh_chat_template_text(run->chat);
	rh_note("the output carries chat template %s as chat_template.jinja%s", name, own ? ", in place of the base's" : "");
	return 0;
}

/* A base model's conversations may end with a token that its files do not call an end. */
static int tell_turn_end(const struct training *run)
{
	const struct rh_tokenizer *tokenizer = run->session.tokenizer;
	int32_t end = run->data.train.turn_end;
	struct rh_ids ends = {0};
	int rc = end < 0 ? 0 : rh_generate_ends(&run->session, &ends);
	if (!rc && end >= 0 && !rh_generate_is_end(&ends, end))
		rh_note("%s: answers end with %s, which is none of the model's end-of-sequence tokens: programs would not stop there; "
		        "eos_token: '%s' makes it one",
		        run->data.train.name, rh_tokenizer_text(tokenizer, end), rh_tokenizer_text(tokenizer, end));
	rh_ids_free(&ends);
	return rc;
}

static int load_data(struct training *run)
{
	const struct rh_config *config = run->config;
	struct rh_training_data *data = &run->data;
	struct rh_objective objective = rh_session_objective(&run->session);
	int rc = rh_dataset_load_for(RH_DATASET_TRAIN, config, &objective, run->session.tokenizer, &data->train);
	if (rc)
		return rc;
	rh_dataset_report(&data->train);
	rc = tell_turn_end(run);
	if (!rc)
		rc = choose_template(run);
	if (!rc)
		rc = rh_training_data_arrange(config, &objective, run->session.tokenizer, data);
	if (rc)
		return rc;
	if (config->eval_split > 0)
		rh_dataset_report_split(&data->train, &data->held_out);
	rc = rh_dataset_check(&data->train, &data->held_out, config);
	if (!rc && config->eval_strategy != RH_WHEN_NO && !data->held_out.rows)
		rc = rh_fail(-EINVAL, "eval_strategy: there is nothing to evaluate on; give validation_file or eval_split");
	if (rc)
		return rc;
	if (data->held_out.rows && config->eval_strategy == RH_WHEN_NO)
		rh_note("nothing will be evaluated: eval_strategy is no");
	run->course.lr.warmup_steps = rh_lr_warmup_steps(config->warmup_steps, data->steps);
	run->course.eval_every = every(config->eval_strategy, config->eval_steps, data->steps, data->steps_per_epoch);
	run->course.save_every = every(config->save_strategy, config->save_steps, data->steps, data->steps_per_epoch);
	return 0;
}

static int reserve_flights(struct training *run)
{
	const struct rh_mode_steps *mode = &run->mode->steps;
	int64_t kept = mode->kept ? mode->kept(&run->session) : rh_executor_steps_in_flight(run->session.executor);
	const char *unjoined = rh_executor_unjoined(run->session.executor);
	if (unjoined)
		rh_note("optimizer_staleness: each step ends before the next one begins, as %s: slower, the same result", unjoined);
	return rh_flights_reserve(&run->work, kept, &run->flights);
}

/* The best of several plans, and what a step of it should take, to be told beside what it took. A prediction that cannot be made is no
 * reason not to train: the recurrence's choice is run then, and `why` holds RH_ERROR_LINE bytes for the fault. */
static int judge_plans(struct training *run, const struct rh_workload *work, struct rh_run_plans *plans, char *why)
{
	struct rh_machine_found found;
	struct rh_forecast_input input = {0};
	struct rh_forecast forecast = {0};
	int chosen = 0, rc = rh_machine_find(run->config, &found);
	if (!rc)
		rc = rh_forecast_input_of_data(&run->data, rh_chunk_rule_of(work->chunk, run->session.model), work, 3, &input);
	if (!rc) {
		input.layers = run->session.model->layers;
		rc = rh_judge(&run->session, &found.machine, &input, NULL, plans, &chosen, &forecast);
	}
	if (rc) {
		snprintf(why, RH_ERROR_LINE, "%s", rh_error(rc));
		rh_error_clear();
		chosen = 0;
	} else {
		run->result->predicted_tokens_per_second = forecast.tokens_per_second;
	}
	double gain = rh_machine_bf16_gain(&found, run->config);
	if (gain > 0)
		rh_note("dtype: bfloat16 would be faster: this processor's products are %.1f times as fast in it (other results)", gain);
	run->result->rates_assumed = found.assumed;
	rh_forecast_free(&forecast);
	rh_forecast_input_free(&input);
	rh_machine_found_free(&found);
	rh_alloc_return_freed(); /* before the run reserves its own: a prediction of many stages takes tens of MiB */
	return chosen;
}

/* A plan that a bench asks for, in place of the judge's. */
static int asked_plan(const struct rh_run_plans *plans, int chosen)
{
	const char *text = getenv(RH_HOOK_PLAN);
	if (!text)
		return chosen;
	int asked = (int)strtol(text, NULL, 10) % plans->count;
	rh_note("plan %d of %d, in place of %d", asked, plans->count, chosen);
	return asked;
}

/* The plan that the run follows is the one that was judged. */
static int plan_session(struct training *run, const struct rh_workload *work)
{
	struct rh_run_plans plans;
	char why[RH_ERROR_LINE] = "";
	int devices = run->session.device_count;
	int rc = rh_session_search(&run->session, work, devices, &plans);
	if (!rc) {
		int chosen = asked_plan(&plans, judge_plans(run, work, &plans, why));
		rc = rh_session_follow(&run->session, work, &plans.plan[chosen]);
	}
	rh_run_plans_free(&plans);
	if (!rc && run->session.device_count < devices)
		rh_note("devices: %d of %d used: a step takes no less time on more of them", run->session.device_count, devices);
	if (!rc && *why)
		rh_note("no prediction of this run's speed: %s", why);
	if (!rc)
		rh_devices_tell_desktop(run->config->device);
	return rc;
}

/* The chunk that rows are cut into, which a run that goes on from a checkpoint keeps. */
static void keep_chunk(struct training *run)
{
	const struct rh_workload *work = &run->work;
	int is_kept = run->state.sequence_chunk == work->chunk;
	if (work->chunks > 1 && !run->config->sequence_chunk)
		rh_note("sequence_chunk: %" PRId64 "%s: the longest %s, of %" PRId64 " tokens, is trained in %d chunks", work->chunk,
		        is_kept ? ", the checkpoint's" : ", as whole rows do not fit",
		        run->config->per_device_train_batch_size > 1 ? "micro-batch" : "row", work->row.tokens, work->chunks);
	run->state.sequence_chunk = work->chunk;
}

/* How much there is to do; of several boxes the first one knows it. */
static int find_work(struct training *run)
{
	const struct rh_mode_steps *mode = &run->mode->steps;
	int is_first = !run->session.box.number;
	int rc = is_first ? load_data(run) : 0;
	if (!rc && is_first)
		rc = rh_training_data_workload(&run->session, &run->data, run->state.sequence_chunk, &run->work);
	if (!rc && mode->share_run)
		rc = mode->share_run(&run->shared);
	if (!rc)
		keep_chunk(run); /* of boxes, too: their rows are whole */
	if (!rc && mode->plan)
		rc = mode->plan(&run->session, run->data.train.rows, run->data.targets, &run->work);
	run->course.lr = (struct rh_lr){.scheduler = run->config->lr_scheduler_type,
	                                .base = run->config->learning_rate,
	                                .shape = run->config->lr_shape,
	                                .warmup_steps = run->course.lr.warmup_steps,
	                                .total_steps = run->data.steps};
	run->work.run_steps = run->data.steps;
	run->work.train_steps = rh_max(0, run->data.steps - run->state.step); /* what a run writes to NVMe counts from the checkpoint */
	return rc;
}

/* Where nothing fits, who would know what does. */
static int tell_alternative(int rc)
{
	char line[RH_ERROR_LINE];
	if (rc != RH_DOES_NOT_FIT)
		return rc;
	snprintf(line, sizeof line, "%s", rh_error(rc));
	return rh_fail(rc, "%s; roundhouse plan with the same configuration lists what would fit", line);
}

static int start_session(struct training *run)
{
	int rc = run->mode->is_judged ? plan_session(run, &run->work) : 0;
	if (!rc)
		rc = rh_session_start(&run->session, &run->work);
	if (!rc)
		rc = stage_cuts_note(run);
	if (!rc)
		rc = device_shares_begin(run);
	return rc ? tell_alternative(rc) : reserve_flights(run);
}

int train_go_on(struct training *run)
{
	const struct rh_config *config = run->config;
	run->trainer.max_steps = run->data.steps;
	run->trainer.num_train_epochs = (run->data.steps + run->data.steps_per_epoch - 1) / run->data.steps_per_epoch;
	run->trainer.train_batch_size = config->per_device_train_batch_size;
	run->trainer.logging_steps = config->logging_steps;
	run->trainer.eval_steps = run->course.eval_every;
	run->trainer.save_steps = run->course.save_every;
	run->trainer.patience = config->early_stopping_patience;
	run->trainer.patience_threshold = config->early_stopping_threshold;
	char *path = rh_path_join(config->output_dir, "metrics.jsonl");
	rh_metrics_close(run->log.metrics);
	rh_reports_close(run->log.reports);
	run->log.metrics = NULL;
	run->log.reports = NULL;
	int rc = path ? rh_metrics_open(path, run->state.step, &run->log.metrics) : -ENOMEM;
	rh_free(path);
	if (!rc && training_is_local(run))
		rc = versions_open(run);
	if (!rc && config->report_to)
		rc = rh_reports_open(config->output_dir, config->report_to, run->state.step, &run->log.reports);
	return rc;
}

/* Before a checkpoint's weights take the place of those that the run began with. */
static int find_reference(struct training *run, const char *checkpoint, char **path)
{
	const struct rh_config *config = run->config;
	*path = NULL;
	if (!rh_preference_refers(&config->preference))
		return 0;
	double began = rh_clock_seconds();
	*path = rh_path_join(config->output_dir, RH_REFERENCE_FILE);
	struct rh_progress *progress = NULL;
	int is_made = 0, rc = *path ? rh_progress_open(STDERR_FILENO, rh_progress_style_of(STDERR_FILENO), 0, &progress) : -ENOMEM;
	if (!rc)
		rc = rh_reference_find(&run->session, checkpoint ? *path : NULL, &run->data.train,
		                       rh_training_data_evaluated(config, &run->data), progress, &is_made);
	run->result->reference_seconds = is_made ? rh_clock_seconds() - began : 0;
	rh_progress_close(progress);
	if (!is_made) {
		rh_free(*path);
		*path = NULL;
	}
	return rc;
}

static int open_outputs(struct training *run, const char *checkpoint)
{
	const struct rh_config *config = run->config;
	char *reference = NULL;
	int rc = find_reference(run, checkpoint, &reference);
	if (!rc && checkpoint) {
		rc = rh_checkpoint_load(checkpoint, &run->session);
		if (!rc)
			rh_note("going on from %s, step %" PRId64 " of %" PRId64, checkpoint, run->state.step, run->data.steps);
		if (!rc)
			resumed_tell_data(run, checkpoint);
	}
	run->state.data_rows = run->data.train.rows;
	run->state.data_tokens = run->data.train.tokens;
	if (!rc)
		rc = rh_dir_make(config->output_dir);
	if (!rc && run->output < 0) { /* it was not there: another run may have been quicker */
		rc = rh_output_lock(config->output_dir, &run->output);
		if (!rc)
			rc = rh_output_check(config, checkpoint);
	}
	if (!rc)
		rc = best_find(run);
	if (!rc && reference)
		rc = rh_reference_save(&run->session, reference, &run->data.train, rh_training_data_evaluated(config, &run->data));
	rh_free(reference);
	if (!rc)
		rc = rh_checkpoint_tidy(config, checkpoint ? run->state.step : -1, rh_checkpoint_step(run->trainer.best_checkpoint));
	if (rc)
		return rc;
	rc = train_go_on(run);
	if (!rc)
		rc = status_open(run);
	return rc ? rc : rh_progress_open(STDERR_FILENO, rh_progress_style_of(STDERR_FILENO), 0, &run->log.progress);
}

/* The adapter of several boxes goes to box 1, which writes it. */
static int writes_output(const struct training *run)
{
	const struct rh_mode_output *output = &run->mode->output;
	return output->is_here ? output->is_here(&run->session) : 1;
}

static int save_output(struct training *run)
{
	const struct rh_mode_output *output = &run->mode->output;
	return output->save ? output->save(&run->session, run->config->output_dir) : rh_output_save(&run->session, run->config->output_dir);
}

static int finish(struct training *run)
{
	const struct rh_config *config = run->config;
	struct rh_run_report end = {.step = run->state.step,
	                            .epoch = (double)run->state.step / (double)run->data.steps_per_epoch,
	                            .loss = run->result->mean_loss,
	                            .rows = run->data.train.rows,
	                            .seconds = rh_clock_seconds() - run->log.began};
	run->trainer.global_step = run->state.step;
	run->trainer.epoch = end.epoch;
	run->trainer.num_input_tokens_seen = run->state.tokens;
	int rc = rh_trainer_state_log_end(&run->trainer, &end);
	if (!rc)
		rc = best_load(run);
	int is_written = writes_output(run);
	if (!rc)
		rc = save_output(run);
	if (!rc && is_written)
		rc = rh_verify_write_sums(config->output_dir);
	char *path = rh_path_join(config->output_dir, "trainer_state.json");
	if (!rc)
		rc = path ? rh_trainer_state_save(&run->trainer, path) : -ENOMEM;
	rh_free(path);
	if (!rc && !is_written)
		rh_note("the adapter is written by box 1");
	else if (!rc)
		rh_note("written to %s", config->output_dir);
	if (!rc && is_written && run->session.lora)
		rh_adapter_tell_base(config);
	return rc;
}

static void close_run(struct training *run)
{
	rh_checkpoint_writer_destroy(run->shared.writer); /* it reads the session */
	rh_progress_close(run->log.progress);
	rh_metrics_close(run->log.metrics);
	versions_close(run);
	rh_reports_close(run->log.reports);
	rh_status_close(run->log.status);
	rh_trainer_state_free(&run->trainer);
	rh_free(run->best_before);
	rh_training_data_free(&run->data);
	rh_session_close(&run->session);
	if (run->mode && run->mode->steps.free)
		run->mode->steps.free(&run->shared); /* views of the session's links among it */
	rh_flights_free(&run->flights);
	rh_chat_template_close(run->chat);
	rh_trace_free(&run->traced.trace);
	if (run->is_over) /* the session's memory is free by now, and the directory still this run's */
		rh_page_leave(run->config->output_dir);
	rh_output_unlock(&run->output);
}

/* A run that has come to its end already is not loaded, and what it wrote is left alone. Of several boxes all must have come there: one
 * that was ended before it wrote its result needs the others to get there. */
static int look_for_work(struct training *run, const char *checkpoint)
{
	const char *dir = run->config->output_dir;
	int64_t step = run->state.step, holds = step >= run->data.steps;
	if (holds && writes_output(run))
		holds = rh_output_holds(&run->session, dir, step);
	int rc = run->mode->steps.agree ? run->mode->steps.agree(&run->session, holds, &holds) : 0;
	if (rc < 0 || !holds)
		return rc < 0 ? rc : 0;
	rh_note("%s stands at step %" PRId64 " of %" PRId64 ", and %s holds its result: nothing is left to do, nothing is written "
	        "(num_train_epochs or max_steps sets a later end)",
	        checkpoint, step, run->data.steps, writes_output(run) ? dir : "box 1");
	run->nothing_left = 1;
	return 0;
}

/* How many the run has still to write. */
static int64_t count_checkpoints(const struct training *run)
{
	int64_t every = run->course.save_every, steps = run->data.steps, done = run->state.step;
	return every && done < steps ? steps / every - done / every + (steps % every > 0) : 0;
}

static int prepare(struct training *run, char **checkpoint)
{
	int rc = rh_output_lock(run->config->output_dir, &run->output);
	if (!rc)
		rc = rh_checkpoint_put_back(run->config->output_dir);
	if (!rc)
		rc = rh_checkpoint_find(run->config, checkpoint);
	if (!rc)
		rc = rh_output_check(run->config, *checkpoint);
	if (!rc)
		rc = *checkpoint ? rh_checkpoint_state(*checkpoint, run->config, &run->state, &run->trainer)
		                 : rh_trainer_state_create(&run->trainer);
	if (!rc)
		rc = rh_session_open(run->config, RH_SESSION_TRAINS, &run->session);
	if (rc)
		return rc;
	run->mode = rh_session_mode(&run->session);
	rc = *checkpoint ? resumed_check(run, *checkpoint) : 0;
	if (!rc)
		rc = returning_agree(run, checkpoint);
	if (!rc && run->mode->part.choose)
		rc = run->mode->part.choose(&run->session, *checkpoint);
	if (!rc)
		rc = stage_cuts_keep(run, *checkpoint);
	if (!rc)
		rc = rh_session_check_length(&run->session);
	if (!rc)
		rc = rh_session_load_tokenizer(&run->session);
	if (!rc)
		rc = find_work(run);
	if (!rc)
		rc = best_check(run);
	if (!rc && *checkpoint)
		rc = look_for_work(run, *checkpoint);
	if (rc || run->nothing_left)
		return rc;
	if (run->mode->steps.prepare)
		rc = run->mode->steps.prepare(&run->shared);
	if (!rc) /* the last step saves too */
		rc = rh_disk_room_check(&run->session, count_checkpoints(run));
	if (!rc)
		rc = start_session(run);
	if (rc)
		return rc;
	int64_t ring_bytes = saving_plan_ring(run);
	rh_session_report(&run->session);
	rc = open_outputs(run, *checkpoint);
	return rc ? rc : rh_checkpoint_writer_create(&run->session, ring_bytes, &run->shared.writer);
}

/* The run has ended, or was stopped: what it tells, and its output. */
static int conclude(struct training *run)
{
	struct rh_train_result *out = run->result;
	int rc = 0;
	out->steps = run->state.step;
	out->seconds = rh_clock_seconds() - run->log.began;
	out->tokens_per_second = out->seconds > 0 ? (double)(run->state.tokens - run->log.tokens_before) / out->seconds : 0;
	out->version_drift = run->versions.largest;
	out->version_drift_bound = training_is_local(run) ? rh_executor_drift_bound(run->session.executor) : 0;
	out->drift_micro_batches = run->versions.micro_batches;
	out->drifted = run->versions.drifted;
	out->interrupted = run->state.step < run->data.steps && !run->stopped_early;
	if (isnan(out->final_loss) && run->state.steps_since_log) { /* no line was logged yet */
		out->final_loss = run->state.loss_since_log / (double)run->state.steps_since_log;
		out->final_steps = run->state.steps_since_log;
	}
	if (run->state.step > run->state.skipped_steps)
		out->mean_loss = run->state.run_loss / (double)(run->state.step - run->state.skipped_steps);
	rh_progress_close(run->log.progress); /* the last bar stays above what is said now */
	run->log.progress = NULL;
	saving_report(run);
	if (run->mode->steps.report)
		run->mode->steps.report(&run->shared);
	if (out->interrupted)
		rh_note("stopped by a signal after step %" PRId64 "; %s", run->state.step,
		        run->config->save_only_model ? "its checkpoint holds the model alone (save_only_model), so no run goes on from it"
		                                     : "go on with resume_from_checkpoint: true");
	else
		rc = trouble_end(run);
	if (!rc && !out->interrupted)
		rc = finish(run);
	out->ram_peak_bytes = rh_machine_peak_ram(); /* with what saving took */
	return rc;
}

static void begin_clocks(struct training *run)
{
	run->result->device_planned_bytes = run->session.plan.bytes.device;
	run->result->ram_planned_bytes = run->session.plan.bytes.total;
	if (!run->trouble.left_outs) /* else they have been watched since the run began */
		train_watch_signals();
	run->room_at_start = rh_machine_group_room();
	run->log.started = run->log.began = run->log.since_log = rh_clock_seconds();
	if (run->session.space)
		rh_space_stats(run->session.space, &run->log.nvme_logged); /* what loading wrote is no step's */
	run->shared.first_step = run->begun = run->state.step;
	trouble_begin(run);
	trace_step_check(run);
	run->log.tokens_before = run->state.tokens;
}

/* A step that the mode made beside the run's own. */
static int judge(void *context, int64_t step, double loss, double norm)
{
	return trouble_judge(context, step, loss, norm);
}

static int next_steps(struct training *run)
{
	int rc = training_is_local(run) ? stretch_steps(run) : flushed_step(run);
	return rc && rh_box_is_linked(&run->session.box) ? saving_without_link(run, rc) : rc;
}

/* To the run's end; or to a step that it cannot skip, which `trouble` then leaves out: the run is to begin again from the checkpoint *next
 * (rh_free). */
static int run_once(const struct rh_config *config, struct trouble *trouble, char **next, struct rh_train_result *out)
{
	struct training *run = rh_alloc(1, sizeof *run); /* much for a small stack */
	*out = (struct rh_train_result){.mean_loss = NAN, .final_loss = NAN};
	if (!run)
		return -ENOMEM;
	run->config = config;
	run->result = out;
	run->output = -1;
	run->trouble = *trouble;
	run->state.sequence_chunk = RH_CHUNK_UNKNOWN;
	run->shared = (struct rh_mode_run){.config = config,
	                                   .session = &run->session,
	                                   .work = &run->work,
	                                   .data = &run->data,
	                                   .course = &run->course,
	                                   .flights = &run->flights,
	                                   .state = &run->state,
	                                   .judge = judge,
	                                   .tell = stretch_tell,
	                                   .context = run};
	char *checkpoint = NULL;
	int rc = prepare(run, &checkpoint);
	if (!rc && run->nothing_left) {
		out->steps = run->state.step;
		goto out;
	}
	if (!rc)
		begin_clocks(run);
	if (!rc && run->mode->steps.begin)
		rc = run->mode->steps.begin(&run->shared, checkpoint);
	while (!rc && run->state.step < run->data.steps && !run->is_stopping && !run->stopped_early)
		rc = next_steps(run);
	if (run->shared.writer)
		rc = saving_end(run, rc);
	if (rc && trouble_may_return(run)) {
		rc = trouble_return(run, rc, checkpoint, next);
		goto out;
	}
	if (!rc && run->mode->steps.end && !run->is_alone)
		rc = run->mode->steps.end(&run->shared);
	if (!rc)
		rc = conclude(run);
out:
	if (rc || *next)
		rh_box_close(&run->session.box, rc); /* before the memory that its messages are in */
	run->is_over = !rc && !*next && !run->nothing_left;
	if (!*next)
		status_end(run, rc);
	close_run(run);
	*trouble = (struct trouble){
	        .left_out = run->trouble.left_out, .left_outs = run->trouble.left_outs, .left_out_room = run->trouble.left_out_room};
	rh_free(checkpoint);
	rh_free(run);
	return rc;
}

int rh_train(const struct rh_config *config, struct rh_train_result *out)
{
	struct rh_config again = *config; /* its strings are borrowed */
	struct trouble trouble = {0};
	char *from = NULL, *next;
	int rc;
	/* a terminal or a pipe that is gone, a file that may not grow: the call fails, and the run decides */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	do {
		next = NULL;
		rc = run_once(&again, &trouble, &next, out);
		rh_free(from);
		again.resume_from_checkpoint = from = next;
	} while (!rc && next);
	rh_free(from);
	rh_free(trouble.left_out);
	return rc;
}
