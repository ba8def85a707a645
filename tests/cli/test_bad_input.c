/* Bad keys and values, through the program: exit 1 or 2, one clear line that names the key, nothing written, nothing lost. */
#include "cli/good.h"

static void test_the_good_run_works(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	run_ok(&scratch, "train %s/run.yaml", scratch.dir);
	run_ok(&scratch, "train %s/run.yaml --output_dir %s/lora --use_peft true", scratch.dir, scratch.dir);
	run_ok(&scratch, "train %s/run.yaml --output_dir %s/q --use_peft true --model_name_or_path %s/model.gguf", scratch.dir, scratch.dir,
	       scratch.dir);
	run_ok(&scratch, "eval --model_name_or_path %s/out --validation_file %s/rows.jsonl --max_length 64", scratch.dir, scratch.dir);
	run_ok(&scratch, "generate --model_name_or_path %s/hf --adapter_name_or_path %s/lora --prompt the --max_new_tokens 3", scratch.dir,
	       scratch.dir);
	scratch_close(&scratch);
}

static void test_keys_that_cannot_be_are_refused(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
	        {"trian @/run.yaml", "there is no verb 'trian'"},
	        {"train @/run.yaml --learning_rat 1e-3", "learning_rate"},
	        {"train @/run.yaml --lora_rank 8", "lora_r"},
	        {"train @/run.yaml --learning_rate 1e-3 --learning_rate 1e-4", "learning_rate"},
	        {"train @/run.yaml --learning_rate fast", "learning_rate"},
	        {"train @/run.yaml --learning_rate nan", "learning_rate"},
	        {"train @/run.yaml --per_device_train_batch_size 0", "per_device_train_batch_size"},
	        {"train @/run.yaml --max_steps 0", "max_steps"},
	        {"train @/run.yaml --adam_beta2 1", "adam_beta2"},
	        {"train @/run.yaml --eval_strategy steps", "eval_strategy"},
	        {"train @/run.yaml --eval_split 1.5", "eval_split"},
	        {"train @/run.yaml --lora_dropout 0.1", "lora_dropout"},
	        {"train @/run.yaml --router_aux_loss_coef -1", "router_aux_loss_coef"},
	        {"train @/run.yaml --router_aux_loss_coef 0.1", "router_aux_loss_coef: Qwen2ForCausalLM has no layers with experts"},
	        {"train @/run.yaml --moe_aux_loss_coef 0.1", "router_aux_loss_coef"},
	        {"train @/run.yaml --use_peft false --lora_r 4", "use_peft"},
	        {"train @/run.yaml --bf16 true --dtype float32", "bf16"},
	        {"train @/run.yaml --use_peft true --lora_target_modules nothing_of_it", "all-linear is all of them"},
	        {"train @/run.yaml --use_peft true --lora_target_parameters x", "lora_target_parameters: 'x' is no parameter"},
	        {"train @/run.yaml --use_peft true --lora_target_modules q_proj,lm_hed", "lora_target_modules: 'lm_hed' names no linear"},
	        {"train @/run.yaml --use_peft true --lora_target_modules q_proj,attn.k_proj", "'attn.k_proj' names no linear"},
	        {"train @/run.yaml --chat_template none_such", "chat_template"},
	        {"train @/run.yaml --eos_token <none_such>", "eos_token"},
	        {"train @/run.yaml --forward_cuts [9] --backward_cuts []", "cuts"},
	        {"train @/run.yaml --schedule gpip", "schedule: 'gpip' is not one that runs; choose roundpipe"},
	        {"train @/run.yaml --schedule zb-h9", "schedule: 'zb-h9' is not one that runs"},
	        {"train @/run.yaml --schedule gpipe --backward_cuts [2]", "backward_cuts: schedule gpipe"},
	        {"train @/run.yaml --schedule 1f1b --device cpu:8", "device: schedule 1f1b needs a layer for each of 8 devices"},
	        {"train @/run.yaml --config_name @/hf", "config_name"},
	        {"train @/none.yaml", "none.yaml"},
	        {"train @", "@"},
	        {"train @/rows.jsonl", "rows.jsonl"},
	        {"train --train_file @/rows.jsonl --output_dir @/out", "model_name_or_path"},
	        {"train --model_name_or_path @/hf --output_dir @/out", "train_file"},
	        {"train --model_name_or_path @/hf --train_file @/rows.jsonl", "output_dir"},
	        {"eval --model_name_or_path @/hf", "validation_file"},
	        {"generate --model_name_or_path @/hf", "prompt"},
	        {"generate --model_name_or_path @/hf --prompt the --max_new_tokens 500", "max_new_tokens"},
	        {"generate --model_name_or_path @/hf --prompt the --temperature -1", "temperature"},
	        {"generate --model_name_or_path @/hf --prompt the --top_p 0", "top_p"},
	};
	struct scratch scratch;
	make_good(&scratch);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		refused(&scratch, cases[i][0], *cases[i][1] == '@' ? scratch.dir : cases[i][1]);
	static const char *const yaml[][2] = {
	        {"learning_rate: 1\nlearning_rate: 2\n", "learning_rate"},
	        {"\tlearning_rate: 1\n", "bad.yaml"},
	        {"- learning_rate\n", "bad.yaml"},
	        {"learning_rate: [1\n", "bad.yaml"},
	        {"seed: &a 1\ndata_seed: *a\n", "bad.yaml"},
	        {"weight\x01\x1b[31mdecay: 1\n", "bad.yaml"},
	        {"\"weight\\ndecay\": 1\n", "bad.yaml"},
	};
	for (size_t i = 0; i < sizeof yaml / sizeof *yaml; i++) {
		write_text(path_of("%s/bad.yaml", scratch.dir), yaml[i][0]);
		refused(&scratch, "train @/bad.yaml", yaml[i][1]);
	}
	scratch_close(&scratch);
}

