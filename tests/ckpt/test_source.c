#include "source_case.h"
#include "tensor_bytes.h"

#include "core/float16.h"
#include "core/fs.h"
#include "core/log.h"

#include <math.h>

static const char *const models[] = {"llama", "qwen2", "qwen3"};

/* A matrix that the reference's file holds transposed, as the model has it. */
static void turn(const struct rh_source *source, const struct rh_safetensor *wanted, float *values)
{
	int64_t rows = wanted->shape[1], cols = wanted->shape[0];
	if (!source->config.family->transposes_linears || wanted->rank != 2 || !strstr(wanted->name, ".h."))
		return;
	float *copy = malloc((size_t)(rows * cols) * sizeof *copy);
	memcpy(copy, values, (size_t)(rows * cols) * sizeof *copy);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++)
			values[r * cols + c] = copy[c * rows + r];
	free(copy);
}

/* Reads a tensor whole, then by halves of its rows, as F32 and as BF16; all must tell the same. */
static void check_tensor(const struct rh_source *source, const struct rh_safetensors *file, const struct rh_safetensor *wanted)
{
	const struct source_entry *entry = source_entries_find(&source->entries, wanted->name);
	if (!entry)
		fail_msg("%s is not found", wanted->name);
	const struct source_tensor *found = &entry->tensor;
	if (!entry->slabs) /* else it is one of many in a tensor of the GGUF */
		assert_int_equal(found->rank, wanted->rank);
	if (entry->slabs)
		assert_true(found->shape[1] == wanted->shape[0] && found->shape[2] == wanted->shape[1]);
	else if (!source->gguf || !source->config.family->transposes_linears)
		assert_memory_equal(found->shape, wanted->shape, (size_t)found->rank * sizeof(int64_t));
	const int64_t *shape = entry->slabs ? wanted->shape : found->shape;
	int64_t count = elements(shape, wanted->rank), cols = wanted->rank == 2 ? shape[1] : 1;
	float *values = malloc((size_t)count * 4), *expected = malloc((size_t)count * 4);
	uint16_t *halves = malloc((size_t)count * 2);
	check_ok(rh_dequantise(wanted->dtype, tensor_bytes(file, wanted), count, expected));
	turn(source, wanted, expected);
	check_ok(rh_source_read(source, wanted->name, 0, count, RH_F32, values));
	if (memcmp(values, expected, (size_t)count * 4))
		fail_msg("%s differs", wanted->name);
	int64_t cut = count / cols / 2 * cols;
	if (cols == 1)
		cut = 0;
	memset(values, 0, (size_t)count * 4);
	check_ok(rh_source_read(source, wanted->name, cut, count - cut, RH_F32, values + cut));
	check_ok(rh_source_read(source, wanted->name, 0, cut, RH_F32, values));
	assert_memory_equal(values, expected, (size_t)count * 4);
	check_ok(rh_source_read(source, wanted->name, 0, count, RH_BF16, halves));
	for (int64_t i = 0; i < count; i++)
		assert_int_equal(halves[i], rh_f32_to_bf16(expected[i]));
	check_refused(rh_source_read(source, wanted->name, 0, count + cols, RH_F32, values), "no whole rows of tensor");
	check_refused(rh_source_read(source, wanted->name, -cols, cols, RH_F32, values), "no whole rows of tensor");
	free(values);
	free(expected);
	free(halves);
}

/* Every tensor of the safetensors file is what the source gives under that name. */
static void check_source(const char *model, const char *reference)
{
	struct rh_source *source;
	struct rh_safetensors *file;
	check_ok(rh_source_open(model, &source));
	check_ok(rh_safetensors_open(reference, &file));
	for (int64_t i = 0; i < rh_safetensors_count(file); i++)
		check_tensor(source, file, rh_safetensors_at(file, i));
	float nothing;
	int rc = rh_source_read(source, "model.layers.99.mlp.up_proj.weight", 0, 1, RH_F32, &nothing);
	assert_int_equal(rc, -ENOENT);
	check_refused(rc, "there is no tensor 'model.layers.99.mlp.up_proj.weight'");
	rh_safetensors_close(file);
	rh_source_close(source);
}

