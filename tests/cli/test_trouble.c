/* Numbers in trouble, and evaluations that get better or do not: what a run skips, when it stops, and what its result is then. */
#include "cli/good.h"

#include "core/json.h"

#include <math.h>
#include <sched.h>
#include <sys/mount.h>

static void load_json(const char *path, json_t **out)
{
	check_ok(rh_json_load(path, out));
}

static json_t *state_of(const char *dir)
{
	json_t *json;
	load_json(path_of("%s/trainer_state.json", dir), &json);
	return json;
}

static double logged_loss(const char *dir, size_t line)
{
	json_t *trainer = state_of(dir);
	double loss = json_number_value(json_object_get(json_array_get(json_object_get(trainer, "log_history"), line), "loss"));
	json_decref(trainer);
	return loss;
}

static int same_adapter(const char *a, const char *b)
{
	return same_file(path_of("%s/adapter_model.safetensors", a), path_of("%s/adapter_model.safetensors", b));
}

static struct ran run_spoilt(const struct scratch *scratch, const char *steps, const char *more)
{
	setenv("RH_SPOIL_STEPS", steps, 1);
	struct ran ran = run_line(scratch, "train %s/run.yaml %s%s%s", scratch->dir, strstr(more, "--save_steps") ? "" : "--save_steps 1 ",
	                          strstr(more, "--logging_steps") ? "" : "--logging_steps 1 ", more);
	unsetenv("RH_SPOIL_STEPS");
	return ran;
}

static int count_of(const char *text, const char *part)
{
	int count = 0;
	for (const char *at = text; (at = strstr(at, part)); at++)
		count++;
	return count;
}

static void test_a_step_whose_gradient_is_not_finite_is_skipped(void **state)
{
	(void)state;
	static const char *const ways[] = {"--use_peft true", "--use_peft true --device cpu:2 --bf16 true", "--use_peft false",
	                                   "--use_peft false --bf16 true --state_layout split8"};
	for (int i = 0; i < 4; i++) {
		struct scratch scratch;
		char out[96];
		make_good(&scratch);
		snprintf(out, sizeof out, "%s/out", scratch.dir);
		struct ran ran = run_spoilt(&scratch, "3-4", path_of("--max_steps 5 %s", ways[i]));
		if (ran.status || !strstr(ran.err, "warning: step 3 is skipped: the gradient of ") ||
		    !strstr(ran.err, "is not finite (loss ") || !strstr(ran.err, "2 skipped in a row, 2 in all"))
			fail_msg("way %d: exit %d: %s", i, ran.status, ran.err);
		run_free(&ran);
		const char *file = i == 2 || i == 3 ? "model.safetensors" : "adapter_model.safetensors";
		/* nothing of it was applied, neither to weights nor to moments, and the steps after it are good */
		static const char *const parts[] = {NULL, "optimizer.safetensors"};
		for (int part = 0; part < 2; part++) {
			const char *name = parts[part] ? parts[part] : file;
			assert_true(same_file(path_of("%s/checkpoint-2/%s", out, name), path_of("%s/checkpoint-3/%s", out, name)));
			assert_true(same_file(path_of("%s/checkpoint-2/%s", out, name), path_of("%s/checkpoint-4/%s", out, name)));
			assert_false(same_file(path_of("%s/checkpoint-4/%s", out, name), path_of("%s/checkpoint-5/%s", out, name)));
		}
		json_t *run = NULL, *trainer = state_of(out);
		load_json(path_of("%s/checkpoint-5/run_state.json", out), &run);
		assert_int_equal(json_integer_value(json_object_get(run, "skipped_steps")), 2);
		json_t *last = json_array_get(json_object_get(trainer, "log_history"), 5);
		assert_true(isfinite(json_number_value(json_object_get(last, "train_loss"))) &&
		            json_number_value(json_object_get(last, "train_loss")) > 0);
		json_decref(run);
		json_decref(trainer);
		/* the mean of a logged line is of the steps that count: here the first two, which as one line say what they said as two */
		double each[2], mean;
		for (int step = 0; step < 2; step++)
			each[step] = logged_loss(out, (size_t)step);
		ran = run_spoilt(&scratch, "3-4", path_of("--max_steps 5 --logging_steps 4 --output_dir %s/mean %s", scratch.dir, ways[i]));
		assert_int_equal(ran.status, 0);
		run_free(&ran);
		mean = logged_loss(path_of("%s/mean", scratch.dir), 0);
		check_near(mean, (each[0] + each[1]) / 2, 1e-6);
		scratch_close(&scratch);
	}
}

