/* Which of two plans a run prefers, by their times and the host memory that they take. */
#include "check.h"

#include "plan/run_plan.h"

static int is_better(double a_bytes, double a_step_s, double b_bytes, double b_step_s)
{
	struct rh_run_plan a = {.bytes.total = (int64_t)(a_bytes * 1e9)}, b = {.bytes.total = (int64_t)(b_bytes * 1e9)};
	return rh_run_plan_is_better(&a, a_step_s, &b, b_step_s);
}

static void test_of_two_plans_in_the_same_memory_the_faster_one_is_better(void **state)
{
	(void)state;
	assert_true(is_better(10, 0.99, 10, 1));
	assert_false(is_better(10, 1, 10, 0.99));
	assert_false(is_better(10, 1, 10, 1));
	assert_false(is_better(10, 0.999, 10, 1)); /* too small a difference to notice */
}

static void test_a_plan_that_saves_much_memory_may_be_a_little_slower(void **state)
{
	(void)state;
	assert_true(is_better(7, 1.01, 10, 1));
	assert_false(is_better(7, 1.03, 10, 1));
	assert_false(is_better(9, 1.01, 10, 1)); /* saves little */
	assert_false(is_better(10, 0.99, 7, 1));
	assert_true(is_better(10, 0.97, 7, 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_of_two_plans_in_the_same_memory_the_faster_one_is_better),
	        cmocka_unit_test(test_a_plan_that_saves_much_memory_may_be_a_little_slower),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