static void test_source_gguf_has_hugging_face_names_and_order(void **state)
{
	(void)state;
	for (int m = 0; m < 3; m++) {
		char path[96], reference[96];
		snprintf(path, sizeof path, REFERENCE "%s.gguf", models[m]);
		snprintf(reference, sizeof reference, REFERENCE "%s.safetensors", models[m]);
		check_source(path, reference);
	}
}

static void test_source_directory_reads_single_files_and_shards(void **state)
{
	(void)state;
	check_source(REFERENCE "qwen2", REFERENCE "qwen2/model.safetensors");
	check_source(REFERENCE "qwen3", REFERENCE "qwen3/model.safetensors");
	check_source(REFERENCE "llama", REFERENCE "llama/model-00001-of-00003.safetensors");
	check_source(REFERENCE "llama", REFERENCE "llama/model-00002-of-00003.safetensors");
	check_source(REFERENCE "llama", REFERENCE "llama/model-00003-of-00003.safetensors");
}

static void test_source_configurations_of_gguf_and_directory_agree(void **state)
{
	(void)state;
	for (int m = 0; m < 3; m++) {
		char path[96], dir[96];
		snprintf(path, sizeof path, REFERENCE "%s.gguf", models[m]);
		snprintf(dir, sizeof dir, REFERENCE "%s", models[m]);
		struct rh_source *gguf, *directory;
		check_ok(rh_source_open(path, &gguf));
		check_ok(rh_source_open(dir, &directory));
		struct rh_model_config a = *rh_source_config(gguf), b = *rh_source_config(directory);
		if (m == 0) { /* Llama-3's scaling is divisors in one file and a recipe in the other */
			assert_non_null(a.rope[0].divisor);
			assert_true(a.rope[0].divisor[0] == 1 && a.rope[0].divisor[3] == 8);
			json_t *json;
			struct rh_model_config written;
			check_ok(rh_model_config_write(&a, "float32", &json));
			check_ok(rh_model_config_parse(json, "written", &written));
			assert_int_equal(written.rope[0].type, RH_ROPE_LLAMA3);
			assert_true(written.rope[0].factor == 8 && written.rope[0].low_freq_factor == 1 &&
			            written.rope[0].high_freq_factor == 4);
			assert_int_equal(written.rope[0].original_max_position, 8192);
			json_decref(json);
			rh_model_config_free(&written);
			b.rope[0].type = RH_ROPE_DEFAULT;
			b.rope[0].factor = b.rope[0].low_freq_factor = b.rope[0].high_freq_factor = 0;
			b.rope[0].original_max_position = 0;
		}
		a.rope[0].divisor = NULL;
		a.source = b.source = NULL;
		assert_memory_equal(&a, &b, sizeof a);
		assert_int_equal(a.tie_word_embeddings, m == 1);
		assert_ptr_equal(a.family, rh_family_at((size_t)m));
		assert_int_equal(source_entries_find(&gguf->entries, "lm_head.weight") != NULL, m != 1);
		rh_source_close(gguf);
		rh_source_close(directory);
	}
}

