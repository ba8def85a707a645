/* Mode fluidpipe, two boxes in one process over a line that can be slow: box 1 is a run of its own of the lower layers under its own head,
 * box 2 one of the upper layers on what box 1's layers made before each of its updates; both bit for bit, whatever the line does. */
#include "copy_blocks.h"
#include "limit_time.h"
#include "rig.h"

#include "link/frame.h"
#include "link/pair.h"
#include "modes/fluidpipe/fluidpipe.h"

#include <pthread.h>

#define RATE 3e-3
enum { STEPS = 9, MICRO = 4, BATCHES = 3 /* of the input, again and again */ };

struct what {
	const char *model;
	int cut;
	const char *lora; /* NULL: all weights */
	const char *device;
};

struct box_run {
	struct rig rig;
	struct rig_input in;
	double loss[STEPS];
};

static void open_rig(struct rig *rig, const struct what *what)
{
	static char *targets[1];
	rig_open(rig, what->model, NULL);
	if (what->device)
		rig->config.device = (char *)(uintptr_t)what->device;
	if (!what->lora)
		return;
	targets[0] = (char *)(uintptr_t)what->lora;
	rig->config.use_lora = 1;
	rig->config.lora_r = 4;
	rig->config.lora_alpha = 8;
	rig->config.lora_target_modules = (struct rh_list){.item = targets, .count = 1};
}

/* As mode fluidpipe does when boxes have met. */
static void open_box(struct box_run *run, const struct what *what, int number, struct rh_link *end)
{
	struct rig *rig = &run->rig;
	struct rh_session *session = &rig->session;
	open_rig(rig, what);
	run->in = rig_input(rig, "train");
	check_ok(rh_session_open(&rig->config, RH_SESSION_TRAINS, session));
	rig->config.mode = RH_MODE_FLUIDPIPE; /* from now on: opening would have made links of its own */
	rig->config.boxes = 2;
	rig->config.fluidpipe_ahead = 3;
	rig->config.fluidpipe_alpha1 = rig->config.fluidpipe_alpha2 = 1;
	rig->config.box = number + 1;
	session->box = (struct rh_box){.boxes = 2,
	                               .number = number,
	                               .lo = number ? what->cut : 0,
	                               .hi = number ? session->model->layers : what->cut,
	                               .link_below = number ? end : NULL,
	                               .link_above = number ? NULL : end};
	if (number)
		rig->config.max_grad_norm = 0; /* the whole model alone has no norm of the upper layers */
	check_ok(rh_fluidpipe_take_part(session));
	struct rh_micro_shape limits = rig_limits(&run->in, 0);
	if (number)
		limits.typed = limits.pixels = 0;
	const struct rh_workload work = {.train = limits, .train_micro_batches = MICRO};
	check_ok(rh_session_start(session, &work));
}

static void *run_box(void *context)
{
	struct box_run *run = context;
	struct rig_flight *flight = calloc(1, sizeof *flight);
	assert_non_null(flight);
	if (run->rig.session.box.number) { /* the embedding's alone */
		run->in.type = NULL;
		run->in.pixel = NULL;
		run->in.pixels = 0;
	}
	for (int step = 0; step < STEPS; step++) {
		rig_begin(&run->rig, &run->in, step % BATCHES * MICRO, MICRO, step, flight);
		run->loss[step] = rig_finish(&run->rig, flight);
		(void)rig_update(&run->rig, RATE, step);
	}
	free(flight);
	return NULL;
}

