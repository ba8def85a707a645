#include "modes/fluidpipe/idle_steps.h"

#include "checkpoint/checkpoint_writer.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/float16.h"
#include "core/log.h"
#include "core/minmax.h"
#include "core/philox.h"
#include "data/opportunistic.h"
#include "link/ahead.h"
#include "link/recall.h"
#include "modes/fluidpipe/feature_store.h"
#include "modes/fluidpipe/fluidpipe.h"
#include "modes/fluidpipe/fluidpipe_logits.h"
#include "modes/fluidpipe/fluidpipe_run.h"
#include "modes/fluidpipe/fluidpipe_step.h"
#include "modes/fluidpipe/idle_internal.h"
#include "offload/space.h"
#include "session/update.h"

#include <inttypes.h>
#include <string.h>

/* The messages of a step that box 2 must have before it begins the step: its head, its micro-batches and the first one's features; where
 * box 2 distils, all features and the logits after them. */
enum { BEFORE_STEP = 3, BEFORE_FEATURES = 2 };
/* In one of so many waits, at first in box 2's third and in box 1's first, a step is made to measure what it takes: the machine may be free
 * now. Where a box does not wait then, the next wait serves. And the share of a new measurement in a mean. */
enum { PROBE_EACH = 16, PROBE_AT = 2 };
static const double newest_share = 0.25;

struct idle_steps {
	struct rh_opportunistic *history;
	struct rh_feature_store *store; /* box 2 */
	struct rh_sampler *sampler;     /* of the run's other steps: says which samples box 1 sends */
	struct rh_link *view;           /* of the session's link to the other box */
	struct idle_log *log;
	int64_t *sample, *rows; /* (micro-batches * batch) of the present step; (micro-batches) how many each has */
	void **features;        /* (micro-batches) box 2: of an opportunistic step */
	float *teacher;         /* box 2: box 1's logits of its targets, one behind the other; NULL: it does not distil */
	int64_t token_bytes;
	int has_failed;           /* the store, whose fault stays */
	int64_t step, received;   /* the present step, and micro-batches of it whose features are here */
	int64_t gaps, steps_made; /* waits, and steps made in them */
	int64_t probe_gap;        /* from this wait on a step is to be measured */
	double wait_s, step_s;    /* means: of the waits, and of what an opportunistic step takes */
};

static struct idle_steps *idle_of(const struct rh_mode_run *run)
{
	return fluidpipe_of(run)->idle;
}

int idle_steps_are_wanted(const struct rh_session *session)
{
	const struct rh_config *config = session->config;
	int waits = config->mode == RH_MODE_FLUIDPIPE && (session->box.number || rh_config_distils(config, 0));
	return waits && config->fluidpipe_idle_sampler && config->fluidpipe_idle_steps;
}

static int is_upper(const struct rh_mode_run *run)
{
	return run->session->box.number > 0;
}

static struct rh_feature_store_options store_options(const struct rh_session *session, int64_t samples, const struct rh_workload *work)
{
	const struct rh_model *model = session->model;
	struct rh_feature_store_options out = {.samples = samples,
	                                       .token_bytes = rh_fluidpipe_activation_bytes(model, 1),
	                                       .teacher_bytes = fluidpipe_logits_target_bytes(session),
	                                       .budget_bytes = session->config->fluidpipe_idle_store};
	if (session->config->fluidpipe_idle_spill) /* no sample is larger than a micro-batch */
		out.record_bytes = rh_space_round(NULL, rh_feature_store_entry_bytes(&out, 1, work->train.tokens, work->train.head_rows));
	return out;
}

/* The longest sample's entry: one that the store has no room for would never be trained on again. */
static int check_store(const struct rh_feature_store_options *store, const struct rh_workload *work)
{
	int64_t longest = work->train.longest,
	        least = rh_feature_store_entry_bytes(store, 1, longest, rh_min(longest, work->train.head_rows));
	return store->budget_bytes >= least
	               ? 0
	               : rh_fail(-EINVAL, "fluidpipe_idle_store: %" PRId64 " bytes; a sample takes up to %" PRId64 ": raise it",
	                         store->budget_bytes, least);
}

