/* Surroundings that work against a run: links, directories that are moved, closed descriptors, signals, limits. Nothing is lost, and what
 * ends a run says so in one line. */
#include "cli/good.h"

#include "checkpoint/checkpoint.h"
#include "core/json.h"

#include <linux/capability.h>
#include <sys/resource.h>

static const char *const short_run = "train %s/run.yaml --use_peft true --save_steps 1 --max_steps 2";
static const char *const long_run = "train %s/run.yaml --use_peft true --logging_steps 1 --save_strategy no --max_steps 1000000";

static int holds(const struct ran *ran, const char *part)
{
	return strstr(ran->err, part) != NULL;
}

static void require(const struct ran *ran, int status, const char *part)
{
	if (ran->status != status || !holds(ran, part))
		fail_msg("exit %d (expected %d), '%s' expected in: %s", ran->status, status, part, ran->err);
}

static void *read_whole(const char *path)
{
	size_t length;
	return read_bytes(path, &length);
}

/* A run that goes on until it is told otherwise, once it has logged a step. */
static void start_long(const struct scratch *scratch, const char *more, struct ran *ran)
{
	char line[512];
	snprintf(line, sizeof line, "%s %s", path_of(long_run, scratch->dir), more);
	run_start(scratch, line, 0, ran);
	for (int tries = 0; tries < 200000; tries++) {
		struct stat info;
		if (stat(path_of("%s/out/metrics.jsonl", scratch->dir), &info) == 0 && info.st_size > 0)
			return;
		usleep(100);
	}
	fail_msg("it logs no step");
}

static int exists(const char *path)
{
	struct stat info;
	return lstat(path, &info) == 0;
}

/* ---- links ---- */

static void test_links_in_output_dir_are_left_alone(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	run_ok(&scratch, short_run, dir);
	static const char *const names[] = {"checkpoint-2", ".checkpoint-9.tmp", ".checkpoint-3.old"};
	for (int i = 0; i < 3; i++) {
		check_ok(rh_dir_make(path_of("%s/elsewhere-%d/below", dir, i)));
		write_text(path_of("%s/elsewhere-%d/below/precious", dir, i), "years of work");
		const char *name = path_of("%s/out/%s", dir, names[i]);
		if (!i)
			check_ok(rh_dir_remove(name));
		check_ok(symlink(path_of("%s/elsewhere-%d", dir, i), name));
	}
	write_text(path_of("%s/log", dir), "years of work");
	check_ok(symlink(path_of("%s/log", dir), path_of("%s/out/model.safetensors.tmp.123", dir)));
	struct ran ran = run_line(&scratch,
	                          "train %s/run.yaml --use_peft true --save_steps 1 --max_steps 4 --save_total_limit 1 "
	                          "--resume_from_checkpoint true",
	                          dir);
	require(&ran, 0, "it is left alone: move it away");
	run_free(&ran);
	for (int i = 0; i < 3; i++) {
		if (!exists(path_of("%s/elsewhere-%d/below/precious", dir, i)))
			fail_msg("what %s leads to was emptied", names[i]);
		assert_true(exists(path_of("%s/out/%s", dir, names[i])));
	}
	assert_true(exists(path_of("%s/log", dir)) && exists(path_of("%s/out/model.safetensors.tmp.123", dir)));
	assert_true(exists(path_of("%s/out/checkpoint-4/config.yaml", dir)));
	assert_false(exists(path_of("%s/out/checkpoint-1", dir))); /* the limit holds for what is ours */
	scratch_close(&scratch);
}

/* A link where the next checkpoint is due costs that checkpoint, not the run. */
static void test_a_link_in_a_checkpoints_place_costs_the_checkpoint(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	run_ok(&scratch, short_run, dir);
	check_ok(rh_dir_make(path_of("%s/elsewhere", dir)));
	check_ok(symlink(path_of("%s/elsewhere", dir), path_of("%s/out/checkpoint-3", dir)));
	check_ok(symlink(path_of("%s/elsewhere", dir), path_of("%s/out/.checkpoint-4.tmp", dir)));
	struct ran ran =
	        run_line(&scratch, "train %s/run.yaml --use_peft true --save_steps 1 --max_steps 5 --resume_from_checkpoint true", dir);
	require(&ran, 0, "warning: no checkpoint of step 3: ");
	require(&ran, 0, "warning: no checkpoint of step 4: ");
	run_free(&ran);
	assert_true(exists(path_of("%s/out/checkpoint-5/config.yaml", dir)));
	assert_int_equal(rmdir(path_of("%s/elsewhere", dir)), 0); /* nothing was written there */
	scratch_close(&scratch);
}

/* The program's permissions are those of files, as for anyone but root. */
static void drop_override(void)
{
	(void)prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE);
	(void)prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH);
}

