/* What no configuration may say: one line that names key, value and the mend; and what is said of keys without effect. */
#include "place.h"

#include "core/text.h"

static void test_load_unknown_and_repeated_keys_are_refused(void **state)
{
	(void)state;
	refused("learning_rte: 1\n", NULL, "c.yaml:1: |'learning_rte'|learning_rate");
	refused("a: 1\n", NULL, "'a'");
	refused("\nlora_alhpa: 1\n", NULL, "c.yaml:2: |'lora_alhpa'|lora_alpha");
	refused("max_seq_length: 1\n", NULL, "'max_seq_length'|max_length");
	refused("max_sequence_length: 1\n", NULL, "'max_sequence_length'|max_length");
	refused("evaluation_strategy: 'no'\n", NULL, "'evaluation_strategy'|eval_strategy");
	refused("epochs: 1\n", NULL, "'epochs'|num_train_epochs");
	refused("batch_size: 1\n", NULL, "'batch_size'|per_device_train_batch_size");
	refused("modl_name: 1\n", NULL, "'modl_name'|model_name_or_path");
	refused("lr: 1\n", NULL, "'lr'|learning_rate");
	refused("dev: 1\n", NULL, "'dev'|device");
	refused("sede: 1\n", NULL, "'sede'|seed");
	refused("val_file: 1\n", NULL, "'val_file'|validation_file");
	refused("output: 1\n", NULL, "'output'|output_dir");
	refused("vram: 1\n", NULL, "'vram'|max_vram");
	refused("lora-r: 1\n", NULL, "'lora-r'|lora_r");
	refused(NULL, "--gradient-acumulation-step 1", "command line: |'gradient_acumulation_step'|gradient_accumulation_steps");
	refused("seed: 1\nlora_r: 3\nseed: 1\n", NULL, "c.yaml:3: seed is given twice");
	refused(NULL, "--seed 1 --lora_r 4 --seed=2", "command line: seed is given twice");
	refused(NULL, "--warmup_steps 1 --warmup-ratio 0.1", "warmup_ratio|warmup_steps");
	refused("ddp_backend: a\nddp_backend: b\n", NULL, "ddp_backend is given twice");
	struct rh_config c;
	check_ok(load("ddp_backend: a\nddp_timeout: 1\n", "--ddp_timeout 2", &c));
	rh_config_free(&c);
}

static void test_load_says_what_other_trainers_names_are_called_here(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
	        {"micro_batch_size", "per_device_train_batch_size"},
	        {"optimizer", "optim"},
	        {"val_set_size", "eval_split: a share"},
	        {"sequence_len", "max_length"},
	        {"sample_packing", "packing"},
	        {"num_epochs", "num_train_epochs"},
	        {"adapter", "use_peft"},
	        {"lr_scheduler", "lr_scheduler_type"},
	        {"datasets", "train_file"},
	        {"base_model", "model_name_or_path"},
	        {"gradient_accumulation", "gradient_accumulation_steps"},
	        {"peft_use_dora", "use_dora"},
	        {"run_name", "a run writes metrics.jsonl"},
	        {"wandb_project", "a run writes metrics.jsonl"},
	        {"overwrite_output_dir", "never overwritten"},
	        {"remove_unused_columns", "remove it"},
	        {"stage", "loss_type|dpo is sigmoid|not built yet"},
	        {"rl", "loss_type|dpo is sigmoid|not built yet"},
	        {"pref_ftx", "loss_weights|[sigmoid, sft]"},
	        {"sync_ref_model", "not built yet"},
	        {"dpo_beta", "here it is beta"},
	        {"lora_target", "lora_target_modules|all-linear"},
	        {"overwrite_cache", "each run reads its rows anew"},
	        {"preprocessing_num_workers", "one process"},
	        {"plot_loss", "a run writes metrics.jsonl"},
	        {"model_type", "config.json says it"},
	        {"strict", "always an error"},
	        {"dataset_prepared_path", "each run reads its rows anew"},
	        {"lora_mlp_kernel", "which kernels run"},
	        {"eval_table_size", "a run writes metrics.jsonl"},
	        {"eval_dataset_path", "validation_file"},
	        {"chat_template_jinja", "chat_template"},
	        {"model_max_length", "max_length"},
	        {"micro_batch_sise", "per_device_train_batch_size"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char yaml[128], words[128];
		snprintf(yaml, sizeof yaml, "%s: 1\n", cases[i][0]);
		snprintf(words, sizeof words, "%s|%s", cases[i][0], cases[i][1]);
		refused(yaml, NULL, words);
	}
}

