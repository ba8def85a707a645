/* Bad input, through the program: exit 1 or 2, one clear line that names the file or key, nothing written, nothing lost. */
#include "cli/runner.h"

#include <math.h>
#include <sched.h>
#include <sys/mount.h>

#define ROWS                                                                                                                               \
	"{\"prompt\": \"the cat \", \"completion\": \"sat here\"}\n{\"prompt\": \"a dog \", \"completion\": \"ran away\"}\n"               \
	"{\"prompt\": \"one two \", \"completion\": \"three\"}\n{\"prompt\": \"red \", \"completion\": \"green blue\"}\n"

/* A model directory with a tokenizer, rows, and a configuration that trains on them into a directory not there yet. */
static void make_good(struct scratch *scratch)
{
	scratch_open(scratch);
	const char *dir = scratch->dir;
	copy_model(dir);
	copy_file(MODELS "gguf-llama/model.gguf", path_of("%s/model.gguf", dir));
	write_text(path_of("%s/rows.jsonl", dir), ROWS);
	write_text(path_of("%s/run.yaml", dir), path_of("model_name_or_path: %s/hf\ntrain_file: %s/rows.jsonl\noutput_dir: %s/out\n"
	                                                "max_length: 64\nmax_steps: 2\nper_device_train_batch_size: 2\n",
	                                                dir, dir, dir));
}

/* '@' in a line stands for the scratch directory. */
static void fill_in(const struct scratch *scratch, const char *line, char *out, size_t bytes)
{
	size_t used = 0;
	for (const char *at = line; *at && used + sizeof scratch->dir < bytes; at++) {
		if (*at == '@')
			used += (size_t)snprintf(out + used, bytes - used, "%s", scratch->dir);
		else
			out[used++] = *at;
	}
	out[used] = 0;
}

static void refused(const struct scratch *scratch, const char *line, const char *part)
{
	char full[2048];
	struct ran ran;
	uint64_t before = tree_hash(scratch->dir);
	fill_in(scratch, line, full, sizeof full);
	run_start(scratch, full, 0, &ran);
	run_wait(&ran);
	check_failed(&ran, part);
	if (tree_hash(scratch->dir) != before)
		fail_msg("something was written by: %s", full);
	run_free(&ran);
}

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
	        {"train @/run.yaml --use_peft false --lora_r 4", "use_peft"},
	        {"train @/run.yaml --bf16 true --dtype float32", "bf16"},
	        {"train @/run.yaml --use_peft true --lora_target_modules nothing_of_it", "all-linear is all of them"},
	        {"train @/run.yaml --use_peft true --lora_target_modules q_proj,lm_head", "lora_target_modules: 'lm_head' names no linear"},
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

