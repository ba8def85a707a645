/* What a configuration says: files and flags, defaults, values of every type, memory that runs out. */
#include "place.h"

static void test_load_nothing_given_has_the_documented_defaults(void **state)
{
	(void)state;
	struct rh_config c;
	check_ok(load(NULL, NULL, &c));
	assert_int_equal(c.per_device_train_batch_size, 8);
	assert_int_equal(c.per_device_eval_batch_size, 8);
	assert_int_equal(c.gradient_accumulation_steps, 1);
	assert_true(c.num_train_epochs == 3 && c.max_steps == -1);
	assert_true(c.learning_rate == 2e-5 && c.lr_scheduler_type == RH_LR_LINEAR && c.warmup_steps == 0 && c.weight_decay == 0);
	assert_true(c.adam_beta1 == 0.9 && c.adam_beta2 == 0.999 && c.adam_epsilon == 1e-8 && c.max_grad_norm == 1);
	assert_true(c.dtype == RH_F32 && c.seed == 42 && c.data_seed == 42);
	assert_true(c.train_sampling_strategy == RH_SAMPLING_RANDOM && c.logging_steps == 10);
	assert_true(c.eval_strategy == RH_WHEN_NO && c.eval_steps == 10 && c.save_strategy == RH_WHEN_STEPS && c.save_steps == 500);
	assert_true(c.save_total_limit == 0 && !c.resume_from_checkpoint);
	assert_true(c.max_length == 1024 && !c.packing && c.packing_strategy == RH_PACKING_BFD);
	assert_true(c.completion_only_loss == RH_UNSET && c.assistant_only_loss == RH_UNSET);
	assert_string_equal(c.dataset_text_field, "text");
	assert_true(!c.use_lora && c.lora_keys_given == 0 && !c.eos_token && !c.chat_template);
	assert_string_equal(c.device, "cpu:1");
	assert_true(c.round_micro_batches == 0 && c.forward_cut_count == -1 && c.backward_cut_count == -1 && !c.forward_cuts);
	assert_true(c.max_vram == 0 && c.max_ram == 0 && c.max_new_tokens == 256 && c.temperature == 0 && c.top_p == 1);
	rh_config_free(&c);
}

static void test_load_file_and_flags_flags_win(void **state)
{
	(void)state;
	struct rh_config c;
	check_ok(load("learning_rate: 2.0e-4\nmax_length: 2048\npacking: true\nlora_r: 8\nlora_target_modules: all-linear\n"
	              "lr_scheduler_type: cosine # note\nmax_ram: 100GiB\nseed: 7\nprompt: hello\n",
	              "--learning-rate 5e-4 --lora_alpha=16 --gradient-accumulation-steps 16 --completion-only-loss --max-vram '1.5 GB'",
	              &c));
	assert_true(c.learning_rate == 5e-4 && c.max_length == 2048 && c.packing && c.use_lora && c.lora_r == 8 && c.lora_alpha == 16);
	assert_true(c.lora_dropout == 0.05 && c.lora_target_modules.count == 1 && !c.lora_targets_pattern);
	assert_string_equal(c.lora_target_modules.item[0], "all-linear");
	assert_true(c.lr_scheduler_type == RH_LR_COSINE && c.max_ram == 100ll << 30 && c.max_vram == 1500000000 && c.data_seed == 7);
	assert_true(c.gradient_accumulation_steps == 16 && c.completion_only_loss == RH_YES);
	rh_config_free(&c);
	check_ok(
	        load("learning_rate: 1\neval_split: 0.1\nmax_steps: 1e3\n", "--learning_rate null --eval_split null --json --packing", &c));
	assert_true(c.learning_rate == 2e-5 && c.eval_split == 0 && c.max_steps == 1000 && c.json && c.packing);
	rh_config_free(&c);
	check_ok(load("learning_rate: 4e-4\nlr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-4}\n", NULL, &c));
	assert_true(c.lr_shape.min_rate == 0.25 && c.decay_embeddings);
	rh_config_free(&c);
	check_ok(load("lr_scheduler_type: cosine_with_min_lr\nweight_decay: 0.1\n",
	              "--lr_scheduler_kwargs min_lr_rate=0.1 --decay_embeddings false", &c));
	assert_true(c.lr_shape.min_rate == 0.1 && !c.decay_embeddings && c.paci_backward == RH_BACKWARD_RECOMPUTE);
	rh_config_free(&c);
	check_ok(load("", NULL, &c));
	rh_config_free(&c);
	check_ok(load("# nothing\n", NULL, &c));
	rh_config_free(&c);
}