/* The same model three ways: config.json of transformers 5 and of 4, and where there is one, a GGUF file. */
static void test_source_reads_every_reference_model(void **state)
{
	(void)state;
	static const char *const names[] = {"llama2",
	                                    "llama3",
	                                    "llama-bias",
	                                    "smollm2",
	                                    "qwen2",
	                                    "qwen3",
	                                    "mistral",
	                                    "phi3",
	                                    "gemma3",
	                                    "qwen3-moe",
	                                    "gpt-oss",
	                                    "gguf-llama",
	                                    "gguf-qwen2",
	                                    "gpt2",
	                                    "gguf-gpt2",
	                                    "gguf-gemma3",
	                                    "gguf-qwen3-moe",
	                                    "gguf-gpt-oss",
	                                    "gguf-phi3",
	                                    "gguf-mistral3",
	                                    "gemma3-vision",
	                                    "mistral3",
	                                    "bert-mlm",
	                                    "bert-cls",
	                                    "vit",
	                                    "qwen3.5",
	                                    "qwen3.5-vision",
	                                    "qwen3.5-moe-vision",
	                                    "gemma4-moe",
	                                    "gguf-gemma4",
	                                    "gemma4-e2b",
	                                    "gguf-gemma4-e2b"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		char dir[128], path[128], weights[160];
		struct rh_model_config old;
		struct rh_source *source;
		snprintf(dir, sizeof dir, "tests/reference/models/%s", names[i]);
		snprintf(path, sizeof path, "%s/config-4.json", dir);
		snprintf(weights, sizeof weights, "%s/model.safetensors", dir);
		check_ok(rh_source_open(dir, &source));
		check_ok(rh_model_config_load(path, &old));
		struct rh_model_config a = old, b = *rh_source_config(source);
		a.source = b.source = NULL;
		assert_memory_equal(&a, &b, sizeof a);
		rh_model_config_free(&old);
		rh_source_close(source);
		if (!strncmp(names[i], "gguf", 4))
			snprintf(dir, sizeof dir, "tests/reference/models/%s/model.gguf", names[i]);
		if (rh_file_exists(weights) && !b.wrapped &&
		    b.family != rh_family_find(
		                        "gpt_oss")) /* llama3 is in shards; a larger model names its text model otherwise; gpt-oss turns */
			check_source(dir, weights);
	}
}

/* Files of GPT2Model, as the published ones are, leave "transformer." out. */
static void test_source_reads_names_without_the_models_prefix(void **state)
{
	(void)state;
	enum { MOST = 64 };
	static const char model[] = "tests/reference/models/gguf-gpt2";
	struct rh_safetensors_entry list[MOST];
	struct rh_safetensors *file;
	struct rh_safetensors_out *out;
	char dir[64];
	scratch_make(dir);
	check_ok(rh_safetensors_open("tests/reference/models/gguf-gpt2/model.safetensors", &file));
	int64_t count = rh_safetensors_count(file);
	assert_true(count < MOST);
	for (int64_t i = 0; i < count; i++) {
		const struct rh_safetensor *tensor = rh_safetensors_at(file, i);
		list[i] = (struct rh_safetensors_entry){tensor->name + strlen("transformer."), tensor->dtype, tensor->rank, {0}};
		memcpy(list[i].shape, tensor->shape, (size_t)tensor->rank * sizeof *tensor->shape);
	}
	char *path = rh_path_join(dir, "model.safetensors"), *config = rh_path_join(dir, "config.json");
	check_ok(rh_file_copy("tests/reference/models/gguf-gpt2/config.json", config));
	check_ok(rh_safetensors_create(path, list, count, &out));
	for (int64_t i = 0; i < count; i++) {
		const struct rh_safetensor *tensor = rh_safetensors_at(file, i);
		check_ok(rh_safetensors_write(out, tensor_bytes(file, tensor), tensor->bytes));
	}
	check_ok(rh_safetensors_commit(out));
	rh_safetensors_close(file);
	check_source(dir, "tests/reference/models/gguf-gpt2/model.safetensors");
	check_source(model, "tests/reference/models/gguf-gpt2/model.safetensors");
	rh_free(path);
	rh_free(config);
	check_ok(rh_dir_remove(dir));
}

