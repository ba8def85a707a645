/* How many rounds a step has: the fewest that the host's memory allows, and never a plan less because of it. */
#include "train/eight.h"

#include "forecast/forecast.h"
#include "forecast/forecast_input.h"

enum { DEFAULT_ROUND = 2 * EIGHT_DEVICES };

struct planned {
	int64_t rc, round, total, budget, forward, backward;
};

/* Of so many steps, under the budgets. */
static const struct rh_config *asks(struct eight *eight, int64_t max_ram, int64_t round, int steps, struct rh_forecast_input *input)
{
	struct rh_config *config = &eight->deep.rig.config;
	config->max_ram = max_ram;
	config->round_micro_batches = round;
	check_ok(rh_forecast_input_synthetic(config, steps, input));
	return config;
}

/* With this much of the host's memory, 0 for all; and rounds of so many, 0 for those that are chosen. */
static struct planned plan(struct eight *eight, int64_t max_ram, int64_t round)
{
	struct rh_session session;
	struct rh_forecast_input input;
	const struct rh_config *config = asks(eight, max_ram, round, 1, &input);
	check_ok(rh_session_simulate(config, &eight->machine, &session));
	struct planned out = {.rc = rh_session_plan(&session, &input.work, RH_STAGES_CHOSEN)};
	out.round = session.plan.executor.train_round;
	out.total = session.plan.bytes.total;
	out.budget = session.plan.bytes.total_budget;
	out.forward = session.plan.stages.forward_stages;
	out.backward = session.plan.stages.backward_stages;
	rh_session_close(&session);
	rh_forecast_input_free(&input);
	rh_error_clear();
	return out;
}

static double seconds_of_step(struct eight *eight, int64_t max_ram, int64_t round)
{
	struct rh_forecast_input input;
	struct rh_forecast forecast;
	const struct rh_config *config = asks(eight, max_ram, round, 2, &input);
	check_ok(rh_forecast(config, &eight->machine, &input, NULL, &forecast));
	double seconds = forecast.step_seconds;
	rh_forecast_free(&forecast);
	rh_forecast_input_free(&input);
	return seconds;
}

static void test_with_memory_enough_a_step_is_one_round_and_faster(void **state)
{
	(void)state;
	for (int stale = 0; stale < 2; stale++) {
		struct eight eight;
		eight_open(&eight, stale, 0);
		struct planned chosen = plan(&eight, 0, 0);
		assert_int_equal(chosen.rc, 0);
		assert_int_equal(chosen.round, EIGHT_MICRO_BATCHES);
		double one = seconds_of_step(&eight, 0, 0), four = seconds_of_step(&eight, 0, DEFAULT_ROUND);
		printf("staleness %d: one round %.3f s, of %d micro-batches %.3f\n", stale, one, DEFAULT_ROUND, four);
		assert_true(one < 0.97 * four);
		eight_close(&eight);
	}
}

static void test_rounds_that_the_user_gives_stay(void **state)
{
	(void)state;
	struct eight eight;
	eight_open(&eight, 0, 0);
	static const int64_t given[] = {4, DEFAULT_ROUND, 24, EIGHT_MICRO_BATCHES};
	for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
		struct planned is = plan(&eight, 0, given[i]);
		assert_int_equal(is.rc, 0);
		assert_int_equal(is.round, given[i]);
	}
	eight_close(&eight);
}

/* The least memory, in MiB, that a plan with these rounds fits. */
static int64_t least_ram(struct eight *eight, int64_t round)
{
	int64_t no = 1, yes = plan(eight, 0, round).total >> 20;
	yes++;
	while (yes - no > 1) {
		int64_t half = (no + yes) / 2;
		*(plan(eight, half << 20, round).rc ? &no : &yes) = half;
	}
	return yes;
}

