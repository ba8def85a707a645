/* Steps of stale updates are joined: on the simulated machine the next step's forward runs beside this one's backward, and the idle time
 * between steps is gone. */
#include "train/eight.h"

#include "forecast/forecast.h"
#include "forecast/forecast_input.h"
#include "observe/trace.h"

enum { MICRO_BATCHES = EIGHT_MICRO_BATCHES };

static double idle_of(struct eight *eight, const struct rh_forecast_input *input, struct rh_forecast *out)
{
	check_ok(rh_forecast(&eight->deep.rig.config, &eight->machine, input, NULL, out));
	return out->bubble;
}

/* Of cuts for long rounds, as they are chosen; few simulated steps, so the first ones' sway is part of what is between the two. */
static void test_joined_steps_idle_no_more_than_the_recurrence_says(void **state)
{
	(void)state;
	for (int clips = 0; clips < 2; clips++) {
		struct eight eight;
		struct rh_forecast_input input;
		struct rh_forecast stale, flushed;
		eight_open(&eight, 1, clips);
		check_ok(rh_forecast_input_synthetic(&eight.deep.rig.config, 3, &input));
		double idle = idle_of(&eight, &input, &stale);
		eight.deep.rig.config.optimizer_staleness = 0;
		double before = idle_of(&eight, &input, &flushed);
		printf("an 8B on 8 devices, max_grad_norm %d: %.2f %% idle, by the recurrence %.2f; flushed %.2f, by the recurrence, which "
		       "knows no update, %.2f\n",
		       clips, 100 * idle, 100 * stale.scheduled_idle, 100 * before, 100 * flushed.scheduled_idle);
		assert_int_equal(stale.round_micro_batches, MICRO_BATCHES);
		check_near(idle, stale.scheduled_idle, 0.003);
		check_near(stale.step_seconds / stale.scheduled_seconds, 1, 0.005);
		assert_true(idle < 0.005 && before > 0.05);
		assert_true(before > flushed.scheduled_idle && before < flushed.scheduled_idle + 0.05);
		rh_forecast_free(&stale);
		rh_forecast_free(&flushed);
		rh_forecast_input_free(&input);
		eight_close(&eight);
	}
}

/* Where a step is short its update is still on its way when it ends; what is waited for after the end is no part of it. */
static void test_short_joined_steps_compute_as_long_as_the_recurrence_says(void **state)
{
	(void)state;
	struct eight eight;
	struct rh_forecast_input input;
	struct rh_forecast stale;
	eight_open(&eight, 1, 0);
	eight.deep.rig.config.gradient_accumulation_steps = 8;
	check_ok(rh_forecast_input_synthetic(&eight.deep.rig.config, 3, &input));
	double idle = idle_of(&eight, &input, &stale);
	printf("of 8 micro-batches: %.2f %% idle\n", 100 * idle);
	check_near(stale.step_seconds * (1 - idle) / (stale.scheduled_seconds * (1 - stale.scheduled_idle)), 1, 0.02);
	rh_forecast_free(&stale);
	rh_forecast_input_free(&input);
	eight_close(&eight);
}

/* When each device's compute stream begins and ends a step, on the machine's clock; rows of devices. */
static void times_of_step(struct eight *eight, int64_t traced, double *begins, double *ends)
{
	enum { STEPS = 4, SPANS = 1 << 17 };
	struct rh_session session;
	struct rh_forecast_input input;
	struct rh_trace trace;
	static const int32_t zeros[1 << 13];
	static struct rh_micro_batch micro[MICRO_BATCHES];
	double norm;
	check_ok(rh_forecast_input_synthetic(&eight->deep.rig.config, 1, &input));
	check_ok(rh_session_simulate(&eight->deep.rig.config, &eight->machine, &session));
	check_ok(rh_session_start(&session, &input.work));
	check_ok(rh_trace_create(EIGHT_DEVICES, SPANS, &trace));
	for (int m = 0; m < MICRO_BATCHES; m++)
		micro[m] = rh_micro_batch_of(rh_forecast_micro(&input, m), zeros);
	int64_t most = rh_executor_steps_in_flight(session.executor);
	assert_int_equal(most, eight->deep.rig.config.optimizer_staleness + 1);
	for (int64_t step = 0, begun = 0; step < STEPS; step++) {
		for (; begun < STEPS && begun < step + most; begun++) {
			struct rh_update update = {.settings = {0.9, 0.999, 1e-8, 0, 0}, .scale = 1, .step = begun + 1};
			rh_updater_open(session.updater, &update, eight->deep.rig.config.max_grad_norm);
			if (begun == traced)
				rh_executor_trace(session.executor, &trace, traced);
			check_ok(rh_executor_begin(session.executor, micro, MICRO_BATCHES, begun, 1));
		}
		check_ok(rh_executor_finish(session.executor));
		check_ok(rh_updater_norm(session.updater, &norm));
		if (step == traced)
			rh_executor_trace(session.executor, NULL, 0);
	}
	assert_int_equal(trace.forgotten, 0);
	for (int d = 0; d < EIGHT_DEVICES; d++) {
		begins[d] = HUGE_VAL;
		ends[d] = 0;
	}
	for (size_t i = 0; i < trace.spans; i++) {
		const struct rh_trace_span *span = &trace.span[i];
		if (span->device < 0 || span->lane != RH_STREAM_COMPUTE)
			continue;
		begins[span->device] = fmin(begins[span->device], span->begin_s);
		ends[span->device] = fmax(ends[span->device], span->end_s);
	}
	rh_trace_free(&trace);
	rh_forecast_input_free(&input);
	rh_session_close(&session);
}

