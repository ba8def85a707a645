#include "check.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "observe/metrics.h"
#include "observe/trainer_state.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int enter(void **state)
{
	static char dir[32];
	strcpy(dir, "/tmp/rh-metrics-XXXXXX");
	assert_non_null(mkdtemp(dir));
	assert_int_equal(chdir(dir), 0);
	*state = dir;
	return 0;
}

static int leave(void **state)
{
	assert_int_equal(chdir("/"), 0);
	check_ok(rh_dir_remove(*state));
	return 0;
}

static const char *read_text(const char *path)
{
	static char text[65536];
	struct rh_bytes map;
	check_ok(rh_file_load(path, &map));
	assert_true(map.length < sizeof text);
	memcpy(text, map.bytes, map.length);
	text[map.length] = 0;
	rh_bytes_free(&map);
	return text;
}

static void write_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	assert_int_equal(fclose(file), 0);
}

static const struct rh_step_report step_report = {.step = 10,
                                                  .steps = 20,
                                                  .epoch = 0.5,
                                                  .loss = 1.0 / 3,
                                                  .grad_norm = NAN,
                                                  .learning_rate = 2e-4,
                                                  .tokens_per_second = 1000,
                                                  .elapsed_seconds = 12.5,
                                                  .trained_tokens = 123456789012,
                                                  .compute_seconds = 1.25,
                                                  .weights_seconds = 0.5,
                                                  .optimizer_seconds = 0.25,
                                                  .ram_peak_bytes = 7};
static const struct rh_eval_report eval_report = {
        .step = 10, .epoch = 0.5, .loss = 2.5, .tokens = 9, .rows = 3, .seconds = 1.5, .elapsed_seconds = 14};

static void test_metrics_one_line_each_and_flushed(void **state)
{
	(void)state;
	struct rh_metrics *metrics;
	write_text("m.jsonl", "left from before\n");
	check_ok(rh_metrics_open("m.jsonl", 0, &metrics));
	check_ok(rh_metrics_step(metrics, &step_report));
	check_ok(rh_metrics_eval(metrics, &eval_report));
	struct rh_step_report spilled = step_report;
	spilled.nvme_drives = 2;
	spilled.nvme_wait_seconds = 0.125;
	spilled.nvme_read_bytes[0] = 5;
	spilled.nvme_written_bytes[1] = INT64_MAX;
	check_ok(rh_metrics_step(metrics, &spilled));
	const char *last = strstr(read_text("m.jsonl"), "\"nvme_wait_seconds\"");
	assert_non_null(last);
	assert_string_equal(
	        last, "\"nvme_wait_seconds\": 0.125, \"nvme_read_bytes\": [5, 0], \"nvme_written_bytes\": [0, 9223372036854775807]}\n");
	rh_metrics_close(metrics);
	check_ok(rh_metrics_open("m.jsonl", 0, &metrics));
	check_ok(rh_metrics_step(metrics, &step_report));
	check_ok(rh_metrics_eval(metrics, &eval_report));
	assert_string_equal(read_text("m.jsonl"),
	                    "{\"step\": 10, \"epoch\": 0.5, \"loss\": 0.3333333333333333, \"grad_norm\": null, \"learning_rate\": 0.0002, "
	                    "\"tokens_per_second\": 1000, \"elapsed_seconds\": 12.5, \"trained_tokens\": 123456789012, "
	                    "\"compute_seconds\": 1.25, \"weights_wait_seconds\": 0.5, "
	                    "\"activations_wait_seconds\": 0, \"gradients_wait_seconds\": 0, \"optimizer_wait_seconds\": 0.25, "
	                    "\"vram_peak_bytes\": 0, \"ram_peak_bytes\": 7, "
	                    "\"nvme_peak_bytes\": 0}\n"
	                    "{\"step\": 10, \"epoch\": 0.5, \"eval_loss\": 2.5, \"eval_tokens\": 9, \"eval_rows\": 3, \"eval_runtime\": "
	                    "1.5, \"elapsed_seconds\": 14}\n");
	rh_metrics_close(metrics);
	rh_metrics_close(NULL);
}

