/* Runs that are stopped and go on, through the program: bit-equal to runs that never stopped, whatever stopped them. */
#include "cli/runner.h"
#include "tensor_bytes.h"

#include "ckpt/safetensors.h"
#include "core/json.h"

#include <math.h>
#include <time.h>

enum { ROWS = 23, HELD = 5 };

static void write_rows(const char *path, int rows, uint64_t seed)
{
	static const char *const words[] = {"the", "of",  "and", "in",    "cat",  "sat",   "on",
	                                    "mat", "one", "two", "three", "here", "there", "is"};
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	for (int row = 0; row < rows; row++) {
		fprintf(file, "{\"prompt\": \"%d", row);
		for (uint32_t n = check_random(&seed) % 5; n > 0; n--)
			fprintf(file, " %s", words[check_random(&seed) % 14]);
		fprintf(file, "\", \"completion\": \"");
		for (uint32_t n = 1 + check_random(&seed) % 6; n > 0; n--)
			fprintf(file, " %s", words[check_random(&seed) % 14]);
		fprintf(file, "\"}\n");
	}
	assert_int_equal(fclose(file), 0);
}

static void world_open(struct scratch *scratch)
{
	scratch_open(scratch);
	const char *dir = scratch->dir;
	copy_model(dir);
	write_rows(path_of("%s/rows.jsonl", dir), ROWS, 3);
	write_rows(path_of("%s/held.jsonl", dir), HELD, 4);
}

/* 2 epochs of 6 steps, the last of each a short one; lines at 3, 6, 9, 12, evaluations at 5 and 10 and the end, checkpoints at 4, 8, 12. */
static const char *command(const struct scratch *scratch, const char *out, const char *options)
{
	const char *dir = scratch->dir;
	return path_of("train --train_file %s/rows.jsonl --validation_file %s/held.jsonl%s --per_device_train_batch_size 2 "
	               "--gradient_accumulation_steps 2 --learning_rate 1e-3 --logging_steps 3 --allow cut-answers --output_dir %s/%s %s",
	               dir, dir, strstr(options, "--max_length") ? "" : " --max_length 64", dir, out, options);
}

#define SHORT " --num_train_epochs 2 --save_steps 4 --eval_strategy steps --eval_steps 5"

static void train(const struct scratch *scratch, const char *out, const char *options)
{
	struct ran ran = run_line(scratch, "%s", command(scratch, out, options));
	if (ran.status || strstr(ran.err, "stopped by a signal")) /* which came from elsewhere: no run of this kind is told to stop */
		fail_msg("exit %d: %s", ran.status, ran.err);
	run_free(&ran);
}

/* What may differ from run to run: times and memory. */
static void strip(json_t *value)
{
	const char *key;
	json_t *member;
	void *next;
	size_t index;
	json_object_foreach_safe(value, next, key, member)
	{
		if (strstr(key, "runtime") || strstr(key, "second") || strstr(key, "peak_bytes"))
			json_object_del(value, key);
		else
			strip(member);
	}
	json_array_foreach(value, index, member) strip(member);
}

/* Lines of metrics.jsonl after a step, stripped. */
static json_t *metrics_of(const struct scratch *scratch, const char *out, int64_t after)
{
	size_t length;
	char *text = read_bytes(path_of("%s/%s/metrics.jsonl", scratch->dir, out), &length), *rest = text;
	json_t *list = json_array();
	for (char *line; (line = strsep(&rest, "\n"));) {
		json_t *entry;
		if (!*line)
			continue;
		check_ok(rh_json_parse(line, strlen(line), out, &entry));
		strip(entry);
		if (json_integer_value(json_object_get(entry, "step")) > after)
			json_array_append(list, entry);
		json_decref(entry);
	}
	free(text);
	return list;
}

static void same_json(const char *what, json_t *a, json_t *b)
{
	if (!json_equal(a, b)) {
		char *one = json_dumps(a, JSON_COMPACT), *two = json_dumps(b, JSON_COMPACT);
		fail_msg("%s differ:\n%s\n%s", what, one, two);
	}
	json_decref(a);
	json_decref(b);
}

static json_t *trainer_state_of(const struct scratch *scratch, const char *out)
{
	json_t *state;
	check_ok(rh_json_load(path_of("%s/%s/trainer_state.json", scratch->dir, out), &state));
	strip(state);
	return state;
}