/* An old checkpoint that may not be removed, or not even be read, stays; the run goes on, and the limit holds for the others. */
static void test_a_checkpoint_that_may_not_be_removed_costs_nothing(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	run_ok(&scratch, short_run, dir);
	static const int modes[] = {0555, 0};
	for (int i = 0; i < 2; i++) {
		check_ok(chmod(path_of("%s/out/checkpoint-1", dir), (mode_t)modes[i]));
		run_prepare = drop_override;
		struct ran ran = run_line(&scratch,
		                          "train %s/run.yaml --use_peft true --save_steps 1 --max_steps %d --save_total_limit 2 "
		                          "--resume_from_checkpoint true",
		                          dir, 5 + i);
		run_prepare = NULL;
		require(&ran, 0, "checkpoint-1 may not be removed by this user");
		run_free(&ran);
		check_ok(chmod(path_of("%s/out/checkpoint-1", dir), 0755));
		check_ok(rh_checkpoint_verify(path_of("%s/out/checkpoint-1", dir)));
		for (int step = 2; step <= 5 + i; step++)
			assert_int_equal(exists(path_of("%s/out/checkpoint-%d", dir, step)), step > 3 + i);
	}
	scratch_close(&scratch);
}

/* Nor is one replaced: it costs the checkpoint of its step. What an earlier run left behind of such a one is left alone. */
static void test_a_checkpoint_that_may_not_be_removed_is_not_replaced(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	run_ok(&scratch, short_run, dir);
	uint64_t before = tree_hash(path_of("%s/out/checkpoint-2", dir));
	check_ok(rename(path_of("%s/out/checkpoint-2", dir), path_of("%s/kept", dir)));
	copy_dir(path_of("%s/kept", dir), path_of("%s/out/checkpoint-2", dir));
	copy_dir(path_of("%s/kept", dir), path_of("%s/out/.checkpoint-2.old", dir));
	check_ok(chmod(path_of("%s/out/checkpoint-2", dir), 0555));
	check_ok(chmod(path_of("%s/out/.checkpoint-2.old", dir), 0555));
	run_prepare = drop_override;
	struct ran ran = run_line(
	        &scratch, "train %s/run.yaml --use_peft true --save_steps 1 --max_steps 3 --resume_from_checkpoint %s/out/checkpoint-1",
	        dir, dir);
	run_prepare = NULL;
	require(&ran, 0, "warning: no checkpoint of step 2: ");
	require(&ran, 0, "checkpoint-2: is there already and may not be removed by this user");
	require(&ran, 0, ".checkpoint-2.old may not be removed by this user");
	run_free(&ran);
	check_ok(chmod(path_of("%s/out/checkpoint-2", dir), 0755));
	check_ok(chmod(path_of("%s/out/.checkpoint-2.old", dir), 0755));
	assert_true(tree_hash(path_of("%s/out/checkpoint-2", dir)) == before);
	assert_true(exists(path_of("%s/out/.checkpoint-2.old/config.yaml", dir)));
	assert_true(exists(path_of("%s/out/checkpoint-3/config.yaml", dir)));
	scratch_close(&scratch);
}

/* A log that is a link is not written through it. */
static void test_a_link_in_place_of_the_log_is_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	run_ok(&scratch, short_run, dir);
	write_text(path_of("%s/log", dir), "years of work");
	check_ok(unlink(path_of("%s/out/metrics.jsonl", dir)));
	check_ok(symlink(path_of("%s/log", dir), path_of("%s/out/metrics.jsonl", dir)));
	struct ran ran =
	        run_line(&scratch, "train %s/run.yaml --use_peft true --save_steps 1 --max_steps 3 --resume_from_checkpoint true", dir);
	check_failed(&ran, "metrics.jsonl: is a link where a file is due; it is left alone: move it away");
	run_free(&ran);
	char *text = read_whole(path_of("%s/log", dir));
	assert_string_equal(text, "years of work");
	free(text);
	scratch_close(&scratch);
}

/* ---- directories that are moved ---- */

static void test_a_run_whose_directory_is_renamed_stops(void **state)
{
	(void)state;
	struct scratch scratch;
	struct ran first, second;
	make_good(&scratch);
	const char *dir = scratch.dir;
	start_long(&scratch, "", &first);
	check_ok(kill(first.pid, SIGSTOP));
	check_ok(rename(path_of("%s/out", dir), path_of("%s/moved", dir)));
	second = run_line(&scratch, "train %s/run.yaml --use_peft true --output_dir %s/moved --resume_from_checkpoint true", dir, dir);
	check_failed(&second, "/moved is in use by another run; wait for its end, or choose another");
	run_free(&second);
	check_ok(kill(first.pid, SIGCONT));
	run_wait(&first);
	check_failed(&first, "/out was renamed while this run wrote to it; stopped after step ");
	run_free(&first);
	assert_false(exists(path_of("%s/out", dir)));
	run_ok(&scratch, "train %s/run.yaml --use_peft true --output_dir %s/moved --resume_from_checkpoint true --max_steps 1", dir, dir);
	scratch_close(&scratch);
}

