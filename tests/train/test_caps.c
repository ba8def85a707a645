/* A model ten times as large as the device, on a host that has exactly what the plan says: the run completes, and what the kernel and the
 * devices measured is under both caps. */
#include "cli/runner.h"

#include "core/json.h"

enum { HIDDEN = 128, INNER = 512, HEADS = 2, VOCABULARY = 288 };

/* Random weights; returns their bytes in bf16. */
static int64_t write_model(const struct scratch *scratch, int layers)
{
	check_ok(rh_dir_make(path_of("%s/deep", scratch->dir)));
	FILE *file = fopen(path_of("%s/deep/config.json", scratch->dir), "w");
	assert_non_null(file);
	fprintf(file,
	        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": %d, \"intermediate_size\": %d, "
	        "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": 64, \"vocab_size\": "
	        "%d, \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
	        "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", \"bos_token_id\": 286, \"eos_token_id\": 287}",
	        HIDDEN, INNER, layers, HEADS, HEADS, VOCABULARY);
	assert_int_equal(fclose(file), 0);
	copy_file("tests/reference/interchange/tokenizer.json", path_of("%s/deep/tokenizer.json", scratch->dir));
	copy_file("tests/reference/interchange/tokenizer_config.json", path_of("%s/deep/tokenizer_config.json", scratch->dir));
	file = fopen(path_of("%s/rows.jsonl", scratch->dir), "w");
	assert_non_null(file);
	for (int row = 0; row < 8; row++)
		fprintf(file, "{\"prompt\": \"the cat %d\", \"completion\": \" sat on the mat\"}\n", row);
	assert_int_equal(fclose(file), 0);
	int64_t layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER + 2 * HIDDEN;
	return 2 * (layers * layer + 2 * VOCABULARY * HIDDEN + HIDDEN);
}

static int64_t number_at(const char *text, const char *path)
{
	json_t *root;
	check_ok(rh_json_parse(text, strlen(text), "the program's JSON", &root));
	const json_t *at = root;
	char copy[128], *rest = copy;
	snprintf(copy, sizeof copy, "%s", path);
	for (char *word; (word = strsep(&rest, "."));)
		at = json_object_get(at, word);
	if (!json_is_integer(at))
		fail_msg("no number %s in %s", path, text);
	int64_t number = json_integer_value(at);
	json_decref(root);
	return number;
}

/* What the run of `line` says of its loss; its peaks are under the caps. */
static double train(const struct scratch *scratch, const char *line, int64_t device_cap, int64_t host_cap)
{
	struct ran ran =
	        run_line(scratch, "train %s --max_vram %lld --max_ram %lld --json", line, (long long)device_cap, (long long)host_cap);
	if (ran.status)
		fail_msg("exit %d: %s", ran.status, ran.err);
	int64_t device = number_at(ran.out, "peak_bytes.vram"), host = number_at(ran.out, "peak_bytes.ram");
	printf("peaks: device %.2f MiB of %.2f, process %.1f MiB of %.1f\n", (double)device / 1048576, (double)device_cap / 1048576,
	       (double)host / 1048576, (double)host_cap / 1048576);
	assert_true(device > 0 && device <= device_cap);
	assert_true(!CHECK_RESIDENT || (host > 0 && host <= host_cap));
	json_t *root;
	check_ok(rh_json_parse(ran.out, strlen(ran.out), "the program's JSON", &root));
	double loss = json_number_value(json_object_get(root, "final_loss"));
	json_decref(root);
	run_free(&ran);
	check_ok(rh_dir_remove(path_of("%s/out", scratch->dir)));
	return loss;
}

static void test_a_tenth_of_the_model_on_the_device_and_the_plan_on_the_host(void **state)
{
	(void)state;
	static const char *const kinds[] = {"--device cpu:1", "--device cpu:2 --state_layout split8",
	                                    "--device cpu:1 --optimizer_staleness 1 --state_layout plain"};
	struct scratch scratch;
	scratch_open(&scratch);
	int64_t model = write_model(&scratch, getenv("RH_LONG") ? 384 : CHECK_THREADS_ONLY ? 48 : 96), cap = model / 10;
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		char line[1024];
		snprintf(line, sizeof line,
		         "--config_name %s/deep --train_file %s/rows.jsonl --output_dir %s/out --max_length 32 --max_steps 3 "
		         "--save_strategy no "
		         "--per_device_train_batch_size 1 --gradient_accumulation_steps 4 --learning_rate 1e-3 --bf16 true %s",
		         scratch.dir, scratch.dir, scratch.dir, kinds[k]);
		struct ran ran = run_line(&scratch, "plan %s --max_vram %lld --json", line, (long long)cap);
		if (ran.status)
			fail_msg("exit %d: %s", ran.status, ran.err);
		int64_t planned = number_at(ran.out, "tiers.ram.used_bytes");
		printf("%s: a model of %.1f MiB\n", kinds[k], (double)model / 1048576);
		run_free(&ran);
		double loss = train(&scratch, line, cap, planned), roomy = train(&scratch, line, 10 * model, (int64_t)8 << 30);
		assert_true(loss == roomy);
	}
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_tenth_of_the_model_on_the_device_and_the_plan_on_the_host)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
