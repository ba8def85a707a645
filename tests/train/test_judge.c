/* The plan that a run follows: of those that the recurrence finds, the one that the dispatcher in virtual time calls best. */
#include "train/eight.h"

#include "core/log.h"
#include "forecast/forecast_bounded.h"
#include "forecast/judge.h"
#include "observe/trace.h"

#include <math.h>

enum { FEW = 5 };

static void ask(struct eight *eight, int64_t micro_batches, struct rh_forecast_input *input)
{
	struct rh_config *config = &eight->deep.rig.config;
	config->gradient_accumulation_steps = micro_batches;
	check_ok(rh_forecast_input_synthetic(config, 2, input));
}

/* *session: the caller's (rh_session_close). */
static void search(const struct eight *eight, const struct rh_forecast_input *input, struct rh_session *session, struct rh_run_plans *out)
{
	check_ok(rh_session_simulate(&eight->deep.rig.config, &eight->machine, session));
	check_ok(rh_session_search(session, &input->work, eight->machine.devices, out));
}

static int have_same_stages(const struct rh_stage_plan *a, const struct rh_stage_plan *b)
{
	return a->forward_stages == b->forward_stages && a->backward_stages == b->backward_stages &&
	       !memcmp(a->fates, b->fates, (size_t)rh_stage_plan_top(a) * sizeof *a->fates) &&
	       !memcmp(a->forward, b->forward, (size_t)a->forward_stages * sizeof *a->forward) &&
	       !memcmp(a->backward, b->backward, (size_t)a->backward_stages * sizeof *a->backward);
}

/* Whole rounds and default rounds of one micro-batch are the same plan: it is found once. */
static void test_each_plan_is_found_once(void **state)
{
	(void)state;
	static const struct {
		int64_t micro_batches, rows;
	} steps[] = {{1, 1}, {EIGHT_MICRO_BATCHES, 2}};
	for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
		struct eight eight;
		struct rh_forecast_input input;
		struct rh_session session;
		struct rh_run_plans plans;
		eight_open(&eight, 0, 1);
		eight.deep.rig.config.per_device_train_batch_size = steps[s].rows;
		ask(&eight, steps[s].micro_batches, &input);
		search(&eight, &input, &session, &plans);
		for (int i = 0; i < plans.count; i++)
			for (int j = 0; j < i; j++)
				assert_false(plans.plan[i].executor.train_round == plans.plan[j].executor.train_round &&
				             have_same_stages(&plans.plan[i].stages, &plans.plan[j].stages));
		rh_run_plans_free(&plans);
		rh_session_close(&session);
		rh_forecast_input_free(&input);
		eight_close(&eight);
	}
}

static void check_same_stages(const struct rh_stage_plan *a, const struct rh_stage_plan *b)
{
	assert_true(have_same_stages(a, b));
	assert_int_equal(a->device_bytes, b->device_bytes);
}

/* None of the plans is better than the one that was chosen, though not all were simulated. Returns its number. */
static int check_chosen(int64_t micro_batches, int64_t rows)
{
	struct eight eight;
	struct rh_forecast_input input;
	struct rh_session session;
	struct rh_run_plans plans;
	struct rh_forecast forecast;
	int chosen;
	double step_s[RH_RUN_PLANS_MOST], fastest_s = HUGE_VAL;
	eight_open(&eight, 0, 1);
	eight.deep.rig.config.per_device_train_batch_size = rows;
	ask(&eight, micro_batches, &input);
	search(&eight, &input, &session, &plans);
	assert_true(plans.count > 1);
	check_ok(rh_judge(&session, &eight.machine, &input, NULL, &plans, &chosen, &forecast));
	check_same_stages(&forecast.plan, &plans.plan[chosen].stages);
	printf("%lld micro-batches: plan %d of %d, %.4f s\n", (long long)micro_batches, chosen, plans.count, forecast.step_seconds);
	for (int i = 0; i < plans.count; i++) {
		const struct rh_forecast_options options = {.plan = &plans.plan[i]};
		struct rh_forecast other;
		check_ok(rh_forecast_bounded(&eight.deep.rig.config, &eight.machine, &input, &options, &other));
		printf("    rounds of %lld: by the recurrence %.4f s, by the dispatcher %.4f\n",
		       (long long)plans.plan[i].executor.train_round, plans.plan[i].balanced.step_s, other.step_seconds);
		assert_true(plans.plan[i].balanced.step_s <= other.step_seconds * 1.005);
		step_s[i] = other.step_seconds;
		fastest_s = fmin(fastest_s, step_s[i]);
		rh_forecast_free(&other);
	}
	for (int i = 0; i < plans.count; i++)
		assert_false(rh_run_plan_is_better(&plans.plan[i], step_s[i], &plans.plan[chosen], forecast.step_seconds, fastest_s));
	rh_forecast_free(&forecast);
	rh_run_plans_free(&plans);
	rh_session_close(&session);
	rh_forecast_input_free(&input);
	eight_close(&eight);
	return chosen;
}

