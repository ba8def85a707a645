/* Where sequence_chunk is unset: rows that fit stay whole, others are cut; the choice follows from the budget alone, and a checkpoint keeps
 * it. Through the program. */
#include "cli/runner.h"

#include <stdlib.h>

enum { ROWS = 6 };

static void world_open(struct scratch *scratch)
{
	static const char *const words[] = {"the", "of", "and", "in", "cat", "sat", "on", "mat", "one", "two", "three"};
	uint64_t seed = 3;
	scratch_open(scratch);
	copy_model(scratch->dir);
	write_text(path_of("%s/run.yaml", scratch->dir), "rope_scaling: {rope_type: linear, factor: 8}\nmax_length: 1024\n");
	FILE *file = fopen(path_of("%s/rows.jsonl", scratch->dir), "w");
	assert_non_null(file);
	for (int row = 0; row < ROWS; row++) {
		fprintf(file, "{\"text\": \"");
		for (int n = 0; n < 250 + 40 * row; n++)
			fprintf(file, "%s ", words[check_random(&seed) % 11]);
		fprintf(file, "end\"}\n");
	}
	assert_int_equal(fclose(file), 0);
}

/* Rows of up to some 950 tokens of a model that knows 128 positions. *notes: what it said, the caller's. */
static void train(const struct scratch *scratch, const char *out, const char *options, char **notes)
{
	const char *dir = scratch->dir;
	struct ran ran =
	        run_line(scratch,
	                 "train %s/run.yaml --model_name_or_path %s/hf --train_file %s/rows.jsonl --learning_rate 1e-3 --max_steps 4 "
	                 "--save_steps 2 --per_device_train_batch_size 1 --gradient_accumulation_steps 2 --output_dir %s/%s %s",
	                 dir, dir, dir, dir, out, options);
	if (ran.status)
		fail_msg("exit %d: %s", ran.status, ran.err);
	*notes = strdup(ran.err);
	run_free(&ran);
}

static void assert_same_model(const struct scratch *scratch, const char *left, const char *right, int is_same)
{
	size_t lengths[2];
	char *bytes[2] = {read_bytes(path_of("%s/%s/model.safetensors", scratch->dir, left), &lengths[0]),
	                  read_bytes(path_of("%s/%s/model.safetensors", scratch->dir, right), &lengths[1])};
	assert_int_equal(lengths[0], lengths[1]);
	int equal = !memcmp(bytes[0], bytes[1], lengths[0]);
	if (equal != is_same)
		fail_msg("%s and %s are%s the same model", left, right, equal ? "" : " not");
	free(bytes[0]);
	free(bytes[1]);
}

static void says(char *notes, const char *part, int is_there)
{
	if ((strstr(notes, part) != NULL) != is_there)
		fail_msg("'%s' is%s in: %s", part, is_there ? " not" : "", notes);
	free(notes);
}

static void test_rows_that_do_not_fit_are_cut_and_a_checkpoint_keeps_the_chunk(void **state)
{
	(void)state;
	struct scratch scratch;
	char *notes;
	world_open(&scratch);
	train(&scratch, "whole", "--device cpu:1 --max_vram 16MiB", &notes);
	says(notes, "sequence_chunk", 0);
	train(&scratch, "cut", "--device cpu:1 --max_vram 2MiB", &notes);
	says(notes, "sequence_chunk: 512, as whole rows do not fit", 1);
	assert_same_model(&scratch, "whole", "cut", 0);
	train(&scratch, "given", "--device cpu:1 --max_vram 16MiB --sequence_chunk 512", &notes);
	says(notes, "do not fit", 0);
	assert_same_model(&scratch, "cut", "given", 1);
	train(&scratch, "several", "--device cpu:3 --max_vram 2MiB", &notes);
	says(notes, "sequence_chunk: 512, as whole rows do not fit", 1);
	assert_same_model(&scratch, "cut", "several", 1);

	/* with room for whole rows */
	const char *resume = path_of("--device cpu:2 --max_vram 16MiB --resume_from_checkpoint %s/cut/checkpoint-2", scratch.dir);
	train(&scratch, "resumed", resume, &notes);
	says(notes, "sequence_chunk: 512, the checkpoint's", 1);
	assert_same_model(&scratch, "cut", "resumed", 1);
	/* a run of whole rows stays one, or does not fit */
	resume = path_of("--device cpu:1 --max_vram 16MiB --resume_from_checkpoint %s/whole/checkpoint-2", scratch.dir);
	train(&scratch, "whole-resumed", resume, &notes);
	says(notes, "sequence_chunk", 0);
	assert_same_model(&scratch, "whole", "whole-resumed", 1);
	scratch_close(&scratch);
}

