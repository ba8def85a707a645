/* `verify`: runs of different families, forms, tiers and schedules compute the gradients that one device computes which holds
 * everything; a gradient that is lost on its way is found and named. And keys that shape an adapter, in what they write and refuse. */
#include "cli/good.h"
#include "core/json.h"

#define STEP "--max_length 64 --per_device_train_batch_size 1 --gradient_accumulation_steps 3"

/* dir/NAME: a model with the tokenizer of copy_model. */
static void bring_model(const struct scratch *scratch, const char *name)
{
	copy_dir(path_of(MODELS "%s", name), path_of("%s/%s", scratch->dir, name));
	copy_file("tests/reference/interchange/tokenizer.json", path_of("%s/%s/tokenizer.json", scratch->dir, name));
	copy_file("tests/reference/interchange/tokenizer_config.json", path_of("%s/%s/tokenizer_config.json", scratch->dir, name));
}

/* The result of `verify`, as JSON; *status: its exit status. */
static json_t *verified(const struct scratch *scratch, const char *keys, int *status)
{
	char line[2048];
	json_t *json = NULL;
	fill_in(scratch, path_of("verify --train_file @/rows.jsonl --allow [duplicates] %s --json", keys), line, sizeof line);
	struct ran ran = run_line(scratch, "%s", line);
	*status = ran.status;
	if (ran.status > 1 || !*ran.out)
		fail_msg("exit %d of %s: %s", ran.status, line, ran.err);
	check_ok(rh_json_parse(ran.out, strlen(ran.out), "verify", &json));
	run_free(&ran);
	return json;
}

/* All gradients, none of them nothing; equal in each bit where that is promised. */
static void agrees(const struct scratch *scratch, const char *keys, int is_bitwise)
{
	int status, counts = 0;
	json_t *json = verified(scratch, keys, &status), *of;
	size_t i;
	assert_int_equal(status, 0);
	assert_int_equal(json_is_true(json_object_get(json, "bitwise")), is_bitwise);
	json_array_foreach(json_object_get(json, "tensors"), i, of)
	{
		const char *verdict = json_string_value(json_object_get(of, "verdict"));
		if (strcmp(verdict, "equal") && (is_bitwise || strcmp(verdict, "close")))
			fail_msg("%s: %s of %s", keys, verdict, json_string_value(json_object_get(of, "name")));
		counts += json_number_value(json_object_get(of, "norm")) > 0;
	}
	assert_true(counts >= 4 &&
	            2 * counts >= (int)json_array_size(json_object_get(json, "tensors"))); /* of new experts' adapters A has none */
	assert_true(!is_bitwise ||
	            json_number_value(json_object_get(json, "loss")) == json_number_value(json_object_get(json, "reference_loss")));
	json_decref(json);
}

static void test_runs_of_many_kinds_agree_with_one_device(void **state)
{
	(void)state;
#define NVME "--nvme_dirs @ --max_nvme 1GiB"
	static const char *const cases[][2] = {
	        {"gguf-qwen2", "--device cpu:2"},
	        {"gguf-llama", "--device cpu:3 --dtype bfloat16 --max_vram 1MiB"},
	        {"gguf-gemma3", "--device cpu:2 --packing true"},
	        {"gguf-qwen3-moe", "--device cpu:2 --lora_r 4 --lora_target_modules all-linear"},
	        {"gguf-gpt-oss", "--device cpu:2 --lora_r 4 --lora_target_modules all-linear"},
	        {"gguf-phi3", "--spill optimizer " NVME},
	        {"gguf-mistral3", "--lora_r 4 --spill weights " NVME},
	        {"gguf-qwen2", "--schedule zb-v --device cpu:2"},
	        {"gguf-qwen2", "--quantize nf4 --lora_r 4 --dtype bfloat16"},
	        {"gguf-gpt2", "--optimizer_staleness 1"},
	        {"gguf-qwen2", "--spill [optimizer,masters,activations] --device cpu:2 --dtype bfloat16 --round_micro_batches 2 " NVME},
	};
	struct scratch scratch;
	make_good(&scratch);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const char *name = cases[i][0];
		if (!rh_dir_exists(path_of("%s/%s", scratch.dir, name)))
			bring_model(&scratch, name);
		int is_file = !rh_file_exists(path_of("%s/%s/config.json", scratch.dir, name));
		char keys[1024];
		snprintf(keys, sizeof keys, "--model_name_or_path @/%s%s " STEP " %s", name, is_file ? "/model.gguf" : "", cases[i][1]);
		agrees(&scratch, keys, 1);
	}
	scratch_close(&scratch);
}