static void test_no_plan_is_better_than_the_one_that_is_chosen(void **state)
{
	(void)state;
	(void)check_chosen(EIGHT_MICRO_BATCHES, 2);
	assert_int_not_equal(check_chosen(FEW, 4), 0); /* two are the same to the recurrence, and the second is better */
}

/* An adapter on all linear layers. The caller clears lora_target_modules. */
static void adapt(struct rh_config *config)
{
	static char *linear[] = {(char *)(uintptr_t) "all-linear"};
	config->use_lora = 1;
	config->lora_r = 16;
	config->lora_alpha = 32;
	config->lora_target_modules = (struct rh_list){.item = linear, .count = 1};
}

/* Steps of few micro-batches leave devices idle; with an adapter, or with all weights. Returns how many of all devices were used. */
static int check_more_devices(int64_t micro_batches, int adapts)
{
	struct eight eight;
	struct rh_forecast_input input;
	double before = HUGE_VAL;
	int fewest = EIGHT_DEVICES;
	eight_open(&eight, 0, 1);
	struct rh_config *config = &eight.deep.rig.config;
	config->per_device_train_batch_size = 1;
	if (adapts)
		adapt(config);
	ask(&eight, micro_batches, &input);
	for (int devices = 1; devices <= EIGHT_DEVICES; devices *= 2) {
		struct rh_forecast forecast;
		eight.machine.devices = devices;
		check_ok(rh_forecast_judged(config, &eight.machine, &input, NULL, &forecast));
		printf("%lld micro-batches%s: %d of %d devices, %.4f s\n", (long long)micro_batches, adapts ? ", adapter" : "",
		       forecast.devices, devices, forecast.step_seconds);
		assert_true(forecast.devices <= devices);
		assert_true(forecast.step_seconds <= before * 1.005); /* less is not noticed */
		before = forecast.step_seconds;
		fewest = devices == EIGHT_DEVICES ? forecast.devices : fewest;
		rh_forecast_free(&forecast);
	}
	config->lora_target_modules = (struct rh_list){0};
	rh_forecast_input_free(&input);
	eight_close(&eight);
	return fewest;
}

static void test_a_machine_with_more_devices_is_not_slower(void **state)
{
	(void)state;
	assert_int_equal(check_more_devices(1, 1), 1); /* the adapter's model stays on one device */
	assert_int_equal(check_more_devices(2, 1), 2);
	(void)check_more_devices(FEW, 1);
	(void)check_more_devices(1, 0);
	(void)check_more_devices(2, 0);
}

/* Plans for each of these sizes of a device's memory, the smallest first: no plan is slower than the one before it. */
static void check_more_memory(struct eight *eight, int64_t micro_batches, const int64_t *gib, size_t count)
{
	struct rh_forecast_input input;
	double before = HUGE_VAL;
	ask(eight, micro_batches, &input);
	for (size_t i = 0; i < count; i++) {
		struct rh_forecast forecast;
		eight->deep.rig.config.max_vram = gib[i] << 30;
		check_ok(rh_forecast_judged(&eight->deep.rig.config, &eight->machine, &input, NULL, &forecast));
		printf("%d devices of %lld GiB, %lld micro-batches: %.4f s\n", eight->machine.devices, (long long)gib[i],
		       (long long)micro_batches, forecast.step_seconds);
		assert_true(forecast.device_bytes <= gib[i] << 30);
		assert_true(forecast.step_seconds <= before * 1.005);
		before = forecast.step_seconds;
		rh_forecast_free(&forecast);
	}
	rh_forecast_input_free(&input);
}

