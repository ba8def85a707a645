#include "check.h"

#include "config/config.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { ARGS_MAX = 24 };

/* A folder with a model, rows and room for configurations. */
struct place {
	char dir[32];
	char *yaml;
};

static int place_make(void **state)
{
	struct place *place = calloc(1, sizeof *place);
	assert_non_null(place);
	strcpy(place->dir, "/tmp/rh-config-XXXXXX");
	assert_non_null(mkdtemp(place->dir));
	assert_int_equal(chdir(place->dir), 0);
	check_ok(rh_dir_make("model"));
	check_ok(rh_dir_make("adapter"));
	check_ok(rh_dir_make("out/checkpoint-5"));
	check_ok(rh_file_write_whole("train.jsonl", "", 0));
	check_ok(rh_file_write_whole("test.jsonl", "", 0));
	rh_log_quiet(1);
	*state = place;
	return 0;
}

static int place_remove(void **state)
{
	struct place *place = *state;
	assert_int_equal(chdir("/"), 0);
	check_ok(rh_dir_remove(place->dir));
	free(place);
	return 0;
}

/* `words` split at spaces; 'x y' keeps its space. */
static int split(char *words, char **argv)
{
	int argc = 0;
	for (char *at = words; *at;) {
		while (*at == ' ')
			at++;
		if (!*at)
			break;
		char end = *at == '\'' ? '\'' : ' ';
		at += end == '\'';
		assert_true(argc < ARGS_MAX);
		argv[argc++] = at;
		while (*at && *at != end)
			at++;
		if (*at)
			*at++ = 0;
	}
	return argc;
}

/* Loads yaml (NULL: no file) and flags for `verb`. */
static int load_verb(const char *verb, const char *yaml, const char *flags, struct rh_config *config)
{
	char *argv[ARGS_MAX + 1], words[1024], path[] = "c.yaml";
	int argc = 0;
	if (yaml) {
		check_ok(rh_file_write_whole("c.yaml", yaml, strlen(yaml)));
		argv[argc++] = path;
	}
	snprintf(words, sizeof words, "%s", flags ? flags : "");
	argc += split(words, argv + argc);
	return rh_config_load(verb, argc, argv, NULL, config);
}

static const char base_flags[] = " --model_name_or_path model --train_file train.jsonl --output_dir out";

static int load(const char *yaml, const char *flags, struct rh_config *config)
{
	char all[1024];
	snprintf(all, sizeof all, "%s%s", flags ? flags : "", base_flags);
	return load_verb("train", yaml, all, config);
}

/* Refused, in one line, with these words in it. */
static void refused_by(const char *verb, const char *yaml, const char *flags, const char *words)
{
	struct rh_config config;
	int rc = load_verb(verb, yaml, flags, &config);
	if (rc >= 0) {
		print_error("taken: %s | %s\n", yaml ? yaml : "", flags ? flags : "");
		fail();
	}
	const char *line = rh_error(rc);
	if (!strstr(line, words) || strchr(line, '\n')) {
		print_error("line: %s\nwanted: %s\n", line, words);
		fail();
	}
	assert_null(config.output_dir);
}

static void refused(const char *yaml, const char *flags, const char *words)
{
	char all[1024];
	snprintf(all, sizeof all, "%s%s", flags ? flags : "", base_flags);
	refused_by("train", yaml, all, words);
}

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