/* Samples of a step fill half of each record, or more. */
static int plan_spill(const struct rh_config *config, const struct rh_feature_store_options *store, struct rh_workload *work)
{
	enum { LEAST = 2 };
	int64_t step_bytes = work->train_micro_batches * rh_feature_store_entry_bytes(store, config->per_device_train_batch_size,
	                                                                              work->train.tokens, work->train.head_rows);
	work->nvme_record_bytes = store->record_bytes;
	work->nvme_records = config->fluidpipe_idle_spill / store->record_bytes;
	work->nvme_step_records = 2 * (step_bytes / store->record_bytes + 1);
	if (work->nvme_records < LEAST)
		return rh_fail(-EINVAL, "fluidpipe_idle_spill: %" PRId64 " bytes; %d records of %" PRId64 " are the least: raise it",
		               config->fluidpipe_idle_spill, (int)LEAST, store->record_bytes);
	work->data_bytes += rh_feature_store_spill_bytes(NULL, store->record_bytes);
	return 0;
}

int idle_steps_plan(const struct rh_session *session, int64_t samples, struct rh_workload *work)
{
	const struct rh_feature_store_options store = store_options(session, samples, work);
	work->data_bytes += rh_opportunistic_bytes(store.samples);
	if (!session->box.number)
		return 0;
	int rc = check_store(&store, work);
	work->data_bytes +=
	        rh_feature_store_bytes(store.samples, store.budget_bytes) +
	        work->train_micro_batches * (work->train.tokens * store.token_bytes + work->train.head_rows * store.teacher_bytes);
	return rc || !store.record_bytes ? rc : plan_spill(session->config, &store, work);
}

static void forget(void *context, int64_t sample)
{
	struct idle_steps *idle = context;
	rh_opportunistic_allow(idle->history, sample, 0);
	rh_warn_once("fluidpipe_idle_store and fluidpipe_idle_spill hold less than an epoch's samples: the oldest are forgotten");
}

/* Features of the present step, one micro-batch after the other: they become samples that may be drawn. */
static void keep(void *context, uint64_t tag, const void *bytes, int64_t size)
{
	struct rh_mode_run *run = context;
	struct idle_steps *idle = idle_of(run);
	const struct rh_batch *batch = &run->flights->batch[idle->received];
	int64_t count = rh_flight_of(run->flights, idle->step)->count;
	if (idle->received == count || tag != rh_wire_tag(RH_BOUNDARY_ACTIVATION, idle->step, idle->received))
		return; /* of an evaluation */
	RH_ASSERT(size == batch->tokens * idle->token_bytes);
	const int64_t *sample = idle->sample + idle->received * run->config->per_device_train_batch_size;
	const float *teacher = fluidpipe_logits_received(run, idle->step, idle->received);
	for (int64_t d = 0; d < batch->documents && !idle->has_failed; d++) {
		int kept = rh_feature_store_has(idle->store, sample[d])
		                   ? 0
		                   : rh_feature_store_put(idle->store, sample[d], batch, d, bytes, teacher);
		idle->has_failed = kept < 0; /* idle_steps_make says so */
		if (kept > 0)
			rh_opportunistic_allow(idle->history, sample[d], 1);
	}
	idle->received++;
}

/* Prepares box 2's opportunistic steps: it keeps features, and replays them to its executor. */
static int create_upper(struct rh_mode_run *run)
{
	struct idle_steps *idle = idle_of(run);
	int64_t micros = run->work->train_micro_batches, target_bytes = fluidpipe_logits_target_bytes(run->session);
	struct rh_feature_store_options of_store = store_options(run->session, run->data->train.rows, run->work);
	idle->token_bytes = of_store.token_bytes;
	of_store.evicted = forget;
	of_store.context = idle;
	idle->features = rh_alloc((size_t)micros, sizeof *idle->features);
	int rc = idle->features ? 0 : -ENOMEM;
	for (int64_t m = 0; !rc && m < micros; m++)
		if (!(idle->features[m] = rh_alloc((size_t)run->work->train.tokens, (size_t)idle->token_bytes)))
			rc = -ENOMEM;
	if (!rc && target_bytes && !(idle->teacher = rh_alloc((size_t)(micros * run->work->train.head_rows), (size_t)target_bytes)))
		rc = -ENOMEM;
	if (!rc)
		rc = rh_feature_store_create(&of_store, &idle->store);
	if (!rc)
		rc = rh_recall_open(run->session->box.link_below, RH_BOX_MESSAGES, keep, run, &idle->view);
	if (rc)
		return rc;
	rh_opportunistic_allow_none(idle->history);
	run->session->link_below = idle->view;
	return 0;
}