/* load(), with what it says on the terminal. */
static int load_telling(const char *yaml, const char *flags, struct rh_config *config, char *told, size_t bytes)
{
	fflush(stderr);
	int kept = dup(2), file = open("stderr.txt", O_CREAT | O_TRUNC | O_WRONLY, 0600);
	assert_true(kept >= 0 && file >= 0);
	dup2(file, 2);
	rh_log_quiet(0);
	int rc = load(yaml, flags, config);
	rh_log_quiet(1);
	fflush(stderr);
	dup2(kept, 2);
	close(file);
	close(kept);
	struct rh_bytes text;
	check_ok(rh_file_load("stderr.txt", &text));
	assert_true(text.length < bytes);
	memcpy(told, text.bytes, text.length + 1);
	rh_bytes_free(&text);
	return rc;
}

static void check_lines(const char *told, int lines, const char *words)
{
	for (const char *end = told; (end = strchr(end, '\n')); end++)
		lines--;
	if (lines || !check_has(told, words))
		fail_msg("wanted: %s\ntold: %s", words, told);
}

static void test_load_names_all_unknown_keys_of_a_file_at_once(void **state)
{
	(void)state;
	struct rh_config c;
	char told[1024];
	assert_int_equal(load_telling("cutoff_len: 1\nseed: 1\nlr: {a: [1]}\nlora-r: 1\n", NULL, &c, told, sizeof told), -EINVAL);
	assert_string_equal(rh_error(-EINVAL), "c.yaml: 3 unknown keys");
	check_lines(told, 3, "c.yaml:1: |'cutoff_len'|max_length\n|c.yaml:3: |'lr'|learning_rate\n|c.yaml:4: |'lora-r'|lora_r\n");
	char many[4096] = "";
	for (int i = 0; i < 40; i++)
		snprintf(many + strlen(many), sizeof many - strlen(many), "train_on_inputs%d: 1\nzork%d: 1\n", i, i);
	refused(many, NULL, "c.yaml: 80 unknown keys");
}

static void test_load_says_what_other_trainers_values_are_called_here(void **state)
{
	(void)state;
	refused("optim: adamw_8bit\n", NULL, "optim: 'adamw_8bit'|state_layout: split8");
	refused("optim: paged_adamw_8bit\n", NULL, "optim: 'paged_adamw_8bit'|state_layout: split8");
	refused("optim: adamw_torch_fused\n", NULL, "'adamw_torch_fused'|adamw_torch");
	refused("lora_r: 8\nlora_target_modules: q_proj,v_proj\n", NULL, "lora_target_modules: |[q_proj,v_proj]");
	refused("lora_r: 8\nlora_target_modules: all\n", NULL, "lora_target_modules: 'all'|all-linear");
	refused("lora_r: 8\nlora_target_modules: [all]\n", NULL, "lora_target_modules: 'all'|all-linear");
	refused_by("plan", NULL, "--hardware a --hardware b", "--hardware is given twice");
	refused_by("plan", NULL, "--device cpu --hardware b", "--hardware|--device|remove one");
	refused_by("plan", NULL, "--hardware b --device cpu", "device|hardware|remove one");
	refused("seed:1\n", NULL, "a space follows the colon");
	refused("lora_r: 1\nseed:1\n", NULL, "a space follows the colon");
	refused("seed:1\nlora_r: 1\n", NULL, "a space follows the colon");
	refused("train_on_inputs: false\n", NULL, "'train_on_inputs'|assistant_only_loss|completion_only_loss");
	refused("random_state: 1\n", NULL, "'random_state'|seed");
	refused("adapter: qlora\n", NULL, "'adapter'|use_peft: true|load_in_4bit: true");
	refused("load_in_4bit: true\n", NULL, "load_in_4bit: |packed weights are not trained|use_peft: true");
	refused("load_in_4bit: true\nquantize: nf4\n", NULL, "contradict each other");
	refused("bnb_4bit_quant_type: nf4\n", NULL, "bnb_4bit_quant_type: |has no effect without load_in_4bit: true");
	refused("quantize: q8_0\nlora_r: 4\nuse_bnb_nested_quant: true\n", NULL, "has no effect without load_in_4bit: true, or quantize");
	refused("dtype: fp16\n", NULL, "dtype: |float16|not built yet");
	refused("dtype: bf32\n", NULL, "dtype: 'bf32'");
	struct rh_config c;
	static const struct {
		const char *keys;
		enum rh_form form;
	} forms[] = {{"load_in_4bit: true", RH_FORM_NF4_NESTED},
	             {"load_in_4bit: true\nuse_bnb_nested_quant: false", RH_FORM_NF4},
	             {"load_in_4bit: true\nbnb_4bit_quant_type: fp4", RH_FORM_BNB_FP4_NESTED},
	             {"quantize: fp4\nbnb_4bit_use_double_quant: false", RH_FORM_BNB_FP4},
	             {"load_in_8bit: true", RH_FORM_INT8},
	             {"quantize: mxfp4", RH_FORM_MXFP4},
	             {"quantize: fp8", RH_FORM_FP8_BLOCKS},
	             {"quantize: none", RH_FORM_PLAIN}};
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		char keys[128];
		struct rh_text printed = {0};
		snprintf(keys, sizeof keys, "%s\nlora_r: 4\n", forms[i].keys);
		check_ok(load(keys, NULL, &c));
		assert_int_equal(c.quantize, forms[i].form);
		check_ok(rh_config_print(&c, &printed)); /* what a checkpoint's config.yaml says means the same */
		rh_config_free(&c);
		check_ok(load(printed.bytes, NULL, &c));
		assert_int_equal(c.quantize, forms[i].form);
		rh_config_free(&c);
		rh_text_free(&printed);
	}
	check_ok(load("load_in_4bit: false\nload_in_8bit: False\ndtype: bf16\n", NULL, &c));
	assert_int_equal(c.dtype, RH_BF16);
	rh_config_free(&c);
	check_ok(load("dtype: fp32\n", NULL, &c));
	assert_int_equal(c.dtype, RH_F32);
	rh_config_free(&c);
	refused("train_on_responses_only: true\n", NULL, "'train_on_responses_only'|assistant_only_loss");
	refused("merge_lora: true\n", NULL, "the verb merge does it");
	refused("lora_bias: none\n", NULL, "remove it");
}