/* Files of another task lack a head, which starts at random; nothing else may be missing. */
static void test_source_opens_files_for_another_task(void **state)
{
	(void)state;
	struct rh_source *source;
	check_ok(rh_source_open_for("tests/reference/models/bert-mlm", RH_TASK_SEQUENCE_CLASSIFICATION, 5, &source));
	assert_int_equal(rh_source_config(source)->num_labels, 5);
	assert_true(rh_source_has(source, "bert.embeddings.LayerNorm.bias"));
	assert_false(rh_source_has(source, "classifier.weight"));
	assert_false(rh_source_has(source, "bert.pooler.dense.weight"));
	assert_null(source_entries_find(&source->entries, "cls.predictions.bias"));
	rh_source_close(source);
	check_refused(rh_source_open_for("tests/reference/models/bert-mlm", RH_TASK_CAUSAL_LM, 0, &source),
	              "task: causal_lm is nothing that models of type bert do here (masked_lm, sequence_classification)");
	check_refused(rh_source_open_for("tests/reference/models/llama2", RH_TASK_MASKED_LM, 0, &source),
	              "task: masked_lm is nothing that models of type llama do here (causal_lm)");
	check_refused(rh_source_open_for("tests/reference/models/bert-mlm", RH_TASK_SEQUENCE_CLASSIFICATION, 1, &source),
	              "tests/reference/models/bert-mlm: a model with one label is a regression, which is not built");
	check_refused(rh_source_open_for("tests/reference/models/bert-cls", RH_TASK_SEQUENCE_CLASSIFICATION, 4, &source),
	              "tensor 'classifier.bias' has shape (3), but the model's configuration makes it (4)");
}

/* To the bit what transformers makes of them, whole and in pieces; what is spoiled is refused by name. */
static void test_source_reads_experts_in_mxfp4(void **state)
{
	(void)state;
	struct rh_source *source;
	struct rh_safetensors *file;
	check_ok(rh_source_open(REFERENCE "gpt-oss", &source));
	check_ok(rh_safetensors_open(REFERENCE "gpt-oss.safetensors", &file));
	assert_int_equal(rh_safetensors_count(file), 2);
	for (int64_t i = 0; i < rh_safetensors_count(file); i++) {
		const struct rh_safetensor *wanted = rh_safetensors_at(file, i);
		const float *expected = tensor_bytes(file, wanted);
		int64_t cols = wanted->shape[1], count = wanted->shape[0] * cols;
		float *values = malloc((size_t)count * 4);
		uint16_t *halves = malloc((size_t)count * 2);
		check_ok(rh_source_read(source, wanted->name, 0, count, RH_F32, values));
		assert_memory_equal(values, expected, (size_t)count * 4);
		check_ok(rh_source_read(source, wanted->name, 7 * cols, 5 * cols, RH_F32, values));
		assert_memory_equal(values, expected + 7 * cols, (size_t)(5 * cols) * 4);
		check_ok(rh_source_read(source, wanted->name, 0, count, RH_BF16, halves));
		for (int64_t k = 0; k < count; k++)
			assert_int_equal(halves[k], rh_f32_to_bf16(expected[k]));
		free(values);
		free(halves);
	}
	rh_safetensors_close(file);
	rh_source_close(source);
	check_spoiled(
	        "gpt-oss", "config.json", "\"intermediate_size\": 64", "\"intermediate_size\": 96",
	        "tensor 'model.layers.0.mlp.experts.down_proj_blocks' is U8 (3, 32, 2, 16), but the model's configuration makes it U8 "
	        "(3, 32, 3, 16)");
	check_spoiled("gpt-oss", "config.json", "\"quant_method\": \"mxfp4\"", "\"quant_method\": \"awq\"",
	              "the model is stored quantised");
}

enum { WIDER = 48 }; /* times the reference's experts: more than is read at once */