/* Box 1 makes steps of all its rows, and what its layers make of them goes nowhere. */
static int create_lower(struct rh_mode_run *run)
{
	int rc = rh_recall_open(run->session->box.link_above, RH_BOX_MESSAGES, NULL, NULL, &idle_of(run)->view);
	run->session->link_above = idle_of(run)->view;
	return rc;
}

int idle_steps_create(struct rh_mode_run *run)
{
	const struct rh_config *config = run->config;
	int64_t samples = run->data->train.rows, micros = run->work->train_micro_batches;
	struct idle_steps *idle = fluidpipe_of(run)->idle = rh_alloc(1, sizeof *idle);
	if (!idle)
		return -ENOMEM;
	idle->sample = rh_alloc((size_t)(micros * config->per_device_train_batch_size), sizeof *idle->sample);
	idle->rows = rh_alloc((size_t)micros, sizeof *idle->rows);
	idle->probe_gap = is_upper(run) ? PROBE_AT : 0;
	int rc = idle->sample && idle->rows ? 0 : -ENOMEM;
	if (!rc)
		rc = rh_opportunistic_create(
		        samples,
		        &(struct rh_opportunistic_options){.sampler = config->fluidpipe_idle_sampler,
		                                           .seed = config->seed,
		                                           .task_weight = config->fluidpipe_idle_task_weight,
		                                           .distillation_weight = config->fluidpipe_idle_distillation_weight,
		                                           .easy_share = config->fluidpipe_idle_easy_share,
		                                           .hard_share = config->fluidpipe_idle_hard_share},
		        &idle->history);
	if (!rc)
		rc = rh_sampler_create(samples, config->per_device_train_batch_size, config->gradient_accumulation_steps,
		                       config->train_sampling_strategy, config->data_seed, &idle->sampler);
	return rc ? rc : is_upper(run) ? create_upper(run) : create_lower(run);
}

void idle_steps_free(struct rh_mode_run *run)
{
	struct idle_steps *idle = idle_of(run);
	if (!idle)
		return;
	rh_link_close(idle->view);
	rh_free(idle->teacher);
	idle_log_close(idle->log);
	rh_sampler_destroy(idle->sampler);
	rh_feature_store_free(idle->store);
	rh_opportunistic_free(idle->history);
	for (int64_t m = 0; idle->features && m < run->work->train_micro_batches; m++)
		rh_free(idle->features[m]);
	rh_free(idle->features);
	rh_free(idle->sample);
	rh_free(idle->rows);
	rh_free(idle);
}

#define HISTORY_NAME "opportunistic_losses.bin"

static int print_history(void *context, struct rh_text *out)
{
	const struct rh_mode_run *run = context;
	return rh_text_append(out, rh_opportunistic_history(idle_of(run)->history),
	                      (size_t)run->data->train.rows * sizeof(struct rh_sample_history));
}

/* A checkpoint of a run without such steps has none. */
static int load_history(struct rh_mode_run *run, const char *checkpoint)
{
	struct rh_bytes bytes;
	size_t all = (size_t)run->data->train.rows * sizeof(struct rh_sample_history);
	char *path = rh_path_join(checkpoint, HISTORY_NAME);
	int rc = path ? rh_file_exists(path) : -ENOMEM;
	if (rc > 0) {
		rc = rh_file_load(path, &bytes);
		if (!rc && bytes.length == all)
			memcpy(rh_opportunistic_history(idle_of(run)->history), bytes.bytes, all);
		else if (!rc)
			rh_note("%s is of other data: the samplers begin without its losses", path);
		if (!rc)
			rh_bytes_free(&bytes);
	}
	rh_free(path);
	return rc;
}

int idle_steps_begin(struct rh_mode_run *run, const char *checkpoint)
{
	rh_session_idle_dropout(run->session, 0);
	char *path = rh_path_join(run->config->output_dir, "opportunistic.jsonl");
	int rc = path ? idle_log_open(path, run->config->fluidpipe_idle_replay, run->state->step, &idle_of(run)->log) : -ENOMEM;
	rh_free(path);
	const struct rh_session *session = run->session;
	if (!rc && session->work.nvme_records)
		rc = rh_feature_store_spill(idle_of(run)->store, session->space, session->first_record, session->work.nvme_records);
	rh_checkpoint_writer_add(run->writer, &(struct rh_checkpoint_extra){HISTORY_NAME, print_history, run});
	return rc || !checkpoint ? rc : load_history(run, checkpoint);
}

