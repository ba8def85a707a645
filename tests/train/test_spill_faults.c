/* A run from NVMe when drives fail: each of their calls in turn, in each way. One line, no crash, no stray file, and the last checkpoint
 * stays good; where nothing was said, the result is right. */
#include "cli/runner.h"
#include "folder.h"

#include "config/config.h"
#include "core/log.h"
#include "offload/drive.h"
#include "train/train.h"

#include <inttypes.h>
#include <time.h>

static int load(char *line, struct rh_config *config)
{
	char *argv[96];
	int argc = 0;
	for (char *word; (word = strsep(&line, " "));)
		if (*word)
			argv[argc++] = word;
	return rh_config_load("train", argc, argv, NULL, config);
}

/* words: of each row's prompt, beside the first. */
static void world_open(struct scratch *scratch, int words)
{
	scratch_open(scratch);
	copy_model(scratch->dir);
	FILE *file = fopen(path_of("%s/rows.jsonl", scratch->dir), "w");
	assert_non_null(file);
	for (int row = 0; row < 6; row++) {
		fprintf(file, "{\"prompt\": \"the cat %d", row);
		for (int w = 0; w < words; w++)
			fprintf(file, " saw it");
		fprintf(file, "\", \"completion\": \" sat on the mat\"}\n");
	}
	assert_int_equal(fclose(file), 0);
	check_ok(rh_dir_make(path_of("%s/a", scratch->dir)));
	check_ok(rh_dir_make(path_of("%s/b", scratch->dir)));
}

static int train_steps(const struct scratch *scratch, const char *out, int steps, const char *more, struct rh_train_result *result)
{
	char line[1024];
	struct rh_config config;
	snprintf(line, sizeof line,
	         "--model_name_or_path %s/hf --train_file %s/rows.jsonl --output_dir %s/%s --device cpu:1 --max_steps %d "
	         "--save_steps 2 --per_device_train_batch_size 1 --learning_rate 1e-3 --bf16 true "
	         "--nvme_dirs %s/a,%s/b --max_nvme 64MiB %s",
	         scratch->dir, scratch->dir, scratch->dir, out, steps, scratch->dir, scratch->dir, more);
	rh_error_clear();
	int rc = load(line, &config);
	if (!rc)
		rc = rh_train(&config, result);
	rh_config_free(&config);
	return rc;
}

static int train(const struct scratch *scratch, const char *out, const char *more, struct rh_train_result *result)
{
	return train_steps(scratch, out, 4, more, result);
}

struct kind {
	const char *name, *keys, *file; /* file: what it writes */
	int words, stride;              /* stride: but under RH_LONG, calls of which one fails */
};
#define FEW "--max_length 32 --gradient_accumulation_steps 2 "
static const struct kind kinds[] = {
        {"full", FEW "--spill optimizer,masters", "model.safetensors", 0, 1},
        {"lora", FEW "--lora_r 2 --spill optimizer,masters,weights", "adapter_model.safetensors", 0, 1},
        {"activations",
         "--max_length 128 --gradient_accumulation_steps 6 --forward_cuts 1,2 --backward_cuts 1,2,3 --spill activations --max_vram 4MiB",
         "model.safetensors", 16, 4}};

static const struct {
	enum rh_drive_fault fault;
	int code, rc; /* rc 0: mended */
	int stride;   /* likewise */
} faults[] = {
        {RH_FAULT_FAIL, -EIO, -EIO, 1},  {RH_FAULT_FAIL, -ENOSPC, -ENOSPC, 5}, {RH_FAULT_SHORT, 0, 0, 5},
        {RH_FAULT_TORN, 0, -EBADMSG, 3}, {RH_FAULT_FLIP, 0, -EBADMSG, 3},
};

static uint64_t result_hash(const struct scratch *scratch, const char *out, const char *name)
{
	const char *path = path_of("%s/%s/%s", scratch->dir, out, name);
	struct rh_bytes map;
	check_ok(rh_file_load(path, &map));
	uint64_t hash = XXH3_64bits(map.bytes, map.length);
	rh_bytes_free(&map);
	return hash;
}

static void check_after(const struct scratch *scratch, uint64_t kept, int rc, size_t f, int64_t n)
{
	const char *line = rh_error(rc);
	if (rc && (strlen(line) < 15 || strchr(line, '\n')))
		fail_msg("fault %zu, call %" PRId64 ": code %d, '%s'", f, n, rc, line);
	assert_int_equal(tree_hash(path_of("%s/on/checkpoint-2", scratch->dir)), kept);
	check_folder_is_empty(path_of("%s/a", scratch->dir));
	check_folder_is_empty(path_of("%s/b", scratch->dir));
	assert_false(rh_dir_exists(path_of("%s/on/.checkpoint-4.tmp", scratch->dir)));
}

