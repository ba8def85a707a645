#include "train/idle_steps.h"

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
#include "train/feature_store.h"
#include "train/idle_internal.h"
#include "train/update.h"

#include <inttypes.h>
#include <string.h>

/* Of a step, the messages that are here before it begins: its head, its micro-batches, the first one's features. */
enum { BEFORE_STEP = 3 };
/* In one of so many waits, but not the first, a step is made to measure what it takes: the machine may be free now. And the share of a new
 * measurement in a mean. */
enum { PROBE_EACH = 16, PROBE_AT = 2 };
static const double newest_share = 0.25;

struct idle_steps {
	struct rh_opportunistic *history;
	struct rh_feature_store *store;
	struct rh_sampler *sampler; /* of the run's other steps: says which samples box 1 sends */
	struct rh_link *view;       /* of the session's link below */
	struct idle_log *log;
	int64_t *sample, *rows; /* (micro-batches * batch) of the present step; (micro-batches) how many each has */
	void **features;        /* (micro-batches) of a step that is made again */
	int64_t token_bytes;
	int64_t step, received; /* the present step, and micro-batches of it whose features are here */
	int64_t gaps, made;
	double wait_s, step_s; /* means: the wait before a step, what an opportunistic one takes */
};

int idle_steps_are_wanted(const struct training *run)
{
	const struct rh_config *config = run->config;
	return training_is_fluidpipe(run) && run->session.box.number && config->fluidpipe_idle_sampler && config->fluidpipe_idle_steps;
}

static int64_t token_bytes(const struct training *run)
{
	const struct rh_model *model = run->session.model;
	return rh_dtype_bytes(model->dtype, model->config->hidden_size);
}

int64_t idle_steps_bytes(const struct training *run)
{
	int64_t samples = run->data.train.rows;
	return rh_opportunistic_bytes(samples) + rh_feature_store_bytes(samples, run->config->fluidpipe_idle_store) +
	       run->work.train_micro_batches * run->work.train.tokens * token_bytes(run);
}

static void forget(void *context, int64_t sample)
{
	struct idle_steps *idle = context;
	rh_opportunistic_allow(idle->history, sample, 0);
	rh_warn_once("fluidpipe_idle_store holds less than an epoch's samples: the oldest are forgotten");
}

/* Features of the present step, one micro-batch after the other: they become samples that may be drawn. */
static void keep(void *context, uint64_t tag, const void *bytes, int64_t size)
{
	struct training *run = context;
	struct idle_steps *idle = run->idle;
	const struct rh_batch *batch = &run->batch[idle->received];
	RH_ASSERT(tag == rh_executor_message_tag(RH_BOUNDARY_ACTIVATION, idle->step, idle->received));
	RH_ASSERT(size == batch->tokens * idle->token_bytes);
	const int64_t *sample = idle->sample + idle->received * run->config->per_device_train_batch_size;
	for (int64_t d = 0; d < batch->documents; d++)
		if (!rh_feature_store_has(idle->store, sample[d]) &&
		    rh_feature_store_put(idle->store, sample[d], batch, d, bytes, forget, idle))
			rh_opportunistic_allow(idle->history, sample[d], 1);
	idle->received++;
}

int idle_steps_create(struct training *run)
{
	const struct rh_config *config = run->config;
	int64_t samples = run->data.train.rows, micros = run->work.train_micro_batches;
	struct idle_steps *idle = run->idle = rh_alloc(1, sizeof *idle);
	if (!idle)
		return -ENOMEM;
	idle->token_bytes = token_bytes(run);
	idle->sample = rh_alloc((size_t)(micros * config->per_device_train_batch_size), sizeof *idle->sample);
	idle->rows = rh_alloc((size_t)micros, sizeof *idle->rows);
	idle->features = rh_alloc((size_t)micros, sizeof *idle->features);
	int rc = idle->sample && idle->rows && idle->features ? 0 : -ENOMEM;
	for (int64_t m = 0; !rc && m < micros; m++)
		if (!(idle->features[m] = rh_alloc((size_t)run->work.train.tokens, (size_t)idle->token_bytes)))
			rc = -ENOMEM;
	if (!rc)
		rc = rh_opportunistic_create(samples, config->fluidpipe_idle_sampler, config->seed, &idle->history);
	if (!rc)
		rc = rh_feature_store_create(samples, idle->token_bytes, config->fluidpipe_idle_store, &idle->store);
	if (!rc)
		rc = rh_sampler_create(samples, config->per_device_train_batch_size, config->gradient_accumulation_steps,
		                       config->train_sampling_strategy, config->data_seed, &idle->sampler);
	if (!rc)
		rc = rh_recall_open(run->session.box.below, RH_BOX_MESSAGES, keep, run, &idle->view);
	if (rc)
		return rc;
	rh_opportunistic_allow_none(idle->history);
	run->session.below = idle->view;
	return 0;
}