/* A model to begin at random, with so many layers, and rows of about 600 tokens. */
static void make_random(const struct scratch *scratch, int layers)
{
	check_ok(rh_dir_make(path_of("%s/new", scratch->dir)));
	copy_file("tests/reference/interchange/tokenizer.json", path_of("%s/new/tokenizer.json", scratch->dir));
	copy_file("tests/reference/interchange/tokenizer_config.json", path_of("%s/new/tokenizer_config.json", scratch->dir));
	write_text(
	        path_of("%s/new/config.json", scratch->dir),
	        path_of("{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 288, \"hidden_size\": 64, "
	                "\"intermediate_size\": 192, \"num_hidden_layers\": %d, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
	                "\"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": false}",
	                layers));
}

static void test_chunks_agree_within_rounding(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	make_random(&scratch, 3);
	FILE *file = fopen(path_of("%s/rows.jsonl", scratch.dir), "w");
	for (int row = 0; row < 2; row++) {
		fprintf(file, "{\"text\": \"");
		for (int word = 0; word < 120; word++)
			fprintf(file, "cat%d ", word * (row + 3) % 17);
		fprintf(file, "\"}\n");
	}
	fclose(file);
	agrees(&scratch,
	       "--config_name @/new --max_length 700 --sequence_chunk 256 --per_device_train_batch_size 1 --gradient_accumulation_steps 2 "
	       "--device cpu:2",
	       0);
	scratch_close(&scratch);
}

/* Everything does not fit in memory at once, but the run does, with NVMe: the first half of the layers is checked. */
static void test_what_does_not_fit_is_checked_in_part(void **state)
{
	(void)state;
	struct scratch scratch;
	json_t *plan = NULL;
	int status;
	make_good(&scratch);
	make_random(&scratch, 16);
	struct ran ran = run_line(&scratch, "plan --config_name %s/new --train_file %s/rows.jsonl --allow [duplicates] " STEP " --json",
	                          scratch.dir, scratch.dir);
	check_ok(rh_json_parse(ran.out, strlen(ran.out), "plan", &plan));
	int64_t bytes = json_integer_value(json_object_get(json_object_get(json_object_get(plan, "tiers"), "ram"), "used_bytes"));
	json_decref(plan);
	run_free(&ran);
	json_t *json = verified(&scratch,
	                        path_of("--config_name @/new " STEP " --spill optimizer --nvme_dirs @ --max_nvme 1GiB --max_ram %lld",
	                                (long long)bytes - (2 << 20)),
	                        &status);
	assert_int_equal(status, 0);
	assert_int_equal(json_integer_value(json_object_get(json, "all_layers")), 16);
	assert_int_equal(json_integer_value(json_object_get(json, "layers")), 8);
	assert_true(json_is_true(json_object_get(json, "bitwise")));
	json_decref(json);
	scratch_close(&scratch);
}

static void lose(const struct scratch *scratch, const char *name, const char *keys)
{
	int status, lost = 0;
	size_t i;
	json_t *of;
	setenv("RH_DROP_GRADIENT", name, 1);
	json_t *json = verified(scratch, keys, &status);
	unsetenv("RH_DROP_GRADIENT");
	assert_int_equal(status, 1);
	assert_true(json_is_false(json_object_get(json, "agrees")));
	json_array_foreach(json_object_get(json, "tensors"), i, of)
	{
		const char *verdict = json_string_value(json_object_get(of, "verdict"));
		int is_it = strstr(json_string_value(json_object_get(of, "name")), name) != NULL;
		if (is_it != !strcmp(verdict, "lost"))
			fail_msg("%s: %s", json_string_value(json_object_get(of, "name")), verdict);
		lost += is_it;
	}
	assert_true(lost > 0);
	json_decref(json);
}

static void test_a_lost_gradient_is_named(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	lose(&scratch, "layers.1.", "--model_name_or_path @/hf " STEP " --device cpu:2");
	lose(&scratch, "layers.0.", "--model_name_or_path @/hf " STEP " --lora_r 2 --lora_target_modules all-linear --dtype bfloat16");
	setenv("RH_DROP_GRADIENT", "layers.1.", 1);
	struct ran ran = run_line(&scratch, "verify %s/run.yaml", scratch.dir);
	unsetenv("RH_DROP_GRADIENT");
	assert_int_equal(ran.status, 1);
	assert_non_null(strstr(ran.out, "model.layers.1.self_attn.q_proj.weight: lost: "));
	assert_non_null(strstr(ran.out, "please report it"));
	assert_false(rh_dir_exists(path_of("%s/out", scratch.dir)));
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_what_has_no_reference_is_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	refused(&scratch, "verify @/run.yaml --mode paci --boxes 2 --box 1", "mode: verify checks the gradients of one box|--mode local");
	refused(&scratch, "verify @/run.yaml --schedule paci", "schedule: paci|--schedule roundpipe");
	refused(&scratch, "verify --model_name_or_path @/hf", "verify needs train_file");
	refused(&scratch, "verify @/run.yaml --max_ram 1MiB", "max_ram");
	scratch_close(&scratch);
}

/* ---- keys that shape an adapter ---- */

