#include "check.h"

#include "session/lr.h"

#include <math.h>
#include <string.h>

static double number(FILE *file)
{
	double value;
	assert_int_equal(fscanf(file, "%la", &value), 1);
	return value;
}

static enum rh_scheduler named(const char *name)
{
	static const char *const names[] = {[RH_LR_LINEAR] = "linear",
	                                    [RH_LR_COSINE] = "cosine",
	                                    [RH_LR_CONSTANT] = "constant",
	                                    [RH_LR_CONSTANT_WITH_WARMUP] = "constant_with_warmup",
	                                    [RH_LR_COSINE_WITH_MIN_LR] = "cosine_with_min_lr"};
	int i = 0;
	while (strcmp(name, names[i]))
		i++;
	return (enum rh_scheduler)i;
}

/* tests/reference/train/lr.txt, written by tests/reference/lr.py. */
static void test_rates_equal_those_of_transformers(void **state)
{
	(void)state;
	FILE *file = fopen("tests/reference/train/lr.txt", "r");
	if (!file)
		fail_msg("run from the repository's root");
	char name[32];
	int cases = 0;
	for (; fscanf(file, "%31s", name) == 1; cases++) {
		struct rh_lr lr = {.scheduler = named(name), .base = number(file), .min_rate = number(file)};
		double configured = number(file), base = lr.base;
		int64_t warmup = lr.warmup_steps = (int64_t)number(file), total = lr.total_steps = (int64_t)number(file);
		assert_int_equal(rh_lr_warmup_steps(configured, total), warmup);
		for (int64_t step = 0; step < total + 2; step++) {
			double theirs = number(file), ours = rh_lr_at(&lr, step);
			if (!(fabs(ours - theirs) <= 1e-15 * base))
				fail_msg("%s, step %lld of %lld: %.17g, transformers has %.17g", name, (long long)step, (long long)total,
				         ours, theirs);
		}
	}
	fclose(file);
	assert_int_equal(cases, 48);
}

static void test_warm_up_starts_at_zero_and_reaches_the_base(void **state)
{
	(void)state;
	for (enum rh_scheduler s = RH_LR_LINEAR; s <= RH_LR_COSINE_WITH_MIN_LR; s++) {
		const struct rh_lr lr = {s, 2e-4, 0.1, 4, 20};
		assert_true(rh_lr_at(&lr, 0) == (s == RH_LR_CONSTANT ? 2e-4 : 0));
		assert_true(rh_lr_at(&lr, 2) == (s == RH_LR_CONSTANT ? 2e-4 : 1e-4));
		assert_true(rh_lr_at(&lr, 4) == 2e-4);
	}
}

static void test_warm_up_share_is_rounded_up(void **state)
{
	(void)state;
	assert_int_equal(rh_lr_warmup_steps(0, 100), 0);
	assert_int_equal(rh_lr_warmup_steps(0.03, 101), 4);
	assert_int_equal(rh_lr_warmup_steps(1, 100), 1);
	assert_int_equal(rh_lr_warmup_steps(12, 5), 12);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_rates_equal_those_of_transformers),
	        cmocka_unit_test(test_warm_up_starts_at_zero_and_reaches_the_base),
	        cmocka_unit_test(test_warm_up_share_is_rounded_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