/* What nothing is near to is not passed off as a typing error; keys of other verbs are named only for a file, which may serve several. */
static void test_load_names_no_key_that_was_not_meant(void **state)
{
	(void)state;
	refused("zork: 1\n", NULL, "'zork'; `roundhouse train --help`");
	refused("stare: 1\n", NULL, "'stare'; `roundhouse train --help`"); /* not state_layout */
	refused("modl_name: x\n", NULL, "'modl_name'|model_name_or_path");
	refused("xyzzy_plugh_quux: 1\n", NULL, "'xyzzy_plugh_quux'; `roundhouse train --help`");
	refused_by("generate", NULL, "--temprature 1", "'temprature'|temperature");
	refused_by("generate", NULL, "--lerning_rate 1", "'lerning_rate'; `roundhouse generate --help`");
	refused_by("generate", "lerning_rate: 1\n", NULL, "'lerning_rate'|learning_rate");
}

static void test_load_values_out_of_range_name_key_value_and_range(void **state)
{
	(void)state;
	refused("learning_rate: fast\n", NULL, "c.yaml:1: learning_rate: 'fast'|from 0 to 1000");
	refused("learning_rate: nan\n", NULL, "learning_rate: 'nan'");
	refused("learning_rate: .inf\n", NULL, "learning_rate: '.inf'");
	refused("learning_rate: 1e999\n", NULL, "learning_rate: '1e999'");
	refused("learning_rate: 0x10\n", NULL, "learning_rate: '0x10'");
	refused("learning_rate: -1\n", NULL, "learning_rate: '-1'");
	refused("max_length: 1\n", NULL, "max_length: '1'|a whole number|2 to 16777216");
	refused("max_length: null\n", NULL, "max_length: null");
	refused("max_length: 99999999999999999999999\n", NULL, "max_length: '99999999999999999999999'");
	refused("max_length: 12.5\n", NULL, "max_length: '12.5'");
	refused("adam_beta1: 1\n", NULL, "adam_beta1: '1'|from 0 to below 1");
	refused("top_p: 0\n", NULL, "top_p: '0'|from above 0 to 1");
	refused("num_train_epochs: 0\n", NULL, "num_train_epochs: '0'|from above 0 to 1000000");
	refused("adam_epsilon: 1e-40\n", NULL, "adam_epsilon: '1e-40'|from 1e-30 to 1");
	refused("max_grad_norm: 1e308\n", NULL, "max_grad_norm: '1e308'|from 0 to 1e12");
	refused("data_weights: [1, -1]\n", NULL, "data_weights: '-1'|from 1e-6 to 1000");
	refused("temperature: 1e-320\n", NULL, "temperature: '1e-320'|from 0 to 1000");
	refused("max_ram: 9223372036854775807\n", NULL, "max_ram: '9223372036854775807'|a size");
	refused("max_steps: 0\n", NULL, "max_steps: '0'");
	refused("save_steps: 2.5\n", NULL, "save_steps: '2.5'|a whole number|a share");
	refused("save_steps: 0\n", NULL, "save_steps: '0'");
	refused("warmup_ratio: 1\n", NULL, "warmup_ratio: '1'|below 1");
	refused("packing: maybe\n", NULL, "packing: 'maybe'|true or false");
	refused("packing: [true]\n", NULL, "packing: a list");
	refused("packing: {a: 1}\n", NULL, "packing: a nested value");
	refused("lr_scheduler_type: reduce_lr_on_plateau\n", NULL,
	        "lr_scheduler_type: 'reduce_lr_on_plateau'|linear, cosine, constant, constant_with_warmup, cosine_with_min_lr");
	refused("lr_scheduler_type: polynomial\nlearning_rate: 1e-8\n", NULL, "lr_scheduler_type: |learning_rate above|lr_end");
	refused("lr_scheduler_type: polynomial\nlr_scheduler_kwargs: {lr_end: 2e-5}\n", NULL,
	        "lr_scheduler_kwargs: |learning_rate above|lr_end");
	refused("lr_scheduler_type: polynomial\nlr_scheduler_kwargs: {power: -1}\n", NULL,
	        "lr_scheduler_kwargs: power: '-1'|from 0 to 1000");
	refused("lr_scheduler_type: warmup_stable_decay\n", NULL, "lr_scheduler_type: |lr_scheduler_kwargs: {num_decay_steps: ");
	refused("lr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs: {num_decay_steps: 2.5}\n", NULL,
	        "lr_scheduler_kwargs: num_decay_steps: '2.5'|whole number from 1");
	refused("lr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs: {num_decay_steps: 2, decay_type: sqrt}\n", NULL,
	        "lr_scheduler_kwargs: decay_type: 'sqrt'|cosine, linear or 1-sqrt");
	refused("lr_scheduler_type: inverse_sqrt\nlr_scheduler_kwargs: {timescale: 0}\n", NULL, "lr_scheduler_kwargs: timescale: '0'");
	refused("lr_scheduler_type: cosine_with_min_lr\n", NULL, "lr_scheduler_type: |lr_scheduler_kwargs: {min_lr_rate: |{min_lr: ");
	refused("lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-5, min_lr_rate: 0.1}\n", NULL,
	        "lr_scheduler_kwargs: |one of|min_lr_rate|min_lr");
	refused("lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr_rate: 1.5}\n", NULL,
	        "lr_scheduler_kwargs: min_lr_rate: '1.5'|from 0 to 1");
	refused("lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-3}\n", NULL,
	        "lr_scheduler_kwargs: min_lr: '1e-3'|from 0 to learning_rate");
	refused("lr_scheduler_kwargs: {min_lr_rate: 0.1}\n", NULL, "lr_scheduler_kwargs: |without lr_scheduler_type: cosine_with_min_lr");
	refused("lr_scheduler_kwargs: {num_cycles: 2}\n", NULL, "lr_scheduler_kwargs: |without lr_scheduler_type: cosine_with_restarts");
	refused("loraplus_lr_ratio: 16\n", NULL, "loraplus_lr_ratio: |all weights|lora_r");
	refused("loraplus_lr_ratio: 0\nlora_r: 4\n", NULL, "loraplus_lr_ratio: '0'");
	refused("decay_embeddings: false\n", NULL, "decay_embeddings: |without weight_decay");
	refused("decay_embeddings: false\nweight_decay: 0.1\nlora_r: 4\n", NULL, "decay_embeddings: |lora_modules_to_save");
	refused("seed: -1\n", NULL, "seed: '-1'");
	refused("max_ram: 12 parsec\n", NULL, "max_ram: '12 parsec'|a size");
	refused("max_ram: 0\n", NULL, "max_ram: '0'");
	refused("max_ram: 24\n", NULL, "max_ram: '24'|24GiB");
	refused("max_vram: 8192\n", NULL, "max_vram: '8192'|8192MiB");
	refused("max_steps: 1.5e0\n", NULL, "max_steps: '1.5e0'");
	refused("seed: 1e17\n", NULL, "seed: '1e17'"); /* a double does not have each whole number there */
	refused("seed: 9223372036854775808\n", NULL, "seed: '9223372036854775808'");
	refused("train_file: [train.jsonl]\ndata_weights: [2]\neval_split: 0.1\n", NULL, "data_weights: |eval_split");
	refused("max_ram: 9e18 TB\n", NULL, "max_ram: '9e18 TB'");
	refused("forward_cuts: [3, 2]\n", NULL, "forward_cuts: '2'");
	refused("forward_cuts: [a]\n", NULL, "forward_cuts: 'a'");
	refused("forward_cuts: [[1]]\n", NULL, "forward_cuts: a nested value");
	refused("lora_r: 4\nlora_target_modules: []\n", NULL, "lora_target_modules: |names no module");
	refused("eos_token: ''\n", NULL, "eos_token: is empty");
	refused("device: tpu\n", NULL, "device: 'tpu'|cpu, cpu:N|1 to 64|cuda,|cuda:0,2");
	refused("device: 'cuda:'\n", NULL, "device: 'cuda:'");
	refused("device: cuda:0,\n", NULL, "device: 'cuda:0,'");
	refused("device: cuda:0,-1\n", NULL, "device: 'cuda:0,-1'");
	refused("device: cuda:0;1\n", NULL, "device: 'cuda:0;1'");
	refused("device: cuda:99999\n", NULL, "device: 'cuda:99999'");
	refused("device: emu\n", NULL, "device: 'emu'");
	refused("device: emu:65\n", NULL, "device: 'emu:65'");
	refused("device: cpu:0\n", NULL, "device: 'cpu:0'");
	refused("device: cpu:2x\n", NULL, "device: 'cpu:2x'");
	refused("device: cpu:99999999999999999999\n", NULL, "device: 'cpu:99");
	refused("report_to: wandb\n", NULL, "report_to: 'wandb'|tensorboard|csv");
	refused("deepspeed: ds.json\n", NULL, "deepspeed: ");
	refused("chat_template: \"a\\nb\\nc\"\nmax_length: \"1\\n2\"\n", NULL, "max_length: '1?2'");
}

