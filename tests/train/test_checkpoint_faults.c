/* A run is killed, asked to stop, or its disk fails, at each change that it makes to the file system: what it goes on from is there and
 * whole. */
#include "cli/good.h"
#include "fs_faults.h"

#include "checkpoint/checkpoint.h"
#include "core/log.h"
#include "train/train.h"

/* Checkpoints at 2 and 4 are there; it goes on from the first, saves 3 and removes 2, and saves 4 again in the place of the other. */
enum { LAST = 4 };

static const char *base_model = "hf"; /* in the run's directory */

static void load(const char *dir, const char *from, struct rh_config *config)
{
	char line[1024];
	char *argv[40], *rest = line;
	int argc = 0;
	snprintf(line, sizeof line,
	         "--model_name_or_path %s/%s --lora_r 2 --train_file %s/rows.jsonl --max_length 64 --max_steps %d --save_steps %d "
	         "--save_total_limit 2 --per_device_train_batch_size 2 --output_dir %s/out%s%s",
	         dir, base_model, dir, LAST, from ? 1 : 2, dir, from ? " --resume_from_checkpoint " : "", from ? from : "");
	for (char *word; (word = strsep(&rest, " "));)
		argv[argc++] = word;
	check_ok(rh_config_load("train", argc, argv, NULL, config));
}

static unsigned look_kinds; /* other calls than changes fail; 0: changes do, with EIO */
static int look_code;

