/* What is said beforehand of the bytes that a run writes to NVMe is what is written: by one that begins, and by one that goes on. */
#include "cli/runner.h"

#include "checkpoint/checkpoint.h"
#include "config/config.h"
#include "core/log.h"
#include "session/session.h"
#include "train/train.h"

static void world_open(struct scratch *scratch)
{
	scratch_open(scratch);
	copy_model(scratch->dir);
	FILE *file = fopen(path_of("%s/rows.jsonl", scratch->dir), "w");
	assert_non_null(file);
	for (int row = 0; row < 6; row++)
		fprintf(file, "{\"prompt\": \"the cat %d\", \"completion\": \" sat on the mat\"}\n", row);
	assert_int_equal(fclose(file), 0);
	check_ok(rh_dir_make(path_of("%s/a", scratch->dir)));
}

static void load_steps(const struct scratch *scratch, int steps, const char *more, struct rh_config *config)
{
	char line[1024], *argv[96], *at = line;
	int argc = 0;
	snprintf(line, sizeof line,
	         "--model_name_or_path %s/hf --train_file %s/rows.jsonl --output_dir %s/out --max_length 32 --device cpu:1 --max_steps %d "
	         "--save_steps 2 --per_device_train_batch_size 1 --gradient_accumulation_steps 2 --learning_rate 1e-3 --bf16 true "
	         "--nvme_dirs %s/a --max_nvme 64MiB %s",
	         scratch->dir, scratch->dir, scratch->dir, steps, scratch->dir, more);
	for (char *word; (word = strsep(&at, " "));)
		if (*word)
			argv[argc++] = word;
	check_ok(rh_config_load("train", argc, argv, NULL, config));
}

static void load(const struct scratch *scratch, const char *more, struct rh_config *config)
{
	load_steps(scratch, 2, more, config);
}

/* Bytes that are written until the first step could begin, and how many were foretold. */
static int64_t written_before_steps(struct rh_config *config, int64_t *foretold)
{
	struct rh_micro_shape shape = {.tokens = 32, .documents = 1, .longest = 32, .head_rows = 31};
	struct rh_workload work = {.train = shape, .train_micro_batches = 1, .train_steps = 2};
	struct rh_session session;
	struct rh_space_stats stats;
	check_ok(rh_session_open(config, RH_SESSION_TRAINS, &session));
	check_ok(rh_session_start(&session, &work));
	if (config->resume_from_checkpoint)
		check_ok(rh_checkpoint_load(config->resume_from_checkpoint, &session));
	check_ok(rh_store_settle(session.store));
	rh_space_stats(session.space, &stats);
	*foretold = session.plan.bytes.nvme_loaded;
	rh_session_close(&session);
	return stats.written_bytes[0];
}

static int compare(struct rh_config *config, const char *keys, const char *which)
{
	int64_t foretold, written = written_before_steps(config, &foretold);
	printf("%s, %s: %lld bytes written, %lld foretold\n", keys, which, (long long)written, (long long)foretold);
	rh_config_free(config);
	return written == foretold;
}

static void check_writes(const char *keys)
{
	struct scratch scratch;
	struct rh_config config;
	struct rh_train_result result;
	world_open(&scratch);
	load(&scratch, keys, &config);
	check_ok(rh_train(&config, &result));
	rh_config_free(&config);
	load(&scratch, keys, &config);
	assert_true(compare(&config, keys, "beginning"));
	load(&scratch, path_of("%s --resume_from_checkpoint %s/out/checkpoint-2", keys, scratch.dir), &config);
	assert_true(compare(&config, keys, "going on"));
	scratch_close(&scratch);
}

static void test_writes_are_foretold(void **state)
{
	(void)state;
	check_writes("--spill optimizer,masters");
	check_writes("--spill optimizer");
	check_writes("--spill masters --state_layout plain");
	check_writes("--spill optimizer,masters --state_layout split8");
	check_writes("--lora_r 2 --spill optimizer,masters,weights");
}

/* Of a run that goes on, the steps still to come count, not those that were. */
static void test_only_the_steps_to_come_are_counted(void **state)
{
	(void)state;
	static const char keys[] = "--spill optimizer,masters";
	struct scratch scratch;
	struct rh_config config;
	struct rh_train_result result;
	struct rh_session session;
	struct rh_micro_shape shape = {.tokens = 32, .documents = 1, .longest = 32, .head_rows = 31};
	world_open(&scratch);
	load(&scratch, keys, &config);
	check_ok(rh_train(&config, &result));
	rh_config_free(&config);
	char *resumed = strdup(path_of("%s --resume_from_checkpoint %s/out/checkpoint-2", keys, scratch.dir));
	load_steps(&scratch, 5, resumed, &config);
	struct rh_workload work = {.train = shape, .train_micro_batches = 2, .train_steps = 3};
	check_ok(rh_session_open(&config, RH_SESSION_TRAINS, &session));
	check_ok(rh_session_start(&session, &work));
	int64_t writes = session.plan.bytes.nvme_loaded + 3 * session.plan.bytes.nvme_step;
	rh_session_close(&session);
	rh_config_free(&config);
	for (int less = 1; less >= 0; less--) {
		load_steps(&scratch, 5, path_of("%s --max_nvme_writes %lld", resumed, (long long)writes - less), &config);
		rh_error_clear();
		int rc = rh_train(&config, &result);
		assert_int_equal(rc, less ? -EDQUOT : 0);
		rh_config_free(&config);
	}
	assert_int_equal(result.steps, 5);
	free(resumed);
	scratch_close(&scratch);
}

int main(void)
{
	rh_log_quiet(1);
	setenv("RH_SPILL_ELEMENTS", "3000", 1); /* many pieces of a small model, so that the cache holds few of them */
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_writes_are_foretold),
	                                   cmocka_unit_test(test_only_the_steps_to_come_are_counted)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