static void test_keys_of_single_modules_are_written_and_checked(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	write_text(path_of("%s/lora.yaml", scratch.dir),
	           "lora_r: 4\nlora_target_modules: [q_proj, v_proj, down_proj]\nrank_pattern: {q_proj: 2, 'layers\\.1\\..*v_proj': 3}\n"
	           "alpha_pattern: {v_proj: 5.5}\nexclude_modules: [layers.0.mlp.down_proj]\ninit_lora_weights: gaussian\n");
	edit_file(path_of("%s/run.yaml", scratch.dir), "max_steps: 2", path_of("max_steps: 2\nsave_steps: 2"));
	size_t length;
	char *lora = read_bytes(path_of("%s/lora.yaml", scratch.dir), &length),
	     *run = read_bytes(path_of("%s/run.yaml", scratch.dir), &length);
	write_text(path_of("%s/both.yaml", scratch.dir), path_of("%s%s", run, lora));
	free(lora);
	free(run);
	run_ok(&scratch, "train %s/both.yaml", scratch.dir);
	char *written = read_bytes(path_of("%s/out/adapter_config.json", scratch.dir), &length);
	json_t *json = NULL;
	check_ok(rh_json_parse(written, length, "adapter_config.json", &json));
	const json_t *ranks = json_object_get(json, "rank_pattern");
	assert_int_equal(json_integer_value(json_object_get(ranks, "q_proj")), 2);
	assert_int_equal(json_integer_value(json_object_get(ranks, "layers\\.1\\..*v_proj")), 3);
	assert_true(json_number_value(json_object_get(json_object_get(json, "alpha_pattern"), "v_proj")) == 5.5);
	assert_string_equal(json_string_value(json_array_get(json_object_get(json, "exclude_modules"), 0)), "layers.0.mlp.down_proj");
	assert_string_equal(json_string_value(json_object_get(json, "init_lora_weights")), "gaussian");
	json_decref(json);
	free(written);
	/* the configuration as it was resolved trains the same */
	run_ok(&scratch, "train %s/out/checkpoint-2/config.yaml --output_dir %s/again --max_steps 2", scratch.dir, scratch.dir);
	check_same_file(&scratch, "out", "again", "adapter_model.safetensors");
	run_ok(&scratch, "train %s/run.yaml --output_dir %s/one --lora_r 2 --lora_target_modules q_proj,v_proj --layers_to_transform [1]",
	       scratch.dir, scratch.dir);
	written = read_bytes(path_of("%s/one/adapter_model.safetensors", scratch.dir), &length);
	assert_non_null(memmem(written, length, "layers.1.self_attn.q_proj", 25));
	assert_null(memmem(written, length, "layers.0.", 9));
	free(written);
	/* an adapter so made goes on, is asked and merged */
	run_ok(&scratch, "train %s/run.yaml --output_dir %s/on --adapter_name_or_path %s/one", scratch.dir, scratch.dir, scratch.dir);
	run_ok(&scratch, "merge --model_name_or_path %s/hf --adapter_name_or_path %s/out --output_dir %s/merged", scratch.dir, scratch.dir,
	       scratch.dir);
	static const char *const cases[][2] = {
	        {"--rank_pattern q_prj=2", "rank_pattern: 'q_prj' matches no module that gets an adapter"},
	        {"--rank_pattern q_proj=0", "rank_pattern: '0' is not allowed there|whole numbers from 1 to 65536"},
	        {"--rank_pattern q_proj=many", "rank_pattern: 'many' is not allowed there"},
	        {"--alpha_pattern (=2", "alpha_pattern: |is no regular expression"},
	        {"--exclude_modules (x", "exclude_modules: '(x' is no regular expression"},
	        {"--exclude_modules all-linear", "exclude_modules: 'all-linear' would leave nothing"},
	        {"--exclude_modules q_proj,v_proj", "lora_target_modules names no module"},
	        {"--layers_to_transform [0] --lora_target_modules all-linear", "layers_to_transform: goes with a list"},
	        {"--layers_to_transform [-1]", "layers_to_transform: '-1' is not allowed there"},
	        {"--init_lora_weights pissa", "init_lora_weights: 'pissa' is not allowed; expected one of true, gaussian, false"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		refused(&scratch, path_of("train @/run.yaml --output_dir @/no --lora_r 2 %s", cases[i][0]), cases[i][1]);
	refused(&scratch, "train @/run.yaml --output_dir @/no --rank_pattern q_proj=2", "rank_pattern: has no effect without lora_r");
	refused(&scratch, "train @/run.yaml --output_dir @/no --adapter_name_or_path @/one --init_lora_weights false",
	        "init_lora_weights are of a new adapter");
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_runs_of_many_kinds_agree_with_one_device),
	        cmocka_unit_test(test_chunks_agree_within_rounding),
	        cmocka_unit_test(test_what_does_not_fit_is_checked_in_part),
	        cmocka_unit_test(test_a_lost_gradient_is_named),
	        cmocka_unit_test(test_what_has_no_reference_is_refused),
	        cmocka_unit_test(test_keys_of_single_modules_are_written_and_checked),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