static void test_load_values_of_every_type(void **state)
{
	(void)state;
	struct rh_config c;
	check_ok(load("warmup_ratio: 0.1\nmax_steps: 20\neval_steps: 0.25\nsave_steps: 50\nsave_strategy: no\neval_strategy: 'epoch'\n"
	              "eval_split: .2\nforward_cuts: [2, 5]\nbackward_cuts: []\nuse_rslora: yes\nuse_peft: True\ndata_seed: 9\n"
	              "lora_target_modules:\n  - q_proj\n  - mlp.up_proj\nbf16: true\ndtype: bfloat16\ndevice: cpu:4\nmax_vram: 1048576\n",
	              NULL, &c));
	assert_true(c.warmup_steps == 0.1 && c.max_steps == 20 && c.eval_steps == 0.25 && c.save_steps == 50);
	assert_true(c.save_strategy == RH_WHEN_NO && c.eval_strategy == RH_WHEN_EPOCH && c.eval_split == 0.2 && c.use_rslora);
	assert_true(c.forward_cut_count == 2 && c.forward_cuts[0] == 2 && c.forward_cuts[1] == 5 && c.backward_cut_count == 0);
	assert_true(c.lora_target_modules.count == 2 && c.lora_r == 16 && c.dtype == RH_BF16 && c.max_vram == 1048576 && c.data_seed == 9);
	assert_string_equal(c.lora_target_modules.item[1], "mlp.up_proj");
	assert_string_equal(c.device, "cpu:4");
	rh_config_free(&c);
	check_ok(load("lora_target_modules: .*\\.(q|v)_proj\nlora_r: 4\ndevice: cpu\n", "--forward_cuts 1,3 --backward_cuts=[4]", &c));
	assert_true(c.lora_targets_pattern && c.forward_cut_count == 2 && c.backward_cuts[0] == 4);
	assert_string_equal(c.lora_target_modules.item[0], ".*\\.(q|v)_proj");
	assert_string_equal(c.device, "cpu:1");
	rh_config_free(&c);
	static const char *const lists[] = {"q_proj,k_proj", "[q_proj,k_proj]", "'[\"q_proj\", \"k_proj\"]'", "'q_proj, k_proj'"};
	for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
		char flags[128];
		snprintf(flags, sizeof flags, "--lora_r 4 --lora_target_modules %s", lists[i]);
		check_ok(load(NULL, flags, &c));
		assert_true(c.lora_target_modules.count == 2 && !c.lora_targets_pattern);
		assert_string_equal(c.lora_target_modules.item[0], "q_proj");
		assert_string_equal(c.lora_target_modules.item[1], "k_proj");
		rh_config_free(&c);
	}
	static const struct {
		const char *text;
		int64_t bytes;
	} sizes[] = {{"24 GB", 24000000000}, {"1.5GiB", 3ll << 29},  {"7B", 7},
	             {"24G", 24ll << 30},    {"500m", 500ll << 20},  {"1048576", 1 << 20},
	             {"2kib", 2048},         {"1TB", 1000000000000}, {"5e2 MB", 500000000}};
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		char yaml[64];
		snprintf(yaml, sizeof yaml, "max_ram: %s\n", sizes[i].text);
		check_ok(load(yaml, NULL, &c));
		assert_int_equal(c.max_ram, sizes[i].bytes);
		rh_config_free(&c);
	}
}

static void test_load_resume_is_true_or_a_path(void **state)
{
	(void)state;
	struct rh_config c;
	check_ok(load("resume_from_checkpoint: true\n", NULL, &c));
	assert_string_equal(c.resume_from_checkpoint, "true");
	rh_config_free(&c);
	check_ok(load("resume_from_checkpoint: false\n", NULL, &c));
	assert_null(c.resume_from_checkpoint);
	rh_config_free(&c);
	check_ok(load(NULL, "--resume-from-checkpoint out/checkpoint-5", &c));
	assert_string_equal(c.resume_from_checkpoint, "out/checkpoint-5");
	rh_config_free(&c);
	refused(NULL, "--resume-from-checkpoint out/checkpoint-6", "resume_from_checkpoint: 'out/checkpoint-6': no such file");
}