/* Steps that are joined, too, though none of them has an end before the next. */
static void test_a_run_whose_directory_is_removed_stops(void **state)
{
	(void)state;
	static const char *const ways[] = {"", "--optimizer_staleness 1", "--schedule 1f1b-async --max_grad_norm 0"};
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		struct scratch scratch;
		struct ran ran;
		make_good(&scratch);
		const char *dir = scratch.dir;
		start_long(&scratch, ways[i], &ran);
		check_ok(kill(ran.pid, SIGSTOP));
		check_ok(rh_dir_remove(path_of("%s/out", dir)));
		check_ok(kill(ran.pid, SIGCONT));
		run_wait(&ran);
		check_failed(&ran, "/out was renamed or removed while this run wrote to it; stopped after step ");
		run_free(&ran);
		assert_false(exists(path_of("%s/out", dir)));
		scratch_close(&scratch);
	}
}

/* ---- signals ---- */

static void ignore_hangup(void)
{
	signal(SIGHUP, SIG_IGN);
}

static void test_signals_that_end_programs_save_a_checkpoint(void **state)
{
	(void)state;
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGXCPU};
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
		struct scratch scratch;
		struct ran ran;
		make_good(&scratch);
		start_long(&scratch, "", &ran);
		check_ok(kill(ran.pid, signals[i]));
		run_wait(&ran);
		if (ran.status || !holds(&ran, "go on with resume_from_checkpoint: true"))
			fail_msg("signal %d: exit %d: %s", signals[i], ran.status, ran.err);
		run_free(&ran);
		run_ok(&scratch, "train %s/run.yaml --use_peft true --max_steps 1 --resume_from_checkpoint true", scratch.dir);
		scratch_close(&scratch);
	}
}

static void test_a_hangup_that_nohup_ignores_stays_ignored(void **state)
{
	(void)state;
	struct scratch scratch;
	struct ran ran;
	make_good(&scratch);
	run_prepare = ignore_hangup;
	start_long(&scratch, "", &ran);
	run_prepare = NULL;
	check_ok(kill(ran.pid, SIGHUP));
	usleep(200000);
	assert_int_equal(waitpid(ran.pid, NULL, WNOHANG), 0);
	check_ok(kill(ran.pid, SIGTERM));
	run_wait(&ran);
	assert_int_equal(ran.status, 0);
	run_free(&ran);
	scratch_close(&scratch);
}

static void write_to_nobody(void)
{
	int ends[2];
	if (pipe(ends) || dup2(ends[1], 1) < 0 || dup2(ends[1], 2) < 0)
		_exit(125);
	close(ends[0]);
	close(ends[1]);
}

static void close_standard(void)
{
	close(0);
	close(1);
	close(2);
}

/* Whatever becomes of the three standard streams, a run's files are those of any other run. */
static void test_streams_that_are_gone_or_closed_change_nothing(void **state)
{
	(void)state;
	void (*const prepare[])(void) = {write_to_nobody, close_standard};
	struct scratch good;
	make_good(&good);
	run_ok(&good, short_run, good.dir);
	for (int i = 0; i < 2; i++) {
		struct scratch scratch;
		struct ran ran;
		make_good(&scratch);
		run_prepare = prepare[i];
		run_start(&scratch, path_of(short_run, scratch.dir), 0, &ran);
		run_wait(&ran);
		run_prepare = NULL;
		if (ran.status)
			fail_msg("case %d: exit %d", i, ran.status);
		run_free(&ran);
		assert_true(same_file(path_of("%s/out/adapter_model.safetensors", scratch.dir),
		                      path_of("%s/out/adapter_model.safetensors", good.dir)));
		for (char *text = read_whole(path_of("%s/out/metrics.jsonl", scratch.dir)), *rest = text, *line = text; line;) {
			json_t *json;
			line = strsep(&rest, "\n");
			if (line && *line) {
				check_ok(rh_json_parse(line, strlen(line), "metrics.jsonl", &json));
				json_decref(json);
			}
			if (!line)
				free(text);
		}
		scratch_close(&scratch);
	}
	scratch_close(&good);
}

/* ---- limits ---- */

static void large_stacks(void)
{
	setrlimit(RLIMIT_STACK, &(struct rlimit){(rlim_t)64 << 30, RLIM_INFINITY});
	setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)16 << 30, (rlim_t)16 << 30});
}

