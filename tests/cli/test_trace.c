/* trace_step: what a run records of one step, that recording changes no bit of it, and that nothing is recorded unasked. */
#include "runner.h"

#include "core/json.h"

#include <stdlib.h>

#define ROWS "{\"text\": \"the cat sat on the mat\"}\n{\"text\": \"a dog ran\"}\n{\"text\": \"the end\"}\n{\"text\": \"it is so\"}\n"

enum { LAYERS = 4, SPANS = 4096 }; /* of the model: embedding, two blocks, norm and head */

struct run_case {
	const char *keys;
	/* layers that are updated once: in the step, or beside it. Updates that follow gradients closely may fall out of the step, or be in
	 * twice. */
	int updated[LAYERS], at_least;
	const char *needs; /* a span of this name is there */
};

static const struct run_case cases[] = {
        {"--device cpu:1", {1, 1, 1, 1}, 0, "fused 0-3"},
        {"--device cpu:2 --backward_cuts [1,2,3] --round_micro_batches 2", {1, 1, 1, 1}, 0, "recompute 2"},
        {"--device cpu:2 --optimizer_staleness 1 --dtype bfloat16 --backward_cuts [2]", {1, 1, 1, 1}, 0, "recompute 0-1"},
        /* the table is not trained: steps are joined */
        {"--device cpu:2 --optimizer_staleness 1 --use_peft true --lora_target_modules all-linear", {0, 1, 1, 0}, 0, "forward 0-1"},
        {"--device cpu:2 --max_grad_norm 0", {0}, 1, "update 2"},
        {"--device cpu:1 --max_grad_norm 0 --use_peft true --lora_target_modules all-linear", {0}, 1, "update 2"},
        {"--device cpu:2 --schedule 1f1b-async --max_grad_norm 0 --use_peft true --forward_cuts [2]", {0, 1, 1, 0}, 0, "fused 2-3"},
        {"--device cpu:2 --schedule zb-h1 --forward_cuts [2]", {1, 1, 1, 1}, 0, "weight gradient 0-1"},
        {"--device cpu:2 --forward_cuts [2] --use_peft true --lora_target_modules all-linear --base_model_name_or_path org/base "
         "--model_name_or_path tests/reference/models/gguf-llama/model.gguf",
         {0, 1, 1, 0},
         0,
         "dequantise 0-1"},
        {"--device cpu:1 --spill optimizer --max_nvme 64MiB --nvme_dirs %s/nvme", {1, 1, 1, 1}, 0, "NVMe write"},
};

static void make_good(struct scratch *scratch)
{
	scratch_open(scratch);
	const char *dir = scratch->dir;
	copy_model(dir);
	check_ok(rh_dir_make(path_of("%s/nvme", dir)));
	write_text(path_of("%s/rows.jsonl", dir), ROWS);
	write_text(path_of("%s/run.yaml", dir),
	           path_of("model_name_or_path: %s/hf\ntrain_file: %s/rows.jsonl\nmax_length: 64\nmax_steps: 5\n"
	                   "per_device_train_batch_size: 1\ngradient_accumulation_steps: 4\nlogging_steps: 1\n"
	                   "save_strategy: no\n",
	                   dir, dir));
	setenv("XDG_CONFIG_HOME", dir, 1); /* no profile of this machine's */
}

static const char *weights_in(const char *dir, const char *out)
{
	const char *whole = path_of("%s/%s/model.safetensors", dir, out);
	return rh_file_exists(whole) ? whole : path_of("%s/%s/adapter_model.safetensors", dir, out);
}

struct span {
	int64_t process, thread;
	double begin, end;
};