/* Results, and what is logged after a step, of two runs. */
static void same_runs(const struct scratch *scratch, const char *a, const char *b, int64_t after)
{
	same_json("metrics", metrics_of(scratch, a, after), metrics_of(scratch, b, after));
	same_json("trainer states", trainer_state_of(scratch, a), trainer_state_of(scratch, b));
	char dir[256];
	int compared = 0;
	snprintf(dir, sizeof dir, "%s/%s", scratch->dir, a);
	DIR *entries = opendir(dir);
	assert_non_null(entries);
	for (struct dirent *entry; (entry = readdir(entries));) {
		if (!strstr(entry->d_name, "model") && !strstr(entry->d_name, "config"))
			continue;
		if (!same_file(path_of("%s/%s", dir, entry->d_name), path_of("%s/%s/%s", scratch->dir, b, entry->d_name)))
			fail_msg("%s of %s and %s differ", entry->d_name, a, b);
		compared++;
	}
	closedir(entries);
	assert_true(compared >= 2);
}

static void same_checkpoints(const struct scratch *scratch, const char *a, const char *b, int step)
{
	static const char *const files[] = {"optimizer.safetensors", "run_state.json"};
	for (int i = 0; i < 2; i++)
		if (!same_file(path_of("%s/%s/checkpoint-%d/%s", scratch->dir, a, step, files[i]),
		               path_of("%s/%s/checkpoint-%d/%s", scratch->dir, b, step, files[i])))
			fail_msg("%s of %s and %s at step %d differ", files[i], a, b, step);
}

/* The newest checkpoint's step; -1: none. *count: how many. */
static int newest(const struct scratch *scratch, const char *out, int *count)
{
	int step, most = -1;
	*count = 0;
	DIR *entries = opendir(path_of("%s/%s", scratch->dir, out));
	for (struct dirent *entry; entries && (entry = readdir(entries));)
		if (sscanf(entry->d_name, "checkpoint-%d", &step) == 1) {
			most = step > most ? step : most;
			++*count;
		}
	if (entries)
		closedir(entries);
	return most;
}