static void test_models_that_are_not_right_are_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *config = "@/hf/config.json", *run = "train @/run.yaml";
	char path[256];
	refused(&scratch, "train @/run.yaml --model_name_or_path @/none", "model_name_or_path");
	refused(&scratch, "train @/run.yaml --model_name_or_path meta-llama/Llama-3-8B", "meta-llama/Llama-3-8B");
	check_ok(rh_dir_make(path_of("%s/empty", scratch.dir)));
	refused(&scratch, "train @/run.yaml --model_name_or_path @/empty", "config.json");
	refused(&scratch, "train @/run.yaml --model_name_or_path @/rows.jsonl", "rows.jsonl");
	static const char *const edits[][3] = {
	        /* what, instead, named */
	        {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", "model.layers.2."},
	        {"\"intermediate_size\": 64", "\"intermediate_size\": 60", "shape"},
	        {"\"vocab_size\": 288", "\"vocab_size\": 289", "embed_tokens"},
	        {"\"model_type\": \"qwen2\"", "\"model_type\": \"mamba\"", "mamba"},
	        {"\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "gelu"},
	        {"\"hidden_size\": 32", "\"hidden_size\": \"wide\"", "hidden_size"},
	        {"\"vocab_size\": 288", "\"vocab_size\": -1", "vocab_size"},
	        {"\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"", "yarn"},
	        {"{", "", "config.json"},
	};
	fill_in(&scratch, config, path, sizeof path);
	for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
		copy_file(MODELS "gguf-qwen2/config.json", path);
		edit_file(path, edits[i][0], edits[i][1]);
		refused(&scratch, run, edits[i][2]);
	}
	copy_file(MODELS "gguf-qwen2/config.json", path);
	fill_in(&scratch, "@/hf/tokenizer.json", path, sizeof path);
	check_ok(unlink(path));
	refused(&scratch, run, "tokenizer");
	write_text(path_of("%s/hf/tokenizer.model", scratch.dir), "pieces");
	refused(&scratch, run, "tokenizer.json: only tokenizer.model is there, which is not read; transformers makes tokenizer.json of it");
	check_ok(unlink(path_of("%s/hf/tokenizer.model", scratch.dir)));
	copy_file("tests/corpus/token_llama3.json", path);
	refused(&scratch, run, "2507 entries");
	write_text(path, "{\"model\": {\"type\": \"Unigram\"}}");
	refused(&scratch, run, "tokenizer.json");
	copy_dir(MODELS "llama3", path_of("%s/sharded", scratch.dir));
	copy_file("tests/reference/interchange/tokenizer.json", path_of("%s/sharded/tokenizer.json", scratch.dir));
	refused(&scratch, "train @/run.yaml --model_name_or_path @/sharded", "entries"); /* more than this model's embedding */
	check_ok(unlink(path_of("%s/sharded/model-00002-of-00004.safetensors", scratch.dir)));
	refused(&scratch, "train @/run.yaml --model_name_or_path @/sharded", "model-00002-of-00004.safetensors");
	scratch_close(&scratch);
}

/* Writes `length` bytes at `at` of a copy of the file; then cuts it to `keep` bytes (0: not). */
static void spoil(const char *good, const char *bad, size_t at, const void *bytes, size_t length, size_t keep)
{
	size_t all;
	char *copy = read_bytes(good, &all);
	assert_true(at + length <= all && keep <= all);
	memcpy(copy + at, bytes, length);
	write_bytes(bad, copy, keep ? keep : all);
	free(copy);
}

static int find_or_not(const char *path, const char *text)
{
	size_t length;
	char *bytes = read_bytes(path, &length);
	int found = memmem(bytes, length, text, strlen(text)) != NULL;
	free(bytes);
	return found;
}

static size_t find_in(const char *path, const char *text)
{
	size_t length;
	char *bytes = read_bytes(path, &length), *at = memmem(bytes, length, text, strlen(text));
	assert_non_null(at);
	size_t offset = (size_t)(at - bytes);
	free(bytes);
	return offset;
}

static void test_lying_safetensors_are_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *good = MODELS "gguf-qwen2/model.safetensors", *run = "train @/run.yaml";
	char bad[256];
	struct rh_mapping map;
	check_ok(rh_file_map(good, &map));
	size_t whole = map.length;
	uint64_t header;
	memcpy(&header, map.bytes, sizeof header);
	rh_file_unmap(&map);
	fill_in(&scratch, "@/hf/model.safetensors", bad, sizeof bad);
	static const size_t cuts[] = {1, 4, 8, 20, 1000};
	for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
		spoil(good, bad, 0, "", 0, cuts[i]);
		refused(&scratch, run, "model.safetensors");
	}
	spoil(good, bad, 0, "", 0, whole - 1);
	refused(&scratch, run, "model.safetensors");
	spoil(good, bad, 0, "", 0, 8 + (size_t)header);
	refused(&scratch, run, "model.safetensors");
	static const uint64_t lies[] = {0, 1, UINT64_MAX, INT64_MAX, 1ull << 40, 100000};
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		spoil(good, bad, 0, &lies[i], sizeof lies[i], 0);
		refused(&scratch, run, "model.safetensors");
	}
	spoil(good, bad, find_in(good, "\"F32\""), "\"Q99\"", 5, 0);
	refused(&scratch, run, "Q99");
	spoil(good, bad, find_in(good, "\"data_offsets\":[") + 16, "9", 1, 0);
	refused(&scratch, run, "model.safetensors");
	float broken = (float)NAN;
	spoil(good, bad, 8 + (size_t)header + 4096, &broken, sizeof broken, 0);
	refused(&scratch, run, "finite");
	write_text(bad, "");
	refused(&scratch, run, "model.safetensors");
	scratch_close(&scratch);
}