static void test_load_what_is_not_built_says_so(void **state)
{
	(void)state;
	refused("device: sim:rtx4090x8\n", NULL, "device: 'sim:rtx4090x8'|plan");
	refused("dtype: float16\n", NULL, "dtype: float16|not built yet");
	refused("fp16: true\n", NULL, "fp16: float16|not built yet");
	struct rh_config c;
	check_ok(load("schedule: roundpipe\noptimizer_staleness: 1\nstate_layout: split\naccumulation: fp32\naccumulation_chunk: null\n"
	              "fp8: false\nspill: []\nmax_nvme: 0\nnvme_dirs: none\nmax_nvme_writes: off\noptim: adamw_torch\nfp16: false\n",
	              NULL, &c));
	rh_config_free(&c);
}

static void test_load_contradictions_are_refused(void **state)
{
	(void)state;
	refused("bf16: true\ndtype: float32\n", NULL, "bf16: true|dtype: float32");
	refused("bf16: true\nfp16: true\n", NULL, "fp16: true|bf16: true");
	refused("use_peft: false\nlora_r: 4\n", NULL, "use_peft: false|lora_r");
	refused("lora_alpha: 4\n", NULL, "c.yaml:1: lora_alpha: |without lora_r");
	refused("validation_file: test.jsonl\neval_split: 0.1\n", NULL, "eval_split: |validation_file");
	refused("eval_strategy: steps\n", NULL, "eval_strategy: |validation_file|eval_split");
	refused("config_name: model\n", NULL, "config_name: |random initialisation");
	refused_by("generate", NULL, "--learning_rate 1", "learning_rate: this verb");
}