static void test_load_takes_the_file_after_flags(void **state)
{
	(void)state;
	struct rh_config c;
	check_ok(rh_file_write_whole("c.yaml", "seed: 7\n", 8));
	static const char *const lines[] = {"--packing c.yaml", "--json c.yaml", "--lora_r 4 c.yaml", "c.yaml --packing"};
	for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
		check_ok(load(NULL, lines[i], &c));
		assert_int_equal(c.seed, 7);
		rh_config_free(&c);
	}
	refused(NULL, "c.yaml learning_rate=1e-4", "unexpected word 'learning_rate=1e-4'; write --learning_rate=1e-4");
	refused(NULL, "c.yaml c.yaml", "unexpected word 'c.yaml'");
	refused(NULL, "--lora_r 4 --lora_target_modules q_proj v_proj", "unexpected word 'v_proj'; beside CONFIG.yaml");
}

/* A file that trained an adapter serves to evaluate and to generate with it. */
static void test_load_lora_keys_are_of_training_alone(void **state)
{
	(void)state;
	struct rh_config c;
	static const char yaml[] = "lora_alpha: 16\nlora_dropout: 0\nlora_target_modules: all-linear\n";
	static const char *const flags[] = {"--model_name_or_path model --prompt x",
	                                    "--model_name_or_path model --prompt x --adapter_name_or_path adapter"};
	for (int i = 0; i < 2; i++) {
		check_ok(load_verb("generate", yaml, flags[i], &c));
		assert_int_equal(c.use_lora, i);
		assert_int_equal(c.lora_keys_given, 0);
		rh_config_free(&c);
	}
	check_ok(load_verb("eval", "use_peft: true\nlora_r: 4\n", "--model_name_or_path model --validation_file test.jsonl", &c));
	assert_int_equal(c.use_lora, 0);
	rh_config_free(&c);
}

/* The flag is about the file's run: what it says of LoRA goes with the adapter. */
static void test_load_use_peft_false_sets_a_files_lora_aside(void **state)
{
	(void)state;
	struct rh_config c;
	static const char yaml[] = "lora_r: 4\nlora_alpha: 16\nlora_target_modules: all-linear\nuse_peft: true\n";
	check_ok(load(yaml, "--use_peft false", &c));
	assert_true(!c.use_lora && c.lora_r == 16 && c.lora_alpha == 32 && c.lora_keys_given == 0);
	rh_config_free(&c);
	check_ok(load(yaml, NULL, &c));
	assert_true(c.use_lora && c.lora_r == 4);
	rh_config_free(&c);
	refused(yaml, "--use_peft false --lora_r 4", "use_peft: false contradicts lora_r");
}

static void test_load_bf16_auto_is_unset(void **state)
{
	(void)state;
	struct rh_config c;
	check_ok(load("bf16: auto\n", "--device cpu:1", &c));
	assert_int_equal(c.dtype, RH_F32);
	rh_config_free(&c);
	check_ok(load("bf16: auto\n", "--device cuda", &c));
	assert_int_equal(c.dtype, RH_BF16);
	rh_config_free(&c);
	refused("fp16: auto\n", NULL, "fp16: 'auto'");
}

