/* Checkpoints that are not as a run left them, and what a killed run leaves of one: refused, passed over or put back, each in one line. */
#include "cli/good.h"

#include "checkpoint/checkpoint.h"

#include <inttypes.h>

static void sum_of(const char *path, char hex[33])
{
	size_t length;
	char *bytes = read_bytes(path, &length);
	XXH128_hash_t sum = XXH3_128bits(bytes, length);
	snprintf(hex, 33, "%016" PRIx64 "%016" PRIx64, (uint64_t)sum.high64, (uint64_t)sum.low64);
	free(bytes);
}

/* Edits a checkpoint's file, and its checksum with it: the sums are no secret. */
static void edit_sealed(const char *dir, const char *file, const char *old, const char *new)
{
	char path[256], sums[256], before[33], after[33];
	snprintf(path, sizeof path, "%s/%s", dir, file);
	snprintf(sums, sizeof sums, "%s/checksums.json", dir);
	sum_of(path, before);
	edit_file(path, old, new);
	sum_of(path, after);
	edit_file(sums, before, after);
}

/* A run of two steps with a checkpoint after each; the second's path. */
static const char *trained(struct scratch *scratch)
{
	make_good(scratch);
	run_ok(scratch, "train %s/run.yaml --use_peft true --save_steps 1", scratch->dir);
	return path_of("%s/out/checkpoint-2", scratch->dir);
}

static void test_numbers_that_no_run_writes_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *old, *new, *part;
	} cases[] = {
	        {"\"step\": 2", "\"step\": -1", "run_state.json: 'step' is -1, which no run counts to"},
	        {"\"step\": 2", "\"step\": 4000000000", "step 4000000000, but trainer_state.json has step 2 of 2: one of them was changed"},
	        {"\"step\": 2", "\"step\": 1", "one of them was changed"},
	        {"\"step\": 2", "\"step\": 2.5", "'step' must be a whole number"},
	        {"\"steps_since_log\": ", "\"steps_since_log\": -7", "'steps_since_log' is -7"},
	        {"\"tokens\": ", "\"tokens\": 46116860184273879", "'tokens' is 46116860184273879"},
	        {"\"tokens\": ", "\"tokens\": -", "'tokens' is -"},
	        {"\"data_rows\": ", "\"data_rows\": -", "'data_rows' is -"},
	        {"\"run_loss\": \"", "\"run_loss\": \"x", "'run_loss' must be a finite number"},
	        {"\"run_loss\": \"0x", "\"run_loss\": \"nan", "'run_loss' must be a finite number"},
	        {"\"loss_since_log\": \"", "\"loss_since_log\": \"-inf", "'loss_since_log' must be a finite number"},
	        {"\"version\": 1", "\"version\": 2", "version 2 is not known"},
	};
	struct scratch scratch;
	char dir[256];
	snprintf(dir, sizeof dir, "%s", trained(&scratch));
	const char *run = "train @/run.yaml --use_peft true --save_steps 1 --max_steps 4 --resume_from_checkpoint true";
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		copy_dir(dir, path_of("%s/kept", scratch.dir));
		edit_sealed(dir, "run_state.json", cases[i].old, cases[i].new);
		refused(&scratch, run, cases[i].part);
		copy_dir(path_of("%s/kept", scratch.dir), dir);
	}
	/* an end that was moved is no mistake */
	run_ok(&scratch, "train %s/run.yaml --use_peft true --save_steps 1 --max_steps 1 --resume_from_checkpoint true", scratch.dir);
	scratch_close(&scratch);
}

/* Resumes and requires what is said, and the step that the run goes on from. */
static void goes_on(const struct scratch *scratch, int step, const char *part)
{
	struct ran ran = run_line(scratch, "train %s/run.yaml --use_peft true --save_steps 1 --max_steps 3 --resume_from_checkpoint true",
	                          scratch->dir);
	if (ran.status || !strstr(ran.err, part) || !strstr(ran.err, path_of("/out/checkpoint-%d, step %d of 3\n", step, step)))
		fail_msg("'%s' and step %d in: %s", part, step, ran.err);
	assert_true(rh_dir_exists(path_of("%s/out/checkpoint-3", scratch->dir)));
	run_free(&ran);
}

static void test_a_damaged_newest_checkpoint_is_passed_over(void **state)
{
	(void)state;
	struct scratch scratch;
	check_ok(unlink(path_of("%s/optimizer.safetensors", trained(&scratch)))); /* as a removal that was killed left it */
	goes_on(&scratch, 1, "/out/checkpoint-2 is passed over: ");
	scratch_close(&scratch);
	edit_file(path_of("%s/adapter_config.json", trained(&scratch)), "\"r\": ", "\"r\": 1");
	goes_on(&scratch, 1, "/adapter_config.json: does not match its checksum");
	edit_file(path_of("%s/out/checkpoint-1/config.yaml", scratch.dir), "seed", "sead");
	edit_file(path_of("%s/out/checkpoint-2/config.yaml", scratch.dir), "seed", "sead");
	edit_file(path_of("%s/out/checkpoint-3/config.yaml", scratch.dir), "seed", "sead");
	struct ran ran = run_line(&scratch, "train %s/run.yaml --use_peft true --resume_from_checkpoint true", scratch.dir);
	check_failed(&ran, "resume_from_checkpoint: there is no complete checkpoint in ");
	assert_null(strstr(ran.err, "remove what is in it")); /* three are there, which somebody may mend */
	run_free(&ran);
	scratch_close(&scratch);
}