void idle_steps_free(struct training *run)
{
	struct idle_steps *idle = run->idle;
	if (!idle)
		return;
	rh_link_close(idle->view);
	idle_log_close(idle->log);
	rh_sampler_destroy(idle->sampler);
	rh_feature_store_free(idle->store);
	rh_opportunistic_free(idle->history);
	for (int64_t m = 0; idle->features && m < run->work.train_micro_batches; m++)
		rh_free(idle->features[m]);
	rh_free(idle->features);
	rh_free(idle->sample);
	rh_free(idle->rows);
	rh_free(idle);
}

int idle_steps_begin(struct training *run)
{
	char *path = rh_path_join(run->config->output_dir, "opportunistic.jsonl");
	int rc = path ? idle_log_open(path, run->config->fluidpipe_idle_replay, run->state.step, &run->idle->log) : -ENOMEM;
	rh_free(path);
	return rc;
}

static int begins_epoch(const struct training *run, int64_t step)
{
	return step % run->data.steps_per_epoch == 0;
}

static void forget_all(struct idle_steps *idle)
{
	rh_feature_store_clear(idle->store);
	rh_opportunistic_allow_none(idle->history);
}

int idle_steps_expect(struct training *run, int64_t step)
{
	struct idle_steps *idle = run->idle;
	int64_t batch = run->config->per_device_train_batch_size, epoch = step / run->data.steps_per_epoch;
	idle->step = step;
	idle->received = 0;
	if (begins_epoch(run, step)) {
		forget_all(idle);
		run->state.idle_steps_of_epoch = 0;
	}
	for (int64_t m = 0; m < run->flight[step % run->held].count; m++) {
		const int64_t *rows;
		idle->rows[m] = rh_sampler_rows(idle->sampler, epoch, step % run->data.steps_per_epoch, m, &rows);
		if (idle->rows[m] != run->batch[m].documents)
			return rh_fail(-EPROTO, "box 1 sends %" PRId64 " documents of %" PRId64 " rows", run->batch[m].documents,
			               idle->rows[m]);
		memcpy(idle->sample + m * batch, rows, (size_t)idle->rows[m] * sizeof *rows);
	}
	return 0;
}

/* Of each sample of the step, whose losses are those of its targets in their mean. */
static void record(struct training *run, int64_t micro_batches, const int64_t *sample, int64_t each)
{
	for (int64_t m = 0; m < micro_batches; m++) {
		const struct rh_batch *batch = &run->batch[m];
		for (int64_t d = 0, t = 0; d < batch->documents; d++) {
			double sum = 0;
			int64_t first = t;
			for (; t < batch->trained && batch->head_row[t] < batch->start[d + 1]; t++)
				sum += (double)run->micro[m].loss[t];
			if (t > first)
				rh_opportunistic_record(run->idle->history, sample[m * each + d], (float)(sum / (double)(t - first)), 0);
		}
	}
}

void idle_steps_record(struct training *run, int64_t step)
{
	record(run, run->flight[step % run->held].count, run->idle->sample, run->config->per_device_train_batch_size);
}

/* Inverted dropout of features, before they go into this box's first layer. */
static void drop(const struct training *run, void *features, int64_t elements, int64_t micro_batch)
{
	double share = run->config->fluidpipe_idle_dropout;
	float kept = (float)(1 / (1 - share)), *wide = features;
	uint16_t *narrow = features;
	for (int64_t e = 0; share > 0 && e < elements; e++) {
		struct rh_philox_block block = rh_philox(run->config->seed, (uint32_t)(e / 4), (uint32_t)micro_batch,
		                                         (uint32_t)run->state.idle_steps, RH_PHILOX_IDLE_DROPOUT);
		float factor = (double)rh_philox_unit(block.word[e % 4]) < share ? 0 : kept;
		if (run->session.model->dtype == RH_F32)
			wide[e] *= factor;
		else
			narrow[e] = rh_f32_to_bf16(rh_bf16_to_f32(narrow[e]) * factor);
	}
}

/* Draws a step's samples, and makes its micro-batches; how many, 0: there are no samples. */
static int64_t fill(struct training *run, int64_t number)
{
	struct idle_steps *idle = run->idle;
	const struct rh_config *config = run->config;
	int64_t each = config->per_device_train_batch_size, most = each * run->micro_batches, m = 0;
	int64_t drawn = rh_opportunistic_draw(idle->history, (uint64_t)run->state.idle_steps, most, idle->sample);
	struct train_step *flight = run->flight;
	*flight = (struct train_step){0};
	for (; m * each < drawn; m++) {
		struct rh_batch *batch = &run->batch[m];
		idle->rows[m] = rh_min(each, drawn - m * each);
		rh_feature_store_make(idle->store, idle->sample + m * each, idle->rows[m], batch, idle->features[m]);
		drop(run, idle->features[m], batch->tokens * run->session.model->config->hidden_size, m);
		run->micro[m] = rh_micro_of(batch);
		run->micro[m].loss = run->loss[m];
		run->micro[m].load_balancing_loss = &run->load_balancing_loss[m];
		run->targets[m] = batch->trained;
		flight->trained += batch->trained;
		flight->tokens += batch->tokens;
		int rc = rh_recall_supply(idle->view, rh_executor_message_tag(RH_BOUNDARY_ACTIVATION, number, m), idle->features[m],
		                          batch->tokens * idle->token_bytes);
		if (rc)
			return rc;
	}
	return flight->count = m;
}