/* The reference's model with such experts, of random bytes, and zeros elsewhere. */
static void write_wide_experts(const char *dir)
{
	enum { MOST = 64 };
	struct rh_safetensors_entry entry[MOST] = {{0}};
	struct rh_safetensors *file;
	struct rh_safetensors_out *out;
	uint64_t seed = check_seed();
	copy_model("gpt-oss", dir);
	replace(dir, "config.json", "\"intermediate_size\": 64", "\"intermediate_size\": 3072");
	check_ok(rh_safetensors_open(REFERENCE "gpt-oss/model.safetensors", &file));
	int64_t count = rh_safetensors_count(file);
	assert_true(count <= MOST);
	for (int64_t i = 0; i < count; i++) {
		const struct rh_safetensor *tensor = rh_safetensors_at(file, i);
		entry[i] = (struct rh_safetensors_entry){.name = tensor->name, .dtype = tensor->dtype, .rank = tensor->rank};
		memcpy(entry[i].shape, tensor->shape, sizeof entry[i].shape);
		entry[i].shape[1] *= strstr(tensor->name, "experts.gate_up_proj") ? WIDER : 1;
		entry[i].shape[2] *= strstr(tensor->name, "experts.down_proj") ? WIDER : 1;
	}
	char *path = rh_path_join(dir, "model.safetensors");
	check_ok(rh_safetensors_create(path, entry, count, &out));
	for (int64_t i = 0; i < count; i++) {
		int64_t bytes = rh_dtype_bytes(entry[i].dtype, elements(entry[i].shape, entry[i].rank));
		uint8_t *zeros = calloc((size_t)bytes, 1);
		for (int64_t k = 0; entry[i].dtype == RH_U8 && k < bytes; k++)
			zeros[k] = (uint8_t)check_random(&seed);
		check_ok(rh_safetensors_write(out, zeros, bytes));
		free(zeros);
	}
	check_ok(rh_safetensors_commit(out));
	rh_safetensors_close(file);
	rh_free(path);
}

static int reads;

static int64_t counted_read(struct rh_fs *fs, int file, void *bytes, size_t length, int64_t offset)
{
	(void)fs;
	reads++;
	return rh_fs_real()->ops->read(rh_fs_real(), file, bytes, length, offset);
}