/* Block b of one session and block c of another hold the same. */
static void compare_blocks(const struct rh_session *left, int b, const struct rh_session *right, int c)
{
	const struct rh_block *block = &left->model->block[b];
	assert_int_equal(block->elements, right->model->block[c].elements);
	for (int t = 0; t < block->tensors; t++) {
		int64_t count = block->tensor[t].rows * block->tensor[t].cols;
		float *one = malloc((size_t)count * sizeof *one), *other = malloc((size_t)count * sizeof *other);
		assert_true(one && other);
		check_ok(rh_store_get(left->store, b, t, 0, count, one));
		check_ok(rh_store_get(right->store, c, t, 0, count, other));
		if (memcmp(one, other, (size_t)count * sizeof *one))
			fail_msg("%s differs", block->tensor[t].name);
		free(one);
		free(other);
	}
}

/* What the boxes are compared with: box 1's part in a run of its own; and the whole model, whose lower layers are made box 1's before each
 * step, and whose upper layers alone are updated. */
struct alone {
	struct rig lower, whole;
	struct rh_model_config untied;
	struct rig_input in[2];
	double loss[2][STEPS];
	int shared; /* the first blocks, which both have */
};

/* The whole model with a head of its own, as box 2 has it. */
static void untie(struct alone *at)
{
	struct rh_session *session = &at->whole.session;
	at->untied = *session->model_config;
	at->untied.tie_word_embeddings = 0;
	enum rh_dtype dtype = session->model->dtype;
	rh_model_destroy(session->model);
	session->model_config = &at->untied;
	check_ok(rh_model_create(&at->untied, dtype, session->lora ? &session->adapter.lora : NULL, &session->model));
}

static void open_alone(struct alone *at, const struct what *what)
{
	struct rh_session *session = &at->lower.session;
	open_rig(&at->lower, what);
	at->in[0] = rig_input(&at->lower, "train");
	const struct rh_workload work = {.train = rig_limits(&at->in[0], 0), .train_micro_batches = MICRO};
	check_ok(rh_session_open(&at->lower.config, RH_SESSION_TRAINS, session));
	session->box = (struct rh_box){.hi = what->cut};
	check_ok(rh_fluidpipe_take_part(session));
	at->shared = session->model->layer[what->cut].block[0];
	session->model->tap = 0;
	check_ok(rh_session_start(session, &work));
	open_rig(&at->whole, what);
	at->in[1] = rig_input(&at->whole, "train");
	check_ok(rh_session_open(&at->whole.config, RH_SESSION_TRAINS, &at->whole.session));
	untie(at);
	check_ok(rh_session_start(&at->whole.session, &work));
}

static void update_upper(struct alone *at, int64_t step)
{
	struct rh_session *session = &at->whole.session;
	const struct rh_config *config = &at->whole.config;
	const struct rh_optimizer_settings settings = {config->adam_beta1, config->adam_beta2, config->adam_epsilon, config->weight_decay,
	                                               0};
	(void)rig_norm(session);
	for (int b = at->shared; b < session->model->blocks; b++)
		if (session->model->block[b].trainable)
			check_ok(rh_optimizer_update(session->store, b, &(struct rh_update){settings, RATE, 1, step + 1, 1}));
}

static void train_alone(struct alone *at)
{
	for (int step = 0; step < STEPS; step++) {
		copy_blocks(&at->lower.session, &at->whole.session, at->shared);
		at->loss[0][step] = rig_step(&at->lower, &at->in[0], step % BATCHES * MICRO, MICRO, step);
		at->loss[1][step] = rig_step(&at->whole, &at->in[1], step % BATCHES * MICRO, MICRO, step);
		(void)rig_update(&at->lower, RATE, step);
		update_upper(at, step);
	}
}

/* Up go the activations, each a message of one frame, and frames without payload; down go such frames alone: acknowledgements and credits,
 * at most two of each message. */