static void test_lying_gguf_files_are_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *good = MODELS "gguf-llama/model.gguf", *run = "train @/run.yaml --use_peft true --model_name_or_path @/model.gguf";
	char bad[256];
	struct rh_mapping map;
	check_ok(rh_file_map(good, &map));
	size_t whole = map.length;
	rh_file_unmap(&map);
	fill_in(&scratch, "@/model.gguf", bad, sizeof bad);
	const size_t cuts[] = {3, 4, 10, 24, 100, 3000, whole / 2, whole - 1000};
	for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
		spoil(good, bad, 0, "", 0, cuts[i]);
		refused(&scratch, run, "model.gguf");
	}
	static const uint64_t lies[] = {UINT64_MAX, INT64_MAX, 1ull << 40, 100000};
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
		for (size_t at = 8; at <= 24; at += 8) { /* tensors, keys, length of the first key */
			spoil(good, bad, at, &lies[i], sizeof lies[i], 0);
			refused(&scratch, run, "model.gguf");
		}
	spoil(good, bad, 0, "GGML", 4, 0);
	refused(&scratch, run, "model.gguf");
	spoil(good, bad, find_in(good, "general.architecture") + 32, "lzama", 5, 0);
	refused(&scratch, run, "lzama");
	spoil(good, bad, find_in(good, "blk.1.attn_k.weight"), "blk.1.attn_z.weight", 19, 0);
	refused(&scratch, run, "blk.1.attn_k.weight");
	copy_file(good, bad);
	refused(&scratch, "train @/run.yaml --model_name_or_path @/model.gguf", "rope_freqs.weight"); /* found at once, not at the end */
	scratch_close(&scratch);
}

static void test_rows_that_cannot_be_trained_are_refused(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
	        {ROWS "{\"prompt\": \"a\", \n", "rows.jsonl:5"},
	        {ROWS "not JSON\n", "rows.jsonl:5"},
	        {ROWS "{\"prompt\": \"a\", \"completion\": \"\"}\n", "rows.jsonl:5"},
	        {ROWS "{\"prompt\": \"a\"}\n", "'completion' is missing"},
	        {ROWS "{\"prompt\": \"a\", \"completion\": 7}\n", "'completion' must be"},
	        {ROWS "{\"prompt\": \"a\", \"prompt\": \"b\", \"completion\": \"c\"}\n", "rows.jsonl:5"},
	        {ROWS "{\"prompt\": \"\\ud800\", \"completion\": \"c\"}\n", "rows.jsonl:5"},
	        {ROWS "{\"prompt\": \"\xff\", \"completion\": \"c\"}\n", "rows.jsonl:5"},
	        {ROWS "[1, 2]\n", "rows.jsonl:5"},
	        {"{\"question\": \"a\"}\n", "question"},
	        {"{\"ques\\n\\u001b[31mtion\": \"a\"}\n", "ques??[31mtion"},
	        {"", "holds no rows"},
	        {"\n\n", "holds no rows"},
	        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n",
	         "chat_template"},
	};
	struct scratch scratch;
	make_good(&scratch);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		write_text(path_of("%s/rows.jsonl", scratch.dir), cases[i][0]);
		refused(&scratch, "train @/run.yaml", cases[i][1]);
		refused(&scratch, "eval --model_name_or_path @/hf --max_length 64 --validation_file @/rows.jsonl", cases[i][1]);
	}
	write_text(path_of("%s/rows.jsonl", scratch.dir), ROWS);
	refused(&scratch, "train @/run.yaml --max_length 2", "max_length");
	refused(&scratch, "train @/run.yaml --max_length 4096", "max_length");
	refused(&scratch, "eval --model_name_or_path @/hf --max_length 4096 --validation_file @/rows.jsonl", "max_length");
	refused(&scratch, "train @/run.yaml --train_file @/none.jsonl", "none.jsonl");
	refused(&scratch, "train @/run.yaml --train_file @", "not a regular file");
	scratch_close(&scratch);
}

