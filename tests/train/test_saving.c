/* Checkpoints that are written beside the training: each holds its own step's weights and state, however slowly it is written; training
 * goes on as it would have without it. */
#include "cli/good.h"

#include "core/fs.h"
#include "core/log.h"
#include "train/train.h"

#include <signal.h>

/* A file layer that is slow where checkpoints are written, and acts when lines are logged. */
static struct {
	useconds_t pause;  /* before each write of tensors to a checkpoint */
	int at, lines;     /* the line of metrics.jsonl at which it acts, from 1; lines so far */
	void (*act)(void); /* at that line */
} layer;

static int64_t slow_write(struct rh_fs *fs, int file, const void *bytes, size_t length, int64_t offset)
{
	char link[32], path[1024];
	(void)fs;
	snprintf(link, sizeof link, "/proc/self/fd/%d", file);
	ssize_t known = readlink(link, path, sizeof path - 1);
	path[known > 0 ? known : 0] = 0;
	if (strstr(path, "/.checkpoint-") && strstr(path, ".safetensors"))
		usleep(layer.pause);
	if (strstr(path, "metrics.jsonl") && ++layer.lines == layer.at)
		layer.act();
	return rh_fs_real()->ops->write(rh_fs_real(), file, bytes, length, offset);
}

static char work[128];

static void train_into(const char *out, const char *keys, const char *from, struct rh_train_result *result)
{
	char line[2048];
	char *argv[96], *rest = line;
	int argc = 0;
	struct rh_config config;
	snprintf(line, sizeof line,
	         "--model_name_or_path %s/hf --train_file %s/rows.jsonl --max_length 64 --per_device_train_batch_size 2 --logging_steps 1 "
	         "--lr_scheduler_type constant --learning_rate 1e-3 --output_dir %s/%s %s%s%s",
	         work, work, work, out, keys, from ? " --resume_from_checkpoint " : "", from ? from : "");
	for (char *word; (word = strsep(&rest, " "));)
		if (*word)
			argv[argc++] = word;
	check_ok(rh_config_load("train", argc, argv, NULL, &config));
	struct rh_fs_ops ops = *rh_fs_real()->ops;
	struct rh_fs fs = {&ops};
	ops.write = slow_write;
	layer.lines = 0;
	rh_fs_use(&fs);
	int rc = rh_train(&config, result);
	rh_fs_use(NULL);
	check_ok(rc);
	rh_config_free(&config);
}

static void train(const char *out, const char *keys, const char *from)
{
	struct rh_train_result result;
	train_into(out, keys, from, &result);
}

static void open_world(struct scratch *scratch)
{
	make_good(scratch);
	snprintf(work, sizeof work, "%s", scratch->dir);
	memset(&layer, 0, sizeof layer);
}

/* All files of tensors that `a` has, and as many. */
static void same_tensors(const char *a, const char *b)
{
	struct rh_names names;
	int compared = 0;
	check_ok(rh_dir_list(path_of("%s/%s", work, a), &names));
	for (size_t i = 0; i < names.count; i++)
		if (strstr(names.name[i], ".safetensors")) {
			compared++;
			if (!same_file(path_of("%s/%s/%s", work, a, names.name[i]), path_of("%s/%s/%s", work, b, names.name[i])))
				fail_msg("%s of %s and of %s differ", names.name[i], a, b);
		}
	rh_names_free(&names);
	assert_true(compared > 0);
}

static void test_a_slow_checkpoint_holds_the_weights_of_its_own_step(void **state)
{
	(void)state;
	static const char *const kinds[] = {"",
	                                    "--max_grad_norm 0",
	                                    "--bf16 true --device cpu:2",
	                                    "--bf16 true --state_layout split8",
	                                    "--optimizer_staleness 1",
	                                    "--optimizer_staleness 1 --bf16 true --max_grad_norm 0",
	                                    "--use_peft true --lora_target_modules all-linear",
	                                    "--use_peft true --schedule 1f1b-async --device cpu:2 --max_grad_norm 0",
	                                    "--optim adafactor"};
	enum { STEPS = 6, EACH = 2 };
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		struct scratch scratch;
		open_world(&scratch);
		layer.pause = 400;
		train("slow", path_of("%s --save_steps %d --max_steps %d", kinds[k], EACH, STEPS), NULL);
		layer.pause = 0;
		for (int step = EACH; step <= STEPS; step += EACH) { /* whose last checkpoint is waited for */
			train("quick", path_of("%s --save_steps %d --max_steps %d", kinds[k], EACH, step), NULL);
			char slow[64];
			snprintf(slow, sizeof slow, "slow/checkpoint-%d", step);
			same_tensors(slow, path_of("quick/checkpoint-%d", step));
			if (step == STEPS)
				same_tensors("slow", "quick");
			check_ok(rh_dir_remove(path_of("%s/quick", work)));
		}
		scratch_close(&scratch);
	}
}

static void tell_to_stop(void)
{
	raise(SIGTERM);
}

static void ask_to_save(void)
{
	write_text(path_of("%s/out/SAVE", work), "");
}