static const char *const kinds[] = {
        "--model_name_or_path @/hf --lora_r 4 --lora_dropout 0.2 --lora_target_modules all-linear",
        "--model_name_or_path @/hf --lora_r 4 --lora_dropout 0.2 --bf16 true --lora_modules_to_save embed_tokens",
        "--model_name_or_path @/hf --weight_decay 0.1 --warmup_steps 3 --lr_scheduler_type cosine",
        "--model_name_or_path @/hf --bf16 true --weight_decay 0.1",
        "--config_name @/hf --packing true --max_length 24 --round_micro_batches 1",
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void options_of(const struct scratch *scratch, int kind, const char *more, char *out, size_t bytes)
{
	const char *at = strchr(kinds[kind], '@');
	snprintf(out, bytes, "%.*s%s%s%s", (int)(at - kinds[kind]), kinds[kind], scratch->dir, at + 1, more);
}

static void test_resumed_runs_equal_runs_that_never_stopped(void **state)
{
	(void)state;
	static const char *const ways[] = {"", " --device cpu:2", " --device cpu:2 --round_micro_batches 1 --backward_cuts [2]"};
	for (int kind = 0; kind < KINDS; kind++) {
		struct scratch scratch;
		char options[512];
		world_open(&scratch);
		options_of(&scratch, kind, SHORT, options, sizeof options);
		train(&scratch, "whole", options);
		train(&scratch, "again", options);
		same_runs(&scratch, "whole", "again", 0);
		int count, last = newest(&scratch, "whole", &count);
		assert_true(last >= 8);
		for (int from = 4; from < last; from += 4)
			for (int way = 0; way < 3; way++) {
				char out[32], checkpoint[64];
				if (way == 2 && strstr(kinds[kind], "round_micro_batches"))
					continue;
				/* as a run killed after this checkpoint leaves it, some lines further */
				snprintf(out, sizeof out, "from-%d-%d", from, way);
				snprintf(checkpoint, sizeof checkpoint, "checkpoint-%d", from);
				copy_dir(path_of("%s/whole/%s", scratch.dir, checkpoint),
				         path_of("%s/%s/%s", scratch.dir, out, checkpoint));
				copy_file(path_of("%s/whole/metrics.jsonl", scratch.dir), path_of("%s/%s/metrics.jsonl", scratch.dir, out));
				check_ok(rh_dir_make(path_of("%s/%s/.checkpoint-9.tmp", scratch.dir, out)));
				write_text(path_of("%s/%s/.checkpoint-9.tmp/run_state.json", scratch.dir, out), "{");
				write_text(path_of("%s/%s/model.safetensors.tmp.4711", scratch.dir, out), "half");
				write_text(path_of("%s/%s/notes.tmp.txt", scratch.dir, out), "the user's own");
				train(&scratch, out, path_of("%s%s --resume_from_checkpoint true", options, ways[way]));
				assert_false(rh_dir_exists(path_of("%s/%s/.checkpoint-9.tmp", scratch.dir, out)));
				assert_false(rh_file_exists(path_of("%s/%s/model.safetensors.tmp.4711", scratch.dir, out)));
				assert_true(rh_file_exists(path_of("%s/%s/notes.tmp.txt", scratch.dir, out)));
				same_runs(&scratch, "whole", out, 0);
				same_checkpoints(&scratch, "whole", out, last);
			}
		/* by name, into a new directory */
		train(&scratch, "new", path_of("%s --resume_from_checkpoint %s/whole/checkpoint-4", options, scratch.dir));
		same_runs(&scratch, "whole", "new", 4);
		/* nothing left to do: the result is written again */
		check_ok(unlink(
		        path_of("%s/again/%s", scratch.dir, strstr(options, "lora") ? "adapter_model.safetensors" : "model.safetensors")));
		train(&scratch, "again", path_of("%s --resume_from_checkpoint true", options));
		same_json("metrics", metrics_of(&scratch, "whole", 0), metrics_of(&scratch, "again", 0));
		scratch_close(&scratch);
	}
}

/* No flush but where something is due: there a run can go on, and short steps, evaluations and lines are those of every run. */
static void test_stages_that_update_themselves_resume_too(void **state)
{
	(void)state;
	static const char *const schedules[] = {"paci", "1f1b-async"};
	struct scratch scratch;
	world_open(&scratch);
	for (int i = 0; i < 2; i++) {
		char options[512], whole[16], again[16];
		snprintf(whole, sizeof whole, "whole-%d", i);
		snprintf(again, sizeof again, "again-%d", i);
		snprintf(options, sizeof options,
		         "--model_name_or_path %s/hf --lora_r 4 --lora_target_modules all-linear --max_grad_norm %s --device cpu:2 "
		         "--schedule %s" SHORT,
		         scratch.dir, i ? "0" : "0.01", schedules[i]); /* the shares that clip are the checkpoint's */
		train(&scratch, whole, options);
		train(&scratch, again, path_of("%s --resume_from_checkpoint %s/%s/checkpoint-8", options, scratch.dir, whole));
		same_runs(&scratch, whole, again, 8);
		/* the plan's cuts are the checkpoint's, whatever the plan would be by then; more devices need others */
		size_t length;
		char *kept = read_bytes(path_of("%s/%s/checkpoint-8/config.yaml", scratch.dir, whole), &length);
		assert_non_null(strstr(kept, "forward_cuts: ["));
		free(kept);
		kept = read_bytes(path_of("%s/%s/checkpoint-8/run_state.json", scratch.dir, whole), &length);
		assert_int_equal(strstr(kept, "\"device_norm_shares\": [[") != NULL, !i);
		free(kept);
		*(strstr(options, "cpu:") + 4) = '3';
		struct ran ran = run_line(&scratch, "%s",
		                          command(&scratch, path_of("other-%d", i),
		                                  path_of("%s --resume_from_checkpoint %s/%s/checkpoint-8", options, scratch.dir, whole)));
		assert_int_equal(ran.status, 0);
		assert_non_null(strstr(ran.err, "were on 2 devices, this run has 3: stages are cut anew"));
		run_free(&ran);
	}
	scratch_close(&scratch);
}

/* Every kind of optimizer state, saved and read back; and only by those that it means something to. */
static void test_optimizers_resume_with_their_own_state(void **state)
{
	(void)state;
	static const char *const states[] = {"--bf16 true --state_layout plain",
	                                     "--bf16 true --state_layout split8",
	                                     "--optim lion_32bit",
	                                     "--optim sgd --optim_args momentum=0.9",
	                                     "--optim sgd",
	                                     "--optim adafactor --bf16 true"};
	enum { STATES = sizeof states / sizeof *states };
	struct scratch scratch;
	world_open(&scratch);
	char options[STATES][512];
	for (int i = 0; i < STATES; i++) {
		char whole[16], again[16];
		snprintf(whole, sizeof whole, "whole-%d", i);
		snprintf(again, sizeof again, "again-%d", i);
		snprintf(options[i], sizeof options[i], "--model_name_or_path %s/hf --max_steps 8 --save_steps 4 --weight_decay 0.1 %s",
		         scratch.dir, states[i]);
		train(&scratch, whole, options[i]);
		train(&scratch, again, path_of("%s --resume_from_checkpoint %s/%s/checkpoint-4", options[i], scratch.dir, whole));
		same_runs(&scratch, whole, again, 4);
		same_checkpoints(&scratch, whole, again, 8);
	}
	struct ran ran = run_line(
	        &scratch, "%s",
	        command(&scratch, "other", path_of("%s --resume_from_checkpoint %s/whole-0/checkpoint-4", options[1], scratch.dir)));
	assert_true(ran.status != 0);
	assert_non_null(strstr(ran.err, "state_layout: plain, this run has split8"));
	run_free(&ran);
	ran = run_line(&scratch, "%s",
	               command(&scratch, "other", path_of("%s --resume_from_checkpoint %s/whole-2/checkpoint-4", options[3], scratch.dir)));
	assert_true(ran.status != 0);
	assert_non_null(strstr(ran.err, "optim: lion_32bit, this run has sgd"));
	run_free(&ran);
	scratch_close(&scratch);
}

static void pause_ms(long ms)
{
	nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* Bytes of a file, 0 while it is not there. */
static off_t size_of(const char *path)
{
	struct stat info;
	return stat(path, &info) ? 0 : info.st_size;
}

#define LONG " --max_steps 240 --save_steps 20 --save_total_limit 2"
enum { LONG_STEPS = 240, TRIES = 5 };

static void put_limit(const char *root, long long mib)
{
	char text[32];
	snprintf(text, sizeof text, "%lld\n", mib << 20);
	check_ok(rh_file_write_whole(path_of("%s/sys/fs/cgroup/memory.max", root), text, strlen(text)));
}

/* Starts a long run and, once it has logged so many bytes, sends it a signal or, where that is 0, lowers its control group's limit. The
 * step that it was stopped after: on a busy machine this program may be too late, and the run is started anew. */
static int stop_midway(const struct scratch *scratch, const char *out, const char *options, off_t logged_bytes, int signal, struct ran *ran)
{
	char line[1024], logged[512];
	int count, step = LONG_STEPS;
	snprintf(line, sizeof line, "%s", command(scratch, out, options));
	snprintf(logged, sizeof logged, "%s/%s/metrics.jsonl", scratch->dir, out);
	for (int tries = 0; tries < TRIES; tries++) {
		siginfo_t ended = {0};
		check_ok(rh_dir_remove(path_of("%s/%s", scratch->dir, out)));
		run_start(scratch, line, 0, ran);
		while (size_of(logged) < logged_bytes && !waitid(P_PID, (id_t)ran->pid, &ended, WEXITED | WNOHANG | WNOWAIT) &&
		       !ended.si_pid)
			pause_ms(1);
		if (signal)
			kill(ran->pid, signal);
		else
			put_limit(getenv("RH_MACHINE_ROOT"), 110);
		run_wait(ran);
		if (!signal)
			put_limit(getenv("RH_MACHINE_ROOT"), 1024);
		step = newest(scratch, out, &count);
		assert_true(step > 0 && count <= 2);
		if (step < LONG_STEPS)
			return step;
		assert_int_equal(ran->status, 0);
		run_free(ran);
	}
	fail_msg("a run of %d steps could not be stopped midway, %d times", LONG_STEPS, TRIES);
	return step;
}

static void test_signals_save_and_end_the_run_well(void **state)
{
	(void)state;
	static const int signals[] = {SIGTERM, SIGINT};
	struct scratch scratch;
	char options[512];
	world_open(&scratch);
	options_of(&scratch, 0, LONG, options, sizeof options);
	train(&scratch, "whole", options);
	for (int i = 0; i < 2; i++) {
		char out[16];
		struct ran ran;
		int count;
		snprintf(out, sizeof out, "stopped-%d", i);
		int step = stop_midway(&scratch, out, options, 1500 + 3000 * i, signals[i], &ran);
		assert_int_equal(ran.status, 0);
		const char *asked =
		        strstr(ran.err, "\nstopping after this step (one takes about 1 s) with a checkpoint; the same signal again: ");
		assert_true(asked && asked < strstr(ran.err, "stopped by a signal after step "));
		run_free(&ran);
		assert_false(rh_file_exists(path_of("%s/%s/adapter_model.safetensors", scratch.dir, out)));
		train(&scratch, out, path_of("%s --resume_from_checkpoint true", options));
		printf("signal %d: stopped after step %d\n", signals[i], step);
		same_runs(&scratch, "whole", out, 0);
		newest(&scratch, out, &count);
		assert_int_equal(count, 2);
	}
	scratch_close(&scratch);
}

/* A control group whose limit is lowered while a run is on: one line, a checkpoint, and the run goes on from it to the same end. */
static void test_a_memory_limit_lowered_under_a_run_saves_and_ends_it(void **state)
{
	(void)state;
	struct scratch scratch;
	struct ran ran;
	char options[512], root[256];
	world_open(&scratch);
	snprintf(root, sizeof root, "%s/root", scratch.dir);
	check_ok(rh_dir_make(path_of("%s/sys/fs/cgroup", root)));
	check_ok(rh_dir_make(path_of("%s/proc/self", root)));
	check_ok(rh_file_write_whole(path_of("%s/proc/self/cgroup", root), "0::/\n", 5));
	check_ok(rh_file_write_whole(path_of("%s/sys/fs/cgroup/memory.current", root), "104857600\n", 10));
	put_limit(root, 1024);
	options_of(&scratch, 0, LONG, options, sizeof options);
	train(&scratch, "whole", options);
	setenv("RH_MACHINE_ROOT", root, 1);
	int step = stop_midway(&scratch, "squeezed", options, 1500, 0, &ran);
	printf("status %d, step %d: %s", ran.status, step, ran.err);
	assert_int_equal(ran.status, 1);
	assert_non_null(strstr(ran.err, "leaves it 10.0 MiB of memory and left it 924.0 when the run began"));
	run_free(&ran);
	train(&scratch, "squeezed", path_of("%s --resume_from_checkpoint true", options));
	same_runs(&scratch, "whole", "squeezed", 0);
	unsetenv("RH_MACHINE_ROOT");
	scratch_close(&scratch);
}

/* Stopped before a line was logged, a run still tells its loss. */
static void test_a_run_stopped_before_its_first_line_tells_its_loss(void **state)
{
	(void)state;
	struct scratch scratch;
	char options[512], line[1024];
	struct ran ran;
	int count;
	world_open(&scratch);
	options_of(&scratch, 0, " --max_steps 4000 --save_steps 1 --save_total_limit 1", options, sizeof options);
	snprintf(line, sizeof line, "%s", command(&scratch, "early", options));
	memcpy(strstr(line, "--logging_steps 3"), "--logging_steps 9", 17);
	run_start(&scratch, line, 0, &ran);
	for (int tries = 0; newest(&scratch, "early", &count) < 1 && tries < 20000; tries++)
		pause_ms(1);
	kill(ran.pid, SIGINT);
	run_wait(&ran);
	assert_int_equal(ran.status, 0);
	if (newest(&scratch, "early", &count) >= 9)
		check_skip("this machine was too busy to stop a run within 9 steps");
	assert_non_null(strstr(ran.err, "stopped by a signal after step "));
	assert_non_null(strstr(ran.err, " tokens/s, mean loss "));
	assert_null(strstr(ran.err, "nan"));
	run_free(&ran);
	scratch_close(&scratch);
}

/* A run killed after it saved, before it removed the checkpoint that was one too many: the next run does, though it saves none itself. */
static void test_checkpoints_over_the_limit_go_when_a_run_goes_on(void **state)
{
	(void)state;
	struct scratch scratch;
	char options[512];
	int count;
	world_open(&scratch);
	options_of(&scratch, 0, " --num_train_epochs 2", options, sizeof options);
	train(&scratch, "out", path_of("%s --save_steps 4", options));
	assert_int_equal(newest(&scratch, "out", &count), 12);
	assert_int_equal(count, 3);
	train(&scratch, "out",
	      path_of("%s --save_strategy no --save_total_limit 2 --resume_from_checkpoint %s/out/checkpoint-4", options, scratch.dir));
	assert_true(rh_dir_exists(path_of("%s/out/checkpoint-4", scratch.dir))); /* the one it began from stays */
	assert_int_equal(newest(&scratch, "out", &count), 12);
	assert_int_equal(count, 2);
	scratch_close(&scratch);
}

/* kill -9 at any moment leaves a newest checkpoint that is whole. */
static void test_killed_runs_go_on_from_a_whole_checkpoint(void **state)
{
	(void)state;
	struct scratch scratch;
	char options[512];
	uint64_t seed = check_seed();
	world_open(&scratch);
	options_of(&scratch, 2, " --max_steps 120 --save_steps 1 --save_total_limit 1", options, sizeof options);
	train(&scratch, "whole", options);
	int kills = 0, count, step = -1;
	for (int i = 0; i < 12; i++) {
		char line[1024];
		struct ran ran;
		snprintf(line, sizeof line, "%s%s", command(&scratch, "killed", options),
		         step >= 0 ? " --resume_from_checkpoint true" : "");
		run_start(&scratch, line, 0, &ran);
		pause_ms(20 + (long)(check_random(&seed) % 60));
		kill(ran.pid, SIGKILL);
		run_wait(&ran);
		if (ran.status == 0) {
			run_free(&ran);
			break;
		}
		if (ran.status != 128 + SIGKILL)
			fail_msg("exit %d: %s", ran.status, ran.err);
		run_free(&ran);
		kills++;
		int now = newest(&scratch, "killed", &count);
		assert_true(now >= step && count <= 2);
		step = now;
		if (step < 0)
			check_ok(rh_dir_remove(path_of("%s/killed", scratch.dir)));
	}
	train(&scratch, "killed", step >= 0 ? path_of("%s --resume_from_checkpoint true", options) : options);
	printf("killed %d times, the last time after step %d\n", kills, step);
	same_runs(&scratch, "whole", "killed", 0);
	scratch_close(&scratch);
}

static double logged(const struct scratch *scratch, const char *out, size_t line, const char *key)
{
	json_t *list = metrics_of(scratch, out, 0);
	double value = json_number_value(json_object_get(json_array_get(list, line), key));
	json_decref(list);
	return value;
}

static double evaluated(const struct scratch *scratch, const char *model)
{
	json_t *result;
	struct ran ran = run_line(scratch, "eval --json --model_name_or_path %s --validation_file %s/held.jsonl --max_length 64", model,
	                          scratch->dir);
	if (ran.status)
		fail_msg("%s", ran.err);
	check_ok(rh_json_parse(ran.out, strlen(ran.out), "eval", &result));
	double loss = json_number_value(json_object_get(result, "eval_loss"));
	json_decref(result);
	run_free(&ran);
	return loss;
}

static void test_evaluation_comes_when_asked_and_equals_the_verb(void **state)
{
	(void)state;
	static const int steps[] = {3, 5, 6, 9, 10, 12, 12}, epochs[] = {3, 6, 6, 9, 12, 12};
	struct scratch scratch;
	world_open(&scratch);
	train(&scratch, "steps", path_of("--model_name_or_path %s/hf" SHORT, scratch.dir));
	for (size_t i = 0; i < 7; i++)
		assert_int_equal((int)logged(&scratch, "steps", i, "step"), steps[i]);
	train(&scratch, "epochs",
	      path_of("--model_name_or_path %s/hf --num_train_epochs 2 --eval_strategy epoch --save_strategy epoch", scratch.dir));
	for (size_t i = 0; i < 6; i++)
		assert_int_equal((int)logged(&scratch, "epochs", i, "step"), epochs[i]);
	int count;
	assert_int_equal(newest(&scratch, "epochs", &count), 12);
	assert_int_equal(count, 2);
	double last = logged(&scratch, "epochs", 5, "eval_loss"), before = evaluated(&scratch, path_of("%s/hf", scratch.dir));
	assert_true(fabs(last / evaluated(&scratch, path_of("%s/epochs", scratch.dir)) - 1) < 1e-11);
	assert_true(last < before); /* it learned */
	scratch_close(&scratch);
}

/* The F32 tensors of two files, whatever their order; -0 equals 0, which an update by nothing makes of it. */
static void same_tensors(const char *a, const char *b)
{
	struct rh_safetensors *one, *two;
	check_ok(rh_safetensors_open(a, &one));
	check_ok(rh_safetensors_open(b, &two));
	assert_int_equal(rh_safetensors_count(one), rh_safetensors_count(two));
	for (int64_t i = 0; i < rh_safetensors_count(one); i++) {
		const struct rh_safetensor *tensor = rh_safetensors_at(one, i), *other = rh_safetensors_find(two, tensor->name);
		if (!other || tensor->bytes != other->bytes || tensor->dtype != RH_F32 || other->dtype != RH_F32)
			fail_msg("%s is another tensor", tensor->name);
		const char *mine = tensor_bytes(one, tensor), *theirs = tensor_bytes(two, other);
		for (int64_t at = 0; at < tensor->bytes; at += 4) {
			float x, y;
			memcpy(&x, mine + at, sizeof x);
			memcpy(&y, theirs + at, sizeof y);
			if (x != y)
				fail_msg("%s differs", tensor->name);
		}
	}
	rh_safetensors_close(one);
	rh_safetensors_close(two);
}

/* Half a unit of bf16 above 1: the upload form rounds it away from zero, and so must the file that holds what was trained with. */
static void test_saved_weights_are_rounded_as_uploaded_ones(void **state)
{
	(void)state;
	const float half_a_unit = 1 + 0x1p-8f;
	const uint16_t rounded = 0x3f81;
	struct scratch scratch;
	world_open(&scratch);
	const char *dir = scratch.dir;
	char path[128];
	struct rh_safetensors *file;
	snprintf(path, sizeof path, "%s/hf/model.safetensors", dir);
	check_ok(rh_safetensors_open(path, &file));
	const struct rh_safetensor *tensor = rh_safetensors_find(file, "model.norm.weight");
	assert_true(tensor && tensor->dtype == RH_F32);
	int64_t at = tensor->offset;
	rh_safetensors_close(file);
	int made = open(path, O_WRONLY);
	assert_true(pwrite(made, &half_a_unit, sizeof half_a_unit, at) == sizeof half_a_unit);
	close(made);
	run_ok(&scratch,
	       "train --train_file %s/rows.jsonl --max_length 64 --max_steps 1 --learning_rate 0 --lr_scheduler_type constant --bf16 true "
	       "--output_dir %s/bf16 --model_name_or_path %s/hf",
	       dir, dir, dir);
	check_ok(rh_safetensors_open(path_of("%s/bf16/model.safetensors", dir), &file));
	tensor = rh_safetensors_find(file, "model.norm.weight");
	assert_true(tensor && tensor->dtype == RH_BF16);
	assert_memory_equal(tensor_bytes(file, tensor), &rounded, sizeof rounded);
	rh_safetensors_close(file);
	scratch_close(&scratch);
}

static void test_a_learning_rate_of_zero_changes_nothing(void **state)
{
	(void)state;
	struct scratch scratch;
	world_open(&scratch);
	const char *dir = scratch.dir, *still = "train --train_file %s/rows.jsonl --max_length 64 --max_steps 3 --learning_rate 0 "
	                                        "--lr_scheduler_type constant --output_dir %s/%s --model_name_or_path %s/hf %s";
	train(&scratch, "lora", path_of("--model_name_or_path %s/hf --use_peft true --use_rslora true --max_steps 6", dir));
	json_t *adapter = NULL;
	check_ok(rh_json_load(path_of("%s/lora/adapter_config.json", dir), &adapter));
	assert_true(json_is_true(json_object_get(adapter, "use_rslora")));
	json_decref(adapter);
	run_ok(&scratch, still, dir, dir, "full", dir, "");
	same_tensors(path_of("%s/hf/model.safetensors", dir), path_of("%s/full/model.safetensors", dir));
	run_ok(&scratch, still, dir, dir, "on", dir, path_of("--adapter_name_or_path %s/lora", dir));
	assert_true(same_file(path_of("%s/lora/adapter_model.safetensors", dir), path_of("%s/on/adapter_model.safetensors", dir)));
	assert_true(same_file(path_of("%s/lora/adapter_config.json", dir), path_of("%s/on/adapter_config.json", dir)));
	/* going on does change it, and helps */
	double before = evaluated(&scratch, path_of("%s/hf --adapter_name_or_path %s/lora", dir, dir));
	train(&scratch, "further", path_of("--model_name_or_path %s/hf --adapter_name_or_path %s/lora --max_steps 30", dir, dir));
	assert_true(evaluated(&scratch, path_of("%s/hf --adapter_name_or_path %s/further", dir, dir)) < before);
	scratch_close(&scratch);
}

/* The loss of a step is the mean over its trained tokens, whatever its micro-batches: that of eval, where the step has all rows. */
static void test_a_steps_loss_is_evals_over_the_same_rows(void **state)
{
	(void)state;
	struct scratch scratch;
	world_open(&scratch);
	const char *dir = scratch.dir;
	run_ok(&scratch,
	       "train --train_file %s/held.jsonl --max_length 64 --max_steps 1 --learning_rate 0 --per_device_train_batch_size 2 "
	       "--gradient_accumulation_steps 3 --allow cut-answers --logging_steps 1 --output_dir %s/all --model_name_or_path %s/hf",
	       dir, dir, dir);
	double loss = logged(&scratch, "all", 0, "loss"), eval = evaluated(&scratch, path_of("%s/hf", dir));
	assert_true(fabs(loss / eval - 1) < 1e-6); /* two orders of the same sum in fp32 */
	scratch_close(&scratch);
}

/* With B = 0 dropout cannot show in the first loss; later it must, and its mean stays near. */
static void test_dropout_scatters_losses_around_those_without(void **state)
{
	(void)state;
	struct scratch scratch;
	world_open(&scratch);
	const char *dir = scratch.dir;
	for (int i = 0; i < 3; i++)
		run_ok(&scratch,
		       "train --train_file %s/rows.jsonl --max_length 64 --learning_rate 1e-2 --logging_steps 1 --output_dir %s/d%d "
		       "--model_name_or_path %s/hf --lora_r 4 --max_steps 2 --data_seed 1 --lora_dropout %s --seed %d",
		       dir, dir, i, dir, i ? "0.5" : "0", i > 1);
	assert_true(logged(&scratch, "d1", 0, "loss") == logged(&scratch, "d0", 0, "loss"));
	assert_true(logged(&scratch, "d1", 1, "loss") != logged(&scratch, "d0", 1, "loss"));
	assert_true(logged(&scratch, "d1", 1, "grad_norm") != logged(&scratch, "d2", 1, "grad_norm"));
	/* the same adapter, held still: 200 draws */
	train(&scratch, "lora", path_of("--model_name_or_path %s/hf --lora_r 4 --lora_dropout 0 --max_steps 40", dir));
	double loss[2];
	for (int i = 0; i < 2; i++) {
		run_ok(&scratch,
		       "train --train_file %s/held.jsonl --max_length 64 --max_steps 200 --learning_rate 0 --lr_scheduler_type constant "
		       "--logging_steps 200 --output_dir %s/s%d --model_name_or_path %s/hf --adapter_name_or_path %s/lora --lora_dropout "
		       "%s",
		       dir, dir, i, dir, dir, i ? "0.1" : "0");
		loss[i] = logged(&scratch, i ? "s1" : "s0", 0, "loss");
	}
	printf("mean loss of 200 steps: %.6f without dropout, %.6f with 0.1\n", loss[0], loss[1]);
	assert_true(loss[0] != loss[1] && fabs(loss[1] / loss[0] - 1) < 0.01);
	/* nothing is dropped where nothing is trained */
	double plain = evaluated(&scratch, path_of("%s/hf --adapter_name_or_path %s/s0", dir, dir));
	assert_true(evaluated(&scratch, path_of("%s/hf --adapter_name_or_path %s/s1", dir, dir)) == plain);
	assert_true(fabs(plain / loss[0] - 1) < 1e-6);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_resumed_runs_equal_runs_that_never_stopped),
	        cmocka_unit_test(test_stages_that_update_themselves_resume_too),
	        cmocka_unit_test(test_optimizers_resume_with_their_own_state),
	        cmocka_unit_test(test_signals_save_and_end_the_run_well),
	        cmocka_unit_test(test_a_memory_limit_lowered_under_a_run_saves_and_ends_it),
	        cmocka_unit_test(test_a_run_stopped_before_its_first_line_tells_its_loss),
	        cmocka_unit_test(test_checkpoints_over_the_limit_go_when_a_run_goes_on),
	        cmocka_unit_test(test_killed_runs_go_on_from_a_whole_checkpoint),
	        cmocka_unit_test(test_evaluation_comes_when_asked_and_equals_the_verb),
	        cmocka_unit_test(test_saved_weights_are_rounded_as_uploaded_ones),
	        cmocka_unit_test(test_a_learning_rate_of_zero_changes_nothing),
	        cmocka_unit_test(test_a_steps_loss_is_evals_over_the_same_rows),
	        cmocka_unit_test(test_dropout_scatters_losses_around_those_without),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