static void test_output_that_is_in_the_way_is_left_alone(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/out", scratch.dir)));
	write_text(path_of("%s/out/thesis.txt", scratch.dir), "years of work");
	refused(&scratch, "train @/run.yaml", "holds no complete checkpoint to go on from; remove what is in it, or choose another");
	refused(&scratch, "train @/run.yaml --resume_from_checkpoint true",
	        "to begin a new run remove what is in it, or choose another output_dir, and leave the key out");
	refused(&scratch, "train @/run.yaml --output_dir @/rows.jsonl", "rows.jsonl");
	refused(&scratch, "train @/run.yaml --output_dir @/rows.jsonl/deeper", "rows.jsonl");
	refused(&scratch, "train @/run.yaml --resume_from_checkpoint true --output_dir @/new", "to begin a new run leave the key out");
	refused(&scratch, "train @/run.yaml --resume_from_checkpoint @/none", "resume_from_checkpoint");
	refused(&scratch, "train @/run.yaml --resume_from_checkpoint @/rows.jsonl", "resume_from_checkpoint");
	/* a checkpoint of elsewhere does not make this directory free */
	run_ok(&scratch, "train %s/run.yaml --output_dir %s/other --save_steps 1", scratch.dir, scratch.dir);
	refused(&scratch, "train @/run.yaml --resume_from_checkpoint @/other/checkpoint-1", "output_dir");
	refused(&scratch, "train @/run.yaml --output_dir @/other", "go on from what is there with resume_from_checkpoint: true");
	scratch_close(&scratch);
}

static void test_damaged_checkpoints_are_refused(void **state)
{
	(void)state;
	static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors", "config.yaml",   "optimizer.safetensors",
	                                    "run_state.json",      "trainer_state.json",        "checksums.json"};
	struct scratch scratch;
	make_good(&scratch);
	const char *run = "train @/run.yaml --use_peft true --save_steps 1 --resume_from_checkpoint @/out/checkpoint-2";
	run_ok(&scratch, "train %s/run.yaml --use_peft true --save_steps 1", scratch.dir);
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		char path[256], kept[256];
		size_t length;
		snprintf(path, sizeof path, "%s/out/checkpoint-2/%s", scratch.dir, files[i]);
		snprintf(kept, sizeof kept, "%s/kept", scratch.dir);
		copy_file(path, kept);
		char *bytes = read_bytes(path, &length);
		bytes[length / 2] = (char)(bytes[length / 2] ^ 4);
		write_bytes(path, bytes, length);
		refused(&scratch, run, strcmp(files[i], "checksums.json") ? files[i] : "checkpoint-2");
		write_bytes(path, bytes, length / 2);
		refused(&scratch, run, files[i]);
		check_ok(unlink(path));
		refused(&scratch, run, files[i]);
		free(bytes);
		copy_file(kept, path);
	}
	write_text(path_of("%s/out/checkpoint-2/checksums.json", scratch.dir), "{}");
	refused(&scratch, run, "checksums.json");
	write_text(path_of("%s/out/checkpoint-2/checksums.json", scratch.dir), "[]");
	refused(&scratch, run, "checksums.json");
	check_ok(unlink(path_of("%s/out/checkpoint-2/checksums.json", scratch.dir)));
	struct ran ran = run_line(&scratch, "train %s/run.yaml --use_peft true --max_steps 3 --resume_from_checkpoint true", scratch.dir);
	assert_int_equal(ran.status, 0); /* the newest complete one */
	assert_non_null(strstr(ran.err, "checkpoint-2 is passed over"));
	assert_non_null(strstr(ran.err, "checkpoint-1, step 1 of 3"));
	run_free(&ran);
	refused(&scratch, "train @/run.yaml --resume_from_checkpoint @/out/checkpoint-1",
	        "checkpoint-1"); /* of an adapter, for a full run */
	run_ok(&scratch, "train %s/run.yaml --use_peft true --max_steps 3 --resume_from_checkpoint %s/out/checkpoint-1", scratch.dir,
	       scratch.dir);
	scratch_close(&scratch);
}