static void test_metrics_numbers_read_back_the_same(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < 2000; i++) {
		struct rh_metrics *metrics;
		struct rh_step_report report = step_report;
		uint64_t bits = (uint64_t)check_random(&seed) << 32 | check_random(&seed);
		memcpy(&report.loss, &bits, sizeof bits);
		report.grad_norm = (double)check_uniform(&seed);
		check_ok(rh_metrics_open("n.jsonl", 0, &metrics));
		check_ok(rh_metrics_step(metrics, &report));
		rh_metrics_close(metrics);
		json_t *line;
		check_ok(rh_json_load("n.jsonl", &line));
		json_t *loss = json_object_get(line, "loss");
		if (isfinite(report.loss))
			assert_true(json_number_value(loss) == report.loss);
		else
			assert_true(json_is_null(loss));
		assert_true(json_number_value(json_object_get(line, "grad_norm")) == report.grad_norm);
		json_decref(line);
	}
}

static void reopen(const char *text, int64_t keep_step, const char *kept)
{
	struct rh_metrics *metrics;
	write_text("r.jsonl", text);
	check_ok(rh_metrics_open("r.jsonl", keep_step, &metrics));
	assert_string_equal(read_text("r.jsonl"), kept);
	check_ok(rh_metrics_eval(metrics, &eval_report));
	assert_int_equal(strncmp(read_text("r.jsonl"), kept, strlen(kept)), 0);
	assert_string_equal(read_text("r.jsonl") + strlen(kept), "{\"step\": 10, \"epoch\": 0.5, \"eval_loss\": 2.5, \"eval_tokens\": 9, "
	                                                         "\"eval_rows\": 3, \"eval_runtime\": 1.5, \"elapsed_seconds\": 14}\n");
	rh_metrics_close(metrics);
}