static int by_place(const void *a, const void *b)
{
	const struct span *x = a, *y = b;
	if (x->process != y->process)
		return x->process < y->process ? -1 : 1;
	if (x->thread != y->thread)
		return x->thread < y->thread ? -1 : 1;
	return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Spans of one lane follow one another: a microsecond's fractions are printed to the third. */
static void check_lanes(struct span *span, size_t count)
{
	qsort(span, count, sizeof *span, by_place);
	for (size_t i = 1; i < count; i++)
		if (span[i].process == span[i - 1].process && span[i].thread == span[i - 1].thread &&
		    span[i].begin < span[i - 1].end - 0.002)
			fail_msg("process %d, thread %d: a span begins at %.3f, before one ends at %.3f", (int)span[i].process,
			         (int)span[i].thread, span[i].begin, span[i - 1].end);
}

static void check_trace(const char *path, const struct run_case *run)
{
	struct span span[SPANS];
	int updated[LAYERS] = {0}, updates = 0, needed = 0;
	size_t count = 0;
	json_error_t error;
	json_t *json = json_load_file(path, 0, &error), *events = json_object_get(json, "traceEvents");
	if (!json)
		fail_msg("%s:%d: %s", path, error.line, error.text);
	for (size_t i = 0; i < json_array_size(events); i++) {
		const json_t *event = json_array_get(events, i);
		const char *name = json_string_value(json_object_get(event, "name"));
		if (strcmp(json_string_value(json_object_get(event, "ph")), "X"))
			continue;
		assert_true(count < SPANS);
		struct span *now = &span[count++];
		now->process = json_integer_value(json_object_get(event, "pid"));
		now->thread = json_integer_value(json_object_get(event, "tid"));
		now->begin = json_number_value(json_object_get(event, "ts"));
		now->end = now->begin + json_number_value(json_object_get(event, "dur"));
		assert_true(now->begin >= 0 && now->end >= now->begin);
		needed |= !strcmp(name, run->needs);
		if (strncmp(name, "update ", 7))
			continue;
		assert_int_equal(now->process, 0);
		int layer = atoi(name + 7);
		assert_in_range(layer, 0, LAYERS - 1);
		updated[layer]++;
		updates++;
	}
	if (!needed)
		fail_msg("%s: no span is called %s", run->keys, run->needs);
	assert_true(updates >= run->at_least);
	for (int l = 0; !run->at_least && l < LAYERS; l++)
		if (updated[l] != run->updated[l])
			fail_msg("%s: layer %d is updated %d times instead of %d", run->keys, l, updated[l], run->updated[l]);
	check_lanes(span, count);
	json_decref(json);
}

static void test_a_recorded_run_is_the_unrecorded_one(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char keys[256];
		size_t length;
		snprintf(keys, sizeof keys, cases[i].keys, dir);
		run_ok(&scratch, "train %s/run.yaml --output_dir %s/plain --json %s", dir, dir, keys);
		run_ok(&scratch, "train %s/run.yaml --output_dir %s/traced --trace_step 3 --json %s", dir, dir, keys);
		assert_true(same_file(weights_in(dir, "plain"), weights_in(dir, "traced")));
		assert_false(rh_file_exists(path_of("%s/plain/trace.json", dir)) || rh_file_exists(path_of("%s/plain/trace.svg", dir)));
		check_trace(path_of("%s/traced/trace.json", dir), &cases[i]);
		char *svg = read_bytes(path_of("%s/traced/trace.svg", dir), &length);
		assert_true(!strncmp(svg, "<!-- Roundhouse --><svg ", 24) && !strcmp(svg + length - 7, "</svg>\n"));
		assert_non_null(strstr(svg, ">host: updates</text>"));
		free(svg);
		check_ok(rh_dir_remove(path_of("%s/plain", dir)));
		check_ok(rh_dir_remove(path_of("%s/traced", dir)));
	}
	scratch_close(&scratch);
}