static void test_many_bad_steps_in_a_row_stop_the_run_on_good_weights(void **state)
{
	(void)state;
	struct scratch scratch;
	char out[96];
	make_good(&scratch);
	snprintf(out, sizeof out, "%s/out", scratch.dir);
	struct ran ran = run_spoilt(&scratch, "3-100", "--use_peft true --max_steps 20 --max_bad_steps 4 --save_strategy no");
	check_failed(&ran, "stopped after step 6, whose checkpoint is written: the gradients of 4 steps in a row were not finite");
	assert_int_equal(count_of(ran.err, " is skipped: "), 4);
	run_free(&ran);
	ran = run_spoilt(&scratch, "100", path_of("--use_peft true --max_steps 2 --output_dir %s/two", scratch.dir));
	assert_int_equal(ran.status, 0);
	run_free(&ran);
	/* another schedule of the learning rate would differ: those of 2 and of 20 steps do, so the good weights are compared by resuming */
	ran = run_spoilt(&scratch, "100", "--use_peft true --max_steps 8 --resume_from_checkpoint true");
	if (ran.status)
		fail_msg("%s", ran.err);
	run_free(&ran);
	assert_false(same_adapter(out, path_of("%s/two", scratch.dir)));
	scratch_close(&scratch);
}

static const char *const unskippable[] = {"--max_grad_norm 0", "--optimizer_staleness 1",
                                          "--schedule 1f1b-async --device cpu:2 --max_grad_norm 0"};
enum { UNSKIPPABLE = sizeof unskippable / sizeof *unskippable };

static void check_said(const struct ran *ran, int status, const char *part)
{
	if (ran->status != status || !strstr(ran->err, part))
		fail_msg("exit %d, not '%s': %s", ran->status, part, ran->err);
}

/* Steps that metrics.jsonl has a line of. */
static int logged_steps(const char *out)
{
	size_t length;
	char *text = read_bytes(path_of("%s/metrics.jsonl", out), &length);
	int lines = count_of(text, "\"loss\"");
	free(text);
	return lines;
}

/* Blocks before the bad one may have been updated: the run returns to its newest checkpoint, and leaves the step out. */
static void test_without_clipping_or_with_staleness_a_run_returns_and_leaves_the_step_out(void **state)
{
	(void)state;
	for (int i = 0; i < UNSKIPPABLE; i++) {
		struct scratch scratch;
		char out[96];
		json_t *run;
		make_good(&scratch);
		snprintf(out, sizeof out, "%s/out", scratch.dir);
		struct ran ran = run_spoilt(&scratch, "4", path_of("--use_peft true --max_steps 6 --save_steps 2 %s", unskippable[i]));
		check_said(&ran, 0, "warning: step 4: the loss is ");
		check_said(&ran, 0, ", first in base_model.model.model.layers.0.");
		check_said(&ran, 0, "/out/checkpoint-2, and will leave that step out");
		check_said(&ran, 0, "/checkpoint-2, step 2 of 6");
		check_said(&ran, 0, "warning: step 4 is left out: its gradient was not finite; 1 in a row, 1 in all");
		assert_int_equal(count_of(ran.err, "the run returns to"), 1);
		run_free(&ran);
		load_json(path_of("%s/checkpoint-6/run_state.json", out), &run);
		assert_int_equal(json_integer_value(json_object_get(run, "skipped_steps")), 1);
		json_decref(run);
		assert_int_equal(logged_steps(out), 6); /* of step 3 once */
		ran = run_spoilt(&scratch, "100",
		                 path_of("--use_peft true --max_steps 6 %s --output_dir %s/plain", unskippable[i], scratch.dir));
		check_said(&ran, 0, "written to");
		run_free(&ran);
		assert_false(same_adapter(out, path_of("%s/plain", scratch.dir)));
		scratch_close(&scratch);
	}
}