/* A resumed run goes on bit for bit; with other inputs than its checkpoint's it says so. */
static void test_saved_dtype_is_kept_and_told(void **state)
{
	(void)state;
	static const char *const refused[][2] = {{"--schedule gpipe", "another schedule than roundpipe"},
	                                         {"--backward_cuts 1,3", "backward_cuts that leave two blocks in a stage"},
	                                         {"--backward_cuts 1,2,3,4", "backward_cuts that do not leave the head alone"}};
	struct scratch scratch;
	char *notes;
	world_open(&scratch);
	train(&scratch, "plain", "--device cpu:1 --max_vram 16MiB", &notes);
	free(notes);
	train(&scratch, "narrow", "--device cpu:1 --max_vram 16MiB --saved_dtype fp8", &notes);
	free(notes);
	assert_same_model(&scratch, "plain", "narrow", 0);
	const char *resume = "--device cpu:2 --max_vram 4MiB --saved_dtype %s --resume_from_checkpoint %s/narrow/checkpoint-2";
	train(&scratch, "resumed", path_of(resume, "fp8", scratch.dir), &notes);
	says(notes, "saved_dtype", 0);
	assert_same_model(&scratch, "narrow", "resumed", 1);
	train(&scratch, "other", path_of(resume, "dtype", scratch.dir), &notes);
	says(notes, "was saved with saved_dtype: fp8, this run has dtype", 1);
	assert_same_model(&scratch, "narrow", "other", 0);
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		struct ran ran = run_line(&scratch, "plan --model_name_or_path %s/hf --device cpu:1 --saved_dtype fp8 %s", scratch.dir,
		                          refused[i][0]);
		if (ran.status != 1 || !strstr(ran.err, refused[i][1]))
			fail_msg("%s: exit %d: %s%s", refused[i][0], ran.status, ran.out, ran.err);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

/* rope_scaling makes the model know more positions, for plan as for train. */
static void test_a_plan_warns_of_rows_that_train_refuses_alone(void **state)
{
	(void)state;
	struct scratch scratch;
	world_open(&scratch);
	for (int is_scaled = 0; is_scaled < 2; is_scaled++) {
		const char *run = is_scaled ? path_of("%s/run.yaml", scratch.dir) : "--max_length 1024";
		struct ran ran = run_line(&scratch, "plan %s --model_name_or_path %s/hf --device cpu:1", run, scratch.dir);
		if (ran.status || (strstr(ran.out, "train refuses it") != NULL) == is_scaled)
			fail_msg("exit %d: %s%s", ran.status, ran.out, ran.err);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

static void test_a_plan_names_a_chunk_where_the_given_one_does_not_fit(void **state)
{
	(void)state;
	struct scratch scratch;
	world_open(&scratch);
	struct ran ran = run_line(&scratch,
	                          "plan --model_name_or_path %s/hf --max_length 16384 --per_device_train_batch_size 1 --device cpu:1 "
	                          "--max_vram 8MiB --sequence_chunk 16384",
	                          scratch.dir);
	const char *mend = strstr(ran.out, "sequence_chunk: ");
	if (ran.status != 1 || !mend)
		fail_msg("exit %d: %s%s", ran.status, ran.out, ran.err);
	long chunk = strtol(mend + strlen("sequence_chunk: "), NULL, 10);
	run_free(&ran);
	for (int twice = 0; twice < 2; twice++) {
		ran = run_line(
		        &scratch,
		        "plan --model_name_or_path %s/hf --max_length 16384 --per_device_train_batch_size 1 --device cpu:1 --max_vram 8MiB "
		        "--sequence_chunk %ld",
		        scratch.dir, chunk << twice);
		if (ran.status != twice)
			fail_msg("chunks of %ld, exit %d: %s%s", chunk << twice, ran.status, ran.out, ran.err);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

static double number_of(const char *json, const char *key)
{
	const char *at = strstr(json, path_of("\"%s\":", key));
	assert_non_null(at);
	return strtod(strchr(at, ':') + 1, NULL);
}

/* By plans of an 8B: what a plan advises is as fast as it says, and eight devices work on one row. One alone, with more host memory than
 * the eight take, saves what attention made rather than make it twice. */
static void test_chunks_keep_several_devices_busy(void **state)
{
	(void)state;
	struct scratch scratch;
	double tokens[3];
	static const char line[] = "plan examples/models/llama-3.1-8b.yaml --hardware rtx4090x8 --gpus %d --max_length %d "
	                           "--per_device_train_batch_size 1 --gradient_accumulation_steps 1 --json%s";
	scratch_open(&scratch);
	for (int way = 0; way < 3; way++) {
		const char *ram = way == 1 ? " --sequence_chunk 16384 --max_ram 200GiB" : " --sequence_chunk 16384";
		struct ran ran = run_line(&scratch, line, way ? 1 : 8, 262144, ram);
		assert_int_equal(ran.status, 0);
		tokens[way] = number_of(ran.out, "tokens_per_second");
		run_free(&ran);
	}
	print_message("256K tokens: %.1f tokens/s on eight devices, %.1f on one, %.1f on one that saves activations\n", tokens[0],
	              tokens[1], tokens[2]);
	assert_true(tokens[0] >= 6.5 * tokens[1] && tokens[2] >= 1.15 * tokens[1]);
	/* a row that fits whole leaves seven of eight devices idle */
	struct ran ran = run_line(&scratch, line, 8, 65536, "");
	const char *advice = strstr(ran.out, "\"change\":\"sequence_chunk: ");
	if (!advice)
		fail_msg("%s", ran.out);
	long chunk = strtol(strstr(advice, ": ") + 2, NULL, 10);
	double before = number_of(ran.out, "tokens_per_second"), gain = number_of(advice, "gain");
	run_free(&ran);
	ran = run_line(&scratch, line, 8, 65536, path_of(" --sequence_chunk %ld", chunk));
	double after = number_of(ran.out, "tokens_per_second");
	print_message("64K tokens: %.1f tokens/s whole, %.1f in chunks of %ld; advised as %.1f times\n", before, after, chunk, 1 + gain);
	assert_true(after > 0.95 * (1 + gain) * before && after < 1.05 * (1 + gain) * before);
	run_free(&ran);
	scratch_close(&scratch);
}

/* Records on NVMe are as long as the chunk that they are for, and those of inputs in 8 bits half as long. */
static void test_records_take_what_is_in_them(void **state)
{
	(void)state;
	static const double all = 262144.0 * 4096 * 2 * 31; /* bytes of the layers' inputs in bf16 */
	struct scratch scratch;
	double bytes[2];
	scratch_open(&scratch);
	for (int narrow = 0; narrow < 2; narrow++) {
		struct ran ran = run_line(
		        &scratch,
		        "plan examples/models/llama-3.1-8b.yaml --use_peft true --hardware rtx4090x1 --max_ram 64GiB --max_length 262144 "
		        "--per_device_train_batch_size 1 --gradient_accumulation_steps 1 --sequence_chunk 16384 --spill activations "
		        "--nvme_dirs /tmp --max_nvme 2TB --saved_dtype %s --json",
		        narrow ? "fp8" : "dtype");
		assert_int_equal(ran.status, 0);
		bytes[narrow] = number_of(strstr(ran.out, "\"nvme\":{"), "used_bytes");
		run_free(&ran);
	}
	print_message("256K tokens: %.1f GB on NVMe, %.1f in 8 bits, of %.1f\n", bytes[0] / 1e9, bytes[1] / 1e9, all / 1e9);
	assert_true(bytes[0] < 1.15 * all && bytes[1] < 0.6 * bytes[0]);
	scratch_close(&scratch);
}

/* Whole rows and chunks whose attention takes seconds: no launch of it takes more than RH_LAUNCH_MOST_S. */
static void test_no_launch_takes_long(void **state)
{
	(void)state;
	struct scratch scratch;
	static const char line[] =
	        "plan examples/models/%s.yaml --hardware rtx4090x1 --max_ram 2000GiB --max_length %d --sequence_chunk %d "
	        "--per_device_train_batch_size 1 --gradient_accumulation_steps 1 --json";
	static const struct {
		const char *model;
		int tokens, chunk;
	} of[] = {{"llama-3.1-8b", 100000, 100000}, {"llama-3.1-8b", 600000, 32768}, {"gpt-oss-20b", 600000, 32768}};
	scratch_open(&scratch);
	for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
		struct ran ran = run_line(&scratch, line, of[i].model, of[i].tokens, of[i].chunk);
		if (ran.status)
			fail_msg("%s%s", ran.out, ran.err);
		double seconds = number_of(strstr(ran.out, "\"longest_launch\""), "seconds");
		print_message("%s, %d tokens: at most %.3f s\n", of[i].model, of[i].tokens, seconds);
		assert_true(seconds > 0.05 && seconds <= 0.3);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_rows_that_do_not_fit_are_cut_and_a_checkpoint_keeps_the_chunk),
	        cmocka_unit_test(test_saved_dtype_is_kept_and_told),
	        cmocka_unit_test(test_a_plan_warns_of_rows_that_train_refuses_alone),
	        cmocka_unit_test(test_a_plan_names_a_chunk_where_the_given_one_does_not_fit),
	        cmocka_unit_test(test_chunks_keep_several_devices_busy),
	        cmocka_unit_test(test_records_take_what_is_in_them),
	        cmocka_unit_test(test_no_launch_takes_long),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
