/* Files that lie, are damaged or do not belong together: one clear line that names the file, nothing written, nothing lost. */
#include "cli/good.h"

#include <math.h>

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
	        {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", "'layer_types' must be a list of 3 words"},
	        {"\"intermediate_size\": 64", "\"intermediate_size\": 60", "shape"},
	        {"\"vocab_size\": 288", "\"vocab_size\": 289", "embed_tokens"},
	        {"\"model_type\": \"qwen2\"", "\"model_type\": \"mamba\"", "mamba"},
	        {"\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "gelu"},
	        {"\"hidden_size\": 32", "\"hidden_size\": \"wide\"", "hidden_size"},
	        {"\"vocab_size\": 288", "\"vocab_size\": -1", "vocab_size"},
	        {"\"rope_type\": \"default\"", "\"rope_type\": \"spiral\"", "spiral"},
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

static void test_lying_safetensors_are_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *good = MODELS "gguf-qwen2/model.safetensors", *run = "train @/run.yaml";
	char bad[256];
	struct rh_bytes map;
	check_ok(rh_file_load(good, &map));
	size_t whole = map.length;
	uint64_t header;
	memcpy(&header, map.bytes, sizeof header);
	rh_bytes_free(&map);
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
	struct rh_bytes map;
	check_ok(rh_file_load(good, &map));
	size_t whole = map.length;
	rh_bytes_free(&map);
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
	write_text(path_of("%s/rows.jsonl", scratch.dir), ROWS "{\"prompt\": \"a\", \"completion\": \"\"}\n");
	refused(&scratch, "train @/run.yaml", "untrained-rows");
	write_text(path_of("%s/rows.jsonl", scratch.dir), ROWS);
	refused(&scratch, "train @/run.yaml --max_length 2", "max_length");
	refused(&scratch, "train @/run.yaml --max_length 4096", "max_length");
	refused(&scratch, "eval --model_name_or_path @/hf --max_length 4096 --validation_file @/rows.jsonl", "max_length");
	refused(&scratch, "train @/run.yaml --train_file @/none.jsonl", "none.jsonl");
	refused(&scratch, "train @/run.yaml --train_file @", "a model lies there|name the files");
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
	refused(&scratch, "train @/run.yaml --adapter_name_or_path @/lora", "lora_magnitude_vector");
	check_ok(unlink(path_of("%s/lora/adapter_model.safetensors", scratch.dir)));
	edit_file(path, "\"use_dora\": true", "\"use_dora\": false");
	refused(&scratch, "train @/run.yaml --adapter_name_or_path @/lora", "adapter_model.safetensors");
	scratch_close(&scratch);
}

static void test_parts_that_are_not_there_are_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/empty", scratch.dir)));
	refused(&scratch, "join --parts @/none,@/hf --output_dir @/joined", "/none; copy the output_dir of each box to this machine");
	refused(&scratch, "join --parts @/hf,@/none --output_dir @/joined", "parts: there is no directory ");
	refused(&scratch, "join --parts @/empty,@/hf --output_dir @/joined",
	        "/empty holds no model.safetensors; give the output_dir of a box whose run has ended, with all its files");
	refused(&scratch, "join --parts @/hf,@/empty --output_dir @/joined", "/empty holds no model.safetensors; ");
	check_ok(symlink("hf", path_of("%s/link", scratch.dir)));
	refused(&scratch, "join --parts @/hf --output_dir @/link", "/link is what this command reads; name another place");
	check_ok(unlink(path_of("%s/hf/config.json", scratch.dir)));
	refused(&scratch, "join --parts @/hf --output_dir @/joined", "/hf holds no config.json; ");
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_models_that_are_not_right_are_refused),
	        cmocka_unit_test(test_lying_safetensors_are_refused),
	        cmocka_unit_test(test_lying_gguf_files_are_refused),
	        cmocka_unit_test(test_rows_that_cannot_be_trained_are_refused),
	        cmocka_unit_test(test_damaged_checkpoints_are_refused),
	        cmocka_unit_test(test_adapters_that_do_not_fit_are_refused),
	        cmocka_unit_test(test_parts_that_are_not_there_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