static void test_load_several_boxes(void **state)
{
	(void)state;
	static const char two[] = "mode: sync-pp\nboxes: 2\nbox: 1\n";
	char yaml[512];
	const struct {
		const char *more, *words;
	} cases[] = {{"", "link_above: box 1 of 2|box 2"},
	             {"link_above: a:1\nlink_transport: mpi\n", "link_above: |link_transport: mpi|remove it"},
	             {"link_peer_above: a\nlink_transport: mpi\n", "link_peer_above: |link_transport: mpi"},
	             {"link_transport: nccl\n", "link_above: box 1 of 2|box 2"},
	             {"link_above: a:1\nlink_below: a:2\n", "link_below: box 1 of 2"},
	             {"link_above: a:1\nbox_cuts: [3, 5]\n", "box_cuts: 2 layers for 2 boxes"},
	             {"link_above: a:1\nbox_cuts: [x]\n", "box_cuts: 'x'|whole numbers from 1 to 1048576"},
	             {"link_above: a:1\nlink_mbit_per_second: [10, 0]\n", "link_mbit_per_second: '0'|from 0.001 to 10000000"},
	             {"link_above: a:1\nlink_latency_ms: [10, 0, 1]\n", "link_latency_ms: 3 numbers for 1 link|one for all"},
	             {"link_above: a:1\nbox_hardware: [rtx4090]\n", "box_hardware: 1 profiles for 2 boxes"},
	             {"link_above: a:1\noptimizer_staleness: 1\n", "optimizer_staleness: mode sync-pp"},
	             {"link_above: a:1\nadmission_limits: [2, 1]\n", "admission_limits: |mode sync-pp"},
	             {"link_above: a:1\nmax_version_drift: 1\n", "max_version_drift: |mode sync-pp"},
	             {"link_above: a:1\nspill: [optimizer, activations]\nnvme_dirs: [.]\nmax_nvme: 1GiB\n",
	              "spill: several boxes|without activations"},
	             {"link_above: a:1\nspill: auto\nnvme_dirs: [.]\nmax_nvme: 1GiB\n", "spill: several boxes|without activations"},
	             {"link_above: a:1\nforward_cuts: [2]\n", "forward_cuts: |several boxes"}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		snprintf(yaml, sizeof yaml, "%s%s", two, cases[i].more);
		refused(yaml, NULL, cases[i].words);
	}
	static const char fluid[] = "mode: fluidpipe\nbox: 1\nlink_above: a:1\n";
	const struct {
		const char *more, *words;
	} fluids[] = {
	        {"boxes: 3\n", "boxes: mode fluidpipe|2 boxes"},
	        {"schedule: 1f1b\n", "schedule: |mode fluidpipe|roundpipe"},
	        {"link_dtype: int8\n", "link_dtype: mode fluidpipe"},
	        {"fluidpipe_recipe: FP-XX\n", "fluidpipe_recipe: 'FP-XX'"},
	        {"fluidpipe_ahead: 0\n", "fluidpipe_ahead: '0'"},
	        {"fluidpipe_idle_sampler: distillation-loss\n", "fluidpipe_idle_sampler: distillation-loss|no box distils"},
	        {"fluidpipe_idle_sampler: random\nfluidpipe_idle_distillation_scale: 0.4\n",
	         "fluidpipe_idle_distillation_scale: |no box distils"},
	        {"fluidpipe_idle_sampler: random\nfluidpipe_idle_spill: 1MiB\n", "fluidpipe_idle_spill: needs nvme_dirs"},
	        {"fluidpipe_idle_spill: 1MiB\nnvme_dirs: [x]\nmax_nvme: 1MiB\n", "fluidpipe_idle_spill: |without fluidpipe_idle_sampler"},
	        {"fluidpipe_idle_sampler: random\nfluidpipe_idle_spill: 1MiB\nnvme_dirs: [x]\nmax_nvme: 1MiB\n",
	         "fluidpipe_idle_spill: box 2"},
	        {"fluidpipe_idle_steps: 3\n", "fluidpipe_idle_steps: |without fluidpipe_idle_sampler"},
	        {"fluidpipe_idle_sampler: random\npacking: true\n", "fluidpipe_idle_sampler: |packing"},
	        {"fluidpipe_idle_sampler: random\nfluidpipe_idle_replay: x.jsonl\n", "fluidpipe_idle_replay: box 1"},
	        {"fluidpipe_recipe: FP-DB\nfluidpipe_freeze: true\n", "fluidpipe_freeze: box 1"},
	        {"fluidpipe_alpha1: 0.9\nfluidpipe_freeze: true\n", "fluidpipe_freeze: box 1"},
	        {"fluidpipe_alpha1: 1.5\n", "fluidpipe_alpha1: '1.5'"},
	        {"fluidpipe_temperature: 0\nfluidpipe_recipe: FP-DB\n", "fluidpipe_temperature: '0'"},
	        {"fluidpipe_temperature: 2\n", "fluidpipe_temperature: |no box distils"},
	        {"fluidpipe_logits: stream\n", "fluidpipe_logits: |no box distils"},
	        {"fluidpipe_weighting: sum\n", "fluidpipe_weighting: |no box distils"},
	        {"fluidpipe_top_k: 5\n", "fluidpipe_top_k: |no box distils"},
	        {"fluidpipe_recipe: FP-DB\nfluidpipe_top_k: -1\n", "fluidpipe_top_k: '-1'"},
	        {"fluidpipe_recipe: FP-DB\nfluidpipe_top_k: 5\nfluidpipe_idle_sampler: task-loss\n",
	         "fluidpipe_idle_sampler: |fluidpipe_top_k"},
	        {"fluidpipe_recipe: FP-DB\nfluidpipe_weighting: sum\nfluidpipe_alpha2: 0.3\n",
	         "fluidpipe_alpha2: |fluidpipe_weighting: sum"},
	        {"fluidpipe_recipe: FP-DT\ngradient_accumulation_steps: 39\n", "gradient_accumulation_steps: box 2 of mode fluidpipe"},
	        {"eval_strategy: epoch\nvalidation_file: v.jsonl\nearly_stopping_patience: 2\n",
	         "early_stopping_patience: |mode fluidpipe"},
	        {"admission_limits: [2, 1]\n", "admission_limits: |mode fluidpipe"}};
	for (size_t i = 0; i < sizeof fluids / sizeof *fluids; i++) {
		snprintf(yaml, sizeof yaml, "%s%s", fluid, fluids[i].more);
		refused(yaml, NULL, fluids[i].words);
	}
	snprintf(yaml, sizeof yaml, "%slink_above: a:1\nspill: [optimizer]\nnvme_dirs: [.]\nmax_nvme: 1GiB\n", two);
	struct rh_config c;
	check_ok(load(yaml, NULL, &c)); /* what else goes to NVMe is each box's own */
	rh_config_free(&c);
	refused("mode: sync-pp\nboxes: 2\nbox: 1\nlink_above: a:1\nfluidpipe_recipe: FP-ND-EL\n", NULL, "fluidpipe_recipe: |mode sync-pp");
	static const char idle[] = "mode: fluidpipe\nbox: 2\nlink_below: a:1\nfluidpipe_idle_sampler: ";
	snprintf(yaml, sizeof yaml, "%srandom\nfluidpipe_idle_task_weight: -1\n", idle);
	refused(yaml, NULL, "fluidpipe_idle_task_weight: |choose difficulty or eh-difficulty");
	snprintf(yaml, sizeof yaml, "%sdifficulty\nfluidpipe_idle_easy_share: 0.5\n", idle);
	refused(yaml, NULL, "fluidpipe_idle_easy_share: |choose eh-difficulty");
	snprintf(yaml, sizeof yaml, "%seh-difficulty\nfluidpipe_idle_easy_share: 0.6\nfluidpipe_idle_hard_share: 0.5\n", idle);
	refused(yaml, NULL, "fluidpipe_idle_easy_share: |more than all");
	snprintf(yaml, sizeof yaml, "%sdifficulty\nfluidpipe_idle_task_weight: 0\nfluidpipe_idle_distillation_weight: 0\n", idle);
	refused(yaml, NULL, "fluidpipe_idle_task_weight: |both weights of a score are 0");
	refused("fluidpipe_ahead: 3\n", NULL, "fluidpipe_ahead: |mode local");
	refused("fluidpipe_alpha1: 0.5\n", NULL, "fluidpipe_alpha1: |mode local");
	refused("mode: sync-pp\n", NULL, "mode sync-pp needs boxes");
	refused("mode: sync-pp\nboxes: 2\nbox: 3\n", NULL, "box: 3 of 2 boxes");
	refused("boxes: 2\n", NULL, "boxes: |mode local");
	refused("max_version_drift: 1\n", NULL, "max_version_drift: |mode local without schedule: paci");
	refused("schedule: 1f1b-async\nadmission_limits: [3, 1]\n", NULL, "admission_limits: |mode local without schedule: paci");
	refused("schedule: paci\nadmission_limits: [1, 3]\n", NULL, "admission_limits: '3' is above the limit of the device before");
	refused("mode: paci\nboxes: 2\nbox: 1\nlink_above: a:1\nmax_version_drift: 0\n", NULL, "max_version_drift: '0'");
	refused_by("plan", "paci_backward: stash\n", "--model_name_or_path model --check", "--check|stash");
	refused_by("plan", "mode: sync-pp\n", "--model_name_or_path model", "mode sync-pp needs boxes");
}