/* As save_pretrained leaves it, which writes in place, and more files than there were. */
static void test_a_tokenizer_that_was_changed_costs_no_checkpoint(void **state)
{
	(void)state;
	struct scratch scratch;
	const char *dir = trained(&scratch);
	FILE *file = fopen(path_of("%s/tokenizer.json", dir), "r+b");
	assert_non_null(file);
	assert_int_equal(fwrite(" ", 1, 1, file), 1);
	assert_int_equal(fclose(file), 0);
	check_ok(unlink(path_of("%s/tokenizer_config.json", dir)));
	write_text(path_of("%s/special_tokens_map.json", dir), "{}");
	goes_on(&scratch, 2,
	        "/out/checkpoint-2/tokenizer.json: does not match its checksum: the file was damaged or changed; the run goes on");
	assert_true(same_file(path_of("%s/out/checkpoint-3/tokenizer.json", scratch.dir), path_of("%s/hf/tokenizer.json", scratch.dir)));
	check_ok(rh_checkpoint_verify(path_of("%s/out/checkpoint-1", scratch.dir)));
	check_ok(rh_checkpoint_verify(path_of("%s/out/checkpoint-3", scratch.dir)));
	scratch_close(&scratch);
}

/* A part that is gone from the directory and from its list: a list that was shortened hides nothing. */
static void test_a_list_that_lacks_a_part_is_damaged(void **state)
{
	(void)state;
	static const char *const parts[] = {"optimizer.safetensors", "run_state.json", "trainer_state.json", "config.yaml"};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		struct scratch scratch;
		const char *dir = trained(&scratch);
		char path[256];
		json_t *sums = NULL;
		snprintf(path, sizeof path, "%s/checksums.json", dir);
		check_ok(unlink(path_of("%s/%s", dir, parts[i])));
		check_ok(rh_json_load(path, &sums));
		check_ok(json_object_del(sums, parts[i]));
		check_ok(json_dump_file(sums, path, 0));
		json_decref(sums);
		goes_on(&scratch, 1, path_of("checksums.json: does not list %s", parts[i]));
		scratch_close(&scratch);
	}
}

/* save_only_model: neither state nor a list that asks for it; what it is good for works, and going on says why it does not. */
static void test_a_checkpoint_of_the_model_alone(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	for (int lora = 0; lora < 2; lora++) {
		const char *keys = lora ? "--use_peft true" : "--dtype bfloat16",
		           *file = lora ? "adapter_model.safetensors" : "model.safetensors";
		char line[512];
		int firsts = 0;
		for (int greater = 0; greater < 2; greater++) { /* of two losses that differ, each is the best by one of these */
			const char *out = path_of("%s/out%d%d", scratch.dir, lora, greater);
			fill_in(&scratch,
			        path_of("train @/run.yaml %s --output_dir %s --save_only_model true --save_steps 1 --eval_split 0.5 "
			                "--eval_strategy steps --eval_steps 1 --load_best_model_at_end true --greater_is_better %s "
			                "--learning_rate 0.01",
			                keys, out, greater ? "true" : "false"),
			        line, sizeof line);
			run_ok(&scratch, "%s", line);
			assert_false(rh_file_exists(path_of("%s/checkpoint-1/optimizer.safetensors", out)));
			assert_false(rh_file_exists(path_of("%s/checkpoint-1/run_state.json", out)));
			check_ok(rh_checkpoint_verify(path_of("%s/checkpoint-1", out)));
			firsts += same_file(path_of("%s/%s", out, file), path_of("%s/checkpoint-1/%s", out, file));
		}
		assert_int_equal(firsts, 1);
		const char *first = path_of("@/out%d0/checkpoint-1", lora);
		fill_in(&scratch,
		        path_of("eval --max_length 64 --validation_file @/rows.jsonl --model_name_or_path %s%s",
		                lora ? "@/hf --adapter_name_or_path " : "", first),
		        line, sizeof line);
		run_ok(&scratch, "%s", line);
		const char *again = path_of("train @/run.yaml %s --output_dir @/out%d0 --max_steps 4 --resume_from_checkpoint", keys, lora);
		refused(&scratch, path_of("%s %s", again, first),
		        "holds the model alone (save_only_model: true), so no run goes on from it");
		refused(&scratch, path_of("%s true", again), "there is no complete checkpoint in ");
	}
	refused(&scratch,
	        "train @/run.yaml --use_peft true --save_only_model true --mode sync-pp --boxes 2 --box 1 --link_above listen:4711",
	        "save_only_model: boxes that lose one another");
	scratch_close(&scratch);
}

