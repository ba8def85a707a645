/* The trial of `stress` where there is no time for the whole row: whatever the length, its chunks are no larger than was planned. */
#include "check.h"

#include "config/config.h"
#include "core/error.h"
#include "train/stress_trial.h"

/* So many seconds are left that `most` tokens of the row are tried. */
static void try_length(const struct rh_config *config, int64_t most, struct rh_stress_tried *out)
{
	double seconds = 1e6, share = 0.5;
	rh_stress_try(config, seconds, share * seconds * (double)config->max_length / ((double)most + 0.5), NULL, NULL, out);
	if (*out->why)
		fail_msg("%lld tokens: %s", (long long)most, out->why);
}

static void test_a_shorter_row_has_the_chunks_that_were_planned(void **state)
{
	(void)state;
	char *argv[] = {"--model_name_or_path", "tests/reference/models/qwen3", "--device", "cpu:1", "--max_length", "2000", "--sequence_chunk",
	                "256", "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "1", "--max_steps", "1"};
	struct rh_config config;
	check_ok(rh_config_load("stress", sizeof argv / sizeof *argv, argv, NULL, &config));
	for (int64_t most = 100; most <= 2000; most += 19) {
		struct rh_stress_tried tried;
		try_length(&config, most, &tried);
		assert_int_equal(tried.reserved_tokens, 2000);
		assert_true(tried.step_tokens <= most && tried.step_tokens > most - 257);
		if (most == 2000)
			assert_true(tried.step_tokens == 2000 && tried.chunks > 4);
	}
	rh_config_free(&config);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_shorter_row_has_the_chunks_that_were_planned),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