static void test_load_what_a_verb_needs(void **state)
{
	(void)state;
	refused_by("train", NULL, "", "train needs model_name_or_path or config_name|--model_name_or_path");
	refused_by("train", NULL, "--config_name model", "train needs train_file");
	refused_by("train", NULL, "--config_name model --train_file train.jsonl", "train needs output_dir");
	refused_by("train", NULL, "--config_name model --train_file [] --output_dir out", "train needs train_file");
	refused_by("join", NULL, "--parts [] --output_dir out", "join needs parts");
	refused_by("generate", NULL, "--model_name_or_path model", "generate needs prompt");
	refused_by("eval", NULL, "--model_name_or_path model", "eval needs validation_file");
	refused_by("train", NULL, "--model_name_or_path Qwen/x --train_file train.jsonl --output_dir o",
	           "model_name_or_path: 'Qwen/x'|hf download Qwen/x --local-dir x");
	refused_by("plan", NULL, "--model_name_or_path models/x", "model_name_or_path: 'models/x': no such file");
	refused_by("plan", NULL, "--model_name_or_path model/x", "model_name_or_path: 'model/x': no such file");
	refused_by("train", NULL, "--model_name_or_path model --train_file no.jsonl --output_dir o",
	           "train_file: 'no.jsonl': no such file");
	refused_by("train", NULL, "--model_name_or_path model --train_file tatsu-lab/alpaca --output_dir o",
	           "train_file: 'tatsu-lab/alpaca'|hf download --repo-type dataset tatsu-lab/alpaca --local-dir alpaca|train_file");
	refused_by("train", NULL, "--model_name_or_path model --train_file x/no.jsonl --output_dir o",
	           "train_file: 'x/no.jsonl': no such file");
	refused_by("train", NULL, "--model_name_or_path model --train_file data/*.jsonl --output_dir o",
	           "train_file: 'data/*.jsonl'|pattern");
	refused_by("train", NULL, "--model_name_or_path model --train_file train.jsonl,test.jsonl --output_dir o",
	           "train_file: 'train.jsonl,test.jsonl'|a list: [a.jsonl,b.jsonl]");
	refused_by("train", NULL, "no.yaml", "no.yaml");
	refused_by("train", NULL, "--seed 1 c", "'c'|--key value|[a,b]");
	refused_by("train", NULL, "--seed", "seed: needs a value");
	refused_by("train", NULL, "--seed --packing", "seed: needs a value");
	struct rh_config c;
	check_ok(load_verb("generate", "train_file: gone.jsonl\nlearning_rate: 1\nmodel_name_or_path: model\n", "--prompt ''", &c));
	assert_string_equal(c.prompt, "");
	rh_config_free(&c);
	check_ok(load_verb("train", NULL, "--seed 1 --help --nonsense", &c));
	assert_true(c.help);
	rh_config_free(&c);
}