static void test_metrics_resume_cuts_back_to_the_step(void **state)
{
	(void)state;
	static const char text[] = "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 2, \"eval_loss\": 1}\n{\"step\": 3}\n{\"step\": 4}\n";
	reopen(text, 2, "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 2, \"eval_loss\": 1}\n");
	reopen(text, 9, text);
	reopen(text, 0, "");
	reopen("{\"step\": 1}\n{\"st", 9, "{\"step\": 1}\n"); /* torn */
	reopen("", 9, "");
	unlink("r.jsonl");
	struct rh_metrics *metrics;
	check_ok(rh_metrics_open("r.jsonl", 9, &metrics));
	rh_metrics_close(metrics);
	static const char *const bad[] = {"{\"step\": 1}\nnonsense\n{\"step\": 2}\n", "{\"step\": 1}\n{\"loss\": 2}\n",
	                                  "{\"step\": 1}\n[]\n", "{\"step\": 1}\n\n"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		reopen(bad[i], 9, "{\"step\": 1}\n");
	assert_true(rh_metrics_open("no/such/dir.jsonl", 0, &metrics) < 0);
	assert_non_null(strstr(rh_error(-ENOENT), "no/such/dir.jsonl"));
}

/* A file-size limit stands for a full disk: the line that does not fit is taken back. */
static void test_metrics_full_disk_leaves_whole_lines(void **state)
{
	(void)state;
	struct rlimit before, tight;
	struct rh_metrics *metrics;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	check_ok(rh_metrics_open("full.jsonl", 0, &metrics));
	tight = before;
	tight.rlim_cur = 250;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
	int first = rh_metrics_eval(metrics, &eval_report), second = rh_metrics_step(metrics, &step_report);
	char line[256];
	snprintf(line, sizeof line, "%s", rh_error(second));
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	check_ok(first);
	assert_int_equal(second, -EFBIG);
	assert_non_null(strstr(line, "full.jsonl: cannot write"));
	const char *text = read_text("full.jsonl");
	assert_true(strlen(text) > 0 && text[strlen(text) - 1] == '\n' && !strchr(text, '\n')[1]);
	check_ok(rh_metrics_step(metrics, &step_report));
	rh_metrics_close(metrics);
}

static void fill(struct rh_trainer_state *state)
{
	check_ok(rh_trainer_state_create(state));
	state->global_step = 10;
	state->max_steps = 20;
	state->num_train_epochs = 1;
	state->epoch = 0.5;
	state->train_batch_size = 8;
	state->logging_steps = 10;
	state->eval_steps = 10;
	state->save_steps = 500;
	state->num_input_tokens_seen = 4096;
	state->total_flos = 1e15;
	check_ok(rh_trainer_state_log_step(state, &step_report));
	check_ok(rh_trainer_state_log_eval(state, &eval_report));
	check_ok(rh_trainer_state_log_end(state, &(struct rh_run_report){10, 0.5, 1.5, 80, 4.0, 1e15}));
}

static void test_trainer_state_has_the_keys_of_hugging_face(void **state)
{
	(void)state;
	/* dataclasses.fields(transformers.TrainerState), 5.23 */
	static const char *const keys[] = {"epoch",
	                                   "global_step",
	                                   "max_steps",
	                                   "logging_steps",
	                                   "eval_steps",
	                                   "save_steps",
	                                   "train_batch_size",
	                                   "num_train_epochs",
	                                   "num_input_tokens_seen",
	                                   "total_flos",
	                                   "log_history",
	                                   "best_metric",
	                                   "best_global_step",
	                                   "best_model_checkpoint",
	                                   "is_local_process_zero",
	                                   "is_world_process_zero",
	                                   "is_hyper_param_search",
	                                   "trial_name",
	                                   "trial_params",
	                                   "stateful_callbacks"};
	struct rh_trainer_state trainer;
	fill(&trainer);
	check_ok(rh_trainer_state_save(&trainer, "trainer_state.json"));
	rh_trainer_state_free(&trainer);
	json_t *file;
	check_ok(rh_json_load("trainer_state.json", &file));
	assert_int_equal(json_object_size(file), sizeof keys / sizeof keys[0]);
	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
		assert_non_null(json_object_get(file, keys[i]));
	json_decref(file);
	assert_ptr_equal(strstr(read_text("trainer_state.json"), "{\n  \"best_global_step\": null,\n  \"best_metric\": null,\n"),
	                 read_text("trainer_state.json"));
}

static void test_trainer_state_loads_back(void **state)
{
	(void)state;
	struct rh_trainer_state trainer, back;
	fill(&trainer);
	check_ok(rh_trainer_state_save(&trainer, "a.json"));
	check_ok(rh_trainer_state_load("a.json", &back));
	assert_true(json_equal(trainer.log_history, back.log_history));
	assert_int_equal(json_array_size(back.log_history), 3);
	assert_true(json_is_null(json_object_get(json_array_get(back.log_history, 0), "grad_norm")));
	assert_true(back.global_step == 10 && back.max_steps == 20 && back.epoch == 0.5 && back.total_flos == 1e15 &&
	            back.save_steps == 500);
	check_ok(rh_trainer_state_save(&back, "b.json"));
	char first[8192];
	snprintf(first, sizeof first, "%s", read_text("a.json"));
	assert_string_equal(first, read_text("b.json"));
	rh_trainer_state_free(&trainer);
	rh_trainer_state_free(&back);
}

static void test_trainer_state_bad_files_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *text, *words;
	} bad[] = {
	        {"", "bad.json"},
	        {"[]", "bad.json: expected a JSON object"},
	        {"{\"epoch\": 1, \"log_history\": []}", "'global_step' is missing"},
	        {"{\"global_step\": -1, \"epoch\": 1, \"log_history\": []}", "'global_step' must not be negative"},
	        {"{\"global_step\": 1.5, \"epoch\": 1, \"log_history\": []}", "'global_step' must be a whole number"},
	        {"{\"global_step\": 1, \"log_history\": []}", "'epoch' is missing"},
	        {"{\"global_step\": 1, \"epoch\": 1}", "'log_history' must be a list"},
	        {"{\"global_step\": 1, \"epoch\": 1, \"log_history\": [{}, 3]}", "entry 1 of 'log_history' must be an object"},
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct rh_trainer_state trainer;
		write_text("bad.json", bad[i].text);
		int rc = rh_trainer_state_load("bad.json", &trainer);
		assert_int_equal(rc, -EINVAL);
		if (!strstr(rh_error(rc), bad[i].words))
			fail_msg("%s", rh_error(rc));
		rh_trainer_state_free(&trainer);
	}
}

