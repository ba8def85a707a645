/* Mode fluidpipe with distillation, two processes: what both boxes compute is, bit for bit, what a plain loop over two models computes that
 * hands logits from one to the other. */
#include "cli/distil.h"

#include "core/log.h"
#include "offload/optimizer.h"
#include "train/fluidpipe.h"
#include "train/training_data.h"

struct half {
	struct rh_session session;
	struct rh_model_config untied;
	float loss[MICROS][ROWS_EACH], logits[MICROS][ROWS_EACH][LABELS], teacher[MICROS][ROWS_EACH][LABELS], mix[MICROS][ROWS_EACH][2];
};

struct plain {
	struct rh_config config;
	struct rh_training_data data;
	struct half lower, whole;        /* box 1's model; box 2's on top of box 1's layers, which box 1 trains */
	int shared;                      /* blocks of those layers */
	float table[2][SAMPLES][LABELS]; /* of the last epoch, and of this one, by sample */
};

static void open_half(struct plain *at, int is_lower)
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
	check_ok(rh_training_data_workload(&at->config, &at->data, 1, &work));
	work.train.taught = work.train.choices = LABELS;
	check_ok(rh_session_start(session, &work));
}

static void open_plain(struct plain *at, const struct scratch *scratch)
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

static void copy_lower(struct plain *at)
{
	struct rh_session *from = &at->lower.session, *to = &at->whole.session;
	for (int b = 0; b < at->shared; b++)
		for (int t = 0; t < from->model->block[b].tensors; t++) {
			int64_t count = from->model->block[b].tensor[t].rows * from->model->block[b].tensor[t].cols;
			float *values = malloc((size_t)count * sizeof *values);
			assert_non_null(values);
			check_ok(rh_store_get(from->store, b, t, 0, count, values));
			check_ok(rh_store_set(to->store, b, t, 0, count, values));
			free(values);
		}
	check_ok(rh_store_settle(to->store));
}

static void set_mix(const struct plain *at, double alpha, float *mix)
{
	int is_sum = at->config.fluidpipe_weighting == RH_WEIGHTING_SUM;
	mix[0] = is_sum ? 1 : (float)alpha;
	mix[1] = is_sum ? 1 : 1 - (float)alpha;
}

/* One step of one half; `teach`: micro-batches come with half->teacher, and this alpha. */
static void run_half(struct plain *at, struct half *half, const struct rh_batch *batch, int64_t count, int64_t step, int teach,
                     double alpha)
{
	struct rh_micro_batch micro[MICROS];
	int64_t trained = 0;
	for (int64_t m = 0; m < count; m++) {
		micro[m] = rh_micro_of(&batch[m]);
		micro[m].loss = half->loss[m];
		micro[m].scores = half->logits[m][0];
		micro[m].shape.choices = LABELS;
		trained += batch[m].trained;
		if (!teach)
			continue;
		for (int64_t i = 0; i < batch[m].trained; i++)
			set_mix(at, alpha, half->mix[m][i]);
		micro[m].teacher = half->teacher[m][0];
		micro[m].mix = half->mix[m][0];
		micro[m].shape.taught = LABELS;
	}
	check_ok(rh_executor_begin(half->session.executor, micro, count, step, 1.0f / (float)trained));
	check_ok(rh_executor_finish(half->session.executor));
}

static void update(struct plain *at, struct half *half, int first, int64_t step)
{
	struct rh_session *session = &half->session;
	const struct rh_config *config = &at->config;
	const struct rh_optimizer_settings settings = {config->adam_beta1, config->adam_beta2, config->adam_epsilon, config->weight_decay,
	                                               0};
	for (int b = 0; b < session->model->blocks; b++)
		rh_optimizer_take(session->store, b);
	for (int b = first; b < session->model->blocks; b++)
		check_ok(rh_optimizer_update(session->store, b, &(struct rh_update){settings, config->learning_rate, 1, step + 1}));
}

static void plain_step(struct plain *at, int64_t step)
{
	static struct rh_batch batch[MICROS];
	int64_t epoch = step / EPOCH, within = step % EPOCH, count = rh_sampler_micro_batches(at->data.sampler, within),
	        sample[MICROS][ROWS_EACH];
	for (int64_t m = 0; m < count; m++) {
		const int64_t *rows;
		int64_t n = rh_sampler_rows(at->data.sampler, epoch, within, m, &rows);
		memcpy(sample[m], rows, (size_t)n * sizeof *rows);
		batch[m].draw = (uint32_t)epoch + 1;
		check_ok(rh_batch_make(&at->data.train, rows, n, &batch[m]));
		for (int64_t i = 0; i < n; i++)
			memcpy(at->lower.teacher[m][i], at->table[0][rows[i]], sizeof at->table[0][0]);
	}
	copy_lower(at);
	run_half(at, &at->lower, batch, count, step, epoch > 0 && at->config.fluidpipe_alpha1 < 1, at->config.fluidpipe_alpha1);
	memcpy(at->whole.teacher, at->lower.logits, sizeof at->lower.logits);
	run_half(at, &at->whole, batch, count, step, at->config.fluidpipe_alpha2 < 1, at->config.fluidpipe_alpha2);
	for (int64_t m = 0; m < count; m++)
		for (int64_t i = 0; i < batch[m].trained; i++)
			memcpy(at->table[1][sample[m][i]], at->whole.logits[m][i], sizeof at->table[0][0]);
	if (within + 1 == EPOCH)
		memcpy(at->table[0], at->table[1], sizeof at->table[0]);
	update(at, &at->lower, 0, step);
	update(at, &at->whole, at->shared, step);
	for (int64_t m = 0; m < MICROS; m++)
		rh_batch_free(&batch[m]);
}

/* Blocks from `first` on are what the file holds of them. */
static void check_blocks(const struct rh_session *session, int first, const char *path)
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
static void check_plain(struct scratch scratch, const char *options)
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

static void test_both_boxes_compute_what_a_plain_loop_does(void **state)
{
	(void)state;
	static const char *const keys[] = {"fluidpipe_recipe: FP-DB\n", "fluidpipe_recipe: FP-DT-EL\n", "fluidpipe_alpha1: 0.25\n",
	                                   "fluidpipe_alpha2: 0\nfluidpipe_kl: reverse\nfluidpipe_temperature: 3\n",
	                                   "fluidpipe_recipe: FP-DB-EL\nfluidpipe_weighting: sum\nfluidpipe_temperature: 2\n"};
	static const char *const options[] = {"", "--device cpu:2", "--fluidpipe_ahead 1"};
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		struct scratch scratch;
		open_images(&scratch, keys[i]);
		check_plain(scratch, options[i % 3]);
	}
}

/* Copies of a text are samples of their own: what box 2 made of one is not the other's. */
static void test_texts_that_an_epoch_has_twice_have_logits_of_their_own(void **state)
{
	(void)state;
	struct scratch scratch;
	open_texts(&scratch, "fluidpipe_recipe: FP-DB\n");
	check_plain(scratch, "");
}

int main(void)
{
	run_prepare = boxes_limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_both_boxes_compute_what_a_plain_loop_does),
	        cmocka_unit_test(test_texts_that_an_epoch_has_twice_have_logits_of_their_own),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
