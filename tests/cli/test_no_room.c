/* Budgets, disks and directories that have no room: found before the run, one clear line, nothing lost. */
#include "cli/good.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

static void test_output_that_is_in_the_way_is_left_alone(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/out", scratch.dir)));
	write_text(path_of("%s/out/thesis.txt", scratch.dir), "years of work");
	refused(&scratch, "train @/run.yaml", "holds no complete checkpoint to go on from; remove what is in it, or choose another");
	refused(&scratch, "train @/run.yaml --resume_from_checkpoint true",
	        "to begin a new run remove what is in it, or choose another output_dir, and leave the key out");
	refused(&scratch, "train @/run.yaml --output_dir @/rows.jsonl", "rows.jsonl");
	refused(&scratch, "train @/run.yaml --output_dir @/rows.jsonl/deeper", "rows.jsonl");
	refused(&scratch, "train @/run.yaml --resume_from_checkpoint true --output_dir @/new", "to begin a new run leave the key out");
	refused(&scratch, "train @/run.yaml --resume_from_checkpoint @/none", "resume_from_checkpoint");
	refused(&scratch, "train @/run.yaml --resume_from_checkpoint @/rows.jsonl", "resume_from_checkpoint");
	/* a checkpoint of elsewhere does not make this directory free */
	run_ok(&scratch, "train %s/run.yaml --output_dir %s/other --save_steps 1", scratch.dir, scratch.dir);
	refused(&scratch, "train @/run.yaml --resume_from_checkpoint @/other/checkpoint-1", "output_dir");
	refused(&scratch, "train @/run.yaml --output_dir @/other", "go on from what is there with resume_from_checkpoint: true");
	scratch_close(&scratch);
}

static void test_budgets_too_small_are_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	refused(&scratch, "train @/run.yaml --max_vram 1000B", "max_vram");
	refused(&scratch, "train @/run.yaml --max_vram 64KiB", "max_vram");
	refused(&scratch, "train @/run.yaml --max_ram 1MiB", "max_ram");
	refused(&scratch, "train @/run.yaml --max_vram 1000B --use_peft true --bf16 true", "max_vram");
	refused(&scratch, "generate --model_name_or_path @/hf --prompt the --max_new_tokens 2 --max_vram 1000B",
	        "or give a shorter prompt or lower max_new_tokens");
	refused(&scratch, "eval --model_name_or_path @/hf --max_length 64 --validation_file @/rows.jsonl --max_vram 1000B",
	        "or lower max_length or per_device_eval_batch_size");
	refused(&scratch, "eval --model_name_or_path @/hf --max_length 64 --validation_file @/rows.jsonl --max_ram 1MiB", "max_ram");
	scratch_close(&scratch);
}

/* A disk of 160 KiB in a mount namespace of its own: the run needs more, and says so before it begins. 0: as it should be. */
static int run_on_a_small_disk(const struct scratch *scratch, const char *options, int expected)
{
	char line[512], small[128];
	struct ran ran;
	snprintf(small, sizeof small, "%s/small", scratch->dir);
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("tmpfs", small, "tmpfs", 0, "size=160k"))
		return 77;
	snprintf(line, sizeof line, "train %s/run.yaml --output_dir %s/out %s", scratch->dir, small, options);
	run_start(scratch, line, 0, &ran);
	run_wait(&ran);
	int wrong = ran.status != expected;
	if (expected)
		wrong |= rh_dir_exists(path_of("%s/out", small)) || !strstr(ran.err, "output_dir") || !strstr(ran.err, "MiB free");
	if (wrong)
		fputs(ran.err, stderr);
	return wrong;
}

static void test_a_full_disk_is_found_before_the_run(void **state)
{
	(void)state;
	static const char *const cases[] = {"--use_peft true", "", "--use_peft true --save_steps 1 --max_steps 50"};
	struct scratch scratch;
	int skipped = 0;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/small", scratch.dir)));
	for (int i = 0; i < 3; i++) {
		int status;
		fflush(NULL);
		pid_t child = fork();
		assert_true(child >= 0);
		if (child == 0)
			_exit(run_on_a_small_disk(&scratch, cases[i], i > 0));
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFEXITED(status));
		if (WEXITSTATUS(status) != 77)
			assert_int_equal(WEXITSTATUS(status), 0);
		else
			skipped = 1;
	}
	scratch_close(&scratch);
	if (skipped)
		check_skip("a small disk cannot be mounted here");
}

/* Fills a disk but for `left` bytes. */
static void fill_disk(const char *disk, const char *filler, int64_t left)
{
	struct statvfs room;
	check_ok(statvfs(disk, &room));
	int64_t bytes = (int64_t)(room.f_bavail * room.f_frsize) - left;
	assert_true(bytes > 0);
	char *zeros = calloc(1, (size_t)bytes);
	write_bytes(filler, zeros, (size_t)bytes);
	free(zeros);
}