static int begins_epoch(const struct rh_mode_run *run, int64_t step)
{
	return step % run->data->steps_per_epoch == 0;
}

/* Box 2 has received nothing. */
static void forget_all(struct rh_mode_run *run)
{
	if (!is_upper(run))
		return;
	rh_feature_store_clear(idle_of(run)->store);
	rh_opportunistic_allow_none(idle_of(run)->history);
}

int idle_steps_expect(struct rh_mode_run *run, int64_t step)
{
	struct idle_steps *idle = idle_of(run);
	int64_t batch = run->config->per_device_train_batch_size, epoch = step / run->data->steps_per_epoch;
	idle->step = step;
	idle->received = 0;
	if (begins_epoch(run, step)) {
		forget_all(run);
		run->state->idle_steps_of_epoch = 0;
	}
	for (int64_t m = 0; m < rh_flight_of(run->flights, step)->count; m++) {
		const int64_t *rows;
		idle->rows[m] = rh_sampler_rows(idle->sampler, epoch, step % run->data->steps_per_epoch, m, &rows);
		if (idle->rows[m] != run->flights->batch[m].documents)
			return rh_fail(-EPROTO, "box 1 sends %" PRId64 " documents of %" PRId64 " rows", run->flights->batch[m].documents,
			               idle->rows[m]);
		memcpy(idle->sample + m * batch, rows, (size_t)idle->rows[m] * sizeof *rows);
	}
	return 0;
}

/* Records each sample of the step with its losses, the mean of its targets'. */
static void record(struct rh_mode_run *run, int64_t micro_batches, const int64_t *sample, int64_t each)
{
	for (int64_t m = 0; m < micro_batches; m++) {
		const struct rh_batch *batch = &run->flights->batch[m];
		for (int64_t d = 0, t = 0; d < batch->documents; d++) {
			double sum[2] = {0}, loss[2];
			int64_t first = t;
			for (; t < batch->trained && batch->head_row[t] < batch->start[d + 1]; t++) {
				fluidpipe_logits_losses(run, m, t, loss);
				sum[0] += loss[0];
				sum[1] += loss[1];
			}
			if (t > first)
				rh_opportunistic_record(idle_of(run)->history, sample[m * each + d], (float)(sum[0] / (double)(t - first)),
				                        (float)(sum[1] / (double)(t - first)));
		}
	}
}

void idle_steps_record(struct rh_mode_run *run, int64_t step)
{
	record(run, rh_flight_of(run->flights, step)->count, idle_of(run)->sample, run->config->per_device_train_batch_size);
}

/* Inverted dropout of features, before they go into this box's first layer. */
static void drop(const struct rh_mode_run *run, void *features, int64_t elements, int64_t micro_batch)
{
	double share = run->config->fluidpipe_idle_dropout;
	float kept = (float)(1 / (1 - share)), *wide = features;
	uint16_t *narrow = features;
	for (int64_t e = 0; share > 0 && e < elements; e++) {
		struct rh_philox_block block = rh_philox(run->config->seed, (uint32_t)(e / 4), (uint32_t)micro_batch,
		                                         (uint32_t)run->state->idle_steps, RH_PHILOX_IDLE_DROPOUT);
		float factor = (double)rh_philox_unit(block.word[e % 4]) < share ? 0 : kept;
		if (run->session->model->dtype == RH_F32)
			wide[e] *= factor;
		else
			narrow[e] = rh_f32_to_bf16(rh_bf16_to_f32(narrow[e]) * factor);
	}
}

