/* Two boxes in one process, each with its executor, over lines that lose, double, hold up and reorder frames: their weights are those of
 * one box, bit for bit. */
#include "limit_time.h"
#include "rig.h"

#include "link/pair.h"

#include <pthread.h>

enum { STEPS = 12, MICRO = 4, BOXES = 2, BATCHES = 3 /* of the input, again and again */ };

struct box_run {
	struct rig rig;
	struct rig_input in;
	struct box_run *all;
	pthread_barrier_t *together;
	int number;
	double squares; /* of this box's gradients and of those below */
};

static void update_part(const struct rig *rig, double norm, int64_t step)
{
	const struct rh_config *config = &rig->config;
	struct rh_optimizer_settings settings = {config->adam_beta1, config->adam_beta2, config->adam_epsilon, config->weight_decay,
	                                         config->momentum};
	const struct rh_update update = {settings, 3e-3, rh_optimizer_clip(norm, config->max_grad_norm), step + 1, 1};
	for (int b = 0; b < rig->session.model->blocks; b++)
		if (rig->session.model->block[b].trainable)
			check_ok(rh_optimizer_update(rig->session.store, b, &update));
}

/* The norm's squares are added in the order of the layers, as boxes add them. */
static void *run_box(void *context)
{
	struct box_run *run = context;
	struct rig_flight *flight = calloc(1, sizeof *flight);
	assert_non_null(flight);
	for (int step = 0; step < STEPS; step++) {
		rig_begin(&run->rig, &run->in, step % BATCHES * MICRO, MICRO, step, flight);
		(void)rig_finish(&run->rig, flight);
		(void)rig_norm(&run->rig.session);
		for (int b = 0; b < BOXES; b++) {
			if (b == run->number)
				run->squares = rh_optimizer_add_squares(run->rig.session.store, b ? run->all[b - 1].squares : 0);
			pthread_barrier_wait(run->together);
		}
		update_part(&run->rig, sqrt(run->all[BOXES - 1].squares), step);
		pthread_barrier_wait(run->together);
	}
	free(flight);
	return NULL;
}

static const char *of_model = "llama2";
static int has_adapter;

static void open_rig(struct rig *rig, const char *schedule)
{
	static char *targets[] = {(char *)(uintptr_t) "all-linear"};
	rig_open(rig, of_model, NULL);
	rig->config.use_lora = has_adapter;
	rig->config.lora_r = 4;
	rig->config.lora_alpha = 8;
	rig->config.lora_target_modules = (struct rh_list){.item = targets, .count = 1};
	rig->config.schedule = (char *)(uintptr_t)schedule;
}

/* What mode sync-pp does when boxes have met. */
static void open_box(struct box_run *run, int number, struct rh_link *end)
{
	struct rig *rig = &run->rig;
	open_rig(rig, "1f1b");
	run->number = number;
	run->in = rig_input(rig, "train");
	check_ok(rh_session_open(&rig->config, RH_SESSION_TRAINS, &rig->session));
	rig->config.mode = RH_MODE_SYNC_PP; /* from now on: opening would have made links of its own */
	rig->config.boxes = BOXES;
	rig->config.box = number + 1;
	struct rh_session *session = &rig->session;
	int layers = session->model->layers;
	session->box = (struct rh_box){.boxes = BOXES,
	                               .number = number,
	                               .lo = number ? layers / BOXES : 0,
	                               .hi = number ? layers : layers / BOXES,
	                               .link_below = number ? end : NULL,
	                               .link_above = number ? NULL : end};
	rh_model_keep(session->model, session->box.lo, session->box.hi);
	const struct rh_workload work = {.train = rig_limits(&run->in, 0), .train_micro_batches = MICRO};
	check_ok(rh_session_start(session, &work));
}

