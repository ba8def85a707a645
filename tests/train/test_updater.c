/* Updates beside the step: the synchronous ones change nothing, the asynchronous ones equal a plain loop with one step of staleness, bit
 * for bit. */
#include "core/hooks.h"
#include "rig.h"

enum { STEPS = 24, MICROS = 3 };

struct what {
	const char *model, *adapter, *device;
	enum rh_dtype dtype;
	int64_t round, cap; /* 0: chosen, all */
	double clip;
	int stop; /* a flush after this step, as evaluating and saving make one; 0: none */
	int tied; /* a trained table of two uses: steps are not joined */
	int weights_first;
	int cut; /* a stage below each of the upper two layers */
};

static const struct what cases[] = {
        {.model = "smollm2", .device = "cpu:1", .clip = 1, .tied = 1},
        {.model = "smollm2", .device = "cpu:2", .round = 2, .clip = 1, .stop = 7, .tied = 1},
        {.model = "qwen3", .device = "cpu:1", .cap = 300 << 10, .clip = 0},
        {.model = "qwen3", .device = "cpu:3", .round = 2, .dtype = RH_BF16, .clip = 1},
        {.model = "llama2", .device = "cpu:2", .cap = 240 << 10, .dtype = RH_BF16, .clip = 1},
        {.model = "llama3", .adapter = "adapter", .device = "cpu:2", .clip = 0.1, .stop = 20},
};

struct outcome {
	double loss[STEPS], norm[STEPS];
	float *weights; /* of all trained tensors, one after the other */
	int64_t count;
};

static void set_weights(const struct rh_session *session, const float *from)
{
	for (int b = 0; b < session->model->blocks; b++)
		for (int t = 0; session->model->block[b].trainable && t < session->model->block[b].tensors; t++) {
			int64_t n = session->model->block[b].tensor[t].rows * session->model->block[b].tensor[t].cols;
			check_ok(rh_store_set(session->store, b, t, 0, n, from));
			from += n;
		}
}

static void start(struct rig *rig, const struct what *what, int staleness, struct rig_input *in)
{
	rig_open(rig, what->model, what->adapter);
	rig->config.dtype = what->dtype;
	rig->config.state_layout = what->dtype == RH_F32 ? RH_LAYOUT_PLAIN : RH_LAYOUT_SPLIT;
	rig->config.device = (char *)(uintptr_t)what->device;
	rig->config.round_micro_batches = what->round;
	rig->config.max_vram = what->cap;
	rig->config.max_grad_norm = what->clip;
	rig->config.optimizer_staleness = staleness;
	static int64_t cuts[] = {2, 3};
	rig->config.backward_cuts = cuts;
	rig->config.backward_cut_count = what->cut ? 2 : -1;
	*in = rig_input(rig, "train");
	struct rh_workload work = {.train = rig_limits(in, 0), .train_micro_batches = MICROS};
	rig_start(rig, RH_SESSION_TRAINS, &work);
	assert_true(!what->cap || rig->session.plan.stages.backward_stages > 1);
}

static int64_t first_of(const struct rig_input *in, int step)
{
	return step * MICROS % (in->micros - MICROS + 1);
}

static double one_step(struct rig *rig, const struct rig_input *in, int step)
{
	return rig_step(rig, in, first_of(in, step), MICROS, step);
}

static struct rh_update update_of(int step)
{
	return (struct rh_update){.settings = {0.9, 0.999, 1e-8, 0, 0}, .learning_rate = 3e-3, .scale = 1, .step = step + 1};
}

static void count_pass(void *context, enum rh_watched what, int block, int64_t bytes, double began, double ended)
{
	(void)block, (void)bytes, (void)began, (void)ended;
	*(int *)context += what == RH_WATCHED_UPDATE;
}