/* Micro-batch m of samples that box 2 keeps; its features are what the executor receives next. */
static int fill_upper(struct rh_mode_run *run, int64_t number, int64_t m, float **teacher)
{
	struct idle_steps *idle = idle_of(run);
	struct rh_batch *batch = &run->flights->batch[m];
	const int64_t *sample = idle->sample + m * run->config->per_device_train_batch_size;
	int rc = rh_feature_store_make(idle->store, sample, idle->rows[m], batch, idle->features[m], *teacher);
	if (rc)
		return rc;
	for (int64_t d = 0; d < batch->documents && batch->sample; d++)
		batch->sample[d] = (int32_t)sample[d];
	if (*teacher)
		*teacher += batch->trained * (fluidpipe_logits_target_bytes(run->session) / (int64_t)sizeof **teacher);
	drop(run, idle->features[m], batch->tokens * rh_boundary_shape(run->session->model, 0, batch->tokens).cols, m);
	return rh_recall_supply(idle->view, rh_wire_tag(RH_BOUNDARY_ACTIVATION, number, m), idle->features[m],
	                        batch->tokens * idle->token_bytes);
}

/* Draws a step's samples, and makes its micro-batches; how many, 0: there are no samples. */
static int64_t fill(struct rh_mode_run *run, int64_t number)
{
	struct idle_steps *idle = idle_of(run);
	const struct rh_config *config = run->config;
	int64_t each = config->per_device_train_batch_size, most = each * run->flights->micro_batches, m = 0;
	int64_t drawn = rh_opportunistic_draw(idle->history, (uint64_t)run->state->idle_steps, most, idle->sample);
	float *teacher = idle->teacher;
	for (; m * each < drawn; m++) {
		struct rh_batch *batch = &run->flights->batch[m];
		idle->rows[m] = rh_min(each, drawn - m * each);
		batch->draw = (uint32_t)(run->state->step / run->data->steps_per_epoch) + 1;
		int rc = is_upper(run) ? fill_upper(run, number, m, &teacher)
		                       : rh_batch_make(&run->data->train, idle->sample + m * each, idle->rows[m], batch);
		if (rc)
			return rc;
	}
	int rc = rh_flights_use(run->flights, run->session, 0, m); /* of one step in flight, which this is */
	return rc ? rc : m;
}

static int log_step(struct rh_mode_run *run, double loss)
{
	struct idle_steps *idle = idle_of(run);
	const struct idle_line line = {.after_step = run->state->step,
	                               .micro_batches = run->flights->step->count,
	                               .sample = idle->sample,
	                               .rows = idle->rows,
	                               .loss = loss};
	int rc = idle_log_replays(idle->log) ? idle_log_check(idle->log, &line) : 0;
	return rc ? rc : idle_log_append(idle->log, &line);
}

/* Forward, backward and update of the filled micro-batches. */
static int run_step(struct rh_mode_run *run, int64_t number, int64_t count, double *norm)
{
	const struct rh_config *config = run->config;
	struct idle_steps *idle = idle_of(run);
	const double scale[2] = {config->fluidpipe_idle_task_scale, config->fluidpipe_idle_distillation_scale};
	int distils = fluidpipe_logits_attach_idle(run, run->state->step, count, idle->teacher, scale);
	float loss_scale = (float)((distils ? 1 : scale[0]) / (double)run->flights->step->trained);
	double rate = rh_lr_at(&run->course->lr, run->state->step - 1);
	struct rh_update update = rh_update_of(config, run->state->step + run->state->idle_steps, rate, 1);
	rh_updater_open(run->session->updater, &update, config->max_grad_norm);
	rh_recall_drop(idle->view, 1);
	if (!is_upper(run))
		rh_session_idle_dropout(run->session, 1);
	int rc = rh_executor_begin(run->session->executor, run->flights->micro, count, number, loss_scale);
	if (!rc)
		rc = rh_executor_finish(run->session->executor);
	rh_session_idle_dropout(run->session, 0);
	rh_recall_drop(idle->view, 0);
	if (!rc)
		rc = rh_updater_norm(run->session->updater, norm);
	return rc ? rc : fluidpipe_logits_finish_idle(run, count);
}

/* 1: made; 0: there are no samples to make it of. */
static int make_step(struct rh_mode_run *run)
{
	struct idle_steps *idle = idle_of(run);
	double began = rh_clock_seconds(), norm = 0;
	int64_t number = run->data->steps + run->state->idle_steps, count = fill(run, number); /* a number that no other step has */
	if (count <= 0)
		return (int)count;
	int rc = run_step(run, number, count, &norm);
	if (rc)
		return rc;
	double loss = rh_flight_loss(run->flights, 0);
	int judged = run->judge(run->context, run->state->step - 1, loss, norm);
	if (judged < 0)
		return judged;
	rc = log_step(run, loss);
	record(run, count, idle->sample, run->config->per_device_train_batch_size);
	double took_s = rh_clock_seconds() - began;
	idle->step_s += (idle->steps_made ? newest_share : 1) * (took_s - idle->step_s);
	idle->steps_made++;
	run->state->idle_steps++;
	run->state->idle_steps_of_epoch++;
	return rc ? rc : 1;
}

