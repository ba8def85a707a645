#include "check.h"

#include "core/log.h"
#include "session/lr.h"

#include <math.h>
#include <string.h>

static double number(FILE *file)
{
	double value;
	assert_int_equal(fscanf(file, "%la", &value), 1);
	return value;
}

/* What the configuration makes of a scheduler's name and kwargs. */
static struct rh_lr course(const char *name, const char *kwargs, double base)
{
	char rate[32];
	snprintf(rate, sizeof rate, "%.17g", base);
	char *argv[] = {"--model_name_or_path",
	                ".",
	                "--output_dir",
	                "none",
	                "--train_file",
	                "tests/reference/train/lr.txt",
	                "--lr_scheduler_type",
	                (char *)(uintptr_t)name,
	                "--learning_rate",
	                rate,
	                "--lr_scheduler_kwargs",
	                (char *)(uintptr_t)kwargs,
	                NULL};
	struct rh_config config;
	check_ok(rh_config_load("train", strcmp(kwargs, "-") ? 12 : 10, argv, NULL, &config));
	struct rh_lr lr = {.scheduler = config.lr_scheduler_type, .base = base, .shape = config.lr_shape};
	assert_true(config.learning_rate == base);
	rh_config_free(&config);
	return lr;
}

/* tests/reference/train/lr.txt, written by tests/reference/lr.py. The tolerance: a product more than theirs, rounded. */
static void test_rates_equal_those_of_transformers(void **state)
{
	(void)state;
	FILE *file = fopen("tests/reference/train/lr.txt", "r");
	if (!file)
		fail_msg("run from the repository's root");
	char name[32], kwargs[80];
	int cases = 0;
	rh_log_quiet(1);
	for (; fscanf(file, "%31s %79s", name, kwargs) == 2; cases++) {
		double base = number(file), configured = number(file);
		struct rh_lr lr = course(name, kwargs, base);
		int64_t warmup = lr.warmup_steps = (int64_t)number(file), total = lr.total_steps = (int64_t)number(file);
		assert_int_equal(rh_lr_warmup_steps(configured, total), warmup);
		for (int64_t step = 0; step < total + 2; step++) {
			double theirs = number(file), ours = rh_lr_at(&lr, step);
			if (!(fabs(ours - theirs) <= 1e-15 * base))
				fail_msg("%s %s, step %lld of %lld: %.17g, transformers has %.17g", name, kwargs, (long long)step,
				         (long long)total, ours, theirs);
		}
	}
	fclose(file);
	assert_int_equal(cases, 124);
}

static void test_warm_up_starts_at_zero_and_reaches_the_base(void **state)
{
	(void)state;
	for (enum rh_scheduler s = RH_LR_LINEAR; s <= RH_LR_WARMUP_STABLE_DECAY; s++) {
		const struct rh_lr lr = {s, 2e-4, 4, 20, {.cycles = 1, .power = 1, .stable_steps = -1, .decay_steps = 4}};
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