static void test_load_unknown_and_repeated_keys_are_refused(void **state)
{
	(void)state;
	refused("learning_rte: 1\n", NULL, "c.yaml:1: unknown key 'learning_rte'; the nearest known one is learning_rate");
	refused("a: 1\n", NULL, "unknown key 'a'");
	refused("\nlora_alhpa: 1\n", NULL, "c.yaml:2: unknown key 'lora_alhpa'; the nearest known one is lora_alpha");
	refused("max_seq_length: 1\n", NULL, "unknown key 'max_seq_length'; here it is max_length");
	refused("max_sequence_length: 1\n", NULL, "the nearest known one is max_length");
	refused("evaluation_strategy: 'no'\n", NULL, "here it is eval_strategy");
	refused("epochs: 1\n", NULL, "here it is num_train_epochs");
	refused("batch_size: 1\n", NULL, "here it is per_device_train_batch_size");
	refused("modl: 1\n", NULL, "the nearest known one is model_name_or_path");
	refused("model: 1\n", NULL, "the nearest known one is model_name_or_path");
	refused("lr: 1\n", NULL, "here it is learning_rate");
	refused("dev: 1\n", NULL, "the nearest known one is device");
	refused("sede: 1\n", NULL, "the nearest known one is seed");
	refused("val_file: 1\n", NULL, "the nearest known one is validation_file");
	refused("output: 1\n", NULL, "the nearest known one is output_dir");
	refused("vram: 1\n", NULL, "the nearest known one is max_vram");
	refused("lora-r: 1\n", NULL, "unknown key 'lora-r'; the nearest known one is lora_r");
	refused(NULL, "--gradient-acumulation-step 1",
	        "command line: unknown key 'gradient_acumulation_step'; the nearest known one is "
	        "gradient_accumulation_steps");
	refused("seed: 1\nlora_r: 3\nseed: 1\n", NULL, "c.yaml:3: seed is given twice");
	refused(NULL, "--seed 1 --lora_r 4 --seed=2", "command line: seed is given twice");
	refused(NULL, "--warmup_steps 1 --warmup-ratio 0.1", "warmup_ratio is another name of warmup_steps");
	refused("ddp_backend: a\nddp_backend: b\n", NULL, "ddp_backend is given twice");
	struct rh_config c;
	check_ok(load("ddp_backend: a\nddp_timeout: 1\n", "--ddp_timeout 2", &c));
	rh_config_free(&c);
}

static void test_load_says_what_other_trainers_names_are_called_here(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
	        {"micro_batch_size", "here it is per_device_train_batch_size"},
	        {"optimizer", "here it is optim"},
	        {"val_set_size", "here it is eval_split: a share of the rows"},
	        {"sequence_len", "here it is max_length"},
	        {"sample_packing", "here it is packing"},
	        {"num_epochs", "here it is num_train_epochs"},
	        {"adapter", "here it is use_peft"},
	        {"lr_scheduler", "here it is lr_scheduler_type"},
	        {"datasets", "here it is train_file"},
	        {"base_model", "here it is model_name_or_path"},
	        {"gradient_accumulation", "here it is gradient_accumulation_steps"},
	        {"load_in_4bit", "not built yet"},
	        {"load_in_8bit", "not built yet"},
	        {"bnb_4bit_quant_type", "not built yet"},
	        {"use_dora", "not built yet"},
	        {"run_name", "a run writes metrics.jsonl"},
	        {"wandb_project", "a run writes metrics.jsonl"},
	        {"overwrite_output_dir", "never overwritten"},
	        {"remove_unused_columns", "is ignored; remove it"},
	        {"micro_batch_sise", "the nearest known one is per_device_train_batch_size"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char yaml[128];
		snprintf(yaml, sizeof yaml, "%s: 1\n", cases[i][0]);
		refused(yaml, NULL, cases[i][1]);
	}
}

