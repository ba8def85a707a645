/* roundhouse plan EXPERIMENT.yaml: what it prints, twice the same, and what it refuses. */
#include "cli/runner.h"

#include "core/json.h"

static void test_plan_prints_published_and_predicted(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	const char *line = "plan examples/anchors/llama-3.1-8b.yaml --hardware rtx4090x8 --as published --json";
	struct ran first = run_line(&scratch, "%s", line), second = run_line(&scratch, "%s", line);
	assert_int_equal(first.status, 0);
	assert_string_equal(first.out, second.out);
	json_t *json;
	check_ok(rh_json_parse(first.out, strlen(first.out), "plan", &json));
	check_near(json_number_value(json_object_get(json_object_get(json, "async"), "published_tokens_per_second")), 24275, 0);
	check_near(json_number_value(json_object_get(json_object_get(json_object_get(json, "bubbles"), "roundpipe"), "recomputed")), 14.28,
	           0.05);
	assert_int_equal(json_integer_value(json_object_get(json, "devices")), 8);
	json_decref(json);
	run_free(&first);
	run_free(&second);
	struct ran text = run_line(&scratch, "plan examples/anchors/gpt-oss-20b.yaml --hardware=rtx4090x8 --gpus 4");
	assert_int_equal(text.status, 0);
	assert_non_null(strstr(text.out, "on 4 x NVIDIA GeForce RTX 4090"));
	assert_non_null(strstr(text.out, "\nsync "));
	run_free(&text);
	scratch_close(&scratch);
}

static void test_plan_of_an_experiment_refuses_what_cannot_be(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
	        {"", "--hardware: which machine"},
	        {"--hardware none", "no hardware profile 'none'"},
	        {"--hardware", "--hardware: expected the name"},
	        {"--hardware h100x1", "were timed on NVIDIA GeForce RTX 4090"},
	        {"--hardware rtx4090x8 --gpus 9", "rtx4090x8 has 8"},
	        {"--hardware rtx4090x8 --gpus 0", "--gpus"},
	        {"--hardware rtx4090x8 --as original", "--as published"},
	        {"--hardware rtx4090x8 --fast", "fast"},
	        {"--hardware rtx4090x8 --max-length 8", "max_length: of an experiment"},
	        {"--hardware=rtx4090x8 --compare", "--compare: an experiment is known"},
	};
	struct scratch scratch;
	scratch_open(&scratch);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ran ran;
		run_start(&scratch, path_of("plan examples/anchors/qwen3-1.7b.yaml %s", cases[i][0]), 0, &ran);
		run_wait(&ran);
		check_failed(&ran, cases[i][1]);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_plan_prints_published_and_predicted),
	        cmocka_unit_test(test_plan_of_an_experiment_refuses_what_cannot_be),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