static void small_stacks(void)
{
	setrlimit(RLIMIT_STACK, &(struct rlimit){160 << 10, RLIM_INFINITY});
}

static void test_the_shells_stack_size_is_not_the_threads(void **state)
{
	(void)state;
	void (*const prepare[])(void) = {large_stacks, small_stacks};
	for (int i = 0; i < 2 && CHECK_RESIDENT; i++) {
		struct scratch scratch;
		make_good(&scratch);
		run_prepare = prepare[i];
		struct ran ran = run_line(&scratch, "train %s/run.yaml --use_peft true --max_steps 2 --device cpu:2", scratch.dir);
		run_prepare = NULL;
		if (ran.status)
			fail_msg("case %d: exit %d: %s", i, ran.status, ran.err);
		run_free(&ran);
		scratch_close(&scratch);
	}
}

static rlim_t address_bytes;

static void little_address_space(void)
{
	setrlimit(RLIMIT_AS, &(struct rlimit){address_bytes, address_bytes});
}

/* From what the program's own file takes, without which the kernel ends it, and what the loader needs (below it, the loader tells) to
 * enough: an error line or success, nothing else. */
static void test_too_little_address_space_is_one_line(void **state)
{
	(void)state;
	int refused = 0, ran_well = 0;
	struct stat program;
	assert_int_equal(stat(program_path(), &program), 0);
	for (address_bytes = (rlim_t)program.st_size + (8 << 20); CHECK_RESIDENT && !ran_well && address_bytes < (rlim_t)4 << 30;
	     address_bytes = address_bytes * 5 / 4) {
		struct scratch scratch;
		make_good(&scratch);
		run_prepare = little_address_space;
		struct ran ran = run_line(&scratch, "train %s/run.yaml --use_peft true --max_steps 1", scratch.dir);
		run_prepare = NULL;
		if (ran.status == 127 || strstr(ran.err, "shared libraries")) { /* the loader's */
			run_free(&ran);
			scratch_close(&scratch);
			continue;
		}
		if (ran.status)
			check_failed(&ran, ": ");
		refused += ran.status != 0;
		ran_well = ran.status == 0;
		run_free(&ran);
		scratch_close(&scratch);
	}
	printf("%d refusals\n", refused);
	assert_true(!CHECK_RESIDENT || (refused > 0 && ran_well));
}

static void few_descriptors(void)
{
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){address_bytes, address_bytes});
}

/* Any number of descriptors: an error line or success; a checkpoint is never passed over for want of them. */
static void test_too_few_descriptors_are_one_line(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	run_ok(&scratch, short_run, scratch.dir);
	int refused = 0, ran_well = 0;
	for (address_bytes = 7; address_bytes < 64 && !ran_well; address_bytes++) {
		run_prepare = few_descriptors;
		struct ran ran =
		        run_line(&scratch, "train %s/run.yaml --use_peft true --save_steps 1 --max_steps 3 --resume_from_checkpoint true",
		                 scratch.dir);
		run_prepare = NULL;
		if (ran.status == 127 || strstr(ran.err, "shared libraries")) {
			run_free(&ran);
			continue;
		}
		if (ran.status)
			check_failed(&ran, ": ");
		if (holds(&ran, "is passed over"))
			fail_msg("%d descriptors: %s", (int)address_bytes, ran.err);
		assert_true(exists(path_of("%s/out/checkpoint-2/config.yaml", scratch.dir)));
		refused += ran.status != 0;
		ran_well = ran.status == 0;
		run_free(&ran);
	}
	printf("%d refusals\n", refused);
	assert_true(refused > 0 && ran_well);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_links_in_output_dir_are_left_alone),
	        cmocka_unit_test(test_a_link_in_a_checkpoints_place_costs_the_checkpoint),
	        cmocka_unit_test(test_a_checkpoint_that_may_not_be_removed_costs_nothing),
	        cmocka_unit_test(test_a_checkpoint_that_may_not_be_removed_is_not_replaced),
	        cmocka_unit_test(test_a_link_in_place_of_the_log_is_refused),
	        cmocka_unit_test(test_a_run_whose_directory_is_renamed_stops),
	        cmocka_unit_test(test_a_run_whose_directory_is_removed_stops),
	        cmocka_unit_test(test_signals_that_end_programs_save_a_checkpoint),
	        cmocka_unit_test(test_a_hangup_that_nohup_ignores_stays_ignored),
	        cmocka_unit_test(test_streams_that_are_gone_or_closed_change_nothing),
	        cmocka_unit_test(test_the_shells_stack_size_is_not_the_threads),
	        cmocka_unit_test(test_too_little_address_space_is_one_line),
	        cmocka_unit_test(test_too_few_descriptors_are_one_line),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