/* Clipping at a norm that no gradient has changes nothing but that the step is skipped. */
static void test_a_step_that_was_left_out_counts_as_one_that_was_skipped(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	for (int clips = 0; clips < 2; clips++) {
		struct ran ran = run_spoilt(&scratch, "3-4",
		                            path_of("--use_peft true --max_steps 6 --max_grad_norm %s --output_dir %s/%d",
		                                    clips ? "1e12" : "0", scratch.dir, clips));
		check_said(&ran, 0, clips ? "2 skipped in a row, 2 in all" : "step 4 is left out: its gradient was not finite; 2 in a row");
		run_free(&ran);
	}
	for (int step = 3; step <= 6; step++)
		assert_true(
		        same_adapter(path_of("%s/0/checkpoint-%d", scratch.dir, step), path_of("%s/1/checkpoint-%d", scratch.dir, step)));
	scratch_close(&scratch);
}

static void test_a_run_that_cannot_return_or_returns_too_often_stops(void **state)
{
	(void)state;
	for (int i = 0; i < UNSKIPPABLE; i++) {
		struct scratch scratch;
		make_good(&scratch);
		struct ran ran = run_spoilt(&scratch, "3", path_of("--use_peft true --max_steps 6 --save_strategy no %s", unskippable[i]));
		check_failed(&ran,
		             "; there is no checkpoint to return to (lower learning_rate, check the data, or save sooner: save_steps");
		run_free(&ran);
		ran = run_spoilt(&scratch, "3-100", path_of("--use_peft true --max_steps 6 --max_bad_steps 2 %s", unskippable[i]));
		check_failed(&ran, "stopped after step 4, whose checkpoint is written: the gradients of 2 steps in a row were not finite");
		assert_int_equal(count_of(ran.err, "the run returns to"), 2);
		run_free(&ran);
		scratch_close(&scratch);
	}
}

/* ---- the best evaluation ---- */

/* A learning rate so large that evaluations get worse. */
static const char *const judged =
        "train %s/run.yaml --lora_dropout 0 --lora_r 4 --learning_rate %s --lr_scheduler_type constant --eval_strategy steps "
        "--eval_steps 1 --validation_file %s/other.jsonl --logging_steps 1 --max_grad_norm 0 %s";

/* Rows that training on the others makes less likely, after a while. */
static void make_judged(struct scratch *scratch)
{
	make_good(scratch);
	write_text(path_of("%s/other.jsonl", scratch->dir),
	           "{\"prompt\": \"the cat \", \"completion\": \"sat away\"}\n{\"prompt\": \"red \", \"completion\": \"green dog\"}\n");
}

static int64_t best_of(const json_t *trainer, const char *metric, int greater, double *best)
{
	const json_t *history = json_object_get(trainer, "log_history");
	int64_t step = 0;
	for (size_t i = 0; i < json_array_size(history); i++) {
		const json_t *entry = json_array_get(history, i), *value = json_object_get(entry, metric);
		double now = json_number_value(value);
		if (!value || (step && (greater ? now <= *best : now >= *best)))
			continue;
		*best = now;
		step = json_integer_value(json_object_get(entry, "step"));
	}
	return step;
}

