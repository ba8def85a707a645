/* Sources that are not whole: they are refused by a line that names what is wrong. */
#include "source_case.h"

#include "core/log.h"

static void test_source_refuses_directories_that_contradict_themselves(void **state)
{
	(void)state;
	const char *one = "model.safetensors", *index = "model.safetensors.index.json", *config = "config.json";
	check_spoiled("qwen2", config, "\"intermediate_size\": 64", "\"intermediate_size\": 65",
	              "tensor 'model.layers.0.mlp.down_proj.weight' has shape (32, 64), but the model's configuration makes it (32, 65)");
	check_spoiled("qwen2", config, "\"vocab_size\": 40", "\"vocab_size\": 41", "tensor 'model.embed_tokens.weight' has shape (40, 32)");
	check_spoiled("qwen2", config, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", "'layer_types' must be a list of 3 words");
	check_spoiled("qwen2", config, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false",
	              "tensor 'lm_head.weight' is missing");
	check_spoiled("qwen2", config, "Qwen2ForCausalLM", "FalconForCausalLM", "architecture FalconForCausalLM is not supported");
	check_spoiled("qwen2", one, "model.norm.weight", "model.term.weight", "tensor 'model.norm.weight' is missing");
	check_spoiled("qwen2", one, "\"dtype\":\"BF16\"", "\"dtype\":\"I16\" ",
	              "has type I16, which is not supported (F32, F16, BF16 are)");
	check_spoiled("llama", index, "model-00002-of-00003.safetensors", "model-00009-of-00003.safetensors",
	              "model-00009-of-00003.safetensors: the shard is missing, though model.safetensors.index.json names it");
	check_spoiled("llama", index, "model-00002-of-00003.safetensors", "../../../etc/passwd", "which is no plain file name");
	check_spoiled("llama", index, "\"model-00002-of-00003.safetensors\"", "7", "must be a file name");
	check_spoiled("llama", index, "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors",
	              "where model.safetensors.index.json puts it");
	check_spoiled("llama", index, "weight_map", "weight_lap", "there is no 'weight_map' object");
	check_spoiled("llama", index, "\"model.norm.weight\"", "\"model.form.weight\"", "tensor 'model.norm.weight' is missing");
	check_spoiled("llama", index, "{", "", "not valid JSON");
}

static void test_source_refuses_what_is_not_there(void **state)
{
	(void)state;
	char dir[64];
	scratch_make(dir);
	check_refused(open_source("/nonexistent"), "no such model; give a Hugging Face directory or a .gguf file");
	check_refused(open_source(dir), "config.json: cannot open");
	copy_model("qwen2", dir);
	char *path = rh_path_join(dir, "model.safetensors");
	assert_int_equal(unlink(path), 0);
	check_refused(open_source(dir), "there is neither model.safetensors nor model.safetensors.index.json");
	struct rh_bytes map;
	check_ok(rh_file_load(REFERENCE "qwen2/model.safetensors", &map));
	scratch_write(dir, "model.safetensors", map.bytes, map.length - 1);
	check_refused(open_source(dir), "(truncated?)");
	rh_bytes_free(&map);
	rh_free(path);
	path = rh_path_join(dir, "config.json");
	check_refused(open_source(path), "not a GGUF file");
	rh_free(path);
	check_ok(rh_dir_remove(dir));
}

static void check_spoiled_gguf(const char *model, const char *from, const char *to, const char *part)
{
	char dir[64], name[64];
	scratch_make(dir);
	snprintf(name, sizeof name, REFERENCE "%s", model);
	char *path = rh_path_join(dir, model);
	check_ok(rh_file_copy(name, path));
	replace(dir, model, from, to);
	check_refused(open_source(path), part);
	rh_free(path);
	check_ok(rh_dir_remove(dir));
}

static void test_source_refuses_ggufs_that_contradict_themselves(void **state)
{
	(void)state;
	check_spoiled_gguf("qwen2.gguf", "qwen2", "qwin2", "architecture 'qwin2' is not supported (known: llama, qwen2, qwen3");
	check_spoiled_gguf("qwen2.gguf", "qwen2.block_count", "qwen2.block_kount", "metadata 'qwen2.block_count' is missing");
	check_spoiled_gguf("qwen2.gguf", "qwen2.attention.head_count_kv\x04", "qwen2.attention.head_count_kv\x06",
	                   "metadata 'qwen2.attention.head_count_kv' must be a whole number");
	check_spoiled_gguf("qwen2.gguf", "blk.1.ffn_up.weight", "blk.1.ffn_ap.weight", "tensor 'blk.1.ffn_up.weight' is missing");
	check_spoiled_gguf("qwen2.gguf", "token_embd.weight", "taken_embd.weight", "there is no token_embd.weight matrix");
	check_spoiled_gguf("qwen2.gguf", "qwen2.feed_forward_length\x04", "qwen2.feed_forward_length\x08",
	                   "the file ends inside its header");
	check_spoiled_gguf("qwen3.gguf", "linear", "lineal", "rope scaling 'lineal' is not supported (none, linear and yarn are)");
	check_spoiled_gguf("qwen3.gguf", "qwen3.attention.key_length", "qwen3.attention.key_lengUh",
	                   "attention heads have keys of 8 and values of 16; different lengths are not supported");
}

static int attempt_gguf(const char *path)
{
	struct rh_source *source;
	int rc = rh_source_open(path, &source);
	if (rc)
		return rc;
	float row[64];
	struct rh_tokenizer *tokenizer;
	rc = rh_source_read(source, "model.layers.1.self_attn.q_proj.weight", 0, rh_source_config(source)->hidden_size, RH_F32, row);
	if (!rc)
		rc = rh_source_tokenizer(source, &tokenizer);
	if (!rc)
		rh_tokenizer_destroy(tokenizer);
	rh_source_close(source);
	return rc;
}

static void test_source_gguf_survives_mutation(void **state)
{
	(void)state;
	scratch_fuzz(REFERENCE "llama.gguf", "a.gguf", 5000, 4000, attempt_gguf);
}

static int attempt_directory(const char *path)
{
	char dir[256];
	snprintf(dir, sizeof dir, "%s", path);
	*strrchr(dir, '/') = 0;
	static const char *const files[] = {"config.json", "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
	                                    "model-00003-of-00003.safetensors"};
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		char from[256], to[512];
		snprintf(to, sizeof to, "%s/%s", dir, files[i]);
		if (!realpath(REFERENCE "llama", from))
			return -1;
		strcat(strcat(from, "/"), files[i]);
		if (access(to, F_OK))
			assert_int_equal(symlink(from, to), 0);
	}
	return open_source(dir);
}