static void test_load_paths_are_written_out_and_looked_at(void **state)
{
	struct place *place = *state;
	struct rh_config c;
	char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
	setenv("HOME", place->dir, 1);
	check_ok(load_verb("train", "model_name_or_path: ~/model\ntrain_file: ~/train.jsonl\noutput_dir: ~/new\n", NULL, &c));
	assert_true(!strncmp(c.output_dir, place->dir, strlen(place->dir)) && !strcmp(c.output_dir + strlen(place->dir), "/new"));
	rh_config_free(&c);
	check_ok(load_verb("inspect",
	                   "model_name_or_path: ~/model\ntrain_file: ~/train.jsonl\nhtml: ~/rows.html\nchat_template: ~/t.jinja\n", NULL,
	                   &c));
	assert_true(!strncmp(c.html, place->dir, strlen(place->dir)) && !strcmp(c.html + strlen(place->dir), "/rows.html"));
	assert_string_equal(c.chat_template + strlen(place->dir), "/t.jinja");
	rh_config_free(&c);
	check_ok(load_verb("export", "model_name_or_path: ~/model\noutfile: ~/new.gguf\n", NULL, &c));
	assert_string_equal(c.outfile + strlen(place->dir), "/new.gguf");
	rh_config_free(&c);
	refused_by("train", "model_name_or_path: ~/none\ntrain_file: train.jsonl\noutput_dir: out\n", NULL,
	           "/none': no such file or directory here");
	unsetenv("HOME");
	refused_by("train", "model_name_or_path: model\ntrain_file: train.jsonl\noutput_dir: ~/new\n", NULL,
	           "output_dir: '~/new': HOME is not set");
	if (home)
		setenv("HOME", home, 1);
	free(home);
	check_ok(rh_file_write_whole("adapter/adapter_model.safetensors", "", 0));
	refused_by("train", NULL, "--model_name_or_path adapter --train_file train.jsonl --output_dir out",
	           "model_name_or_path: 'adapter' holds an adapter; name it in adapter_name_or_path");
	refused_by("train", NULL, "--model_name_or_path adapter/adapter_model.safetensors --train_file train.jsonl --output_dir out",
	           "is one file of a model; give its directory");
	refused(NULL, "--adapter_name_or_path adapter/adapter_model.safetensors",
	        "is a file; give the directory that holds adapter_config.json");
	refused(NULL, "--adapter_name_or_path model", "adapter_name_or_path: 'model' holds no adapter_config.json");
	check_ok(rh_file_write_whole("out/metrics.jsonl", "", 0));
	refused(NULL, "--adapter_name_or_path out", "the run there has not ended; give one of its checkpoints, out/checkpoint-N");
	refused_by("eval", NULL, "--model_name_or_path out --validation_file test.jsonl",
	           "the run there has not ended; give one of its checkpoints, out/checkpoint-N");
}

static void test_load_takes_optimizers_and_layouts(void **state)
{
	(void)state;
	struct rh_config c;
	check_ok(load("bf16: true\n", NULL, &c));
	assert_true(c.optim == RH_OPTIM_ADAMW && c.state_layout == RH_LAYOUT_SPLIT && c.momentum == 0);
	rh_config_free(&c);
	check_ok(load("optim: sgd\noptim_args: momentum=0.9\nbf16: true\nstate_layout: plain\n", NULL, &c));
	assert_true(c.optim == RH_OPTIM_SGD && c.state_layout == RH_LAYOUT_PLAIN && c.momentum == 0.9);
	rh_config_free(&c);
	check_ok(load("dtype: bfloat16\nstate_layout: split8\n", NULL, &c));
	assert_true(c.state_layout == RH_LAYOUT_SPLIT8);
	rh_config_free(&c);
	check_ok(load("dtype: float32\nstate_layout: split\noptim: lion_32bit\n", NULL, &c)); /* fp32 has one layout */
	assert_true(c.state_layout == RH_LAYOUT_PLAIN && c.optim == RH_OPTIM_LION);
	rh_config_free(&c);
	refused("optim: adamw\n", NULL, "optim: 'adamw'");
	refused("dtype: float32\nstate_layout: split8\n", NULL, "state_layout: split8 needs dtype: bfloat16");
	refused("bf16: true\noptim: adafactor\nstate_layout: split8\n", NULL,
	        "state_layout: split8 is for the moments of optim: adamw_torch");
	refused("optim: sgd\noptim_args: nesterov=1\n", NULL, "optim_args: 'nesterov=1' is not allowed; expected momentum=NUMBER");
	refused("optim: sgd\noptim_args: momentum=1\n", NULL, "optim_args: 'momentum=1' is not allowed");
	refused("optim_args: momentum=0.5\n", NULL, "optim_args: momentum is for optim: sgd");
}