static void test_the_best_checkpoint_is_kept_and_is_the_result(void **state)
{
	(void)state;
	struct scratch scratch;
	char out[96];
	make_judged(&scratch);
	snprintf(out, sizeof out, "%s/out", scratch.dir);
	run_ok(&scratch, judged, scratch.dir, "0.3", scratch.dir,
	       "--max_steps 12 --save_steps 1 --save_total_limit 1 --load_best_model_at_end true");
	json_t *trainer = state_of(out);
	double best = 0;
	int64_t step = best_of(trainer, "eval_loss", 0, &best);
	assert_true(step > 0 && step < 12); /* or the test would say nothing */
	assert_int_equal(json_integer_value(json_object_get(trainer, "best_global_step")), step);
	check_near(json_number_value(json_object_get(trainer, "best_metric")), best, 0);
	const char *kept = path_of("%s/checkpoint-%d", out, (int)step);
	assert_string_equal(json_string_value(json_object_get(trainer, "best_model_checkpoint")), kept);
	assert_true(same_adapter(out, kept));
	assert_false(same_adapter(out, path_of("%s/checkpoint-12", out)));
	json_decref(trainer);
	/* stopped in the middle and gone on with: the same best one */
	run_ok(&scratch, judged, scratch.dir, "0.3", scratch.dir,
	       path_of("--max_steps 12 --save_steps 1 --save_total_limit 1 --load_best_model_at_end true --output_dir %s/again",
	               scratch.dir));
	check_ok(rh_dir_remove(path_of("%s/again/checkpoint-12", scratch.dir)));
	/* in a directory that was renamed meanwhile */
	check_ok(rename(path_of("%s/again", scratch.dir), path_of("%s/renamed", scratch.dir)));
	run_ok(&scratch, judged, scratch.dir, "0.3", scratch.dir,
	       path_of("--max_steps 12 --save_steps 1 --save_total_limit 1 --load_best_model_at_end true --output_dir %s/renamed "
	               "--resume_from_checkpoint true",
	               scratch.dir));
	assert_true(same_adapter(out, path_of("%s/renamed", scratch.dir)));
	scratch_close(&scratch);
}

/* Of the best step there is no checkpoint, because it could not be written or was removed: the run has a result nevertheless. */
static void test_a_best_checkpoint_that_is_not_there_is_not_the_result(void **state)
{
	(void)state;
	static const char *const keys = "--max_steps 12 --save_steps 1 --load_best_model_at_end true";
	struct scratch scratch;
	char out[96], best[128];
	double metric = 0;
	make_judged(&scratch);
	snprintf(out, sizeof out, "%s/out", scratch.dir);
	run_ok(&scratch, judged, scratch.dir, "0.3", scratch.dir, keys);
	json_t *trainer = state_of(out);
	int64_t step = best_of(trainer, "eval_loss", 0, &metric);
	json_decref(trainer);
	assert_true(step > 1 && step < 12);
	snprintf(best, sizeof best, "%s/checkpoint-%d", out, (int)step);
	check_ok(rh_dir_remove(best));
	check_ok(rh_dir_remove(path_of("%s/checkpoint-12", out)));
	struct ran ran = run_line(&scratch, judged, scratch.dir, "0.3", scratch.dir, path_of("%s --resume_from_checkpoint true", keys));
	if (ran.status || !strstr(ran.err, "the best checkpoint so far, ") || !strstr(ran.err, "the last weights are the result"))
		fail_msg("exit %d: %s", ran.status, ran.err);
	run_free(&ran);
	assert_true(same_adapter(out, path_of("%s/checkpoint-12", out)));
	/* something else is in its place */
	check_ok(rh_dir_remove(out));
	run_ok(&scratch, judged, scratch.dir, "0.3", scratch.dir,
	       path_of("--max_steps %d --save_steps 1 --load_best_model_at_end true", (int)step - 1));
	check_ok(symlink("elsewhere", best));
	ran = run_line(&scratch, judged, scratch.dir, "0.3", scratch.dir, path_of("%s --resume_from_checkpoint true", keys));
	if (ran.status || !strstr(ran.err, "has no checkpoint; the result is the best one before it, of step "))
		fail_msg("exit %d: %s", ran.status, ran.err);
	run_free(&ran);
	trainer = state_of(out);
	const char *saved = json_string_value(json_object_get(trainer, "best_model_checkpoint"));
	assert_non_null(saved);
	assert_true(rh_dir_exists(saved));
	assert_true(same_adapter(out, saved));
	json_decref(trainer);
	scratch_close(&scratch);
}