/* A run stops, others fill the disk but for one checkpoint and the result, and it goes on: one that keeps two checkpoints, which are there,
 * and one that keeps all, of which one is still to be written. 0: as it should be. */
static int run_on_what_is_left(const struct scratch *scratch)
{
	enum { LEFT = 600 << 10 }; /* a checkpoint takes 376 KiB, the result 120 */
	static const char *const keys[][2] = {{"--max_steps 4 --save_total_limit 2", "--max_steps 8 --save_total_limit 2"},
	                                      {"--max_steps 3", "--max_steps 4"}};
	char small[128];
	snprintf(small, sizeof small, "%s/small", scratch->dir);
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return 77;
	for (int i = 0; i < 2; i++) {
		if (mount("tmpfs", small, "tmpfs", 0, "size=8m"))
			return 77;
		for (int goes_on = 0; goes_on < 2; goes_on++) {
			if (goes_on)
				fill_disk(small, path_of("%s/filler", small), LEFT);
			struct ran ran = run_line(scratch, "train %s/run.yaml --output_dir %s/out --save_steps 1 %s %s", scratch->dir,
			                          small, keys[i][goes_on], goes_on ? "--resume_from_checkpoint true" : "");
			if (ran.status)
				fputs(ran.err, stderr);
			if (ran.status)
				return 1;
			run_free(&ran);
		}
		if (umount(small))
			return 1;
	}
	return 0;
}

/* In a process of its own, which mounts disks. */
static void in_a_child(int (*run)(const struct scratch *scratch))
{
	struct scratch scratch;
	int status;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/small", scratch.dir)));
	check_ok(rh_dir_make(path_of("%s/closed", scratch.dir)));
	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0)
		_exit(run(&scratch));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	scratch_close(&scratch);
	if (WEXITSTATUS(status) == 77)
		check_skip("a disk cannot be mounted here");
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_a_run_goes_on_in_the_room_that_is_left(void **state)
{
	(void)state;
	in_a_child(run_on_what_is_left);
}

/* No room: files may not grow beyond a limit. What was there stays, nothing half written is left. */
static void test_no_room_is_one_line(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	for (int lora = 0; lora < 2; lora++)
		for (rlim_t limit = 16; limit < 300000; limit = limit * 5 / 2) {
			char line[512];
			struct ran ran;
			snprintf(line, sizeof line, "train %s/run.yaml --save_steps 1 --logging_steps 1%s", scratch.dir,
			         lora ? " --use_peft true" : "");
			run_start(&scratch, line, limit, &ran);
			run_wait(&ran);
			if (!ran.status) {
				run_free(&ran);
				check_ok(rh_dir_remove(path_of("%s/out", scratch.dir)));
				break;
			}
			/* its own lines are cut by the limit too when it is very small */
			if (limit > 4000)
				check_failed(&ran, "out/");
			assert_true(ran.status == 1 || ran.status == 2);
			run_free(&ran);
			DIR *entries = opendir(path_of("%s/out", scratch.dir));
			for (struct dirent *entry; entries && (entry = readdir(entries));)
				if (strstr(entry->d_name, ".tmp") || strstr(entry->d_name, "model"))
					fail_msg("left behind: %s", entry->d_name);
			if (entries)
				closedir(entries);
			check_ok(rh_dir_remove(path_of("%s/out", scratch.dir)));
		}
	scratch_close(&scratch);
}

/* On a disk that is mounted to be read only (root may write everywhere else). 77: it cannot be mounted here. */
static int run_on_a_read_only_disk(const struct scratch *scratch)
{
	char closed[128], line[512];
	snprintf(closed, sizeof closed, "%s/closed", scratch->dir);
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("tmpfs", closed, "tmpfs", MS_RDONLY, "size=160k"))
		return 77;
	snprintf(line, sizeof line, "train @/run.yaml --output_dir %s/a/b", closed);
	refused(scratch, line, "/closed/a/b cannot be written: ");
	return 0;
}

static void test_an_output_dir_that_cannot_be_written_is_found_at_once(void **state)
{
	(void)state;
	in_a_child(run_on_a_read_only_disk);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_output_that_is_in_the_way_is_left_alone),
	        cmocka_unit_test(test_budgets_too_small_are_refused),
	        cmocka_unit_test(test_a_full_disk_is_found_before_the_run),
	        cmocka_unit_test(test_a_run_goes_on_in_the_room_that_is_left),
	        cmocka_unit_test(test_no_room_is_one_line),
	        cmocka_unit_test(test_an_output_dir_that_cannot_be_written_is_found_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
