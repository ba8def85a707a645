/* `stress`: what it finds fits, what is longer does not; a trial stays within what was predicted; it keeps to its time, and leaves nothing
 * behind wherever it is killed. */
#include "cli/runner.h"

#include "core/clock.h"
#include "core/json.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static json_t *json_of(const struct ran *ran, int status)
{
	if (ran->status != status)
		fail_msg("exit %d: %s%s", ran->status, ran->out, ran->err);
	json_t *json = json_loads(ran->out, 0, NULL);
	assert_non_null(json);
	return json;
}

static int64_t number(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);
	assert_true(json_is_number(value));
	return (int64_t)json_number_value(value);
}

static const json_t *place(const json_t *json, const char *name)
{
	return json_object_get(json_object_get(json, "placements"), name);
}

/* Three models on CPU devices: whole steps of the longest sequences, within the memory that was predicted. */
static void test_trials_of_three_models_stay_within_the_prediction(void **state)
{
	(void)state;
	static const struct {
		const char *model, *device, *options;
	} what[] = {
	        {"smollm2", "cpu:1", "--max_ram 40MiB"}, {"qwen3", "cpu:2", "--max_ram 44MiB"}, {"gpt-oss", "cpu:1", "--max_ram 46MiB"}};
	struct scratch scratch;
	scratch_open(&scratch);
	for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
		struct ran ran =
		        run_line(&scratch, "stress --model_name_or_path tests/reference/models/%s --device %s %s --time 100s --json",
		                 what[i].model, what[i].device, what[i].options);
		json_t *json = json_of(&ran, 0);
		static const char *const names[] = {"device", "host"};
		int tried = 0;
		for (int p = 0; p < 2; p++) {
			const json_t *found = place(json, names[p]), *trial = json_object_get(found, "trial");
			if (!number(found, "tokens"))
				continue;
			tried++;
			print_message("%s %s: %lld tokens, %.1f MiB of host memory at most, %.1f predicted\n", what[i].model, names[p],
			              (long long)number(found, "tokens"), (double)number(trial, "ram_peak_bytes") / 1048576,
			              (double)number(found, "ram_bytes") / 1048576);
			if (!json_is_true(json_object_get(trial, "whole_step")))
				fail_msg("%s %s: %s", what[i].model, names[p], ran.out);
			assert_true(number(trial, "reserved_tokens") == number(found, "tokens"));
			assert_true(number(trial, "device_peak_bytes") == number(found, "device_bytes"));
			/* of such small models the allowance for the program, of which some MiB are not taken, is more than the 2 % */
			int64_t peak = number(trial, "ram_peak_bytes"), planned = number(trial, "ram_planned_bytes");
			assert_true(planned < number(found, "ram_bytes") && peak <= planned && planned - peak <= peak / 50 + (12 << 20));
		}
		assert_true(tried > 0);
		json_decref(json);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

/* Where nothing fits nothing is tried. */
static void test_no_trial_has_no_heading(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	struct ran ran =
	        run_line(&scratch, "stress --model_name_or_path tests/reference/models/qwen3 --device cpu:1 --max_ram 1MiB --time 100s");
	if (ran.status != 1 || !strstr(ran.out, "not even a short one fits") || strstr(ran.out, "tried"))
		fail_msg("exit %d: %s", ran.status, ran.out);
	run_free(&ran);
	scratch_close(&scratch);
}

/* plan says yes to what stress found, and no to 1/32 more. */
static void test_what_is_found_is_the_longest(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	static const char line[] = "--hardware rtx4090x1 --max_ram 24GiB --use_peft true --dtype bfloat16 --per_device_train_batch_size 1";
	struct ran ran = run_line(&scratch, "stress --model_name_or_path examples/models/llama-3.1-8b %s --svg %s/curve.svg --json", line,
	                          scratch.dir);
	json_t *json = json_of(&ran, 0);
	const json_t *host = place(json, "host");
	long long tokens = number(host, "tokens");
	assert_true(tokens > 16384 && json_is_true(json_object_get(json, "on_this_machine")) == 0);
	assert_string_equal(json_string_value(json_object_get(host, "budget")), "max_ram");
	const json_t *lengths = json_object_get(host, "lengths");
	assert_true(json_array_size(lengths) > 4);
	for (size_t i = 0; i < json_array_size(lengths); i++)
		assert_true(json_number_value(json_object_get(json_array_get(lengths, i), "tokens_per_second")) > 0);
	run_free(&ran);
	json_decref(json);
	for (int more = 0; more < 2; more++) {
		ran = run_line(&scratch, "plan --model_name_or_path examples/models/llama-3.1-8b %s --max_length %lld", line,
		               tokens + more * (tokens / 32));
		if (ran.status != more)
			fail_msg("exit %d: %s", ran.status, ran.out);
		run_free(&ran);
	}
	size_t length;
	char *svg = read_bytes(path_of("%s/curve.svg", scratch.dir), &length);
	assert_true(!strncmp(svg, "<svg", 4) && strstr(svg, "prefers-color-scheme:dark") && strstr(svg, "<path class=\"s0\""));
	free(svg);
	scratch_close(&scratch);
}

static int files_in(const char *dir)
{
	DIR *opened = opendir(dir);
	int count = 0;
	assert_non_null(opened);
	for (const struct dirent *entry; (entry = readdir(opened));)
		count += *entry->d_name != '.';
	closedir(opened);
	return count;
}

/* A copy of the program with NVMe in use, killed after some time. */
static void test_killed_anywhere_it_leaves_nothing(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	const char *nvme = strdup(path_of("%s/nvme", scratch.dir));
	check_ok(rh_dir_make(nvme));
	for (int ms = 50; ms <= 6400; ms *= 2) {
		pid_t child = fork();
		assert_true(child >= 0);
		if (!child) {
			FILE *out = freopen("/dev/null", "w", stdout);
			(void)out;
			execl("build/release/roundhouse", "roundhouse", "stress", "--model_name_or_path", "tests/reference/models/qwen3",
			      "--device", "cpu:1", "--max_ram", "40MiB", "--spill", "auto", "--nvme_dirs", nvme, "--max_nvme", "1GiB",
			      "--time", "30s", (char *)NULL);
			_exit(127);
		}
		struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};
		nanosleep(&pause, NULL);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		assert_int_equal(files_in(nvme), 0);
	}
	free((char *)(uintptr_t)nvme);
	scratch_close(&scratch);
}

