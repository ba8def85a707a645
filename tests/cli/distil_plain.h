/* Mode fluidpipe with distillation: a plain loop over two models that hands what they make of a target from one to the other, and a check
 * of two boxes' checkpoints against it. */
#ifndef RH_TESTS_CLI_DISTIL_PLAIN_H
#define RH_TESTS_CLI_DISTIL_PLAIN_H

#include "cli/distil.h"
#include "train/copy_blocks.h"

/* Shares that are told of a target, 0: its logits; numbers of a target; the most targets of a row and of a micro-batch. */
#ifndef TOP
#define TOP 0
#endif
#ifndef COLUMNS
#define COLUMNS (TOP ? 2 * TOP : LABELS)
#endif
#ifndef ROW_TARGETS
#define ROW_TARGETS 1
#endif
#define TARGETS (ROWS_EACH * ROW_TARGETS)

#include "core/log.h"
#include "modes/fluidpipe/fluidpipe.h"
#include "offload/optimizer.h"
#include "session/chunks.h"
#include "session/training_data.h"

struct half {
	struct rh_session session;
	struct rh_model_config untied;
	float loss[MICROS][TARGETS], logits[MICROS][TARGETS][COLUMNS], teacher[MICROS][TARGETS][COLUMNS], mix[MICROS][TARGETS][2];
};

struct plain {
	struct rh_config config;
	struct rh_training_data data;
	struct half lower, whole;                      /* box 1's model; box 2's on top of box 1's layers, which box 1 trains */
	int shared;                                    /* blocks of those layers */
	float table[2][SAMPLES][ROW_TARGETS][COLUMNS]; /* of the last epoch, and of this one, by sample */
};

static inline void open_half(struct plain *at, int is_lower)
{
	struct half *half = is_lower ? &at->lower : &at->whole;
	struct rh_session *session = &half->session;
	check_ok(rh_session_open(&at->config, RH_SESSION_TRAINS, session));
	if (is_lower) {
		session->box = (struct rh_box){.hi = CUT};
		check_ok(rh_fluidpipe_take_part(session));
		at->shared = session->model->layer[CUT].block[0];
		session->model->tap = 0;
	} else {
		session->model->distillation = at->lower.session.model->distillation;
	}
	struct rh_workload work;
	if (is_lower) {
		struct rh_objective objective = rh_session_objective(session);
		check_ok(rh_session_load_tokenizer(session));
		check_ok(rh_dataset_load_for(RH_DATASET_TRAIN, &at->config, &objective, session->tokenizer, &at->data.train));
		check_ok(rh_training_data_arrange(&at->config, &objective, session->tokenizer, &at->data));
	}
	check_ok(rh_training_data_workload(session, &at->data, RH_CHUNK_UNKNOWN, &work));
	work.train.taught = COLUMNS;
	work.train.choices = TOP ? 0 : COLUMNS;
	work.train.top = TOP;
	check_ok(rh_session_start(session, &work));
}

static inline void open_plain(struct plain *at, const struct scratch *scratch)
{
	char *argv[] = {strdup(path_of("%s/run.yaml", scratch->dir)),
	                strdup("--output_dir"),
	                strdup("out"),
	                strdup("--box"),
	                strdup("1"),
	                strdup("--link_above"),
	                strdup("listen:1")};
	rh_log_quiet(1);
	check_ok(rh_config_load("train", 7, argv, NULL, &at->config));
	for (int i = 0; i < 7; i++)
		free(argv[i]);
	at->config.mode = RH_MODE_LOCAL;
	open_half(at, 1);
	open_half(at, 0);
	assert_int_equal(at->data.train.rows, SAMPLES);
	assert_int_equal(at->data.steps_per_epoch, EPOCH);
}

static inline void set_mix(const struct plain *at, double alpha, float *mix)
{
	int is_sum = at->config.fluidpipe_weighting == RH_WEIGHTING_SUM;
	mix[0] = is_sum ? 1 : (float)alpha;
	mix[1] = is_sum ? 1 : 1 - (float)alpha;
}

/* One step of one half; `teach`: micro-batches come with half->teacher, and this alpha. */
static inline void run_half(struct plain *at, struct half *half, const struct rh_batch *batch, int64_t count, int64_t step, int teach,
                            double alpha)
{
	struct rh_micro_batch micro[MICROS];
	int64_t trained = 0;
	for (int64_t m = 0; m < count; m++) {
		micro[m] = rh_micro_of(&batch[m]);
		micro[m].loss = half->loss[m];
		micro[m].scores = half->logits[m][0];
		micro[m].shape.choices = TOP ? 0 : COLUMNS;
		micro[m].shape.top = TOP;
		trained += batch[m].trained;
		if (!teach)
			continue;
		for (int64_t i = 0; i < batch[m].trained; i++)
			set_mix(at, alpha, half->mix[m][i]);
		micro[m].teacher = half->teacher[m][0];
		micro[m].mix = half->mix[m][0];
		micro[m].shape.taught = COLUMNS;
	}
	check_ok(rh_executor_begin(half->session.executor, micro, count, step, 1.0f / (float)trained));
	check_ok(rh_executor_finish(half->session.executor));
}