static void as_training(struct rig *rig, const struct rig_input *in, const struct what *what, int most, struct outcome *out)
{
	static struct rig_flight flight[2];
	struct rh_updater *updater = rig->session.updater;
	int begun = 0, joined = 0, trained = 0, passes = 0;
	const struct rh_watch watch = {.context = &passes, .notify = count_pass};
	for (int b = 0; b < rig->session.model->blocks; b++)
		trained += rig->session.model->block[b].trainable != 0;
	for (int step = 0; step < STEPS; step++) {
		if (what->weights_first) { /* again: such small steps make gradients wait for moments */
			check_ok(rh_updater_finish(updater));
			rh_updater_weights_first(updater);
			rh_updater_watch(updater, &watch, step + 1);
		}
		while (begun < STEPS && begun < step + most && (begun == step || begun != what->stop)) {
			struct rh_update update = update_of(begun);
			rh_updater_open(updater, &update, what->clip);
			rig_begin(rig, in, first_of(in, begun), MICROS, begun, &flight[begun % 2]);
			begun++;
		}
		joined += begun - step > 1;
		out->loss[step] = rig_finish(rig, &flight[step % 2]);
		check_ok(rh_updater_norm(updater, &out->norm[step]));
		if (step + 1 == what->stop || step + 1 == STEPS)
			check_ok(rh_updater_flush(updater));
	}
	assert_int_equal(joined, most > 1 ? STEPS - 1 - (what->stop > 0) : 0);
	if (what->weights_first) {
		check_ok(rh_updater_finish(updater));
		rh_updater_watch(updater, NULL, 0);
		printf("%d passes over %d blocks in %d steps\n", passes, trained, STEPS);
		assert_true(passes > trained * STEPS);
	}
}

/* As training has them; with clipping once the last gradient has arrived. Joined: steps overlap where they can. */
static struct outcome beside(const struct what *what, int staleness, int joined)
{
	struct rig rig;
	struct rig_input in;
	struct outcome out = {0};
	start(&rig, what, staleness, &in);
	int most = (int)rh_executor_steps_in_flight(rig.session.executor);
	assert_int_equal(most, staleness && !what->tied ? 2 : 1);
	as_training(&rig, &in, what, joined ? most : 1, &out);
	out.weights = rig_weights(&rig.session, &out.count);
	rig_close(&rig);
	return out;
}

/* The plain loop, on one device that holds all of the model: step k computes with the weights after k - staleness updates, set by hand;
 * after a flush with the newest. */
static struct outcome plain(const struct what *what, int staleness)
{
	struct rig rig;
	struct rig_input in;
	struct outcome out = {0};
	struct what resident = *what;
	resident.device = "cpu:1";
	resident.round = resident.cap = resident.cut = 0;
	start(&rig, &resident, 0, &in);
	float *newest = rig_weights(&rig.session, &out.count), *before = rig_weights(&rig.session, &out.count);
	for (int step = 0; step < STEPS; step++) {
		if (staleness && step != what->stop)
			set_weights(&rig.session, before);
		out.loss[step] = one_step(&rig, &in, step);
		set_weights(&rig.session, newest);
		free(before);
		before = newest;
		out.norm[step] = rig_update(&rig, 3e-3, step);
		newest = rig_weights(&rig.session, &out.count);
	}
	free(before);
	out.weights = newest;
	rig_close(&rig);
	return out;
}

static void check_equal(const struct what *what, int staleness, int joined)
{
	struct outcome got = beside(what, staleness, joined), expected = plain(what, staleness);
	assert_int_equal(got.count, expected.count);
	for (int step = 0; step < STEPS; step++)
		if (got.loss[step] != expected.loss[step] || got.norm[step] != expected.norm[step])
			fail_msg("%s on %s, staleness %d, step %d: loss %.9g norm %.9g, expected %.9g %.9g", what->model, what->device,
			         staleness, step, got.loss[step], got.norm[step], expected.loss[step], expected.norm[step]);
	assert_memory_equal(got.weights, expected.weights, (size_t)got.count * sizeof(float));
	free(got.weights);
	free(expected.weights);
}

static void test_synchronous_updates_beside_the_next_step_change_nothing(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		check_equal(&cases[i], 0, 0);
}