static void test_yaml_what_is_no_plain_mapping_is_refused(void **state)
{
	(void)state;
	refused("- a\n", NULL, "c.yaml:1: |key: value");
	refused("hello\n", NULL, "c.yaml:1: |key: value");
	refused("a: [\n", NULL, "c.yaml:");
	refused("seed: &x 1\n", NULL, "c.yaml:1: anchors");
	refused("seed: *x\n", NULL, "aliases");
	refused("seed: !!int 1\n", NULL, "tags");
	refused("seed: 1\n---\nlora_r: 2\n", NULL, "a second document");
	refused("? [a]\n: 1\n", NULL, "a key must be a plain word");
	refused("seed: 1\n\tlora_r: 2\n", NULL, "not valid YAML");
	refused("eos_token: \"a\\0b\"\n", NULL, "NUL");
	refused("eos_token: \xff\n", NULL, "not valid YAML");
	char deep[4096] = "fsdp_config: ";
	memset(deep + 13, '[', 2000);
	refused(deep, NULL, "nested too deeply");
	struct rh_config c;
	check_ok(load("gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false, a: [1, [2]]}\nfsdp: ''\n"
	              "report_to: [none]\ntf32: true\ndeepspeed: null\ndataloader_num_workers: 4\n",
	              "--attn-implementation flash_attention_2 --use-liger-kernel", &c));
	rh_config_free(&c);
}