/* Its keys, with the least memory where boundaries are spilled: all but a few then go to NVMe. */
static void find_keys(const struct scratch *scratch, const struct kind *kind, char *keys, size_t bytes)
{
	struct rh_train_result result;
	snprintf(keys, bytes, "%s", kind->keys);
	for (int64_t ram = 0; kind->words; ram = result.ram_planned_bytes) {
		char less[384];
		snprintf(less, sizeof less, "%s --max_ram %" PRId64, kind->keys, ram ? ram - 1 : 1 << 30);
		if (train(scratch, "least", less, &result))
			break;
		snprintf(keys, bytes, "%s --max_ram %" PRId64, kind->keys, result.ram_planned_bytes);
		check_ok(rh_dir_remove(path_of("%s/least", scratch->dir)));
	}
}

static void sweep(const struct kind *kind)
{
	struct scratch scratch;
	struct rh_train_result whole, result;
	char keys[384], more[512];
	world_open(&scratch, kind->words);
	find_keys(&scratch, kind, keys, sizeof keys);
	check_ok(train(&scratch, "whole", keys, &whole));
	uint64_t right = result_hash(&scratch, "whole", kind->file);
	copy_dir(path_of("%s/whole/checkpoint-2", scratch.dir), path_of("%s/on/checkpoint-2", scratch.dir));
	snprintf(more, sizeof more, "%s --resume_from_checkpoint %s/on/checkpoint-2", keys, scratch.dir);
	uint64_t kept = tree_hash(path_of("%s/on/checkpoint-2", scratch.dir));
	for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
		int64_t n = 1, told = 0, calls = 0;
		for (; n < 100000; n += getenv("RH_LONG") ? 1 : faults[f].stride * kind->stride) {
			rh_drive_fail_nth(n, faults[f].fault, faults[f].code);
			int rc = train(&scratch, "on", more, &result);
			calls = rh_drive_fail_nth(0, 0, 0);
			/* what was flipped or torn as it was written, or the last thing written, may never be asked for again */
			if (rc && rc != faults[f].rc)
				fail_msg("%s, fault %zu, call %" PRId64 ": %d, %s", kind->name, f, n, rc, rh_error(rc));
			check_after(&scratch, kept, rc, f, n);
			told += rc != 0;
			if (!rc) {
				assert_true(result_hash(&scratch, "on", kind->file) == right);
				check_ok(rh_dir_remove(path_of("%s/on/checkpoint-4", scratch.dir)));
			}
			if (calls < n)
				break;
		}
		printf("%s, fault %zu: told %" PRId64 " times of %" PRId64 " calls\n", kind->name, f, told, calls);
		assert_true(calls < n && (told > 0) == (faults[f].rc != 0));
	}
	check_ok(train(&scratch, "on", more, &result));
	assert_true(result.final_loss == whole.final_loss);
	scratch_close(&scratch);
}

static void test_full_training_when_drives_fail(void **state)
{
	(void)state;
	sweep(&kinds[0]);
}

static void test_lora_when_drives_fail(void **state)
{
	(void)state;
	sweep(&kinds[1]);
}

static void test_activations_when_drives_fail(void **state)
{
	(void)state;
	sweep(&kinds[2]);
}

/* The second of two runs that share a directory is refused before it writes anything. */
static void test_two_runs_on_one_directory(void **state)
{
	(void)state;
	struct scratch scratch;
	struct rh_train_result result;
	world_open(&scratch, 0);
	fflush(NULL);
	pid_t child = fork();
	if (!child) {
		int rc = train_steps(&scratch, "first", 1000000, FEW "--save_total_limit 1 --spill optimizer", &result);
		_exit(rc != 0);
	}
	int rc = 0;
	for (int i = 0; i < 500 && !rc; i++) { /* until the first has it */
		struct timespec wait = {0, 10000000};
		nanosleep(&wait, NULL);
		if (rh_dir_exists(path_of("%s/first", scratch.dir)))
			rc = train(&scratch, "second", kinds[0].keys, &result);
	}
	assert_int_equal(rc, -EBUSY);
	assert_non_null(strstr(rh_error(rc), "in use by another run"));
	assert_false(rh_dir_exists(path_of("%s/second", scratch.dir)));
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, &rc, 0), child);
	/* killed: nothing is left of it, and the lock is gone */
	check_folder_is_empty(path_of("%s/a", scratch.dir));
	check_ok(train(&scratch, "third", kinds[0].keys, &result));
	scratch_close(&scratch);
}

int main(void)
{
	rh_log_quiet(1);
	setenv("RH_SPILL_ELEMENTS", "3000", 1); /* many pieces of a small model, so that they are read again */
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_full_training_when_drives_fail),
	        cmocka_unit_test(test_lora_when_drives_fail),
	        cmocka_unit_test(test_activations_when_drives_fail),
	        cmocka_unit_test(test_two_runs_on_one_directory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