/* A run's last step has none after it: however long a run is, a step's line is the same. */
static void test_joined_steps_are_told_of_as_the_last_one_is(void **state)
{
	(void)state;
	enum { MOST = 5 };
	struct scratch scratch;
	double told[MOST][MOST][2];
	make_good(&scratch);
	for (int steps = 1; steps <= MOST; steps++) {
		char line[2048];
		int lines = 0;
		write_text(path_of("%s/run.yaml", scratch.dir),
		           path_of("model_name_or_path: %s/hf\ntrain_file: %s/rows.jsonl\nmax_length: 64\nmax_steps: %d\n"
		                   "per_device_train_batch_size: 1\ngradient_accumulation_steps: 2\nlogging_steps: 1\n"
		                   "learning_rate: 1.0e-2\nlr_scheduler_type: constant\nsave_strategy: no\n",
		                   scratch.dir, scratch.dir, steps));
		run_ok(&scratch,
		       "train %s/run.yaml --output_dir %s/%d --device cpu:2 --optimizer_staleness 1 --use_peft true --lora_target_modules "
		       "all-linear --json",
		       scratch.dir, scratch.dir, steps);
		FILE *file = fopen(path_of("%s/%d/metrics.jsonl", scratch.dir, steps), "r");
		assert_non_null(file);
		for (; fgets(line, sizeof line, file); lines++) {
			json_t *json = json_loads(line, 0, NULL);
			assert_true(lines < steps && json_integer_value(json_object_get(json, "step")) == lines + 1);
			told[steps - 1][lines][0] = json_number_value(json_object_get(json, "loss"));
			told[steps - 1][lines][1] = json_number_value(json_object_get(json, "grad_norm"));
			json_decref(json);
		}
		fclose(file);
		assert_int_equal(lines, steps);
		assert_memory_equal(told[steps - 1], told[0], sizeof told[0][0]);
		for (int s = 0; steps > 1 && s < steps - 1; s++)
			assert_memory_equal(told[steps - 1][s], told[steps - 2][s], sizeof told[0][0]);
	}
	for (int s = 1; s < MOST; s++)
		assert_true(told[MOST - 1][s][0] != told[MOST - 1][s - 1][0]);
	scratch_close(&scratch);
}

static void test_steps_that_cannot_be_joined_are_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	for (int lora = 0; lora < 2; lora++) {
		struct ran ran = run_line(&scratch, "train %s/run.yaml --output_dir %s/%d --optimizer_staleness 1 %s", scratch.dir,
		                          scratch.dir, lora, lora ? "--use_peft true --lora_target_modules all-linear" : "");
		assert_int_equal(ran.status, 0);
		assert_int_equal(!strstr(ran.err, "before the next one begins, as the embedding is trained and tied to the head"), lora);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

static void test_a_step_that_does_not_come_is_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	struct ran ran = run_line(&scratch, "train %s/run.yaml --output_dir %s/out --trace_step 6", scratch.dir, scratch.dir);
	assert_int_equal(ran.status, 0);
	assert_non_null(strstr(ran.err, "trace_step: nothing will be recorded, as this run goes from step 1 to 5"));
	assert_false(rh_file_exists(path_of("%s/out/trace.json", scratch.dir)));
	run_free(&ran);
	ran = run_line(&scratch, "train %s/run.yaml --output_dir %s/out2 --trace_step 1", scratch.dir, scratch.dir);
	check_failed(&ran, "trace_step");
	run_free(&ran);
	scratch_close(&scratch);
}

/* What a run left that was ended before its first checkpoint is in nobody's way. */
static void test_a_recording_left_behind_is_written_over(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/out", scratch.dir)));
	write_text(path_of("%s/out/trace.json", scratch.dir), "old");
	write_text(path_of("%s/out/trace.svg", scratch.dir), "old");
	run_ok(&scratch, "train %s/run.yaml --output_dir %s/out --trace_step 5", scratch.dir, scratch.dir);
	check_trace(path_of("%s/out/trace.json", scratch.dir), &cases[0]);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_recorded_run_is_the_unrecorded_one),
	        cmocka_unit_test(test_joined_steps_are_told_of_as_the_last_one_is),
	        cmocka_unit_test(test_steps_that_cannot_be_joined_are_told_of),
	        cmocka_unit_test(test_a_step_that_does_not_come_is_told_of),
	        cmocka_unit_test(test_a_recording_left_behind_is_written_over),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