/* At a learning rate and threshold. Returns how many evaluations were better, but not by the threshold. */
static int stop_early(const char *rate, double threshold)
{
	struct scratch scratch;
	char out[96];
	int small = 0;
	make_judged(&scratch);
	snprintf(out, sizeof out, "%s/out", scratch.dir);
	struct ran ran =
	        run_line(&scratch, judged, scratch.dir, rate, scratch.dir,
	                 path_of("--max_steps 40 --save_strategy no --early_stopping_patience 3 --early_stopping_threshold %g", threshold));
	if (ran.status || !strstr(ran.err, "evaluations in a row were no better than eval_loss"))
		fail_msg("exit %d: %s", ran.status, ran.err);
	json_t *trainer = state_of(out), *history = json_object_get(trainer, "log_history");
	/* EarlyStoppingCallback.check_metric_value over the same numbers, and the best metric after it, as Trainer does */
	int counter = 0;
	int64_t expected = 0;
	double best = 0;
	for (size_t i = 0; i < json_array_size(history) && counter < 3; i++) {
		const json_t *entry = json_array_get(history, i), *value = json_object_get(entry, "eval_loss");
		double now = json_number_value(value);
		if (!value)
			continue;
		expected = json_integer_value(json_object_get(entry, "step"));
		counter = expected == 1 || (now < best && best - now > threshold) ? 0 : counter + 1;
		small += counter && now < best;
		best = expected == 1 || now < best ? now : best;
	}
	assert_int_equal(counter, 3);
	assert_int_equal(json_integer_value(json_object_get(trainer, "global_step")), expected);
	assert_true(expected < 40);
	json_decref(trainer);
	run_free(&ran);
	assert_true(rh_file_exists(path_of("%s/adapter_model.safetensors", out)));
	scratch_close(&scratch);
	return small;
}

static void test_early_stopping_counts_as_transformers_does(void **state)
{
	(void)state;
	(void)stop_early("0.3", 0.01);
	assert_true(stop_early("1e-3", 1) > 0);
}

static void test_what_cannot_be_judged_is_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	refused(&scratch, "train @/run.yaml --use_peft true --load_best_model_at_end true",
	        "load_best_model_at_end: there are no evaluations");
	refused(&scratch,
	        "train @/run.yaml --use_peft true --load_best_model_at_end true --eval_strategy steps --eval_steps 2 --save_steps 3 "
	        "--validation_file @/rows.jsonl",
	        "make save_steps a multiple of eval_steps");
	refused(&scratch, "train @/run.yaml --use_peft true --early_stopping_patience 3",
	        "early_stopping_patience: there are no evaluations");
	scratch_close(&scratch);
}

/* ---- a checkpoint on demand ---- */

static int checkpoints_in(const char *dir)
{
	struct rh_names names;
	int count = 0;
	check_ok(rh_dir_list(dir, &names));
	for (size_t i = 0; i < names.count; i++)
		count += !strncmp(names.name[i], "checkpoint-", 11);
	rh_names_free(&names);
	return count;
}

static void test_a_file_SAVE_asks_for_a_checkpoint(void **state)
{
	(void)state;
	static const char *const ways[] = {"", "--optimizer_staleness 1", "--schedule 1f1b-async --device cpu:2 --max_grad_norm 0"};
	for (int i = 0; i < 3; i++) {
		struct scratch scratch;
		struct ran ran;
		make_good(&scratch);
		run_start(&scratch,
		          path_of("train %s/run.yaml --use_peft true --logging_steps 1 --save_strategy no --max_steps 1000000 %s",
		                  scratch.dir, ways[i]),
		          0, &ran);
		for (int tries = 0; !rh_file_exists(path_of("%s/out/metrics.jsonl", scratch.dir)) && tries < 200000; tries++)
			usleep(100);
		check_ok(rh_dir_make(path_of("%s/out/SAVE", scratch.dir)));
		for (int tries = 0; !find_or_not(ran.err_path, "/out/SAVE: is no file, and asks for no checkpoint") && tries < 20000;
		     tries++)
			usleep(1000);
		check_ok(rh_dir_remove(path_of("%s/out/SAVE", scratch.dir)));
		write_text(path_of("%s/out/SAVE", scratch.dir), "");
		for (int tries = 0; rh_file_exists(path_of("%s/out/SAVE", scratch.dir)) && tries < 200000; tries++)
			usleep(100);
		assert_int_equal(checkpoints_in(path_of("%s/out", scratch.dir)), 1);
		check_ok(kill(ran.pid, SIGKILL));
		run_wait(&ran);
		if (!strstr(ran.err, "was asked for by the file SAVE") || !strstr(ran.err, "is no file, and asks for no checkpoint"))
			fail_msg("%s", ran.err);
		run_free(&ran);
		run_ok(&scratch, "train %s/run.yaml --use_peft true --max_steps 1 --resume_from_checkpoint true %s", scratch.dir, ways[i]);
		scratch_close(&scratch);
	}
}