static void test_source_index_survives_mutation(void **state)
{
	(void)state;
	scratch_fuzz(REFERENCE "llama/model.safetensors.index.json", "model.safetensors.index.json", 4096, 4000, attempt_directory);
}

static void test_source_survives_failed_allocations(void **state)
{
	(void)state;
	static const char *const paths[] = {REFERENCE "llama", REFERENCE "llama.gguf", REFERENCE "qwen2"};
	for (int p = 0; p < 3; p++)
		scratch_starve(paths[p], open_source);
}

/* A file that becomes shorter while it is read is an error that names it, not the end of the process. */
static void test_source_tells_of_files_that_shrink(void **state)
{
	(void)state;
	static const char *const files[] = {"qwen2.gguf", "qwen2/model.safetensors"};
	for (int i = 0; i < 2; i++) {
		char dir[64], path[160], part[160];
		struct rh_source *source;
		scratch_make(dir);
		if (i) {
			char from[160], to[160];
			snprintf(from, sizeof from, REFERENCE "qwen2/config.json");
			snprintf(to, sizeof to, "%s/config.json", dir);
			check_ok(rh_file_copy(from, to));
		}
		snprintf(part, sizeof part, REFERENCE "%s", files[i]);
		snprintf(path, sizeof path, "%s/model.%s", dir, i ? "safetensors" : "gguf");
		check_ok(rh_file_copy(part, path));
		check_ok(rh_source_open(i ? dir : path, &source));
		check_ok(truncate(path, 4096));
		int refused = 0;
		for (size_t t = 0; t < source->entries.count; t++) {
			const struct source_entry *entry = &source->entries.entry[t];
			int64_t count = elements(entry->tensor.shape, entry->tensor.rank);
			float *values = malloc((size_t)count * 4);
			int rc = rh_source_read(source, entry->name, 0, count, RH_F32, values);
			if (rc)
				check_refused(rc, path);
			refused += rc != 0;
			free(values);
		}
		assert_true(refused > 0);
		rh_source_close(source);
		check_ok(rh_dir_remove(dir));
	}
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_source_refuses_directories_that_contradict_themselves),
	        cmocka_unit_test(test_source_refuses_what_is_not_there),
	        cmocka_unit_test(test_source_refuses_ggufs_that_contradict_themselves),
	        cmocka_unit_test(test_source_gguf_survives_mutation),
	        cmocka_unit_test(test_source_index_survives_mutation),
	        cmocka_unit_test(test_source_survives_failed_allocations),
	        cmocka_unit_test(test_source_tells_of_files_that_shrink),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