static void test_adapters_that_do_not_fit_are_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	run_ok(&scratch, "train %s/run.yaml --use_peft true --output_dir %s/lora", scratch.dir, scratch.dir);
	refused(&scratch, "train @/run.yaml --adapter_name_or_path @/none", "adapter_name_or_path");
	refused(&scratch, "train @/run.yaml --adapter_name_or_path @/hf", "adapter_config.json");
	refused(&scratch, "train @/run.yaml --adapter_name_or_path @/lora --lora_r 4", "lora_r");
	refused(&scratch, "train @/run.yaml --adapter_name_or_path @/lora --use_rslora true", "use_rslora");
	refused(&scratch, "train @/run.yaml --adapter_name_or_path " MODELS "smollm2/adapter", "adapter_model.safetensors");
	refused(&scratch,
	        "generate --prompt the --adapter_name_or_path " MODELS
	        "smollm2/adapter --model_name_or_path @/model.gguf --max_new_tokens 2",
	        "adapter_model.safetensors");
	char path[256];
	fill_in(&scratch, "@/lora/adapter_config.json", path, sizeof path);
	edit_file(path, "\"use_dora\": false", "\"use_dora\": true");
	refused(&scratch, "train @/run.yaml --adapter_name_or_path @/lora", "use_dora");
	check_ok(unlink(path_of("%s/lora/adapter_model.safetensors", scratch.dir)));
	edit_file(path, "\"use_dora\": true", "\"use_dora\": false");
	refused(&scratch, "train @/run.yaml --adapter_name_or_path @/lora", "adapter_model.safetensors");
	scratch_close(&scratch);
}

static void test_budgets_too_small_are_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	refused(&scratch, "train @/run.yaml --max_vram 1000B", "max_vram");
	refused(&scratch, "train @/run.yaml --max_vram 64KiB", "max_vram");
	refused(&scratch, "train @/run.yaml --max_ram 1MiB", "max_ram");
	refused(&scratch, "train @/run.yaml --max_vram 1000B --use_peft true --bf16 true", "max_vram");
	refused(&scratch, "generate --model_name_or_path @/hf --prompt the --max_new_tokens 2 --max_vram 1000B",
	        "or give a shorter prompt or lower max_new_tokens");
	refused(&scratch, "eval --model_name_or_path @/hf --max_length 64 --validation_file @/rows.jsonl --max_vram 1000B",
	        "or lower max_length or per_device_eval_batch_size");
	refused(&scratch, "eval --model_name_or_path @/hf --max_length 64 --validation_file @/rows.jsonl --max_ram 1MiB", "max_ram");
	scratch_close(&scratch);
}

/* A disk of 160 KiB in a mount namespace of its own: the run needs more, and says so before it begins. 0: as it should be. */
static int run_on_a_small_disk(const struct scratch *scratch, const char *options, int expected)
{
	char line[512], small[128];
	struct ran ran;
	snprintf(small, sizeof small, "%s/small", scratch->dir);
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("tmpfs", small, "tmpfs", 0, "size=160k"))
		return 77;
	snprintf(line, sizeof line, "train %s/run.yaml --output_dir %s/out %s", scratch->dir, small, options);
	run_start(scratch, line, 0, &ran);
	run_wait(&ran);
	int wrong = ran.status != expected;
	if (expected)
		wrong |= rh_dir_exists(path_of("%s/out", small)) || !strstr(ran.err, "output_dir") || !strstr(ran.err, "MiB free");
	if (wrong)
		fputs(ran.err, stderr);
	return wrong;
}

static void test_a_full_disk_is_found_before_the_run(void **state)
{
	(void)state;
	static const char *const cases[] = {"--use_peft true", "", "--use_peft true --save_steps 1 --max_steps 50"};
	struct scratch scratch;
	int skipped = 0;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/small", scratch.dir)));
	for (int i = 0; i < 3; i++) {
		int status;
		fflush(NULL);
		pid_t child = fork();
		assert_true(child >= 0);
		if (child == 0)
			_exit(run_on_a_small_disk(&scratch, cases[i], i > 0));
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFEXITED(status));
		if (WEXITSTATUS(status) != 77)
			assert_int_equal(WEXITSTATUS(status), 0);
		else
			skipped = 1;
	}
	scratch_close(&scratch);
	if (skipped)
		check_skip("a small disk cannot be mounted here");
}

