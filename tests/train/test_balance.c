/* A RoundPipe run on several devices has stages for all of them, though its model fits one; cuts of the user's own stay as they are. */
#include "train/deep.h"

#include <time.h>

static void start(struct deep *deep, int blocks, const char *device, int64_t *cuts, int64_t count)
{
	struct rig *rig = &deep->rig;
	deep_open(deep, "qwen3", blocks);
	rig->config.device = (char *)(uintptr_t)device;
	rig->config.forward_cuts = rig->config.backward_cuts = cuts;
	rig->config.backward_cut_count = count;
	struct rig_input in = rig_input(rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = 8};
	rig_start(rig, RH_SESSION_TRAINS, &work);
}

static double milliseconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void test_a_model_that_fits_is_cut_for_all_devices(void **state)
{
	(void)state;
	struct deep deep;
	start(&deep, 6, "cpu:4", NULL, -1);
	const struct rh_session *session = &deep.rig.session;
	printf("%d forward and %d backward stages, %.0f %% idle\n", session->plan.stages.forward_stages,
	       session->plan.stages.backward_stages, 100 * session->plan.balanced.idle);
	assert_true(session->plan.balanced.step_s > 0 &&
	            session->plan.balanced.idle < 0.5); /* packed: one stage, on one device at a time, 75 % */
	assert_true(session->plan.stages.forward_stages + session->plan.stages.backward_stages >= 4);
	deep_close(&deep);
}

static void test_one_device_and_the_users_cuts_are_left_alone(void **state)
{
	(void)state;
	static int64_t cuts[] = {2, 5};
	struct deep deep;
	start(&deep, 6, "cpu:1", NULL, -1);
	assert_true(deep.rig.session.plan.balanced.step_s == 0);
	assert_int_equal(deep.rig.session.plan.stages.backward_stages, 1);
	deep_close(&deep);
	start(&deep, 6, "cpu:4", cuts, 2);
	assert_true(deep.rig.session.plan.balanced.step_s == 0);
	assert_int_equal(deep.rig.session.plan.stages.backward[0].lo, 5);
	assert_int_equal(deep.rig.session.plan.stages.backward[1].lo, 2);
	deep_close(&deep);
}

static void test_a_deep_model_is_planned_soon(void **state)
{
	(void)state;
	struct deep deep;
	double began = milliseconds();
	start(&deep, 94, "cpu:8", NULL, -1);
	printf("94 layers on 8 devices, from nothing to an executor: %.0f ms of processor time, %d stages, %.0f %% idle\n",
	       milliseconds() - began, deep.rig.session.plan.stages.forward_stages + deep.rig.session.plan.stages.backward_stages,
	       100 * deep.rig.session.plan.balanced.idle);
	assert_true(deep.rig.session.plan.balanced.idle < 0.5);
	deep_close(&deep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_model_that_fits_is_cut_for_all_devices),
	        cmocka_unit_test(test_one_device_and_the_users_cuts_are_left_alone),
	        cmocka_unit_test(test_a_deep_model_is_planned_soon),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