static void test_a_device_with_more_memory_is_not_slower(void **state)
{
	(void)state;
	static const int64_t gib[] = {6, 12, 18, 24, 48, 78};
	struct eight eight;
	eight_open(&eight, 0, 1);
	rh_hardware_free(&eight.hardware);
	check_ok(rh_hardware_find("examples/hardware/a800x8.yaml", &eight.hardware));
	eight.machine.devices = 1;
	eight.deep.rig.config.per_device_train_batch_size = 1;
	check_more_memory(&eight, 1, gib, sizeof gib / sizeof *gib);
	check_more_memory(&eight, 8, gib, sizeof gib / sizeof *gib);
	eight_close(&eight);
}

/* With few micro-batches devices wait for weights, and the largest stages that fit are not the fastest. */
static void test_devices_with_twice_the_memory_are_not_slower(void **state)
{
	(void)state;
	static const int64_t gib[] = {5, 10, 20};
	struct eight eight;
	eight_open(&eight, 0, 1);
	eight.machine.devices = 2;
	eight.deep.rig.config.per_device_train_batch_size = 1;
	adapt(&eight.deep.rig.config);
	check_more_memory(&eight, 1, gib, sizeof gib / sizeof *gib);
	eight.deep.rig.config.lora_target_modules = (struct rh_list){0};
	eight_close(&eight);
}

/* What is printed with a picture is what is predicted without one. */
static void test_a_recorded_forecast_takes_as_long(void **state)
{
	(void)state;
	struct eight eight;
	struct rh_forecast_input input;
	struct rh_forecast plain, recorded;
	struct rh_trace trace;
	eight_open(&eight, 0, 1);
	ask(&eight, 2 * EIGHT_MICRO_BATCHES, &input);
	check_ok(rh_trace_create(EIGHT_DEVICES, 1 << 18, &trace));
	const struct rh_forecast_options options = {.trace = &trace};
	check_ok(rh_forecast(&eight.deep.rig.config, &eight.machine, &input, NULL, &plain));
	check_ok(rh_forecast(&eight.deep.rig.config, &eight.machine, &input, &options, &recorded));
	printf("%.4f s a step, recorded %.4f\n", plain.step_seconds, recorded.step_seconds);
	check_near(recorded.step_seconds / plain.step_seconds, 1, 0.002);
	assert_true(trace.spans > 0);
	rh_trace_free(&trace);
	rh_forecast_free(&plain);
	rh_forecast_free(&recorded);
	rh_forecast_input_free(&input);
	eight_close(&eight);
}

/* A session on this machine follows the very plan that a simulated one was judged by, on as many of its devices as that plan uses. */
static void test_a_session_follows_the_plan_that_was_judged(void **state)
{
	(void)state;
	struct deep deep;
	struct rh_run_plans plans;
	deep_open(&deep, "qwen3", 6);
	deep.rig.config.device = (char *)(uintptr_t) "cpu:4";
	struct rig_input in = rig_input(&deep.rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = 8};
	struct rh_session *session = &deep.rig.session;
	check_ok(rh_session_open(&deep.rig.config, RH_SESSION_TRAINS, session));
	check_ok(rh_session_search(session, &work, 3, &plans));
	check_ok(rh_session_follow(session, &work, &plans.plan[0]));
	check_same_stages(&session->plan.stages, &plans.plan[0].stages);
	assert_int_equal(session->plan.bytes.total, plans.plan[0].bytes.total);
	check_ok(rh_session_start(session, &work));
	assert_int_equal(session->devices.count, 3);
	check_same_stages(&session->plan.stages, &plans.plan[0].stages);
	rh_run_plans_free(&plans);
	deep_close(&deep);
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_each_plan_is_found_once),
	        cmocka_unit_test(test_no_plan_is_better_than_the_one_that_is_chosen),
	        cmocka_unit_test(test_a_machine_with_more_devices_is_not_slower),
	        cmocka_unit_test(test_a_device_with_more_memory_is_not_slower),
	        cmocka_unit_test(test_devices_with_twice_the_memory_are_not_slower),
	        cmocka_unit_test(test_a_recorded_forecast_takes_as_long),
	        cmocka_unit_test(test_a_session_follows_the_plan_that_was_judged),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
