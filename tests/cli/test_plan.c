/* plan, as a person calls it: the same bytes twice, what a run then reserves, machines by name, and what does not fit. */
#include "runner.h"

#include "core/json.h"

#define ROWS "{\"text\": \"the cat sat on the mat\"}\n{\"text\": \"a dog ran\"}\n{\"text\": \"the end\"}\n{\"text\": \"it is so\"}\n"

static void make_good(struct scratch *scratch)
{
	scratch_open(scratch);
	const char *dir = scratch->dir;
	copy_model(dir);
	write_text(path_of("%s/rows.jsonl", dir), ROWS);
	write_text(path_of("%s/run.yaml", dir), path_of("model_name_or_path: %s/hf\ntrain_file: %s/rows.jsonl\noutput_dir: %s/out\n"
	                                                "max_length: 64\nmax_steps: 2\nper_device_train_batch_size: 1\n"
	                                                "gradient_accumulation_steps: 4\n",
	                                                dir, dir, dir));
	setenv("XDG_CONFIG_HOME", dir, 1); /* no profile of this machine's */
}

static json_t *result_of(const struct ran *ran)
{
	json_error_t error;
	if (ran->status)
		fail_msg("exit %d: %s", ran->status, ran->err);
	json_t *json = json_loads(ran->out, 0, &error);
	assert_non_null(json);
	return json;
}

static int64_t bytes_at(const json_t *json, const char *outer, const char *inner, const char *tier)
{
	const json_t *at = json_object_get(json_object_get(json, outer), inner);
	at = tier ? json_object_get(at, tier) : at;
	assert_true(json_is_integer(at));
	return json_integer_value(at);
}

static void test_plan_twice_prints_the_same_bytes(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	struct ran first = run_line(&scratch, "plan %s/run.yaml --hardware rtx4090x8 --json", scratch.dir);
	struct ran second = run_line(&scratch, "plan %s/run.yaml --hardware rtx4090x8 --json", scratch.dir);
	assert_string_equal(first.out, second.out);
	json_t *json = result_of(&first);
	static const char *const fields[] = {"fits",       "tokens_per_second", "step_seconds",   "bubble",
	                                     "bottleneck", "longest_sequence",  "speed_of_light", "tiers",
	                                     "stages"};
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
		assert_non_null(json_object_get(json, fields[i]));
	assert_true(json_number_value(json_object_get(json, "tokens_per_second")) > 0);
	json_decref(json);
	run_free(&first);
	run_free(&second);
	scratch_close(&scratch);
}

static void test_plan_says_the_memory_that_the_run_reserves(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	struct ran plan = run_line(&scratch, "plan %s/run.yaml --max_ram 2GiB --max_vram 64MiB --device cpu:2 --json", scratch.dir);
	struct ran train = run_line(&scratch, "train %s/run.yaml --max_ram 2GiB --max_vram 64MiB --device cpu:2 --json", scratch.dir);
	json_t *said = result_of(&plan), *done = result_of(&train);
	int64_t planned = bytes_at(done, "plan", "peak_bytes", "ram");
	assert_int_equal(bytes_at(said, "tiers", "ram", "used_bytes"), planned);
	assert_true(json_number_value(json_object_get(json_object_get(done, "plan"), "tokens_per_second")) > 0);
	json_decref(said);
	json_decref(done);
	run_free(&plan);
	run_free(&train);
	scratch_close(&scratch);
}

static void test_plan_that_does_not_fit_says_what_would(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	struct ran ran = run_line(&scratch, "plan %s/run.yaml --hardware rtx4090x8 --max_vram 64KiB --json", scratch.dir);
	json_t *json = result_of(&ran);
	assert_true(json_is_false(json_object_get(json, "fits")));
	assert_non_null(json_object_get(json_object_get(json, "mend"), "change"));
	json_decref(json);
	run_free(&ran);
	ran = run_line(&scratch, "plan %s/run.yaml --hardware nosuchbox", scratch.dir);
	check_failed(&ran, "no hardware profile 'nosuchbox'");
	run_free(&ran);
	ran = run_line(&scratch, "train %s/run.yaml --device sim:rtx4090x8", scratch.dir);
	check_failed(&ran, "is a simulated machine");
	run_free(&ran);
	scratch_close(&scratch);
}

static double speed_with(const struct scratch *scratch, const char *flags)
{
	struct ran ran;
	run_start(scratch, path_of("plan %s/run.yaml --hardware rtx4090x8 --gpus 1 --dtype bfloat16 --json %s", scratch->dir, flags), 0,
	          &ran);
	run_wait(&ran);
	json_t *json = result_of(&ran);
	double speed = json_number_value(json_object_get(json, "tokens_per_second"));
	assert_true(json_number_value(json_object_get(json, "speed_of_light")) < 1);
	json_decref(json);
	run_free(&ran);
	return speed;
}

static void test_plan_knows_what_products_are_made_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	assert_true(speed_with(&scratch, "") > 0);
	assert_true(speed_with(&scratch, "--accumulation fp16") > 0);
	assert_true(speed_with(&scratch, "--fp8 true") > 0);
	struct ran ran = run_line(&scratch, "plan %s/run.yaml --hardware a800x8 --dtype bfloat16 --fp8 true", scratch.dir);
	check_failed(&ran, "peaks has no f8");
	run_free(&ran);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_plan_twice_prints_the_same_bytes),
	        cmocka_unit_test(test_plan_says_the_memory_that_the_run_reserves),
	        cmocka_unit_test(test_plan_that_does_not_fit_says_what_would),
	        cmocka_unit_test(test_plan_knows_what_products_are_made_of),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
