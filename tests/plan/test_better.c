/* Which of two plans a run prefers, by their times and the host memory that they take. */
#include "check.h"

#include "plan/run_plan.h"

#include <math.h>

static int is_better(double a_bytes, double a_step_s, double b_bytes, double b_step_s)
{
	struct rh_run_plan a = {.bytes.total = (int64_t)(a_bytes * 1e9)}, b = {.bytes.total = (int64_t)(b_bytes * 1e9)};
	return rh_run_plan_is_better(&a, a_step_s, &b, b_step_s, fmin(a_step_s, b_step_s));
}

static void test_of_two_plans_in_the_same_memory_the_faster_one_is_better(void **state)
{
	(void)state;
	assert_true(is_better(10, 0.99, 10, 1));
	assert_false(is_better(10, 1, 10, 0.99));
	assert_false(is_better(10, 1, 10, 1));
}

static void test_a_plan_that_saves_much_memory_may_be_a_little_slower(void **state)
{
	(void)state;
	assert_true(is_better(7, 1.009, 10, 1));
	assert_false(is_better(7, 1.011, 10, 1));
	assert_false(is_better(9, 1.009, 10, 1)); /* saves little */
	assert_false(is_better(10, 0.995, 7, 1));
	assert_true(is_better(10, 0.98, 7, 1));
}

static void test_savings_never_add_up(void **state)
{
	(void)state;
	struct rh_run_plan fastest = {.bytes.total = 100}, smaller = {.bytes.total = 70}, smallest = {.bytes.total = 40};
	assert_true(rh_run_plan_is_better(&smaller, 1.009, &fastest, 1, 1));
	assert_false(rh_run_plan_is_better(&smallest, 1.018, &smaller, 1.009, 1));
}

static void test_a_plan_without_drives_may_be_a_little_slower(void **state)
{
	(void)state;
	struct rh_run_plan spills = {.bytes = {.total = 40, .nvme = 1}}, none = {.bytes.total = 100};
	assert_true(rh_run_plan_is_better(&none, 1.009, &spills, 1, 1));
	assert_false(rh_run_plan_is_better(&none, 1.011, &spills, 1, 1));
	assert_false(rh_run_plan_is_better(&spills, 0.995, &none, 1, 0.995));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_of_two_plans_in_the_same_memory_the_faster_one_is_better),
	        cmocka_unit_test(test_a_plan_that_saves_much_memory_may_be_a_little_slower),
	        cmocka_unit_test(test_savings_never_add_up),
	        cmocka_unit_test(test_a_plan_without_drives_may_be_a_little_slower),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