/* made: steps before this wait. */
static int may_step(const struct rh_mode_run *run, double waited_s, int64_t made)
{
	int64_t most = run->config->fluidpipe_idle_steps;
	const struct idle_steps *idle = idle_of(run);
	if (most >= 0 && run->state->idle_steps_of_epoch >= most)
		return 0;
	int probes = idle->gaps >= idle->probe_gap && idle->steps_made == made;
	return probes || (idle->steps_made && idle->wait_s - waited_s >= idle->step_s);
}

/* As many as the log has. */
static int follow_log(struct rh_mode_run *run)
{
	struct idle_steps *idle = idle_of(run);
	int rc = 1;
	if (idle_log_restarts(idle->log, run->state->step))
		forget_all(run);
	while (rc > 0 && idle_log_has_next(idle->log, run->state->step)) {
		rc = make_step(run);
		if (!rc)
			return rh_fail(-EINVAL, "fluidpipe_idle_replay: a step behind step %" PRId64 ", where no sample is kept",
			               run->state->step);
	}
	return rc < 0 ? rc : 0;
}

/* Messages of the next step that box 2 waits for. */
static int64_t awaited_messages(const struct rh_mode_run *run)
{
	int64_t count = rh_sampler_micro_batches(idle_of(run)->sampler, run->state->step % run->data->steps_per_epoch);
	return rh_config_distils(run->config, 1) ? BEFORE_FEATURES + count + 1 : BEFORE_STEP;
}

/* 1: what this box needs before the next step is here, or was waited for; 0: it is not. */
static int is_next_step_ready(struct rh_mode_run *run, int waits)
{
	int64_t expected = 0, here = 0;
	if (!is_upper(run))
		return fluidpipe_take_epoch(run, run->state->step, waits);
	int rc = rh_ahead_unasked(run->session->box.link_below, &expected, &here);
	expected = rh_min(expected, awaited_messages(run));
	if (!rc && here < expected && waits)
		rc = rh_ahead_await_unasked(run->session->box.link_below, expected);
	return rc ? rc : waits || here >= expected;
}

int idle_steps_make(struct rh_mode_run *run)
{
	struct idle_steps *idle = idle_of(run);
	int64_t made = idle->steps_made;
	double began = rh_clock_seconds(), waited_s = 0;
	int rc = 1, here = 0;
	if (idle->has_failed)
		return rh_feature_store_fault(idle->store);
	if (begins_epoch(run, run->state->step) == is_upper(run) || run->state->step == run->first_step)
		return 0;
	if (idle_log_replays(idle->log))
		return follow_log(run);
	while (rc >= 0 && !(here = is_next_step_ready(run, 0))) {
		waited_s = rh_clock_seconds() - began;
		if (rc > 0 && may_step(run, waited_s, made))
			rc = make_step(run);
		else
			here = is_next_step_ready(run, 1);
		waited_s = rh_clock_seconds() - began;
		if (here)
			break;
	}
	if (rc < 0 || here < 0)
		return rc < 0 ? rc : here;
	idle->wait_s += (idle->gaps ? newest_share : 1) * (waited_s - idle->wait_s);
	if (idle->steps_made > made && idle->gaps >= idle->probe_gap)
		idle->probe_gap = idle->gaps + PROBE_EACH;
	idle->gaps++;
	return 0;
}

void idle_steps_report(const struct rh_mode_run *run)
{
	const struct idle_steps *idle = idle_of(run);
	rh_note("opportunistic steps: %" PRId64 " beside %" PRId64 "; box %d waits %.1f ms for the other one, such a step takes %.1f ms%s",
	        run->state->idle_steps, run->state->step, run->session->box.number + 1, idle->wait_s * 1e3, idle->step_s * 1e3,
	        idle->wait_s < idle->step_s ? ": they do not pay" : "");
}