/* Less and less memory: rounds get shorter, what is planned stays within it, and the last that fits default rounds fits those chosen. */
static void test_with_less_memory_rounds_get_shorter_and_a_plan_is_never_lost(void **state)
{
	(void)state;
	struct eight eight;
	eight_open(&eight, 0, 0);
	int64_t all = plan(&eight, 0, 0).total >> 20, least = least_ram(&eight, DEFAULT_ROUND), before = EIGHT_MICRO_BATCHES;
	enum { TRIES = 8 };
	for (int i = 0; i <= TRIES; i++) {
		int64_t ram = (all + 1 - (all + 1 - least) * i / TRIES) << 20;
		struct planned is = plan(&eight, ram, 0);
		printf("max_ram %.1f GiB: rounds of %lld, %lld + %lld stages, %.1f GiB\n", (double)ram / 0x1p30, (long long)is.round,
		       (long long)is.forward, (long long)is.backward, (double)is.total / 0x1p30);
		assert_int_equal(is.rc, 0);
		assert_int_equal(is.budget, ram);
		assert_true(is.total <= ram && is.round <= before && is.round >= DEFAULT_ROUND);
		before = is.round;
	}
	assert_int_equal(before, DEFAULT_ROUND);
	/* then rounds of a micro-batch for each device, or of one, as long as these fit */
	struct planned shorter = plan(&eight, (least - 1) << 20, 0);
	assert_int_equal(shorter.rc, 0);
	assert_true(shorter.round < DEFAULT_ROUND && shorter.total <= (least - 1) << 20);
	assert_int_equal(plan(&eight, (least_ram(&eight, 1) - 1) << 20, 0).rc, RH_DOES_NOT_FIT);
	double chosen = seconds_of_step(&eight, (all + least) / 2 << 20, 0),
	       given = seconds_of_step(&eight, (all + least) / 2 << 20, DEFAULT_ROUND);
	printf("half way: %.3f s, with default rounds %.3f\n", chosen, given);
	assert_true(chosen <= given * 1.005);
	eight_close(&eight);
}

/* Sums that cross rounds take more than a round's boundaries do: then only the long round fits, and that is what is planned. */
static void test_where_only_one_round_fits_it_is_planned(void **state)
{
	(void)state;
	struct eight eight;
	eight_open(&eight, 1, 0);
	rh_hardware_free(&eight.hardware);
	check_ok(rh_hardware_find("examples/hardware/h100x1.yaml", &eight.hardware));
	eight.machine.devices = 1;
	int64_t less = plan(&eight, (int64_t)1 << 40, 0).total, more = plan(&eight, (int64_t)1 << 40, 8).total, ram = less + (less >> 6);
	assert_true(more > ram);
	struct planned is = plan(&eight, ram, 0);
	assert_int_equal(is.rc, 0);
	assert_int_equal(is.round, EIGHT_MICRO_BATCHES);
	assert_true(is.total <= ram);
	eight_close(&eight);
}

static void test_two_plans_are_the_same(void **state)
{
	(void)state;
	struct eight eight;
	eight_open(&eight, 1, 1);
	struct planned a = plan(&eight, (int64_t)150 << 30, 0), b = plan(&eight, (int64_t)150 << 30, 0);
	assert_memory_equal(&a, &b, sizeof a);
	eight_close(&eight);
}

/* An evaluation's micro-batches, where each device holds the whole model: each computes some of them. */
static void test_an_evaluation_uses_all_devices(void **state)
{
	(void)state;
	struct eight eight;
	struct rh_forecast_input input;
	struct rh_session session;
	eight_open(&eight, 0, 0);
	eight.deep.rig.config.per_device_train_batch_size = 1;
	const struct rh_config *config = asks(&eight, 0, 0, 1, &input);
	const struct rh_workload evaluates = {.infer = input.work.train, .infer_micro_batches = DEFAULT_ROUND};
	check_ok(rh_session_simulate(config, &eight.machine, &session));
	check_ok(rh_session_plan(&session, &evaluates, RH_STAGES_CHOSEN));
	assert_int_equal(session.plan.stages.forward_stages + rh_stage_plan_backward_stages(&session.plan.stages, 0), 1);
	assert_int_equal(session.plan.executor.infer_round, DEFAULT_ROUND / EIGHT_DEVICES);
	rh_session_close(&session);
	rh_forecast_input_free(&input);
	eight_close(&eight);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_with_memory_enough_a_step_is_one_round_and_faster),
	        cmocka_unit_test(test_rounds_that_the_user_gives_stay),
	        cmocka_unit_test(test_with_less_memory_rounds_get_shorter_and_a_plan_is_never_lost),
	        cmocka_unit_test(test_where_only_one_round_fits_it_is_planned),
	        cmocka_unit_test(test_two_plans_are_the_same),
	        cmocka_unit_test(test_an_evaluation_uses_all_devices),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