/* No room: files may not grow beyond a limit. What was there stays, nothing half written is left. */
static void test_no_room_is_one_line(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	for (int lora = 0; lora < 2; lora++)
		for (rlim_t limit = 16; limit < 300000; limit = limit * 5 / 2) {
			char line[512];
			struct ran ran;
			snprintf(line, sizeof line, "train %s/run.yaml --save_steps 1 --logging_steps 1%s", scratch.dir,
			         lora ? " --use_peft true" : "");
			run_start(&scratch, line, limit, &ran);
			run_wait(&ran);
			if (!ran.status) {
				run_free(&ran);
				check_ok(rh_dir_remove(path_of("%s/out", scratch.dir)));
				break;
			}
			/* its own lines are cut by the limit too when it is very small */
			if (limit > 4000)
				check_failed(&ran, "out/");
			assert_true(ran.status == 1 || ran.status == 2);
			run_free(&ran);
			DIR *entries = opendir(path_of("%s/out", scratch.dir));
			for (struct dirent *entry; entries && (entry = readdir(entries));)
				if (strstr(entry->d_name, ".tmp") || strstr(entry->d_name, "model"))
					fail_msg("left behind: %s", entry->d_name);
			if (entries)
				closedir(entries);
			check_ok(rh_dir_remove(path_of("%s/out", scratch.dir)));
		}
	scratch_close(&scratch);
}

static void test_losses_that_explode_stop_the_run(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	struct ran ran =
	        run_line(&scratch, "train %s/run.yaml --learning_rate 1e30 --max_steps 50 --lr_scheduler_type constant", scratch.dir);
	check_failed(&ran, "step ");
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_cuts_below_what_is_trained_are_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	struct ran ran = run_line(&scratch, "train %s/run.yaml --use_peft true --backward_cuts [1]", scratch.dir);
	assert_int_equal(ran.status, 0);
	assert_non_null(strstr(ran.err, "backward_cuts: 1 has no effect, as nothing below layer 1 is trained"));
	run_free(&ran);
	scratch_close(&scratch);
}

/* Runs a line, whose '@' is the scratch directory; it succeeds, and says all of `told` (NULL-terminated). */
static void says(const struct scratch *scratch, const char *line, const char *const *told)
{
	char full[2048];
	struct ran ran;
	fill_in(scratch, line, full, sizeof full);
	run_start(scratch, full, 0, &ran);
	run_wait(&ran);
	if (ran.status)
		fail_msg("%s: %s", full, ran.err);
	for (; *told; told++)
		if (**told == '!' ? strstr(ran.err, *told + 1) != NULL : !strstr(ran.err, *told))
			fail_msg("'%s' in what is said by: %s\n%s", *told, full, ran.err);
	run_free(&ran);
}
#define SAYS(scratch, line, ...) says(scratch, line, (const char *const[]){__VA_ARGS__, NULL})

static void test_adapters_of_another_base_are_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	SAYS(&scratch, "train @/run.yaml --lora_r 2 --lora_target_modules self_attn.q_proj,v_proj --output_dir @/lora", "!adapter says");
	SAYS(&scratch, "eval @/run.yaml --validation_file @/rows.jsonl --adapter_name_or_path @/lora/", "!adapter says");
	copy_dir(path_of("%s/hf", scratch.dir), path_of("%s/other", scratch.dir));
	SAYS(&scratch, "train @/run.yaml --model_name_or_path @/other --adapter_name_or_path @/lora --output_dir @/more",
	     path_of("the adapter says it was made for %s/hf; running on %s/other", scratch.dir, scratch.dir));
	assert_true(find_in(path_of("%s/more/adapter_config.json", scratch.dir), "/other\"") > 0);
	SAYS(&scratch, "eval --model_name_or_path @/other --max_length 64 --validation_file @/rows.jsonl --adapter_name_or_path @/more",
	     "!adapter says");
	/* the same model by other names */
	static const char *const names[] = {"somebody/other", "/cache/models--somebody--other/snapshots/93efa2f097", "OTHER.Q4_K_M.gguf",
	                                    "other-f16.gguf"};
	char was[128];
	snprintf(was, sizeof was, "%s/other\"", scratch.dir);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		char next[128];
		snprintf(next, sizeof next, "%s\"", names[i]);
		edit_file(path_of("%s/more/adapter_config.json", scratch.dir), was, next);
		SAYS(&scratch, "generate --model_name_or_path @/other --prompt a --max_new_tokens 1 --adapter_name_or_path @/more",
		     "!adapter says");
		strcpy(was, next);
	}
	edit_file(path_of("%s/more/adapter_config.json", scratch.dir), was, "other-Instruct\"");
	SAYS(&scratch, "generate --model_name_or_path @/other --prompt a --max_new_tokens 1 --adapter_name_or_path @/more",
	     "made for other-Instruct; running on ");
	scratch_close(&scratch);
}