/* With clipping and without; few slots a step and many, sums that cross rounds, a flush in the middle. */
static void test_joined_steps_equal_a_plain_loop_one_step_stale(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int clips = 0; clips < 2; clips++) {
			struct what what = cases[i];
			what.clip = clips ? what.clip : 0;
			check_equal(&what, 1, 1);
		}
}

static void test_asynchronous_updates_equal_a_plain_loop_one_step_stale(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		check_equal(&cases[i], 1, 0);
	struct outcome stale = plain(&cases[0], 1), fresh = plain(&cases[0], 0);
	assert_true(stale.loss[1] != fresh.loss[1] && stale.loss[0] == fresh.loss[0]); /* else nothing was compared */
	free(stale.weights);
	free(fresh.weights);
}

/* Without clipping: synchronous and stale; tied tables, adapters, sums that cross rounds. */
static void test_updates_as_gradients_arrive_equal_a_plain_loop(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int staleness = 0; staleness < 2; staleness++) {
			struct what what = cases[i];
			what.clip = 0;
			check_equal(&what, staleness, 0);
		}
}

/* Both passes are seen to: there are more of them than blocks were updated. */
static void test_weights_before_moments_change_nothing(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int clips = 0; clips < 2; clips++) {
			struct what what = cases[i];
			what.clip = clips ? 1 : 0;
			what.weights_first = 1;
			check_equal(&what, 0, 0);
		}
}

/* A gradient that is not finite: its norm is told, nothing hangs. */
static void test_a_gradient_that_is_not_finite_is_told_by_the_norm(void **state)
{
	(void)state;
	struct rig rig;
	struct rig_input in;
	start(&rig, &cases[2], 0, &in);
	int last = rig.session.model->blocks - 1;
	float huge = 3e38f;
	check_ok(rh_store_set(rig.session.store, last, 0, 0, 1, &huge));
	struct rh_update update = {.settings = {0.9, 0.999, 1e-8, 0, 0}, .learning_rate = 1e-3, .scale = 1, .step = 1};
	double norm;
	rh_updater_open(rig.session.updater, &update, 0);
	(void)one_step(&rig, &in, 0);
	check_ok(rh_updater_norm(rig.session.updater, &norm));
	assert_true(!isfinite(norm));
	check_ok(rh_updater_finish(rig.session.updater));
	rig_close(&rig);
}

/* Adam's step is the learning rate's size: 1e30 makes weights that overflow in the next step or the one after. */
static void test_a_failed_update_is_told_at_the_next_wait(void **state)
{
	(void)state;
	struct rig rig;
	struct rig_input in;
	start(&rig, &cases[1], 1, &in);
	struct rh_update update = {.settings = {0.9, 0.999, 1e-8, 0, 0}, .learning_rate = 1e39, .scale = 1, .step = 1};
	rh_updater_open(rig.session.updater, &update, 1e30); /* all gradients are announced before the first update: the step is not told */
	(void)one_step(&rig, &in, 0);
	int rc = rh_updater_finish(rig.session.updater);
	assert_int_equal(rc, -EINVAL);
	assert_non_null(strstr(rh_error(rc), "no longer finite after step 1"));
	assert_int_equal(rh_updater_flush(rig.session.updater), -EINVAL); /* and stays told */
	rig_close(&rig);
}

int main(void)
{
	setenv(RH_HOOK_PIECE_BYTES, "256", 1); /* these models are small: many pieces all the same */
	setenv(RH_HOOK_SPILL_ELEMENTS, "3000", 1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_synchronous_updates_beside_the_next_step_change_nothing),
	        cmocka_unit_test(test_joined_steps_equal_a_plain_loop_one_step_stale),
	        cmocka_unit_test(test_asynchronous_updates_equal_a_plain_loop_one_step_stale),
	        cmocka_unit_test(test_updates_as_gradients_arrive_equal_a_plain_loop),
	        cmocka_unit_test(test_weights_before_moments_change_nothing),
	        cmocka_unit_test(test_a_gradient_that_is_not_finite_is_told_by_the_norm),
	        cmocka_unit_test(test_a_failed_update_is_told_at_the_next_wait),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