/* The last step is saved, also where save_steps does not divide it. */
static void test_the_last_step_is_saved(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	run_ok(&scratch, "train %s/run.yaml --use_peft true --save_steps 2 --max_steps 3", scratch.dir);
	assert_true(rh_dir_exists(path_of("%s/out/checkpoint-2", scratch.dir)));
	assert_true(rh_dir_exists(path_of("%s/out/checkpoint-3", scratch.dir)));
	scratch_close(&scratch);
}

/* Killed between two renames: what is whole counts, under whatever name. */
static void test_whole_checkpoints_of_killed_runs_are_put_back(void **state)
{
	(void)state;
	static const char *const suffixes[] = {"tmp", "old"};
	for (int i = 0; i < 2; i++) {
		struct scratch scratch;
		char hidden[256];
		const char *dir = trained(&scratch);
		snprintf(hidden, sizeof hidden, "%s/out/.checkpoint-2.%s", scratch.dir, suffixes[i]);
		check_ok(rename(dir, hidden));
		goes_on(&scratch, 2, "/out/checkpoint-2 is whole and gets its name back");
		/* one that is not whole, or whose name is taken, goes */
		check_ok(rename(path_of("%s/out/checkpoint-3", scratch.dir), path_of("%s/out/.checkpoint-3.%s", scratch.dir, suffixes[i])));
		check_ok(unlink(path_of("%s/out/.checkpoint-3.%s/config.yaml", scratch.dir, suffixes[i])));
		copy_dir(path_of("%s/out/checkpoint-2", scratch.dir), hidden);
		goes_on(&scratch, 2, path_of("/out/.checkpoint-3.%s is removed", suffixes[i]));
		assert_false(rh_dir_exists(hidden));
		scratch_close(&scratch);
	}
	/* a new run does not begin on top of it either */
	struct scratch scratch;
	const char *dir = trained(&scratch);
	check_ok(rename(dir, path_of("%s/kept", scratch.dir)));
	check_ok(rh_dir_remove(path_of("%s/out", scratch.dir)));
	check_ok(rh_dir_make(path_of("%s/out", scratch.dir)));
	check_ok(rename(path_of("%s/kept", scratch.dir), path_of("%s/out/.checkpoint-2.tmp", scratch.dir)));
	struct ran ran = run_line(&scratch, "train %s/run.yaml --use_peft true", scratch.dir);
	check_failed(&ran, "go on from what is there with resume_from_checkpoint: true");
	run_free(&ran);
	assert_true(rh_dir_exists(path_of("%s/out/checkpoint-2", scratch.dir)));
	scratch_close(&scratch);
}

/* One run at a time, also where the first is still making the directory; a killed one is in nobody's way. */
static void test_an_output_dir_in_use_is_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	struct ran first, second;
	make_good(&scratch);
	run_start(&scratch,
	          path_of("train %s/run.yaml --use_peft true --save_steps 1 --max_steps 100000 --save_total_limit 1", scratch.dir), 0,
	          &first);
	for (int tries = 0; !rh_file_exists(path_of("%s/out/metrics.jsonl", scratch.dir)) && tries < 100000; tries++)
		usleep(100);
	second = run_line(&scratch, "train %s/run.yaml --use_peft true", scratch.dir);
	check_failed(&second, "/out is in use by another run; wait for its end, or choose another");
	run_free(&second);
	second = run_line(&scratch, "train %s/run.yaml --use_peft true --max_steps 100000 --resume_from_checkpoint true", scratch.dir);
	check_failed(&second, "/out is in use by another run; wait for its end, or choose another");
	run_free(&second);
	for (int tries = 0; rh_checkpoint_count(path_of("%s/out", scratch.dir)) == 0 && tries < 100000; tries++)
		usleep(100);
	check_ok(kill(first.pid, SIGKILL));
	run_wait(&first);
	assert_int_equal(first.status, 128 + SIGKILL);
	run_free(&first);
	run_ok(&scratch, "train %s/run.yaml --use_peft true --max_steps 1 --resume_from_checkpoint true", scratch.dir);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_numbers_that_no_run_writes_are_refused),
	        cmocka_unit_test(test_a_damaged_newest_checkpoint_is_passed_over),
	        cmocka_unit_test(test_a_tokenizer_that_was_changed_costs_no_checkpoint),
	        cmocka_unit_test(test_a_list_that_lacks_a_part_is_damaged),
	        cmocka_unit_test(test_a_checkpoint_of_the_model_alone),
	        cmocka_unit_test(test_the_last_step_is_saved),
	        cmocka_unit_test(test_whole_checkpoints_of_killed_runs_are_put_back),
	        cmocka_unit_test(test_an_output_dir_in_use_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