/* What the notes for keys without effect look like on stderr. */
static void test_load_tells_each_key_without_effect_once(void **state)
{
	(void)state;
	struct rh_config c;
	char told[1024];
	check_ok(load_telling("gradient_checkpointing: true\nddp_timeout: 4\nddp_backend: a\n", "--ddp_timeout 3", &c, told, sizeof told));
	rh_config_free(&c);
	check_lines(told, 3, "ddp_timeout has no effect|\ngradient_checkpointing has no effect|\nddp_backend has no effect");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_load_unknown_and_repeated_keys_are_refused),
	        cmocka_unit_test(test_load_says_what_other_trainers_names_are_called_here),
	        cmocka_unit_test(test_load_names_all_unknown_keys_of_a_file_at_once),
	        cmocka_unit_test(test_load_says_what_other_trainers_values_are_called_here),
	        cmocka_unit_test(test_load_names_no_key_that_was_not_meant),
	        cmocka_unit_test(test_load_values_out_of_range_name_key_value_and_range),
	        cmocka_unit_test(test_load_what_is_not_built_says_so),
	        cmocka_unit_test(test_load_contradictions_are_refused),
	        cmocka_unit_test(test_load_several_boxes),
	        cmocka_unit_test(test_load_what_a_verb_needs),
	        cmocka_unit_test(test_yaml_what_is_no_plain_mapping_is_refused),
	        cmocka_unit_test(test_load_tells_each_key_without_effect_once),
	};
	return cmocka_run_group_tests(tests, place_make, place_remove);
}