/* Fails each allocation in turn: no leak, and the file stands whole or not at all. */
static void test_observe_survives_every_failed_allocation(void **state)
{
	(void)state;
	struct rh_trainer_state trainer;
	fill(&trainer);
	int rc = -ENOMEM;
	uint64_t n;
	for (n = 1; rc == -ENOMEM; n++) {
		unlink("s.json");
		rh_alloc_fail_nth(n);
		rc = rh_trainer_state_save(&trainer, "s.json");
		rh_alloc_fail_nth(0);
		assert_true(rc == 0 || !rh_file_exists("s.json"));
	}
	check_ok(rc);
	assert_true(n > 2);
	rh_trainer_state_free(&trainer);
	rc = -ENOMEM;
	for (n = 1; rc == -ENOMEM; n++) {
		struct rh_metrics *metrics;
		rh_alloc_fail_nth(n);
		rc = rh_metrics_open("s.jsonl", 0, &metrics);
		if (!rc)
			rc = rh_metrics_step(metrics, &step_report);
		rh_alloc_fail_nth(0);
		rh_metrics_close(metrics);
	}
	check_ok(rc);
	assert_true(n > 3);
}

/* Any number of lines: at most so many are kept, in order: the last ones, and of the rest some at equal distances, evaluations too. */
static void test_a_long_history_is_thinned_out(void **state)
{
	(void)state;
	enum { STEPS = 50 * RH_HISTORY_MOST };
	struct rh_trainer_state trainer;
	check_ok(rh_trainer_state_create(&trainer));
	trainer.logging_steps = 1;
	trainer.eval_steps = 5;
	for (int64_t step = 1; step <= STEPS; step++) {
		struct rh_step_report report = {.step = step, .loss = (double)step};
		struct rh_eval_report eval = {.step = step, .loss = 1};
		check_ok(rh_trainer_state_log_step(&trainer, &report));
		if (step % 5 == 0)
			check_ok(rh_trainer_state_log_eval(&trainer, &eval));
		assert_true(json_array_size(trainer.log_history) <= RH_HISTORY_MOST);
	}
	size_t i;
	json_t *entry;
	int64_t last[2] = {0, 0}, apart[2] = {0, 0};
	json_array_foreach(trainer.log_history, i, entry)
	{
		int is_step = json_object_get(entry, "loss") != NULL;
		int64_t step = json_integer_value(json_object_get(entry, "step"));
		assert_true(step > last[is_step]);
		apart[is_step] = step - last[is_step] > apart[is_step] ? step - last[is_step] : apart[is_step];
		last[is_step] = step;
	}
	for (int k = 0; k < 2; k++) {
		assert_int_equal(last[k], STEPS);
		assert_true(apart[k] < 10 * STEPS / RH_HISTORY_MOST);
	}
	rh_trainer_state_free(&trainer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_metrics_one_line_each_and_flushed),
	        cmocka_unit_test(test_metrics_numbers_read_back_the_same),
	        cmocka_unit_test(test_metrics_resume_cuts_back_to_the_step),
	        cmocka_unit_test(test_metrics_full_disk_leaves_whole_lines),
	        cmocka_unit_test(test_trainer_state_has_the_keys_of_hugging_face),
	        cmocka_unit_test(test_trainer_state_loads_back),
	        cmocka_unit_test(test_trainer_state_bad_files_are_refused),
	        cmocka_unit_test(test_a_long_history_is_thinned_out),
	        cmocka_unit_test(test_observe_survives_every_failed_allocation),
	};
	return cmocka_run_group_tests(tests, enter, leave);
}