static void check_part(const struct rh_session *whole, const struct rh_session *part)
{
	for (int b = 0; b < part->model->blocks; b++) {
		const struct rh_block *block = &part->model->block[b];
		for (int t = 0; t < block->tensors; t++) {
			int64_t count = block->tensor[t].rows * block->tensor[t].cols;
			float *one = malloc((size_t)count * sizeof *one), *other = malloc((size_t)count * sizeof *other);
			assert_true(one && other);
			check_ok(rh_store_get(whole->store, block->number, t, 0, count, one));
			check_ok(rh_store_get(part->store, b, t, 0, count, other));
			if (memcmp(one, other, (size_t)count * sizeof *one))
				fail_msg("%s differs", block->tensor[t].name);
			free(one);
			free(other);
		}
	}
}

static void train_alone(struct rig *rig)
{
	open_rig(rig, NULL);
	struct rig_input in = rig_input(rig, "train");
	const struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MICRO};
	rig_start(rig, RH_SESSION_TRAINS, &work);
	for (int step = 0; step < STEPS; step++) {
		rig_step(rig, &in, step % BATCHES * MICRO, MICRO, step);
		rig_update(rig, 3e-3, step);
	}
}

static void check_line(const struct rig *whole, const struct rh_pair_options *faults, const char *name)
{
	struct rh_pair_options options = *faults;
	static struct box_run run[BOXES];
	pthread_barrier_t together;
	pthread_t thread[BOXES];
	struct rh_link *end[2];
	struct rh_link_progress progress;
	options.messages = RH_BOX_MESSAGES;
	options.seed = check_seed();
	check_ok(rh_pair_open(&options, end));
	assert_int_equal(pthread_barrier_init(&together, NULL, BOXES), 0);
	for (int k = 0; k < BOXES; k++) {
		run[k] = (struct box_run){.all = run, .together = &together};
		open_box(&run[k], k, end[k]);
	}
	for (int k = 0; k < BOXES; k++)
		assert_int_equal(pthread_create(&thread[k], NULL, run_box, &run[k]), 0);
	for (int k = 0; k < BOXES; k++)
		pthread_join(thread[k], NULL);
	check_ok(end[0]->ops->progress(end[0], &progress));
	printf("%s: %lld bytes sent up for %d activations\n", name, (long long)progress.bytes_sent, STEPS * MICRO);
	for (int k = 0; k < BOXES; k++)
		check_part(&whole->session, &run[k].rig.session);
	for (int k = 0; k < BOXES; k++)
		rig_close(&run[k].rig);
	pthread_barrier_destroy(&together);
}

static void test_frames_lost_doubled_late_and_out_of_order_change_no_bit(void **state)
{
	(void)state;
	static const struct {
		const char *name;
		struct rh_pair_options line;
	} cases[] = {
	        {"sound", {0}},
	        {"late", {.latency_ns = 2000000, .jitter_ns = 3000000, .bytes_per_second = 5e6}},
	        {"doubled", {.latency_ns = 200000, .doubled = 0.3}},
	        {"out of order", {.latency_ns = 200000, .jitter_ns = 200000, .overtaken = 0.2, .retry_ns = 5000000}},
	        {"lost", {.latency_ns = 200000, .lost = 0.1, .retry_ns = 5000000}},
	        {"all of it",
	         {.latency_ns = 200000, .jitter_ns = 200000, .lost = 0.05, .doubled = 0.1, .overtaken = 0.1, .retry_ns = 5000000}},
	};
	struct rig whole;
	train_alone(&whole);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		check_line(&whole, &cases[i].line, cases[i].name);
	rig_close(&whole);
}

/* Gemma 4: of each kind a layer of the lower box lends keys and values, or of the upper one, which has the layers that borrow them; and the
 * lower box has what makes all layers' own inputs. */
static void test_gradients_of_borrowed_keys_come_back_over_boxes(void **state)
{
	(void)state;
	struct rig whole;
	of_model = "gemma4-e2b";
	has_adapter = 1;
	train_alone(&whole);
	check_line(&whole, &(struct rh_pair_options){.latency_ns = 200000, .jitter_ns = 200000, .overtaken = 0.2, .retry_ns = 5000000},
	           "borrowed keys");
	rig_close(&whole);
}

int main(void)
{
	limit_time(200);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_frames_lost_doubled_late_and_out_of_order_change_no_bit),
	        cmocka_unit_test(test_gradients_of_borrowed_keys_come_back_over_boxes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