static int log_step(struct training *run, double loss)
{
	struct idle_steps *idle = run->idle;
	const struct idle_line line = {
	        .after = run->state.step, .micro_batches = run->flight->count, .sample = idle->sample, .rows = idle->rows, .loss = loss};
	int rc = idle_log_replays(idle->log) ? idle_log_check(idle->log, &line) : 0;
	return rc ? rc : idle_log_append(idle->log, &line);
}

/* 1: made; 0: there are no samples to make it of. */
static int make_step(struct training *run)
{
	struct idle_steps *idle = run->idle;
	int64_t number = run->data.steps + run->state.idle_steps, count = fill(run, number); /* a number that no other step has */
	double began = rh_clock_seconds(), norm = 0, rate = train_rate_at(run, run->state.step - 1);
	if (count <= 0)
		return (int)count;
	float scale = (float)(run->config->fluidpipe_idle_task_scale / (double)run->flight->trained);
	struct rh_update update = rh_update_of(run->config, run->state.step + run->state.idle_steps, rate, 1);
	rh_updater_open(run->session.updater, &update, run->config->max_grad_norm);
	int rc = rh_executor_begin(run->session.executor, run->micro, count, number, scale);
	if (!rc)
		rc = rh_executor_finish(run->session.executor);
	if (!rc)
		rc = rh_updater_norm(run->session.updater, &norm);
	if (rc)
		return rc;
	double loss = train_step_loss(run, 0);
	int judged = trouble_judge(run, run->state.step - 1, loss, norm);
	if (judged < 0)
		return judged;
	rc = log_step(run, loss);
	record(run, count, idle->sample, run->config->per_device_train_batch_size);
	double took_s = rh_clock_seconds() - began;
	idle->step_s += (idle->made ? newest_share : 1) * (took_s - idle->step_s);
	idle->made++;
	run->state.idle_steps++;
	run->state.idle_steps_of_epoch++;
	return rc ? rc : 1;
}

/* made: steps before this wait. */
static int may_step(const struct training *run, double waited_s, int64_t made)
{
	int64_t most = run->config->fluidpipe_idle_steps;
	const struct idle_steps *idle = run->idle;
	if (most >= 0 && run->state.idle_steps_of_epoch >= most)
		return 0;
	int probes = idle->gaps % PROBE_EACH == PROBE_AT && idle->made == made;
	return probes || (idle->made && idle->wait_s - waited_s >= idle->step_s);
}

/* As many as the log has. */
static int follow_log(struct training *run)
{
	struct idle_steps *idle = run->idle;
	int rc = 1;
	if (idle_log_restarts(idle->log, run->state.step)) {
		forget_all(idle);
		rh_opportunistic_forget(idle->history);
	}
	while (rc > 0 && idle_log_has_next(idle->log, run->state.step)) {
		rc = make_step(run);
		if (!rc)
			return rh_fail(-EINVAL, "fluidpipe_idle_replay: a step behind step %" PRId64 ", where no sample is kept",
			               run->state.step);
	}
	return rc < 0 ? rc : 0;
}

int idle_steps_make(struct training *run)
{
	struct idle_steps *idle = run->idle;
	struct rh_link *below = run->session.box.below;
	int64_t expected = 0, here = 0, made = idle->made;
	int rc = 1;
	if (begins_epoch(run, run->state.step) || run->state.step == run->first_step)
		return 0;
	if (idle_log_replays(idle->log))
		return follow_log(run);
	for (double began = rh_clock_seconds(), waited_s = 0;;) {
		int read = rh_ahead_unasked(below, &expected, &here);
		waited_s = rh_clock_seconds() - began;
		expected = rh_min(expected, BEFORE_STEP);
		if (read || here >= expected) {
			idle->wait_s += (idle->gaps ? newest_share : 1) * (waited_s - idle->wait_s);
			idle->gaps++;
			return read;
		}
		if (rc > 0 && may_step(run, waited_s, made))
			rc = make_step(run);
		else
			read = rh_ahead_await_unasked(below, expected);
		if (rc < 0 || read)
			return rc < 0 ? rc : read;
	}
}

void idle_steps_report(const struct training *run)
{
	const struct idle_steps *idle = run->idle;
	rh_note("opportunistic steps: %" PRId64 " beside %" PRId64
	        "; box 2 waits %.1f ms for a step's features, such a step takes %.1f ms%s",
	        run->state.idle_steps, run->state.step, idle->wait_s * 1e3, idle->step_s * 1e3,
	        idle->wait_s < idle->step_s ? ": they do not pay" : "");
}