static void test_rows_that_nobody_evaluates_are_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	SAYS(&scratch, "train @/run.yaml --eval_split 0.5", "nothing will be evaluated: eval_strategy is no\n");
	SAYS(&scratch, "train @/run.yaml --output_dir @/two --validation_file @/rows.jsonl --eval_strategy epoch",
	     "!nothing will be evaluated", "eval_loss");
	scratch_close(&scratch);
}

/* What a run left that was ended before its first checkpoint is in nobody's way. */
static void test_a_log_without_a_checkpoint_counts_as_empty(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/out/.checkpoint-3.tmp", scratch.dir)));
	write_text(path_of("%s/out/metrics.jsonl", scratch.dir), "{\"step\": 10, \"loss\": 1}\n");
	refused(&scratch, "train @/run.yaml --resume_from_checkpoint true", "to begin a new run leave the key out");
	SAYS(&scratch, "train @/run.yaml --logging_steps 1", "written to");
	assert_false(find_or_not(path_of("%s/out/metrics.jsonl", scratch.dir), "\"step\": 10,"));
	scratch_close(&scratch);
}

static void test_going_on_says_what_is_other_and_what_is_left(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	SAYS(&scratch, "train @/run.yaml --save_steps 1 --max_steps -1 --num_train_epochs 1", "step 1/2 done");
	uint64_t before = tree_hash(scratch.dir);
	SAYS(&scratch, "train @/run.yaml --save_steps 1 --max_steps -1 --num_train_epochs 1 --resume_from_checkpoint true",
	     "/out/checkpoint-2 stands at step 2 of 2, and ", "nothing is left to do, nothing is written", "!written to");
	if (tree_hash(scratch.dir) != before)
		fail_msg("a run with nothing left to do wrote something");
	SAYS(&scratch, "train @/run.yaml --save_steps 1 --max_steps -1 --num_train_epochs 2 --resume_from_checkpoint true",
	     "differs from the checkpoint's configuration: num_train_epochs: 2.0 (was 1.0)\n", "going on from", "!was trained on",
	     "!checkpoint's configuration: seed");
	write_text(path_of("%s/rows.jsonl", scratch.dir), ROWS ROWS);
	SAYS(&scratch, "train @/run.yaml --save_steps 1 --max_steps 5 --resume_from_checkpoint true",
	     "checkpoint-4 was trained on 4 rows of ", "this run has 8 of ");
	scratch_close(&scratch);
}

/* On a disk that is mounted to be read only (root may write everywhere else). 77: it cannot be mounted here. */
static int run_on_a_read_only_disk(const struct scratch *scratch)
{
	char closed[128], line[512];
	snprintf(closed, sizeof closed, "%s/closed", scratch->dir);
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("tmpfs", closed, "tmpfs", MS_RDONLY, "size=160k"))
		return 77;
	snprintf(line, sizeof line, "train @/run.yaml --output_dir %s/a/b", closed);
	refused(scratch, line, "/closed/a/b cannot be written: ");
	return 0;
}