/* 1: another device is in the next step while one is in this. */
static int overlaps(const double *ends, const double *next_begins)
{
	double first = HUGE_VAL, last = 0;
	for (int d = 0; d < EIGHT_DEVICES; d++) {
		/* a device has its slots in order; of two runs, each held up by its recording for some microseconds of its own */
		assert_true(next_begins[d] >= ends[d] - 1e-3);
		first = fmin(first, next_begins[d]);
		last = fmax(last, ends[d]);
	}
	return first < last;
}

static void test_the_next_forward_runs_beside_the_last_backward(void **state)
{
	(void)state;
	for (int staleness = 0; staleness < 2; staleness++) {
		struct eight eight;
		double begins[2][EIGHT_DEVICES], ends[2][EIGHT_DEVICES];
		eight_open(&eight, staleness, 1);
		for (int k = 0; k < 2; k++)
			times_of_step(&eight, 1 + k, begins[k], ends[k]);
		assert_int_equal(overlaps(ends[0], begins[1]), staleness);
		eight_close(&eight);
	}
}

/* Steps of a model of which the device holds a part, so many at once; losses and norms. */
static void run_deep(int most, double *loss, double *norm, int steps)
{
	enum { MICROS = 3 };
	static struct rig_flight flight[2];
	struct deep deep;
	deep_open(&deep, "qwen3", 24);
	struct rig *rig = &deep.rig;
	rig->config.dtype = RH_BF16;
	rig->config.state_layout = RH_LAYOUT_SPLIT;
	rig->config.optimizer_staleness = 1;
	rig->config.max_vram = 900 << 10;
	struct rig_input in = rig_input(rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MICROS};
	rig_start(rig, RH_SESSION_TRAINS, &work);
	const struct rh_stage_plan *plan = &rig->session.plan.stages;
	int saving = 0;
	for (int i = 0; i < plan->backward_stages; i++)
		saving += plan->places[i].kept.bytes > 0;
	printf("%d of %d stages keep their activations\n", saving, plan->backward_stages);
	assert_true(saving > 0 && saving < plan->backward_stages - 1);
	assert_int_equal(rh_executor_steps_in_flight(rig->session.executor), 2);
	for (int step = 0, begun = 0; step < steps; step++) {
		for (; begun < steps && begun < step + most; begun++) {
			struct rh_update update = {
			        .settings = {0.9, 0.999, 1e-8, 0, 0}, .learning_rate = 3e-3, .scale = 1, .step = begun + 1};
			rh_updater_open(rig->session.updater, &update, 1);
			rig_begin(rig, &in, begun * MICROS % (in.micros - MICROS + 1), MICROS, begun, &flight[begun % 2]);
		}
		loss[step] = rig_finish(rig, &flight[step % 2]);
		check_ok(rh_updater_norm(rig->session.updater, &norm[step]));
	}
	deep_close(&deep);
}

static void test_stages_that_keep_their_activations_are_joined(void **state)
{
	(void)state;
	enum { STEPS = 8 };
	double loss[2][STEPS], norm[2][STEPS];
	for (int k = 0; k < 2; k++)
		run_deep(1 + k, loss[k], norm[k], STEPS);
	assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
	assert_memory_equal(norm[0], norm[1], sizeof norm[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_joined_steps_idle_no_more_than_the_recurrence_says),
	        cmocka_unit_test(test_short_joined_steps_compute_as_long_as_the_recurrence_says),
	        cmocka_unit_test(test_the_next_forward_runs_beside_the_last_backward),
	        cmocka_unit_test(test_stages_that_keep_their_activations_are_joined),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
