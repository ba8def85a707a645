/* When a run is said to diverge. */
#include "check.h"

#include "train/divergence.h"

#include <math.h>

/* Calls it `steps` times with that loss and norm: the signs of all of them, and in *at which call, from 1, gave the first. */
static int watch(struct divergence *divergence, int steps, double loss, double norm, int *at)
{
	int all = 0;
	*at = 0;
	for (int i = 1; i <= steps; i++) {
		int signs = divergence_watch(divergence, loss, norm);
		*at = signs && !all ? i : *at;
		assert_false(signs & all); /* each is told once */
		all |= signs;
	}
	return all;
}

static void test_a_loss_that_rises_above_guessing_is_told_soon(void **state)
{
	(void)state;
	struct divergence d = {.most_loss = divergence_most_loss(50000, 0, 0)};
	int at;
	check_near(d.most_loss, 1.2 * log(50000), 1e-12);
	assert_int_equal(watch(&d, 30, 10.8, 1, &at), 0); /* as at random initialisation */
	assert_int_equal(watch(&d, 1, 1e9, 1, &at), 0);   /* one step, which is another warning's */
	assert_int_equal(watch(&d, 20, 9, 1, &at), 0);
	assert_int_equal(watch(&d, 5, 25, 1, &at), DIVERGENCE_LOSS);
	assert_int_equal(at, 3);
	assert_int_equal(watch(&d, 10, 9, 1, &at), 0);
	assert_int_equal(watch(&d, 30, 20, 1, &at), 0); /* lately told */
	assert_int_equal(watch(&d, 40, 20, 1, &at), DIVERGENCE_LOSS);
	assert_int_equal(watch(&d, 500, 20, 1, &at), 0);
}

static void test_a_loss_that_stays_above_guessing_is_told_after_20_steps(void **state)
{
	(void)state;
	struct divergence d = {.most_loss = divergence_most_loss(288, 0.1, 8)};
	int at;
	check_near(d.most_loss, 1.2 * log(288) + 0.8, 1e-12);
	assert_int_equal(watch(&d, 100, 9, 1, &at), DIVERGENCE_LOSS);
	assert_int_equal(at, 20);
	assert_true(divergence_most_loss(1, 0, 0) == 0);
	d = (struct divergence){0}; /* no measure */
	assert_int_equal(watch(&d, 100, 1e9, 1, &at), 0);
}

static void test_a_gradient_of_zero_is_told_unless_all_is_learnt(void **state)
{
	(void)state;
	struct divergence d = {.most_loss = 5};
	int at;
	assert_int_equal(watch(&d, 10, 1e-4, 0, &at), 0);
	assert_int_equal(watch(&d, 10, 2, 1e-30, &at), 0);
	assert_int_equal(watch(&d, 10, 2, 0, &at), DIVERGENCE_GRADIENT);
	assert_int_equal(at, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_loss_that_rises_above_guessing_is_told_soon),
	        cmocka_unit_test(test_a_loss_that_stays_above_guessing_is_told_after_20_steps),
	        cmocka_unit_test(test_a_gradient_of_zero_is_told_unless_all_is_learnt),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