/* What nothing is near to is not passed off as a typing error; keys of other verbs are named only for a file, which may serve several. */
static void test_load_names_no_key_that_was_not_meant(void **state)
{
	(void)state;
	refused("zork: 1\n", NULL, "unknown key 'zork'; see `roundhouse train --help` (nothing is near it; the least far is ");
	refused("xyzzy_plugh_quux: 1\n", NULL, "see `roundhouse train --help`");
	refused_by("generate", NULL, "--temprature 1", "the nearest known one is temperature");
	refused_by("generate", NULL, "--lerning_rate 1", "see `roundhouse generate --help`");
	refused_by("generate", "lerning_rate: 1\n", NULL, "the nearest known one is learning_rate");
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

static void test_load_paths_are_written_out_and_looked_at(void **state)
{
	struct place *place = *state;
	struct rh_config c;
	char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
	setenv("HOME", place->dir, 1);
	check_ok(load_verb("train", "model_name_or_path: ~/model\ntrain_file: ~/train.jsonl\noutput_dir: ~/new\n", NULL, &c));
	assert_true(!strncmp(c.output_dir, place->dir, strlen(place->dir)) && !strcmp(c.output_dir + strlen(place->dir), "/new"));
	rh_config_free(&c);
	refused_by("train", "model_name_or_path: ~/none\ntrain_file: train.jsonl\noutput_dir: out\n", NULL,
	           "/none': no such file or directory here");
	unsetenv("HOME");
	refused_by("train", "model_name_or_path: model\ntrain_file: train.jsonl\noutput_dir: ~/new\n", NULL,
	           "output_dir: '~/new': HOME is not set");
	if (home)
		setenv("HOME", home, 1);
	free(home);
	check_ok(rh_file_write_whole("adapter/adapter_config.json", "{}", 2));
	check_ok(rh_file_write_whole("adapter/adapter_model.safetensors", "", 0));
	refused_by("train", NULL, "--model_name_or_path adapter --train_file train.jsonl --output_dir out",
	           "model_name_or_path: 'adapter' holds an adapter; name it in adapter_name_or_path");
	refused_by("train", NULL, "--model_name_or_path adapter/adapter_model.safetensors --train_file train.jsonl --output_dir out",
	           "is one file of a model; give its directory");
	refused(NULL, "--adapter_name_or_path adapter/adapter_model.safetensors",
	        "is a file; give the directory that holds adapter_config.json");
}

static void test_load_values_out_of_range_name_key_value_and_range(void **state)
{
	(void)state;
	refused("learning_rate: fast\n", NULL, "c.yaml:1: learning_rate: 'fast' is not allowed; expected a number, 0 or more");
	refused("learning_rate: nan\n", NULL, "learning_rate: 'nan'");
	refused("learning_rate: .inf\n", NULL, "learning_rate: '.inf'");
	refused("learning_rate: 1e999\n", NULL, "learning_rate: '1e999'");
	refused("learning_rate: 0x10\n", NULL, "learning_rate: '0x10'");
	refused("learning_rate: -1\n", NULL, "learning_rate: '-1'");
	refused("max_length: 1\n", NULL, "max_length: '1' is not allowed; expected a whole number from 2 to 16777216");
	refused("max_length: null\n", NULL, "max_length: null is not taken");
	refused("max_length: 99999999999999999999999\n", NULL, "max_length: '99999999999999999999999'");
	refused("max_length: 12.5\n", NULL, "max_length: '12.5'");
	refused("adam_beta1: 1\n", NULL, "expected a number from 0 to below 1");
	refused("top_p: 0\n", NULL, "expected a number from above 0 to 1");
	refused("num_train_epochs: 0\n", NULL, "expected a number above 0");
	refused("max_steps: 0\n", NULL, "max_steps: '0'");
	refused("save_steps: 2.5\n", NULL, "save_steps: '2.5' is not allowed; expected a whole number of steps, or a share");
	refused("save_steps: 0\n", NULL, "save_steps: '0'");
	refused("warmup_ratio: 1\n", NULL, "warmup_ratio: '1' is not allowed; expected a share of all steps below 1");
	refused("packing: maybe\n", NULL, "packing: 'maybe' is not allowed; expected true or false");
	refused("packing: [true]\n", NULL, "packing: a list is not allowed");
	refused("packing: {a: 1}\n", NULL, "packing: a nested value is not allowed");
	refused("lr_scheduler_type: polynomial\n", NULL, "expected one of linear, cosine, constant, constant_with_warmup");
	refused("seed: -1\n", NULL, "seed: '-1'");
	refused("max_ram: 12 parsec\n", NULL, "max_ram: '12 parsec' is not allowed; expected a size");
	refused("max_ram: 0\n", NULL, "max_ram: '0'");
	refused("max_ram: 24\n", NULL, "max_ram: '24' is 24 bytes; did you mean 24GiB?");
	refused("max_vram: 8192\n", NULL, "max_vram: '8192' is 8192 bytes; did you mean 8192MiB?");
	refused("max_steps: 1.5e0\n", NULL, "max_steps: '1.5e0'");
	refused("max_ram: 9e18 TB\n", NULL, "max_ram: '9e18 TB'");
	refused("forward_cuts: [3, 2]\n", NULL, "forward_cuts: '2' is not allowed there");
	refused("forward_cuts: [a]\n", NULL, "forward_cuts: 'a'");
	refused("forward_cuts: [[1]]\n", NULL, "forward_cuts: a nested value");
	refused("lora_r: 4\nlora_target_modules: []\n", NULL, "names no module");
	refused("eos_token: ''\n", NULL, "eos_token: is empty");
	refused("device: tpu\n", NULL,
	        "device: 'tpu' is not allowed; expected cpu, cpu:N with N from 1 to 64, cuda, cuda with GPUs as in cuda:0,2, or");
	refused("device: 'cuda:'\n", NULL, "device: 'cuda:' is not allowed");
	refused("device: cuda:0,\n", NULL, "device: 'cuda:0,'");
	refused("device: cuda:0,-1\n", NULL, "device: 'cuda:0,-1'");
	refused("device: cuda:0;1\n", NULL, "device: 'cuda:0;1'");
	refused("device: cuda:99999\n", NULL, "device: 'cuda:99999'");
	refused("device: emu\n", NULL, "device: 'emu'");
	refused("device: emu:65\n", NULL, "device: 'emu:65'");
	refused("device: cpu:0\n", NULL, "device: 'cpu:0'");
	refused("device: cpu:2x\n", NULL, "device: 'cpu:2x'");
	refused("device: cpu:99999999999999999999\n", NULL, "device: 'cpu:99");
	refused("report_to: wandb\n", NULL, "report_to: only none is taken");
	refused("deepspeed: ds.json\n", NULL, "deepspeed: is not run here");
	refused("chat_template: \"a\\nb\\nc\"\nmax_length: \"1\\n2\"\n", NULL, "max_length: '1?2'");
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

static void test_load_what_is_not_built_says_so(void **state)
{
	(void)state;
	refused("device: sim:rtx4090x8\n", NULL, "device: 'sim:rtx4090x8' is a simulated machine, which is for plan");
	refused("dtype: float16\n", NULL, "dtype: float16 is not built yet");
	refused("fp16: true\n", NULL, "fp16: float16 is not built yet");
	struct rh_config c;
	check_ok(load("schedule: roundpipe\noptimizer_staleness: 1\nstate_layout: split\naccumulation: fp32\naccumulation_chunk: null\n"
	              "fp8: false\nspill: []\nmax_nvme: 0\nnvme_dirs: none\nmax_nvme_writes: off\noptim: adamw_torch\nfp16: false\n",
	              NULL, &c));
	rh_config_free(&c);
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

static void test_load_contradictions_are_refused(void **state)
{
	(void)state;
	refused("bf16: true\ndtype: float32\n", NULL, "bf16: true contradicts dtype: float32");
	refused("bf16: true\nfp16: true\n", NULL, "fp16: true contradicts bf16: true");
	refused("use_peft: false\nlora_r: 4\n", NULL, "use_peft: false contradicts lora_r");
	refused("lora_alpha: 4\n", NULL, "c.yaml:1: lora_alpha: has no effect without lora_r");
	refused("validation_file: test.jsonl\neval_split: 0.1\n", NULL, "eval_split: contradicts validation_file");
	refused("eval_strategy: steps\n", NULL, "eval_strategy: needs rows to evaluate on");
	refused("config_name: model\n", NULL, "config_name: means random initialisation");
	refused_by("generate", NULL, "--learning_rate 1", "learning_rate: this verb has no use for it");
}

static void test_load_what_a_verb_needs(void **state)
{
	(void)state;
	refused_by("train", NULL, "",
	           "train needs model_name_or_path or config_name; write it in CONFIG.yaml or give --model_name_or_path");
	refused_by("train", NULL, "--config_name model", "train needs train_file");
	refused_by("train", NULL, "--config_name model --train_file train.jsonl", "train needs output_dir");
	refused_by("generate", NULL, "--model_name_or_path model", "generate needs prompt");
	refused_by("eval", NULL, "--model_name_or_path model", "eval needs validation_file");
	refused_by("train", NULL, "--model_name_or_path Qwen/x --train_file train.jsonl --output_dir o",
	           "model_name_or_path: 'Qwen/x': no such file or directory here (models are not downloaded");
	refused_by("train", NULL, "--model_name_or_path model --train_file no.jsonl --output_dir o",
	           "train_file: 'no.jsonl': no such file");
	refused_by("train", NULL, "no.yaml", "no.yaml");
	refused_by("train", NULL, "--seed 1 c", "unexpected word 'c'");
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

static void test_load_adapter_keeps_which_keys_were_written(void **state)
{
	(void)state;
	struct rh_config c;
	check_ok(load("adapter_name_or_path: adapter\nlora_alpha: 4\nuse_rslora: false\n", NULL, &c));
	assert_true(c.use_lora && c.lora_keys_given == (RH_LORA_ALPHA | RH_LORA_RSLORA) && c.lora_r == 16);
	rh_config_free(&c);
}

static void test_yaml_what_is_no_plain_mapping_is_refused(void **state)
{
	(void)state;
	refused("- a\n", NULL, "c.yaml:1: expected lines of the form key: value");
	refused("hello\n", NULL, "expected lines of the form");
	refused("a: [\n", NULL, "c.yaml:");
	refused("seed: &x 1\n", NULL, "c.yaml:1: anchors and aliases are not taken");
	refused("seed: *x\n", NULL, "anchors and aliases are not taken");
	refused("seed: !!int 1\n", NULL, "tags are not taken");
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
	fflush(stderr);
	int kept = dup(2), file = open("stderr.txt", O_CREAT | O_TRUNC | O_WRONLY, 0600);
	assert_true(kept >= 0 && file >= 0);
	dup2(file, 2);
	rh_log_quiet(0);
	int rc = load("gradient_checkpointing: true\nddp_timeout: 4\nddp_backend: a\n", "--ddp_timeout 3", &c);
	rh_log_quiet(1);
	fflush(stderr);
	dup2(kept, 2);
	close(file);
	close(kept);
	check_ok(rc);
	rh_config_free(&c);
	struct rh_mapping map;
	check_ok(rh_file_map("stderr.txt", &map));
	char text[1024] = {0};
	assert_true(map.length < sizeof text);
	memcpy(text, map.bytes, map.length);
	rh_file_unmap(&map);
	assert_string_equal(text, "ddp_timeout has no effect: devices share one process\n"
	                          "gradient_checkpointing has no effect: what is recomputed follows from the memory there is\n"
	                          "ddp_backend has no effect: devices share one process\n");
}

static void same_text(const char *a, const char *b)
{
	if (a && b)
		assert_string_equal(a, b);
	else
		assert_true(!a && !b);
}

/* Equal in everything but --json: pointers followed, the rest byte by byte. */
static void assert_same(const struct rh_config *a, const struct rh_config *b)
{
	struct rh_config x = *a, y = *b;
	char **const texts[][2] = {{&x.model_name_or_path, &y.model_name_or_path},
	                           {&x.config_name, &y.config_name},
	                           {&x.adapter_name_or_path, &y.adapter_name_or_path},
	                           {&x.train_file, &y.train_file},
	                           {&x.validation_file, &y.validation_file},
	                           {&x.output_dir, &y.output_dir},
	                           {&x.chat_template, &y.chat_template},
	                           {&x.dataset_text_field, &y.dataset_text_field},
	                           {&x.eos_token, &y.eos_token},
	                           {&x.resume_from_checkpoint, &y.resume_from_checkpoint},
	                           {&x.device, &y.device},
	                           {&x.schedule, &y.schedule},
	                           {&x.optim_args, &y.optim_args},
	                           {&x.prompt, &y.prompt}};
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
		same_text(*texts[i][0], *texts[i][1]);
		*texts[i][0] = *texts[i][1] = NULL;
	}
	assert_int_equal(a->lora_target_modules.count, b->lora_target_modules.count);
	for (size_t i = 0; i < a->lora_target_modules.count; i++)
		assert_string_equal(a->lora_target_modules.item[i], b->lora_target_modules.item[i]);
	for (int64_t i = 0; i < a->forward_cut_count && i < b->forward_cut_count; i++)
		assert_int_equal(a->forward_cuts[i], b->forward_cuts[i]);
	for (int64_t i = 0; i < a->backward_cut_count && i < b->backward_cut_count; i++)
		assert_int_equal(a->backward_cuts[i], b->backward_cuts[i]);
	x.lora_target_modules = y.lora_target_modules = (struct rh_list){0};
	x.forward_cuts = y.forward_cuts = x.backward_cuts = y.backward_cuts = NULL;
	x.json = y.json = 0;
	assert_memory_equal(&x, &y, sizeof x);
}

static void round_trip(const char *verb, struct rh_config *config)
{
	struct rh_text text = {0}, again = {0};
	struct rh_config back;
	check_ok(rh_config_print(config, &text));
	check_ok(rh_file_write_whole("printed.yaml", text.bytes, text.length));
	char *argv[] = {(char[]){"printed.yaml"}};
	int rc = rh_config_load(verb, 1, argv, NULL, &back);
	if (rc)
		print_error("%s\n%s", rh_error(rc), text.bytes);
	check_ok(rc);
	assert_same(config, &back);
	check_ok(rh_config_print(&back, &again));
	assert_string_equal(text.bytes, again.bytes);
	rh_text_free(&text);
	rh_text_free(&again);
	rh_config_free(&back);
	rh_config_free(config);
}

static void test_print_loads_back_the_same(void **state)
{
	(void)state;
	struct rh_config c;
	static const char *const yamls[] = {
	        "",
	        "lora_r: 3\nlora_alpha: 0.1\nlora_target_modules: [q_proj, 'a b', \"x,y\", 'true', '1']\nforward_cuts: [1, "
	        "2]\nbackward_cuts: []\n",
	        "use_peft: true\nlora_target_modules: '.*\\.(q|v)_proj'\nmax_ram: 1.5GiB\nmax_vram: 7B\nlearning_rate: "
	        "0.1234567890123456789\n",
	        "adapter_name_or_path: adapter\nlora_target_modules: all-linear\nresume_from_checkpoint: true\n",
	        "prompt: \"a\\nb\\t\\\"\\\\ \\u0085\\u2028\\U0001F600\\uFEFF\\x07 \\x7f'\"\neos_token: 'null'\nchat_template: '#x: y'\n",
	        "bf16: true\nseed: 9223372036854775807\ndata_seed: 1\nmax_grad_norm: 0\nadam_epsilon: 1e-300\nweight_decay: 1e300\n",
	        "eval_split: 0.25\neval_strategy: epoch\neval_steps: 0.5\nsave_steps: 1000000000000\nsave_total_limit: 2\nmax_steps: 7\n",
	        "completion_only_loss: false\nassistant_only_loss: true\npacking: yes\npacking_strategy: bfd_split\nround_micro_batches: "
	        "3\n",
	};
	for (size_t i = 0; i < sizeof yamls / sizeof yamls[0]; i++) {
		check_ok(load(yamls[i], NULL, &c));
		round_trip("train", &c);
	}
}

static void test_help_lists_a_verbs_keys(void **state)
{
	(void)state;
	struct rh_text text = {0};
	check_ok(rh_config_help("generate", &text));
	assert_non_null(strstr(text.bytes, "max_new_tokens"));
	assert_null(strstr(text.bytes, "learning_rate"));
	rh_text_free(&text);
	check_ok(rh_config_help("train", &text));
	assert_non_null(strstr(text.bytes, "  learning_rate                   peak learning rate; a number, 0 or more [2e-5]\n"));
	rh_text_free(&text);
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
	        cmocka_unit_test(test_load_unknown_and_repeated_keys_are_refused),
	        cmocka_unit_test(test_load_says_what_other_trainers_names_are_called_here),
	        cmocka_unit_test(test_load_names_no_key_that_was_not_meant),
	        cmocka_unit_test(test_load_takes_the_file_after_flags),
	        cmocka_unit_test(test_load_lora_keys_are_of_training_alone),
	        cmocka_unit_test(test_load_paths_are_written_out_and_looked_at),
	        cmocka_unit_test(test_load_values_out_of_range_name_key_value_and_range),
	        cmocka_unit_test(test_load_takes_optimizers_and_layouts),
	        cmocka_unit_test(test_load_takes_ways_of_multiplying),
	        cmocka_unit_test(test_load_what_is_not_built_says_so),
	        cmocka_unit_test(test_load_what_goes_to_nvme),
	        cmocka_unit_test(test_load_contradictions_are_refused),
	        cmocka_unit_test(test_load_what_a_verb_needs),
	        cmocka_unit_test(test_load_adapter_keeps_which_keys_were_written),
	        cmocka_unit_test(test_yaml_what_is_no_plain_mapping_is_refused),
	        cmocka_unit_test(test_load_tells_each_key_without_effect_once),
	        cmocka_unit_test(test_print_loads_back_the_same),
	        cmocka_unit_test(test_help_lists_a_verbs_keys),
	        cmocka_unit_test(test_load_survives_every_failed_allocation),
	};
	return cmocka_run_group_tests(tests, place_make, place_remove);
}