/* Values and scales, whose places alternate, come in long pieces, and no byte twice. */
static void check_wide(const struct rh_source *source, const struct rh_safetensors *file, const char *name, int64_t count)
{
	static const float level[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
	char part[128];
	snprintf(part, sizeof part, "%s_blocks", name);
	const uint8_t *packed = tensor_bytes(file, rh_safetensors_find(file, part));
	snprintf(part, sizeof part, "%s_scales", name);
	const uint8_t *scale = tensor_bytes(file, rh_safetensors_find(file, part));
	float *values = malloc((size_t)count * 4);
	uint16_t *halves = malloc((size_t)count * 2);
	reads = 0;
	check_ok(rh_source_read(source, name, 0, count, RH_F32, values));
	assert_true(reads <= 2 * (count / 262144 + 1));
	check_ok(rh_source_read(source, name, 0, count, RH_BF16, halves));
	for (int64_t i = 0; i < count; i++) {
		int q = packed[i / 2] >> (i % 2 * 4) & 15;
		float expected = (q & 8 ? -level[q & 7] : level[q & 7]) * ldexpf(1, scale[i / 32] - 127);
		assert_true(scale[i / 32] == 255 ? isnan(values[i]) : values[i] == expected && halves[i] == rh_f32_to_bf16(expected));
	}
	free(values);
	free(halves);
}

static void test_source_reads_wide_experts_in_long_pieces(void **state)
{
	(void)state;
	char dir[64];
	struct rh_source *source;
	struct rh_safetensors *file;
	struct rh_fs_ops ops = *rh_fs_real()->ops;
	struct rh_fs counting = {&ops};
	scratch_make(dir);
	write_wide_experts(dir);
	char *path = rh_path_join(dir, "model.safetensors");
	check_ok(rh_safetensors_open(path, &file));
	check_ok(rh_source_open(dir, &source));
	ops.read = counted_read;
	rh_fs_use(&counting);
	check_wide(source, file, "model.layers.0.mlp.experts.gate_up_proj", 3 * 128 * WIDER * 32);
	check_wide(source, file, "model.layers.0.mlp.experts.down_proj", 3 * 32 * 64 * WIDER);
	rh_fs_use(NULL);
	rh_source_close(source);
	rh_safetensors_close(file);
	rh_free(path);
	check_ok(rh_dir_remove(dir));
}

static int open_tokenizer(const char *path)
{
	struct rh_source *source;
	struct rh_tokenizer *tokenizer;
	int rc = rh_source_open(path, &source);
	if (rc)
		return rc;
	rc = rh_source_tokenizer(source, &tokenizer);
	if (!rc)
		rh_tokenizer_destroy(tokenizer);
	rh_source_close(source);
	return rc;
}

static void check_spoiled_tokenizer(const char *from, const char *to, const char *part)
{
	char dir[64];
	scratch_make(dir);
	char *path = rh_path_join(dir, "m.gguf");
	check_ok(rh_file_copy(REFERENCE "qwen2.gguf", path));
	replace(dir, "m.gguf", from, to);
	check_refused(open_tokenizer(path), part);
	rh_free(path);
	check_ok(rh_dir_remove(dir));
}

static void check_ids(const struct rh_tokenizer *tokenizer, const char *text, const int32_t *wanted, size_t count)
{
	struct rh_ids ids = {0};
	struct rh_text back = {0};
	check_ok(rh_tokenizer_encode(tokenizer, text, strlen(text), RH_TOKENS_PLAIN, &ids));
	assert_int_equal(ids.count, count);
	assert_memory_equal(ids.id, wanted, count * sizeof *wanted);
	check_ok(rh_tokenizer_decode(tokenizer, ids.id, ids.count, RH_SPECIALS_KEEP, &back));
	assert_string_equal(back.bytes, text);
	rh_text_free(&back);
	rh_ids_free(&ids);
}

static void test_source_gguf_brings_its_tokenizer(void **state)
{
	(void)state;
	struct rh_source *source;
	struct rh_tokenizer *tokenizer;
	check_ok(rh_source_open(REFERENCE "qwen2.gguf", &source));
	check_ok(rh_source_tokenizer(source, &tokenizer));
	assert_int_equal(rh_tokenizer_size(tokenizer), 40);
	assert_int_equal(rh_tokenizer_bos(tokenizer), 1);
	assert_int_equal(rh_tokenizer_eos(tokenizer), 2);
	assert_string_equal(rh_tokenizer_chat_template(tokenizer), "{{ messages }}");
	check_ids(tokenizer, "ABACab", (const int32_t[]){0, 1, 0, 2, 39},
	          5); /* BOS and EOS are special: transformers does not merge them */
	rh_tokenizer_destroy(tokenizer);
	rh_source_close(source);
	check_spoiled_tokenizer("tokenizer.ggml.tokens", "tokenizer.ggml.takens", "there is no vocabulary (tokenizer.ggml.tokens)");
	check_spoiled_tokenizer("tokenizer.ggml.model", "tokenizer.ggml.madel", "tokenizer.ggml.model");
	check_ok(rh_source_open(REFERENCE "qwen2", &source));
	check_refused(rh_source_tokenizer(source, &tokenizer), "tokenizer.json");
	rh_source_close(source);
}

static void test_source_copies_tokenizer_files(void **state)
{
	(void)state;
	char from[64], to[64];
	scratch_make(from);
	scratch_make(to);
	copy_model("qwen2", from);
	scratch_text(from, "tokenizer.json", "{}");
	scratch_text(from, "generation_config.json", "{\"a\":1}");
	scratch_text(from, "README.md", "no");
	check_ok(rh_source_copy_tokenizer(from, to));
	struct rh_bytes map;
	char *path = rh_path_join(to, "generation_config.json");
	check_ok(rh_file_load(path, &map));
	assert_int_equal(map.length, 7);
	rh_bytes_free(&map);
	rh_free(path);
	path = rh_path_join(to, "README.md");
	assert_false(rh_file_exists(path));
	rh_free(path);
	check_ok(rh_dir_remove(to));
	check_ok(rh_dir_make(to));
	check_ok(rh_source_copy_tokenizer("tests/reference/models/gguf-qwen2/model.gguf", to));
	struct rh_tokenizer *tokenizer;
	check_ok(rh_tokenizer_load(to, &tokenizer));
	assert_int_equal(rh_tokenizer_size(tokenizer), 288);
	rh_tokenizer_destroy(tokenizer);
	path = rh_path_join(to, "tokenizer_config.json");
	assert_true(rh_file_exists(path));
	rh_free(path);
	check_ok(rh_dir_remove(from));
	check_ok(rh_dir_remove(to));
}

/* The demo's model against checksums made by the gguf package (tests/reference/ckpt_demo.py). */
static void test_source_demo_model_has_the_gguf_packages_values(void **state)
{
	(void)state;
	const char *path = getenv("RH_DEMO_MODEL"), *standard = "build/demo/SmolLM2-135M-Instruct.Q4_1.gguf";
	if (!path)
		path = standard;
	if (!rh_file_exists(path))
		check_skip("no demo model at %s (make demo brings it; RH_DEMO_MODEL names another place)", path);
	struct rh_source *source;
	check_ok(rh_source_open(path, &source));
	const struct rh_model_config *c = rh_source_config(source);
	assert_int_equal(c->vocab_size, 49152);
	assert_int_equal(c->num_hidden_layers, 30);
	assert_true(c->tie_word_embeddings && c->rope[0].theta == 100000 && c->rms_norm_eps == 1e-5);
	struct rh_tokenizer *tokenizer;
	check_ok(rh_source_tokenizer(source, &tokenizer));
	check_ids(tokenizer, "Hello world", (const int32_t[]){19556, 905}, 2);
	rh_tokenizer_destroy(tokenizer);
	FILE *file = fopen("tests/reference/ckpt_demo.txt", "r");
	assert_non_null(file);
	char name[128];
	long long rows, cols;
	unsigned long long wanted;
	int tensors = 0;
	for (; fscanf(file, "%127s %lld %lld %llu", name, &rows, &cols, &wanted) == 4; tensors++) {
		const struct source_entry *entry = source_entries_find(&source->entries, name);
		assert_non_null(entry);
		assert_int_equal(entry->tensor.shape[0], rows);
		int64_t count = rows * (cols ? cols : 1);
		float *values = malloc((size_t)count * sizeof *values);
		check_ok(rh_source_read(source, name, 0, count, RH_F32, values));
		uint64_t sum = 0;
		for (int64_t i = 0; i < count; i++)
			sum += (uint64_t)(i + 1) * rh_f32_bits(values[i]);
		if (sum != wanted)
			fail_msg("%s differs", name);
		free(values);
	}
	assert_int_equal(tensors, 272);
	fclose(file);
	rh_source_close(source);
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_source_gguf_has_hugging_face_names_and_order),
	        cmocka_unit_test(test_source_directory_reads_single_files_and_shards),
	        cmocka_unit_test(test_source_configurations_of_gguf_and_directory_agree),
	        cmocka_unit_test(test_source_reads_every_reference_model),
	        cmocka_unit_test(test_source_reads_names_without_the_models_prefix),
	        cmocka_unit_test(test_source_opens_files_for_another_task),
	        cmocka_unit_test(test_source_reads_experts_in_mxfp4),
	        cmocka_unit_test(test_source_reads_wide_experts_in_long_pieces),
	        cmocka_unit_test(test_source_gguf_brings_its_tokenizer),
	        cmocka_unit_test(test_source_copies_tokenizer_files),
	        cmocka_unit_test(test_source_demo_model_has_the_gguf_packages_values),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