static inline void update(struct plain *at, struct half *half, int first, int64_t step)
{
	struct rh_session *session = &half->session;
	const struct rh_config *config = &at->config;
	const struct rh_optimizer_settings settings = {config->adam_beta1, config->adam_beta2, config->adam_epsilon, config->weight_decay,
	                                               0};
	for (int b = 0; b < session->model->blocks; b++)
		rh_optimizer_take(session->store, b);
	for (int b = first; b < session->model->blocks; b++)
		check_ok(rh_optimizer_update(session->store, b, &(struct rh_update){settings, config->learning_rate, 1, step + 1, 1}));
}

/* Which of its row's targets target i of a micro-batch is, and the row. */
static inline int place_of(const struct rh_batch *batch, int64_t i, int64_t *row)
{
	int place = 0;
	int32_t sample[TARGETS];
	assert_true(batch->trained <= TARGETS);
	for (int64_t t = 0, d = 0; t <= i; t++) {
		while (batch->head_row[t] >= batch->start[d + 1])
			d++;
		sample[t] = batch->sample[d];
	}
	for (int64_t t = 0; t < i; t++)
		place += sample[t] == sample[i];
	assert_true(place < ROW_TARGETS);
	*row = sample[i];
	return place;
}

static inline void plain_step(struct plain *at, int64_t step)
{
	static struct rh_batch batch[MICROS];
	int64_t epoch = step / EPOCH, within = step % EPOCH, count = rh_sampler_micro_batches(at->data.sampler, within), row;
	for (int64_t m = 0; m < count; m++) {
		const int64_t *rows;
		int64_t n = rh_sampler_rows(at->data.sampler, epoch, within, m, &rows);
		batch[m].draw = (uint32_t)epoch + 1;
		check_ok(rh_batch_make(&at->data.train, rows, n, &batch[m]));
		for (int64_t i = 0; i < batch[m].trained; i++) {
			int place = place_of(&batch[m], i, &row);
			memcpy(at->lower.teacher[m][i], at->table[0][row][place], sizeof at->lower.teacher[m][i]);
		}
	}
	copy_blocks(&at->lower.session, &at->whole.session, at->shared);
	run_half(at, &at->lower, batch, count, step, epoch > 0 && at->config.fluidpipe_alpha1 < 1, at->config.fluidpipe_alpha1);
	memcpy(at->whole.teacher, at->lower.logits, sizeof at->lower.logits);
	run_half(at, &at->whole, batch, count, step, at->config.fluidpipe_alpha2 < 1, at->config.fluidpipe_alpha2);
	for (int64_t m = 0; m < count; m++)
		for (int64_t i = 0; i < batch[m].trained; i++) {
			int place = place_of(&batch[m], i, &row);
			memcpy(at->table[1][row][place], at->whole.logits[m][i], sizeof at->whole.logits[m][i]);
		}
	if (within + 1 == EPOCH)
		memcpy(at->table[0], at->table[1], sizeof at->table[0]);
	update(at, &at->lower, 0, step);
	update(at, &at->whole, at->shared, step);
	for (int64_t m = 0; m < MICROS; m++)
		rh_batch_free(&batch[m]);
}

/* Blocks from `first` on are what the file holds of them. */
static inline void check_blocks(const struct rh_session *session, int first, const char *path)
{
	struct rh_safetensors *file;
	check_ok(rh_safetensors_open(path, &file));
	for (int b = first; b < session->model->blocks; b++)
		for (int t = 0; t < session->model->block[b].tensors; t++) {
			const struct rh_tensor *tensor = &session->model->block[b].tensor[t];
			const struct rh_safetensor *theirs = rh_safetensors_find(file, tensor->name);
			int64_t count = tensor->rows * tensor->cols;
			float *values = malloc((size_t)count * sizeof *values);
			if (!theirs || !values)
				fail_msg("%s has no %s", path, tensor->name);
			check_ok(rh_store_get(session->store, b, t, 0, count, values));
			if (theirs->bytes != count * 4 || memcmp(values, tensor_bytes(file, theirs), (size_t)theirs->bytes))
				fail_msg("%s of %s is not the plain loop's", tensor->name, path);
			free(values);
		}
	rh_safetensors_close(file);
}

/* Frees the scratch. options: of both boxes, which change no bit. */
static inline void check_plain(struct scratch scratch, const char *options)
{
	static struct plain plain;
	free(run_boxes(&scratch, options));
	plain = (struct plain){0};
	open_plain(&plain, &scratch);
	for (int64_t step = 0; step < STEPS; step++) {
		plain_step(&plain, step);
		check_blocks(&plain.lower.session, 0, weights(&scratch, 1, (int)step + 1));
		check_blocks(&plain.whole.session, plain.shared, weights(&scratch, 2, (int)step + 1));
	}
	rh_session_close(&plain.lower.session);
	rh_session_close(&plain.whole.session);
	rh_training_data_free(&plain.data);
	rh_config_free(&plain.config);
	scratch_close(&scratch);
}

#endif