static void test_load_takes_ways_of_multiplying(void **state)
{
	(void)state;
	struct rh_config c;
	check_ok(load("device: cuda\n", NULL, &c));
	assert_true(c.accumulation == RH_ACCUMULATION_FP32 && c.accumulation_chunk == 0 && !c.fp8);
	rh_config_free(&c);
	check_ok(load("device: cuda\naccumulation: fp16\n", NULL, &c));
	assert_true(c.accumulation == RH_ACCUMULATION_FP16 && c.accumulation_chunk == 128);
	rh_config_free(&c);
	check_ok(load("device: cuda:0\naccumulation: fp16\naccumulation_chunk: 96\n", NULL, &c));
	assert_int_equal(c.accumulation_chunk, 96);
	rh_config_free(&c);
	check_ok(load("device: cuda\nfp8: true\n", NULL, &c));
	assert_true(c.fp8 && c.dtype == RH_BF16);
	rh_config_free(&c);
	refused("bf16: true\naccumulation: fp16\n", NULL, "accumulation: is a way of GPUs' tensor cores, and device is cpu:1");
	refused("fp8: true\ndevice: cpu:2\n", NULL, "fp8: is a way of GPUs' tensor cores, and device is cpu:2");
	refused("fp8: true\ndtype: float32\ndevice: cuda\n", NULL, "fp8: needs dtype: bfloat16");
	refused("fp8: true\naccumulation: fp16\ndevice: cuda\n", NULL, "fp8: true contradicts accumulation: fp16");
	refused("accumulation_chunk: 64\n", NULL, "accumulation_chunk: has no effect without accumulation: fp16");
	refused("accumulation: fp16\naccumulation_chunk: 100\ndevice: cuda\n", NULL, "accumulation_chunk: '100' is not allowed");
	refused("accumulation: fp16\naccumulation_chunk: 4096\ndevice: cuda\n", NULL, "accumulation_chunk: '4096'");
	refused("accumulation: bf16\n", NULL, "accumulation: 'bf16'");
}

static void test_load_what_goes_to_nvme(void **state)
{
	(void)state;
	struct rh_config c;
	check_ok(
	        load("spill: [optimizer, masters]\nnvme_dirs: [/mnt/a, \"/mnt/b c\"]\nmax_nvme: 2TB\nmax_nvme_writes: 1.5 TB\n", NULL, &c));
	assert_int_equal(c.spill, RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS);
	assert_int_equal(c.nvme_dirs.count, 2);
	assert_string_equal(c.nvme_dirs.item[1], "/mnt/b c");
	assert_true(c.max_nvme == 2000000000000 && c.max_nvme_writes == 1500000000000);
	rh_config_free(&c);
	check_ok(load("spill: weights\nnvme_dirs: /mnt\nmax_nvme: 1GiB\nmax_nvme_writes: off\n", NULL, &c));
	assert_true(c.spill == RH_SPILL_WEIGHTS && c.nvme_dirs.count == 1 && !c.max_nvme_writes);
	rh_config_free(&c);
	refused("spill: auto\nmax_nvme: 1GiB\n", NULL, "spill: needs nvme_dirs");
	refused("spill: auto\nnvme_dirs: /mnt\n", NULL, "spill: needs max_nvme");
	refused("spill: [auto, weights]\nnvme_dirs: /mnt\nmax_nvme: 1GiB\n", NULL, "spill: auto chooses for itself");
	refused("spill: [everything]\n", NULL, "spill: 'everything' is not allowed; expected none, or a list of optimizer, masters");
	refused("nvme_dirs: /mnt\n", NULL, "nvme_dirs: has no effect without spill");
	refused("max_nvme: 1TB\n", NULL, "max_nvme: has no effect without spill");
	refused("max_nvme_writes: 1TB\n", NULL, "max_nvme_writes: has no effect without spill");
	refused("max_nvme: much\n", NULL, "max_nvme: 'much' is not allowed; expected a size");
}