static void test_an_output_dir_that_cannot_be_written_is_found_at_once(void **state)
{
	(void)state;
	struct scratch scratch;
	int status;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/closed", scratch.dir)));
	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0)
		_exit(run_on_a_read_only_disk(&scratch));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	scratch_close(&scratch);
	if (WEXITSTATUS(status) == 77)
		check_skip("a disk cannot be mounted here");
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* The prompt of `generate` and the chat template: which is used is said. */
static void test_the_chat_template_in_use_is_named(void **state)
{
	(void)state;
	static const char chatml[] =
	        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
	        "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n";
	static const struct {
		const char *options, *told;
	} cases[] = {{"--prompt the", "the prompt is used as it stands; --chat_template chatml puts it through"},
	             {"--prompt <|im_start|>the", NULL},
	             {"--prompt the --chat_template none", NULL},
	             {"--prompt the --chat_template chatml", "prompt put through chat template chatml (chat_template: none for raw text)"}};
	struct scratch scratch;
	make_good(&scratch);
	const char *model = path_of("%s/hf/tokenizer.json", scratch.dir),
	           *refusal = "generate --model_name_or_path @/hf --max_new_tokens 2 --prompt the";
	refused(&scratch, path_of("%s --chat_template llama3", refusal),
	        "chat_template: llama3 writes <|eot_id|>, which is no token of this model");
	refused(&scratch, path_of("%s --chat_template chatml", refusal), "chat_template: chatml writes <|im_start|>");
	while (find_or_not(model, "<|endoftext|>"))
		edit_file(model, "<|endoftext|>", "<|im_start|>");
	edit_file(path_of("%s/hf/tokenizer_config.json", scratch.dir), "<|endoftext|>", "<|im_start|>");
	write_text(path_of("%s/hf/chat_template.jinja", scratch.dir), chatml);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ran ran =
		        run_line(&scratch, "generate --model_name_or_path %s/hf --max_new_tokens 2 %s", scratch.dir, cases[i].options);
		assert_int_equal(ran.status, 0);
		if (cases[i].told ? !strstr(ran.err, cases[i].told) : strstr(ran.err, "template") != NULL)
			fail_msg("%s: %s", cases[i].options, ran.err);
		run_free(&ran);
	}
	write_text(path_of("%s/rows.jsonl", scratch.dir),
	           "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n");
	struct ran ran = run_line(&scratch, "train %s/run.yaml", scratch.dir);
	assert_int_equal(ran.status, 0);
	assert_non_null(strstr(ran.err, "conversations go through chat template chatml (every token is trained, also the user's; "));
	run_free(&ran);
	ran = run_line(&scratch, "eval --model_name_or_path %s/out --validation_file %s/rows.jsonl --max_length 64 --assistant_only_loss",
	               scratch.dir, scratch.dir);
	assert_int_equal(ran.status, 0);
	assert_non_null(strstr(ran.err, "conversations go through chat template chatml\n"));
	run_free(&ran);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_the_good_run_works),
	        cmocka_unit_test(test_keys_that_cannot_be_are_refused),
	        cmocka_unit_test(test_keys_not_built_yet_say_so),
	        cmocka_unit_test(test_help_and_version_are_printed),
	        cmocka_unit_test(test_models_that_are_not_right_are_refused),
	        cmocka_unit_test(test_lying_safetensors_are_refused),
	        cmocka_unit_test(test_lying_gguf_files_are_refused),
	        cmocka_unit_test(test_rows_that_cannot_be_trained_are_refused),
	        cmocka_unit_test(test_output_that_is_in_the_way_is_left_alone),
	        cmocka_unit_test(test_damaged_checkpoints_are_refused),
	        cmocka_unit_test(test_adapters_that_do_not_fit_are_refused),
	        cmocka_unit_test(test_budgets_too_small_are_refused),
	        cmocka_unit_test(test_a_full_disk_is_found_before_the_run),
	        cmocka_unit_test(test_no_room_is_one_line),
	        cmocka_unit_test(test_losses_that_explode_stop_the_run),
	        cmocka_unit_test(test_cuts_below_what_is_trained_are_told_of),
	        cmocka_unit_test(test_the_chat_template_in_use_is_named),
	        cmocka_unit_test(test_adapters_of_another_base_are_told_of),
	        cmocka_unit_test(test_rows_that_nobody_evaluates_are_told_of),
	        cmocka_unit_test(test_a_log_without_a_checkpoint_counts_as_empty),
	        cmocka_unit_test(test_going_on_says_what_is_other_and_what_is_left),
	        cmocka_unit_test(test_an_output_dir_that_cannot_be_written_is_found_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