/* A run in a process of its own: its exit status; 128 + the signal that ended it. *asked: changes that were made, if it came to its end. */
static int train(const char *dir, const char *from, enum fs_fault what, long at, long *asked)
{
	int status, pipes[2];
	assert_int_equal(pipe(pipes), 0);
	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct rh_config config;
		struct rh_train_result result;
		if (!freopen(path_of("%s/err", dir), "w", stderr))
			_exit(3);
		load(dir, from, &config);
		fs_fault_set_kinds(what, look_kinds ? look_kinds : FS_CHANGES, at, look_kinds ? look_code : EIO);
		int rc = rh_train(&config, &result);
		long made = fs_faults.asked;
		fs_fault_set(FS_NONE, 0);
		if (rc)
			fprintf(stderr, "%s\n", rh_error(rc));
		rh_config_free(&config);
		fflush(stderr);
		_exit(write(pipes[1], &made, sizeof made) != sizeof made ? 2 : rc ? 1 : 0);
	}
	close(pipes[1]);
	*asked = 0;
	(void)!read(pipes[0], asked, sizeof *asked);
	close(pipes[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void copy_run(const char *from, const char *to)
{
	char source[512], target[512];
	snprintf(source, sizeof source, "%s", from);
	snprintf(target, sizeof target, "%s", to);
	check_ok(rh_dir_remove(target));
	copy_dir(source, target);
	for (int step = 2; step <= LAST; step += 2)
		copy_dir(path_of("%s/checkpoint-%d", source, step), path_of("%s/checkpoint-%d", target, step));
}

/* Every checkpoint that is seen is whole, and the newest that there ever was is one of them, at the latest when its name was given back. */
static void check_whole(const char *dir, const char *when)
{
	char out[256], *found;
	struct rh_config config;
	snprintf(out, sizeof out, "%s/out", dir);
	DIR *entries = opendir(out);
	assert_non_null(entries);
	for (struct dirent *entry; (entry = readdir(entries));)
		if (!strncmp(entry->d_name, "checkpoint-", 11) && rh_checkpoint_verify(path_of("%s/%s", out, entry->d_name)))
			fail_msg("%s: %s", when, rh_error(-EINVAL));
	closedir(entries);
	load(dir, "true", &config);
	check_ok(rh_checkpoint_put_back(out));
	if (rh_checkpoint_find(&config, &found))
		fail_msg("%s: %s", when, rh_error(-EINVAL));
	if (strcmp(strrchr(found, '/'), "/checkpoint-4"))
		fail_msg("%s: the newest is %s", when, found);
	rh_free(found);
	rh_config_free(&config);
}

/* `stride` from one of the calls to the next. */
static void sweep(enum fs_fault what, long stride)
{
	static const char *const names[] = {[FS_KILLED] = "killed", [FS_FAILS] = "failing", [FS_SIGNALLED] = "signalled"};
	static const int statuses[] = {[FS_KILLED] = FS_KILLED_STATUS, [FS_FAILS] = 1, [FS_SIGNALLED] = 128 + SIGTERM};
	struct scratch scratch;
	char dir[64], first[128];
	long asked, at = 1, tried = 0, ended = 0;
	make_good(&scratch);
	snprintf(dir, sizeof dir, "%s", scratch.dir);
	snprintf(first, sizeof first, "%s/out/checkpoint-2", dir);
	assert_int_equal(train(dir, NULL, FS_NONE, 0, &asked), 0);
	copy_run(path_of("%s/out", dir), path_of("%s/base", dir));
	for (;; at += stride, tried++) {
		char when[64];
		copy_run(path_of("%s/base", dir), path_of("%s/out", dir));
		check_ok(unlink(path_of("%s/out/adapter_model.safetensors", dir))); /* its result, or nothing would be left to do */
		check_ok(unlink(path_of("%s/out/trainer_state.json", dir)));
		int status = train(dir, first, what, at, &asked);
		snprintf(when, sizeof when, "%s at call %ld", names[what], at);
		if (status == 0 && asked < at)
			break;
		if (status != statuses[what] && status != 0) {
			size_t length;
			fail_msg("%s: exit %d: %s", when, status, read_bytes(path_of("%s/err", dir), &length));
		}
		ended += status != 0 || !rh_file_exists(path_of("%s/out/adapter_model.safetensors", dir));
		check_whole(dir, when);
		if (tried % 4 && !getenv("RH_LONG"))
			continue;
		if (train(dir, "true", FS_NONE, 0, &asked))
			fail_msg("%s: the next run fails", when);
		if (!same_file(path_of("%s/out/adapter_model.safetensors", dir), path_of("%s/base/adapter_model.safetensors", dir)))
			fail_msg("%s: another result", when);
		DIR *entries = opendir(path_of("%s/out", dir));
		for (struct dirent *entry; (entry = readdir(entries));)
			if (rh_checkpoint_left_behind(entry->d_name))
				fail_msg("%s: the next run leaves %s", when, entry->d_name);
		closedir(entries);
	}
	printf("%ld calls, %ld of %ld ended the run\n", at - 1, ended, tried);
	assert_true(ended > (what == FS_SIGNALLED ? 10 : 50));
	scratch_close(&scratch);
}

static void test_a_run_killed_at_any_change_leaves_whole_checkpoints(void **state)
{
	(void)state;
	sweep(FS_KILLED, 1);
}

/* SIGTERM while it opens, reads, looks or writes, from its beginning to its end. Before it has read its data it ends as any program
 * does. */
static void test_a_run_signalled_at_any_call_leaves_whole_checkpoints(void **state)
{
	(void)state;
	look_kinds = FS_CHANGES | FS_LOOKS;
	sweep(FS_SIGNALLED, getenv("RH_LONG") ? 1 : 11);
	look_kinds = 0;
}

static void test_a_disk_that_fails_at_any_change_leaves_whole_checkpoints(void **state)
{
	(void)state;
	sweep(FS_FAILS, 1);
}

/* What may pass (no descriptors, no right, a read error) on the newest checkpoint ends the run: it is neither passed over nor removed. One
 * that becomes shorter while it is verified is damaged, and the one before is gone on from. */
static void test_passing_errors_on_a_checkpoint_are_no_damage(void **state)
{
	(void)state;
	static const struct {
		enum fs_fault what;
		unsigned kinds;
		int code;
		const char *told;
	} cases[] = {
	        {FS_FAILS, FS_READ, EIO, "Input/output error"},        {FS_FAILS, FS_OPEN, EMFILE, "Too many open files"},
	        {FS_FAILS, FS_OPEN, EACCES, "Permission denied"},      {FS_FAILS, FS_OPEN, EIO, "Input/output error"},
	        {FS_FAILS, FS_OPEN, ENOMEM, "Cannot allocate memory"}, {FS_ENDS, FS_READ, EIO, "/checkpoint-4 is passed over: "},
	};
	static const char *const parts[] = {"checkpoint-4/optimizer.safetensors", "checkpoint-4/checksums.json",
	                                    "checkpoint-4/adapter_model"};
	struct scratch scratch;
	char dir[64];
	long asked;
	make_good(&scratch);
	snprintf(dir, sizeof dir, "%s", scratch.dir);
	assert_int_equal(train(dir, NULL, FS_NONE, 0, &asked), 0);
	copy_run(path_of("%s/out", dir), path_of("%s/base", dir));
	rh_log_quiet(0);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int part = 0; part < 3; part++) {
			copy_run(path_of("%s/base", dir), path_of("%s/out", dir));
			check_ok(unlink(path_of("%s/out/adapter_model.safetensors", dir)));
			check_ok(unlink(path_of("%s/out/trainer_state.json", dir)));
			look_kinds = cases[i].kinds;
			look_code = cases[i].code;
			fs_faults.only = parts[part];
			int status = train(dir, "true", cases[i].what, 1, &asked), damaged = cases[i].what == FS_ENDS;
			look_kinds = 0;
			fs_faults.only = NULL;
			size_t length;
			char *err = read_bytes(path_of("%s/err", dir), &length);
			if (status != !damaged || !strstr(err, cases[i].told) || (!damaged && strstr(err, "passed over")))
				fail_msg("case %zu, %s: exit %d, '%s' expected in: %s", i, parts[part], status, cases[i].told, err);
			free(err);
			if (!damaged)
				check_whole(dir, "after a passing error");
		}
	rh_log_quiet(1);
	scratch_close(&scratch);
}

static int train_on_full(const char *dir, const char *full)
{
	long asked;
	check_ok(rh_dir_remove(path_of("%s/out", dir)));
	fs_faults.full = full;
	rh_log_quiet(0); /* of the run: its lines are read */
	int status = train(dir, NULL, FS_NONE, 0, &asked);
	rh_log_quiet(1);
	fs_faults.full = NULL;
	return status;
}

/* No room for a checkpoint or the log in mid-run: one line, and the run comes to its end. No room for the last: an error. */
static void test_a_disk_full_in_mid_run_is_told_of_and_passes(void **state)
{
	(void)state;
	struct scratch scratch;
	char dir[64];
	make_good(&scratch);
	snprintf(dir, sizeof dir, "%s", scratch.dir);
	assert_int_equal(train_on_full(dir, NULL), 0);
	copy_run(path_of("%s/out", dir), path_of("%s/base", dir));
	assert_int_equal(train_on_full(dir, "/.checkpoint-2.tmp/optimizer"), 0);
	assert_true(find_in(path_of("%s/err", dir), "warning: no checkpoint of step 2: ") > 0);
	assert_true(find_in(path_of("%s/err", dir), "No space left on device; going on, the next is tried at step 4\n") > 0);
	assert_false(rh_dir_exists(path_of("%s/out/checkpoint-2", dir)) || rh_dir_exists(path_of("%s/out/.checkpoint-2.tmp", dir)));
	check_whole(dir, "full in mid-run");
	assert_true(same_file(path_of("%s/out/adapter_model.safetensors", dir), path_of("%s/base/adapter_model.safetensors", dir)));
	assert_int_equal(train_on_full(dir, "/out/metrics.jsonl"), 0);
	assert_true(find_in(path_of("%s/err", dir), "lines are left out where there is no room") > 0);
	assert_true(same_file(path_of("%s/out/adapter_model.safetensors", dir), path_of("%s/base/adapter_model.safetensors", dir)));
	assert_int_equal(train_on_full(dir, "/.checkpoint-4.tmp/optimizer"), 1);
	check_ok(rh_checkpoint_verify(path_of("%s/out/checkpoint-2", dir)));
	assert_int_equal(train_on_full(dir, "/out/adapter_model"), 1);
	scratch_close(&scratch);
}

/* A base model's file is cut off where a read of it begins, at each read in turn: one line names it. While the model loads nothing else is
 * touched; later, where a checkpoint takes the tokenizer out of a GGUF, checkpoints stay whole. */
static void shrinks_at_each_read(const char *model, const char *file)
{
	struct scratch scratch;
	char dir[64], path[128], whole[128], first[128];
	long asked, at = 1, untouched = 0;
	make_good(&scratch);
	base_model = model;
	snprintf(dir, sizeof dir, "%s", scratch.dir);
	snprintf(path, sizeof path, "%s/%s", dir, file);
	snprintf(whole, sizeof whole, "%s/whole", dir);
	snprintf(first, sizeof first, "%s/out/checkpoint-2", dir);
	copy_file(path, whole);
	assert_int_equal(train(dir, NULL, FS_NONE, 0, &asked), 0);
	copy_run(path_of("%s/out", dir), path_of("%s/base", dir));
	look_kinds = FS_READ;
	fs_faults.only = path;
	for (;; at++) {
		size_t length;
		copy_file(whole, path);
		copy_run(path_of("%s/base", dir), path_of("%s/out", dir));
		uint64_t before = tree_hash(path_of("%s/out", dir));
		int status = train(dir, first, FS_SHRINKS, at, &asked);
		if (!status && asked < at)
			break;
		char *err = read_bytes(path_of("%s/err", dir), &length), *last = err + length;
		while (last > err && (last == err + length || last[-1] != '\n')) /* the line that ends the run, after what it told of */
			last--;
		if (status != 1 || strncmp(last, path, strlen(path)) || !strstr(last, "became shorter"))
			fail_msg("%s, read %ld: exit %d: %s", file, at, status, err);
		free(err);
		untouched += tree_hash(path_of("%s/out", dir)) == before && untouched == at - 1;
		check_whole(dir, path);
	}
	fs_faults.only = NULL;
	look_kinds = 0;
	printf("%s: cut off at each of %ld reads; until read %ld nothing was touched\n", file, at - 1, untouched);
	assert_true(untouched > 20);
	assert_true(same_file(path_of("%s/out/adapter_model.safetensors", dir), path_of("%s/base/adapter_model.safetensors", dir)));
	base_model = "hf";
	scratch_close(&scratch);
}

static void test_a_base_file_that_shrinks_while_it_loads_is_named(void **state)
{
	(void)state;
	shrinks_at_each_read("hf", "hf/model.safetensors");
	shrinks_at_each_read("model.gguf", "model.gguf");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_run_killed_at_any_change_leaves_whole_checkpoints),
	        cmocka_unit_test(test_a_run_signalled_at_any_call_leaves_whole_checkpoints),
	        cmocka_unit_test(test_a_disk_that_fails_at_any_change_leaves_whole_checkpoints),
	        cmocka_unit_test(test_passing_errors_on_a_checkpoint_are_no_damage),
	        cmocka_unit_test(test_a_disk_full_in_mid_run_is_told_of_and_passes),
	        cmocka_unit_test(test_a_base_file_that_shrinks_while_it_loads_is_named),
	};
	rh_log_quiet(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