static void test_it_keeps_to_its_time(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	double began = rh_clock_seconds();
	struct ran ran;
	run_start(&scratch,
	          path_of("stress --model_name_or_path tests/reference/models/qwen3 --device cpu:1 --max_ram 1GiB --time 6s "
	                  "--svg %s/curve.svg",
	                  scratch.dir),
	          2048, &ran); /* a file's bytes: more than the table, fewer than the picture */
	run_wait(&ran);
	/* what was found is told though the picture cannot be written */
	if (ran.status > 1 || !strstr(ran.out, "bytes in") || !strstr(ran.err, "curve.svg"))
		fail_msg("exit %d: %s%s", ran.status, ran.out, ran.err);
	assert_true(rh_clock_seconds() - began < 8);
	run_free(&ran);
	ran = run_line(&scratch, "stress --model_name_or_path tests/reference/models/qwen3 --time soon");
	assert_true(ran.status == 2 && strstr(ran.err, "--time: expected a time such as 90s, 10m or 2h"));
	run_free(&ran);
	scratch_close(&scratch);
}

/* The first process that this one has started; 0: none yet. */
static long first_child(pid_t parent)
{
	char path[64];
	long child = 0;
	snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
	FILE *file = fopen(path, "r");
	if (file && fscanf(file, "%ld", &child) != 1)
		child = 0;
	if (file)
		fclose(file);
	return child;
}

/* A run whose first child that is seen is killed: 1: it told of it; 0: the child was over already. */
static int kill_a_part(void)
{
	struct scratch scratch;
	size_t length;
	int status;
	long child = 0;
	scratch_open(&scratch);
	const char *out_file = path_of("%s/out", scratch.dir);
	pid_t parent = fork();
	assert_true(parent >= 0);
	if (!parent) {
		FILE *out = freopen(out_file, "w", stdout);
		(void)out;
		execl("build/release/roundhouse", "roundhouse", "stress", "--model_name_or_path", "tests/reference/models/qwen3",
		      "--device", "cpu:1", "--max_ram", "40MiB", "--time", "20s", (char *)NULL);
		_exit(127);
	}
	for (double until_s = rh_clock_seconds() + 10; !child && rh_clock_seconds() < until_s;)
		child = first_child(parent);
	assert_true(child > 0);
	(void)kill((pid_t)child, SIGKILL);
	waitpid(parent, &status, 0);
	char *text = read_bytes(path_of("%s/out", scratch.dir), &length);
	if (!WIFEXITED(status) || WEXITSTATUS(status) || strstr(text, "no time to find it"))
		fail_msg("status %d: %s", status, text);
	int is_told = strstr(text, "-  its process ended with signal 9") != NULL;
	free(text);
	scratch_close(&scratch);
	return is_told;
}

/* As the kernel does where memory runs short: that is told, whichever part it was, and the others are looked at all the same. */
static void test_a_part_that_is_killed_is_told_of(void **state)
{
	(void)state;
	int is_told = 0;
	for (int attempt = 0; attempt < 8 && !is_told; attempt++)
		is_told = kill_a_part();
	assert_true(is_told);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_trials_of_three_models_stay_within_the_prediction),
	        cmocka_unit_test(test_no_trial_has_no_heading),
	        cmocka_unit_test(test_what_is_found_is_the_longest),
	        cmocka_unit_test(test_killed_anywhere_it_leaves_nothing),
	        cmocka_unit_test(test_it_keeps_to_its_time),
	        cmocka_unit_test(test_a_part_that_is_killed_is_told_of),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
