/* Surroundings that work against a run: links, directories that are moved, closed descriptors, signals, limits. Nothing is lost, and what
 * ends a run says so in one line. */
#include "cli/good.h"

#include "checkpoint/checkpoint.h"
#include "core/json.h"

#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>

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

/* ---- results that go nowhere, and systems that lack a part ---- */

static void write_to_full(void)
{
	int full = open("/dev/full", O_WRONLY);
	if (full < 0 || dup2(full, 1) < 0)
		_exit(125);
}

/* Whoever takes a program's output must be told that it is not whole. */
static void test_output_that_cannot_be_written_is_an_error(void **state)
{
	(void)state;
	static const char *const lines[] = {"--help",
	                                    "--version",
	                                    "train --help",
	                                    "plan --help",
	                                    "inspect --help",
	                                    "eval --help",
	                                    "generate --help",
	                                    "chat --help",
	                                    "merge --help",
	                                    "export --help",
	                                    "join --help",
	                                    "doctor --help",
	                                    "keys --help",
	                                    "train @/run.yaml --json",
	                                    "plan @/run.yaml",
	                                    "plan @/run.yaml --json",
	                                    "inspect @/run.yaml",
	                                    "inspect @/run.yaml --json",
	                                    "eval @/run.yaml --validation_file @/rows.jsonl",
	                                    "eval @/run.yaml --validation_file @/rows.jsonl --json",
	                                    "generate @/run.yaml --prompt the --max_new_tokens 3",
	                                    "generate @/run.yaml --prompt the --max_new_tokens 3 --json",
	                                    "export @/run.yaml --outfile @/out.gguf --json",
	                                    "doctor --device cpu:1 --measure_seconds 1",
	                                    "keys --link_identity @/key.pem"};
	struct scratch scratch;
	char line[1024];
	make_good(&scratch);
	run_prepare = write_to_full;
	for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
		struct ran ran;
		fill_in(&scratch, lines[i], line, sizeof line);
		run_start(&scratch, line, 0, &ran);
		run_wait(&ran);
		check_failed(&ran, "standard output: cannot write");
		assert_int_equal(ran.status, 1);
		run_free(&ran);
	}
	run_prepare = NULL;
	assert_true(exists(path_of("%s/out/model.safetensors", scratch.dir))); /* train's result lies there all the same */
	scratch_close(&scratch);
}

static const char *hidden;

/* Leaves an empty place where `hidden` is, for this process alone; but scratch files may lie in /dev/shm. */
static void hide(void)
{
	char kept[64];
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
		_exit(125);
	int memory = open("/dev/shm", O_PATH);
	snprintf(kept, sizeof kept, "/proc/self/fd/%d", memory);
	if (mount("none", hidden, "tmpfs", 0, NULL))
		_exit(125);
	if (!strcmp(hidden, "/dev") && memory >= 0 && (mkdir("/dev/shm", 0777) || mount(kept, "/dev/shm", NULL, MS_BIND, NULL)))
		_exit(125);
	close(memory);
	close(0);
}

/* Containers are made without one or the other. */
static void test_without_devices_or_proc_it_runs(void **state)
{
	(void)state;
	static const char *const places[] = {"/dev", "/proc"};
	for (int i = 0; i < 2; i++) {
		struct scratch scratch;
		make_good(&scratch);
		hidden = places[i];
		run_prepare = hide;
		struct ran ran = run_line(&scratch, "train %s/run.yaml --use_peft true", scratch.dir);
		run_prepare = NULL;
		if (ran.status == 125)
			check_skip("no mount namespace may be made here");
		if (ran.status || strstr(ran.err, " -"))
			fail_msg("without %s: exit %d: %s", places[i], ran.status, ran.err);
		run_free(&ran);
		scratch_close(&scratch);
	}
}

static void deny_enter(void)
{
	struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	                             BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_enter, 0, 1),
	                             BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
	struct sock_fprog program = {sizeof code / sizeof *code, code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		_exit(125);
}

/* Two drives, and one line on it. */
static void test_io_uring_that_may_not_be_entered_gives_way_to_threads(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	for (int i = 0; i < 2; i++)
		check_ok(rh_dir_make(path_of("%s/nvme%d", scratch.dir, i)));
	run_prepare = deny_enter;
	struct ran ran = run_line(&scratch, "train %s/run.yaml --spill optimizer --max_nvme 64MiB --nvme_dirs %s/nvme0,%s/nvme1",
	                          scratch.dir, scratch.dir, scratch.dir);
	run_prepare = NULL;
	if (ran.status == 125)
		check_skip("no filter of system calls may be set here");
	const char *said = strstr(ran.err, "io_uring is not to be had here");
	if (ran.status || !said || strstr(said + 1, "io_uring is not"))
		fail_msg("exit %d: %s", ran.status, ran.err);
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_rows_from_a_pipe_are_refused_as_such(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	check_ok(mkfifo(path_of("%s/pipe", scratch.dir), 0600));
	check_ok(symlink(path_of("%s/pipe", scratch.dir), path_of("%s/link", scratch.dir)));
	check_ok(symlink(path_of("%s/nothing", scratch.dir), path_of("%s/dangling", scratch.dir)));
	refused(&scratch, "train @/run.yaml --train_file @/pipe", "is a pipe or a device, and this is read more than once");
	refused(&scratch, "plan @/run.yaml --train_file @/link", "is a pipe or a device, and this is read more than once");
	refused(&scratch, "inspect @/run.yaml --validation_file @/pipe", "validation_file: '");
	refused(&scratch, "train @/run.yaml --model_name_or_path @/pipe", "is a pipe or a device");
	refused(&scratch, "train @/run.yaml --train_file @/dangling", "is a link that leads nowhere");
	scratch_close(&scratch);
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
	        cmocka_unit_test(test_output_that_cannot_be_written_is_an_error),
	        cmocka_unit_test(test_without_devices_or_proc_it_runs),
	        cmocka_unit_test(test_io_uring_that_may_not_be_entered_gives_way_to_threads),
	        cmocka_unit_test(test_rows_from_a_pipe_are_refused_as_such),
	        cmocka_unit_test(test_the_shells_stack_size_is_not_the_threads),
	        cmocka_unit_test(test_too_little_address_space_is_one_line),
	        cmocka_unit_test(test_too_few_descriptors_are_one_line),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