/* A disk that others fill: a checkpoint that cannot fit is not begun, and costs a line. */
static void test_a_checkpoint_that_has_no_room_is_not_begun(void **state)
{
	(void)state;
	struct scratch scratch;
	struct ran ran;
	make_good(&scratch);
	const char *out = path_of("%s/out", scratch.dir);
	check_ok(rh_dir_make(out));
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("tmpfs", out, "tmpfs", 0, "size=400k")) {
		scratch_close(&scratch);
		check_skip("no file system can be mounted here");
	}
	run_start(&scratch,
	          path_of("train %s/run.yaml --use_peft true --logging_steps 1000 --save_strategy no --max_steps 1000000", scratch.dir), 0,
	          &ran);
	for (int tries = 0; !rh_file_exists(path_of("%s/out/metrics.jsonl", scratch.dir)) && tries < 200000; tries++)
		usleep(100);
	static char filler[352 << 10];
	write_bytes(path_of("%s/out/model.safetensors.tmp.1", scratch.dir), filler, sizeof filler);
	write_text(path_of("%s/out/SAVE", scratch.dir), "");
	for (int tries = 0; rh_file_exists(path_of("%s/out/SAVE", scratch.dir)) && tries < 200000; tries++)
		usleep(100);
	check_ok(kill(ran.pid, SIGKILL));
	run_wait(&ran);
	if (!strstr(ran.err, "MiB free, and a checkpoint takes ") || !strstr(ran.err, "warning: no checkpoint of step "))
		fail_msg("%s", ran.err);
	run_free(&ran);
	assert_int_equal(checkpoints_in(path_of("%s/out", scratch.dir)), 0);
	assert_int_equal(umount(path_of("%s/out", scratch.dir)), 0);
	scratch_close(&scratch);
}

/* A loss far above those before it is told of, once in 50 steps; the first steps, whose loss falls steeply, are no reason. */
static void test_a_spike_of_the_loss_is_told_of(void **state)
{
	(void)state;
	static const int spikes[] = {110, 120, 175}; /* the second is too near to the first */
	struct scratch scratch;
	make_good(&scratch);
	FILE *rows = fopen(path_of("%s/rows.jsonl", scratch.dir), "w");
	assert_non_null(rows);
	for (int row = 1, next = 0; row <= 200; row++) {
		int is_spike = next < 3 && row == spikes[next];
		next += is_spike;
		fprintf(rows, "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", is_spike ? "red " : "the cat ",
		        is_spike ? "green blue three" : "sat here");
	}
	assert_int_equal(fclose(rows), 0);
	struct ran ran = run_line(&scratch,
	                          "train %s/run.yaml --per_device_train_batch_size 1 --train_sampling_strategy sequential --max_steps 200 "
	                          "--lr_scheduler_type constant --learning_rate 3e-3 --save_strategy no --logging_steps 50",
	                          scratch.dir);
	if (ran.status || count_of(ran.err, "far above the") != 2 || !strstr(ran.err, "warning: step 110: the loss is ") ||
	    !strstr(ran.err, "warning: step 175: the loss is "))
		fail_msg("exit %d: %s", ran.status, ran.err);
	run_free(&ran);
	scratch_close(&scratch);
}