static void check_bytes(const struct box_run *lower, const struct rh_link_progress *progress)
{
	const struct rh_model *model = lower->rig.session.model;
	const int64_t messages = STEPS * MICRO;
	int64_t payload = 0;
	for (int step = 0; step < STEPS; step++)
		for (int64_t m = step % BATCHES * MICRO, end = m + MICRO; m < end; m++) {
			int64_t tokens = lower->in.start[lower->in.micro[m + 1]] - lower->in.start[lower->in.micro[m]];
			payload += rh_dtype_bytes(model->dtype, tokens * model->config->hidden_size);
		}
	int64_t frames = progress->bytes_sent - payload;
	assert_int_equal(frames % FRAME_HEADER, 0);
	assert_true(frames / FRAME_HEADER >= messages && frames / FRAME_HEADER <= 3 * messages);
	assert_int_equal(progress->bytes_received % FRAME_HEADER, 0);
	assert_true(progress->bytes_received / FRAME_HEADER <= 2 * messages + 2);
}

static void check_boxes(const struct alone *at, const struct what *what, const struct rh_pair_options *line)
{
	struct rh_pair_options options = *line;
	static struct box_run run[2];
	pthread_t thread[2];
	struct rh_link *end[2];
	options.messages = RH_BOX_MESSAGES;
	options.seed = check_seed();
	check_ok(rh_pair_open(&options, end));
	for (int k = 0; k < 2; k++) {
		run[k] = (struct box_run){0};
		open_box(&run[k], what, k, end[k]);
	}
	for (int k = 0; k < 2; k++)
		assert_int_equal(pthread_create(&thread[k], NULL, run_box, &run[k]), 0);
	for (int k = 0; k < 2; k++)
		pthread_join(thread[k], NULL);
	for (int k = 0; k < 2; k++)
		for (int step = 0; step < STEPS; step++)
			if (run[k].loss[step] != at->loss[k][step])
				fail_msg("box %d, step %d: loss %.9g, alone %.9g", k + 1, step, run[k].loss[step], at->loss[k][step]);
	const struct rh_session *lower = &run[0].rig.session, *upper = &run[1].rig.session;
	assert_int_equal(lower->model->blocks, at->lower.session.model->blocks);
	for (int b = 0; b < lower->model->blocks; b++)
		compare_blocks(&at->lower.session, b, lower, b);
	for (int b = 0; b < upper->model->blocks; b++)
		compare_blocks(&at->whole.session, upper->model->block[b].number, upper, b);
	struct rh_link_progress progress;
	check_ok(lower->box.link_above->ops->progress(lower->box.link_above, &progress));
	printf("%s, layers below %d: %lld bytes up, %lld down\n", what->model, what->cut, (long long)progress.bytes_sent,
	       (long long)progress.bytes_received);
	if (line->retry_ns)
		check_bytes(&run[0], &progress);
	for (int k = 0; k < 2; k++)
		rig_close(&run[k].rig);
}

static void test_each_box_is_a_run_of_its_own(void **state)
{
	(void)state;
	static const struct what cases[] = {
	        {.model = "llama2", .cut = 2},
	        {.model = "gemma3", .cut = 3},
	        {.model = "gpt-oss", .cut = 3},
	        {.model = "qwen2", .cut = 2}, /* tied */
	        {.model = "qwen3", .cut = 2, .lora = "all-linear"},
	        {.model = "bert-cls", .cut = 2},
	        {.model = "bert-mlm", .cut = 2},
	        {.model = "vit", .cut = 2},
	        {.model = "llama-bias", .cut = 3, .device = "cpu:3"},
	};
	/* the first sends nothing again */
	static const struct rh_pair_options lines[] = {{.retry_ns = (int64_t)1 << 50},
	                                               {.latency_ns = 2000000, .jitter_ns = 3000000, .bytes_per_second = 5e6}};
	static struct alone alone;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		alone = (struct alone){0};
		open_alone(&alone, &cases[i]);
		train_alone(&alone);
		for (size_t k = 0; k < sizeof lines / sizeof *lines; k++)
			check_boxes(&alone, &cases[i], &lines[k]);
		rig_close(&alone.lower);
		rig_close(&alone.whole);
	}
}

int main(void)
{
	limit_time(200);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_each_box_is_a_run_of_its_own),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