static int checkpoints(const char *out, int newest[1])
{
	struct rh_names names;
	int count = 0, step;
	*newest = -1;
	check_ok(rh_dir_list(path_of("%s/%s", work, out), &names));
	for (size_t i = 0; i < names.count; i++)
		if (sscanf(names.name[i], "checkpoint-%d", &step) == 1) {
			count++;
			*newest = step > *newest ? step : *newest;
		}
	rh_names_free(&names);
	return count;
}

static const char *const stale[] = {"--optimizer_staleness 1", "--optimizer_staleness 1 --bf16 true --max_grad_norm 0",
                                    "--optimizer_staleness 1 --bf16 true --device cpu:2 --gradient_accumulation_steps 2",
                                    "--optimizer_staleness 1 --use_peft true --lora_target_modules all-linear"};
enum { STALE = sizeof stale / sizeof *stale };

/* Between two saves the newest gradient is in no weights that a step has seen: what was published goes into the checkpoint too. */
static void test_a_stale_run_stopped_anywhere_goes_on_in_the_same_weights(void **state)
{
	(void)state;
	for (int k = 0; k < STALE; k++) {
		struct scratch scratch;
		int between = 0;
		open_world(&scratch);
		char keys[256];
		snprintf(keys, sizeof keys, "%s --save_steps 4 --max_steps 9", stale[k]);
		train("whole", keys, NULL);
		for (int at = 1; at < 8; at += k ? 3 : 2) {
			struct rh_train_result result;
			int newest;
			layer.at = at;
			layer.act = tell_to_stop;
			train_into("out", keys, NULL, &result);
			assert_true(result.interrupted);
			layer.at = 0;
			(void)checkpoints("out", &newest);
			int published = rh_file_exists(path_of("%s/out/checkpoint-%d/published.safetensors", work, newest));
			assert_int_equal(published, newest % 4 != 0);
			between += published;
			train("out", keys, "true");
			same_tensors("whole", "out");
			check_ok(rh_dir_remove(path_of("%s/out", work)));
		}
		assert_true(between > 0);
		scratch_close(&scratch);
	}
}

static void test_SAVE_changes_nothing_of_a_stale_run(void **state)
{
	(void)state;
	for (int k = 0; k < STALE; k++) {
		struct scratch scratch;
		int newest;
		open_world(&scratch);
		char keys[256];
		snprintf(keys, sizeof keys, "%s --save_steps 1000 --max_steps 9", stale[k]);
		train("whole", keys, NULL);
		layer.pause = 200;
		layer.at = 3;
		layer.act = ask_to_save;
		train("out", keys, NULL);
		layer.at = 0;
		same_tensors("whole", "out");
		assert_int_equal(checkpoints("out", &newest), 2);
		assert_int_equal(newest, 9);
		check_ok(rh_dir_remove(path_of("%s/out/checkpoint-9", work)));
		check_ok(unlink(path_of("%s/out/trainer_state.json", work)));
		train("out", keys, "true");
		same_tensors("whole", "out");
		scratch_close(&scratch);
	}
}

static ino_t inode_of(const char *path)
{
	struct stat info;
	assert_int_equal(stat(path, &info), 0);
	return info.st_ino;
}

static void damage_the_first(void)
{
	while (!rh_dir_exists(path_of("%s/out/checkpoint-2", work)))
		usleep(1000);
	int file = open(path_of("%s/out/checkpoint-2/tokenizer.json", work), O_WRONLY);
	assert_true(file >= 0 && pwrite(file, "x", 1, 20) == 1);
	close(file);
}

/* Each has its own, copied from the last checkpoint's or, where that was changed, from the base's. */
static void test_checkpoints_share_no_files(void **state)
{
	(void)state;
	struct scratch scratch;
	const char *keys = "--use_peft true --save_steps 2 --max_steps 6";
	open_world(&scratch);
	char first[160], second[160], base[160];
	snprintf(first, sizeof first, "%s/out/checkpoint-2/tokenizer.json", work);
	snprintf(second, sizeof second, "%s/out/checkpoint-4/tokenizer.json", work);
	snprintf(base, sizeof base, "%s/hf/tokenizer.json", work);
	train("out", keys, NULL);
	assert_true(inode_of(first) != inode_of(second) && inode_of(first) != inode_of(base));
	assert_true(same_file(first, base) && same_file(second, base));
	check_ok(rh_dir_remove(path_of("%s/out", work)));
	layer.at = 3;
	layer.act = damage_the_first;
	train("out", keys, NULL);
	layer.at = 0;
	assert_true(!same_file(first, base) && same_file(second, base));
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_slow_checkpoint_holds_the_weights_of_its_own_step),
	        cmocka_unit_test(test_a_stale_run_stopped_anywhere_goes_on_in_the_same_weights),
	        cmocka_unit_test(test_SAVE_changes_nothing_of_a_stale_run),
	        cmocka_unit_test(test_checkpoints_share_no_files),
	};
	rh_log_quiet(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