/* Learning rates that are far too high: a loss worse than by guessing, or gradients of zero. Said once, as it happens. */
static void test_a_run_that_diverges_is_told_of(void **state)
{
	(void)state;
	static const char *const ways[][2] = {{"--learning_rate 10 --optim sgd", "worse than by guessing among 288 (5.6630)"},
	                                      {"--learning_rate 1", "worse than by guessing among 288 (5.6630)"},
	                                      {"--learning_rate 1000", "the gradient is zero at a loss of 5.6630"},
	                                      {"--learning_rate 0.1", NULL}};
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		struct scratch scratch;
		make_good(&scratch);
		struct ran ran =
		        run_line(&scratch, "train %s/run.yaml %s --lr_scheduler_type constant --max_steps 50", scratch.dir, ways[i][0]);
		const char *first = ways[i][1] ? strstr(ran.err, ways[i][1]) : ran.err;
		int warnings = count_of(ran.err, "worse than by guessing") + count_of(ran.err, "the gradient is zero");
		if (ran.status || !first || warnings != (ways[i][1] != NULL) || (ways[i][1] && !strstr(first, "\nstep 30/50")))
			fail_msg("%s: exit %d: %s", ways[i][0], ran.status, ran.err);
		run_free(&ran);
		scratch_close(&scratch);
	}
}

/* Fewer steps than max_bad_steps, and none that counts. */
static void test_a_run_of_skipped_steps_alone_has_no_result(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	struct ran ran = run_spoilt(&scratch, "1-4", "--use_peft true --max_steps 4");
	check_failed(&ran, "nothing was learnt: |4 steps|no result is written|learning_rate");
	run_free(&ran);
	assert_false(rh_file_exists(path_of("%s/out/adapter_model.safetensors", scratch.dir)));
	ran = run_spoilt(&scratch, "1-3", path_of("--use_peft true --max_steps 4 --output_dir %s/other", scratch.dir));
	assert_int_equal(ran.status, 0);
	run_free(&ran);
	scratch_close(&scratch);
}

/* The run's mean, beside that of the last logged line. */
static void test_the_last_line_tells_the_runs_mean_loss(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	struct ran ran = run_line(&scratch, "train %s/run.yaml --max_steps 6 --logging_steps 4 --learning_rate 1e-2", scratch.dir);
	json_t *trainer = state_of(path_of("%s/out", scratch.dir)), *history = json_object_get(trainer, "log_history");
	double mean = json_number_value(json_object_get(json_array_get(history, json_array_size(history) - 1), "train_loss")),
	       last = json_number_value(json_object_get(json_array_get(history, json_array_size(history) - 2), "loss"));
	assert_true(mean > last);
	if (ran.status || !strstr(ran.err, path_of("mean loss %.6f, of the last 2 steps %.6f;", mean, last)))
		fail_msg("%f, %f: %s", mean, last, ran.err);
	json_decref(trainer);
	run_free(&ran);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_step_whose_gradient_is_not_finite_is_skipped),
	        cmocka_unit_test(test_many_bad_steps_in_a_row_stop_the_run_on_good_weights),
	        cmocka_unit_test(test_without_clipping_or_with_staleness_a_run_returns_and_leaves_the_step_out),
	        cmocka_unit_test(test_a_step_that_was_left_out_counts_as_one_that_was_skipped),
	        cmocka_unit_test(test_a_run_that_cannot_return_or_returns_too_often_stops),
	        cmocka_unit_test(test_the_best_checkpoint_is_kept_and_is_the_result),
	        cmocka_unit_test(test_a_best_checkpoint_that_is_not_there_is_not_the_result),
	        cmocka_unit_test(test_early_stopping_counts_as_transformers_does),
	        cmocka_unit_test(test_what_cannot_be_judged_is_refused),
	        cmocka_unit_test(test_a_file_SAVE_asks_for_a_checkpoint),
	        cmocka_unit_test(test_a_checkpoint_that_has_no_room_is_not_begun),
	        cmocka_unit_test(test_a_spike_of_the_loss_is_told_of),
	        cmocka_unit_test(test_a_run_that_diverges_is_told_of),
	        cmocka_unit_test(test_a_run_of_skipped_steps_alone_has_no_result),
	        cmocka_unit_test(test_the_last_line_tells_the_runs_mean_loss),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