static void test_keys_not_built_yet_say_so(void **state)
{
	(void)state;
	static const char *const keys[] = {"dtype float16", "fp16 true"};
	struct scratch scratch;
	make_good(&scratch);
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		char name[64];
		snprintf(name, sizeof name, "%.*s", (int)strcspn(keys[i], " "), keys[i]);
		refused(&scratch, path_of("train @/run.yaml --%s", keys[i]), name);
		refused(&scratch, path_of("train @/run.yaml --%s", keys[i]), "not built yet");
	}
	refused(&scratch, "train @/run.yaml --fp8 true", "fp8: is a way of GPUs' tensor cores, and device is cpu:1");
	refused(&scratch, "train @/run.yaml --accumulation fp16", "accumulation: is a way of GPUs' tensor cores");
	scratch_close(&scratch);
}

/* What a person tries first. */
static void test_help_and_version_are_printed(void **state)
{
	(void)state;
	static const char *const cases[][2] = {{"-h", "usage: roundhouse VERB"},
	                                       {"--help", "usage: roundhouse VERB"},
	                                       {"--version", "roundhouse 0."},
	                                       {"train -h", "learning_rate"},
	                                       {"generate --help", "max_new_tokens"}};
	struct scratch scratch;
	scratch_open(&scratch);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ran ran = run_line(&scratch, "%s", cases[i][0]);
		assert_int_equal(ran.status, 0);
		assert_non_null(strstr(ran.out, cases[i][1]));
		run_free(&ran);
	}
	scratch_close(&scratch);
}

static void test_losses_that_explode_stop_the_run(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	struct ran ran = run_line(&scratch,
	                          "train %s/run.yaml --learning_rate 1000 --max_steps 50 --lr_scheduler_type constant --optim sgd "
	                          "--optim_args momentum=0.9 --max_grad_norm 0",
	                          scratch.dir);
	check_failed(&ran, "step ");
	run_free(&ran);
	scratch_close(&scratch);
}

static void write_utf16(const char *path, const char *text)
{
	char wide[512];
	size_t length = strlen(text);
	assert_true(2 * length <= sizeof wide);
	for (size_t i = 0; i < length; i++) {
		wide[2 * i] = text[i];
		wide[2 * i + 1] = 0;
	}
	write_bytes(path, wide, 2 * length);
}

/* As PowerShell's redirection writes, here without a mark. */
static void test_files_in_utf16_say_so(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	write_utf16(path_of("%s/wide.jsonl", scratch.dir), "{\"text\": \"a\"}\n");
	write_utf16(path_of("%s/wide.yaml", scratch.dir), "max_length: 64\n");
	refused(&scratch, "train @/run.yaml --train_file @/wide.jsonl", "wide.jsonl:1: |UTF-16|iconv -f UTF-16LE");
	refused(&scratch, "train @/wide.yaml", "wide.yaml:1: |UTF-16|iconv -f UTF-16LE");
	scratch_close(&scratch);
}

static void test_memory_is_told_in_units(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/nvme", scratch.dir)));
	refused(&scratch, "train @/run.yaml --spill optimizer --nvme_dirs @/nvme --max_nvme 1B",
	        "max_nvme: |KiB|may have 1 B|raise it to ");
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_the_good_run_works),
	        cmocka_unit_test(test_keys_that_cannot_be_are_refused),
	        cmocka_unit_test(test_keys_not_built_yet_say_so),
	        cmocka_unit_test(test_help_and_version_are_printed),
	        cmocka_unit_test(test_losses_that_explode_stop_the_run),
	        cmocka_unit_test(test_files_in_utf16_say_so),
	        cmocka_unit_test(test_memory_is_told_in_units),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