/* ceil((w - 1) / bound) units of w, the first box's admission limit; what is given stays. */
static void test_load_a_bound_of_version_drift_chooses_the_accumulation(void **state)
{
	(void)state;
	static const struct {
		const char *more;
		int64_t accumulation;
	} cases[] = {{"max_version_drift: 1\n", 3},
	             {"max_version_drift: 2\n", 2},
	             {"max_version_drift: 9\n", 1},
	             {"max_version_drift: 1\nround_micro_batches: 2\n", 6},
	             {"max_version_drift: 3\nadmission_limits: [9, 6, 4, 1]\n", 3},
	             {"max_version_drift: 1\ngradient_accumulation_steps: 2\n", 2}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_config c;
		char yaml[256];
		snprintf(yaml, sizeof yaml, "mode: paci\nboxes: 4\nbox: 1\nlink_above: a:1\n%s", cases[i].more);
		check_ok(load(yaml, NULL, &c));
		assert_int_equal(c.gradient_accumulation_steps, cases[i].accumulation);
		rh_config_free(&c);
	}
}

static void test_load_adapter_keeps_which_keys_were_written(void **state)
{
	(void)state;
	struct rh_config c;
	check_ok(load("adapter_name_or_path: adapter\nlora_alpha: 4\nuse_rslora: false\n", NULL, &c));
	assert_true(c.use_lora && c.lora_keys_given == (RH_LORA_ALPHA | RH_LORA_RSLORA) && c.lora_r == 16);
	rh_config_free(&c);
}

/* Fails the first, second, third... allocation until the load succeeds. */
static void test_load_survives_every_failed_allocation(void **state)
{
	(void)state;
	struct rh_config c;
	static const char yaml[] =
	        "lora_r: 4\nlora_target_modules: [a, b]\nforward_cuts: [1, 2]\nddp_backend: x\nresume_from_checkpoint: true\n";
	static const char flags[] = "--backward_cuts 1,2 --eos_token x --prompt_is_no_key 1";
	int rc = -ENOMEM;
	uint64_t n = 0;
	while (rc == -ENOMEM) {
		char all[256];
		snprintf(all, sizeof all, "--backward_cuts 1,2 --eos_token x%s", base_flags);
		check_ok(rh_file_write_whole("c.yaml", yaml, strlen(yaml)));
		char *argv[ARGS_MAX + 1] = {(char[]){"c.yaml"}};
		int argc = 1 + split(all, argv + 1);
		rh_alloc_fail_nth(++n);
		rc = rh_config_load("train", argc, argv, NULL, &c);
		rh_alloc_fail_nth(0);
		assert_true(rc == 0 || rc == -ENOMEM);
		assert_true(n < 10000);
	}
	printf("%llu allocations\n", (unsigned long long)n - 1);
	assert_true(n > 30);
	refused(yaml, flags, "unknown key 'prompt_is_no_key'");
	int printed = -ENOMEM;
	for (n = 1; printed == -ENOMEM; n++) {
		struct rh_text text = {0};
		rh_alloc_fail_nth(n);
		printed = rh_config_print(&c, &text);
		rh_alloc_fail_nth(0);
		rh_text_free(&text);
	}
	check_ok(printed);
	rh_config_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_load_nothing_given_has_the_documented_defaults),
	        cmocka_unit_test(test_load_file_and_flags_flags_win),
	        cmocka_unit_test(test_load_values_of_every_type),
	        cmocka_unit_test(test_load_resume_is_true_or_a_path),
	        cmocka_unit_test(test_load_takes_the_file_after_flags),
	        cmocka_unit_test(test_load_lora_keys_are_of_training_alone),
	        cmocka_unit_test(test_load_use_peft_false_sets_a_files_lora_aside),
	        cmocka_unit_test(test_load_bf16_auto_is_unset),
	        cmocka_unit_test(test_load_paths_are_written_out_and_looked_at),
	        cmocka_unit_test(test_load_takes_optimizers_and_layouts),
	        cmocka_unit_test(test_load_takes_ways_of_multiplying),
	        cmocka_unit_test(test_load_what_goes_to_nvme),
	        cmocka_unit_test(test_load_a_bound_of_version_drift_chooses_the_accumulation),
	        cmocka_unit_test(test_load_adapter_keeps_which_keys_were_written),
	        cmocka_unit_test(test_load_survives_every_failed_allocation),
	};
	return cmocka_run_group_tests(tests, place_make, place_remove);
}
