/* Merged models read back: W + scale B A in every form. Bits of each type against gguf: tests/reference/merge.py. */
#include "check.h"
#include "scratch.h"

#include "ckpt/adapter_gguf.h"
#include "ckpt/gguf.h"
#include "ckpt/merge.h"
#include "ckpt/safetensors.h"
#include "ckpt/source.h"
#include "core/alloc.h"

#include <math.h>
#include <string.h>

#define MODELS "tests/reference/models/"

static char dir[64];
static const double SCALE = 2; /* lora_alpha 8, r 4 in all of them */

static const char *in_dir(const char *name)
{
	static char path[128];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

/* The largest distance of `path`'s tensor from base + scale B A, and the largest value. */
static double distance(const char *base, const char *adapter, const char *path, const char *module, double scale, double *largest)
{
	enum { MOST = 1 << 16 };
	static float before[MOST], after[MOST], a[MOST], b[MOST];
	char name[256];
	struct rh_source *source, *merged;
	struct rh_safetensors *file;
	check_ok(rh_source_open(base, &source));
	check_ok(rh_source_open(path, &merged));
	check_ok(rh_safetensors_open(adapter, &file));
	snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", module);
	const struct rh_safetensor *ta = rh_safetensors_find(file, name);
	snprintf(name, sizeof name, "base_model.model.%s.lora_B.weight", module);
	const struct rh_safetensor *tb = rh_safetensors_find(file, name);
	assert_true(ta && tb && ta->dtype == RH_F32);
	int64_t rank = ta->shape[0], cols = ta->shape[1], rows = tb->shape[0];
	assert_true(rows * cols <= MOST);
	check_ok(rh_safetensors_read(file, ta, 0, a, ta->bytes));
	check_ok(rh_safetensors_read(file, tb, 0, b, tb->bytes));
	snprintf(name, sizeof name, "%s.weight", module);
	check_ok(rh_source_read(source, name, 0, rows * cols, RH_F32, before));
	check_ok(rh_source_read(merged, name, 0, rows * cols, RH_F32, after));
	double worst = 0, moved = 0;
	*largest = 0;
	for (int64_t i = 0; i < rows; i++)
		for (int64_t k = 0; k < cols; k++) {
			double delta = 0;
			for (int64_t r = 0; r < rank; r++)
				delta += scale * (double)b[i * rank + r] * (double)a[r * cols + k];
			worst = fmax(worst, fabs((double)after[i * cols + k] - (double)before[i * cols + k] - delta));
			moved = fmax(moved, fabs(delta));
			*largest = fmax(*largest, fabs((double)after[i * cols + k]));
		}
	assert_true(moved > 1e-4); /* else this shows nothing */
	rh_safetensors_close(file);
	rh_source_close(merged);
	rh_source_close(source);
	return worst;
}

static void test_merge_adds_what_the_adapter_does(void **state)
{
	(void)state;
	static const struct {
		const char *model, *adapter;
		enum rh_dtype dtype;
		double apart; /* of the largest */
	} cases[] = {{MODELS "llama2", MODELS "llama2/adapter", RH_F32, 1e-6},
	             {MODELS "llama2", MODELS "llama2/adapter", RH_BF16, 1.0 / 256},
	             {MODELS "gguf-llama/model.gguf", MODELS "gguf-llama/adapter", RH_F32, 1e-6},
	             {MODELS "gguf-llama/model.gguf", MODELS "gguf-llama/adapter", RH_Q8_0, 1.0 / 127},
	             {MODELS "gguf-qwen2/model.gguf", MODELS "gguf-qwen2/adapter", RH_F16, 1.0 / 1024},
	             {MODELS "gguf-qwen2/model.gguf", MODELS "gguf-qwen2/adapter", RH_Q4_0, 1.0 / 7},
	             {MODELS "gpt2", MODELS "gpt2/adapter", RH_F32, 1e-6},
	             {MODELS "gguf-gpt2/model.gguf", MODELS "gguf-gpt2/adapter", RH_F32, 1e-6}};
	static const char *const llama[] = {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj"};
	static const char *const gpt2[] = {"transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_proj"};
	scratch_make(dir);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int is_gguf = strstr(cases[i].model, ".gguf") != NULL;
		const char *const *modules = strstr(cases[i].model, "gpt2") ? gpt2 : llama;
		char path[128], adapter[256];
		struct rh_merged merged;
		snprintf(path, sizeof path, "%s", in_dir(is_gguf ? "out.gguf" : "out"));
		snprintf(adapter, sizeof adapter, "%s/adapter_model.safetensors", cases[i].adapter);
		struct rh_merge merge = {.model = cases[i].model, .adapter = cases[i].adapter, .dtype = cases[i].dtype};
		*(is_gguf ? &merge.gguf : &merge.dir) = path;
		check_ok(rh_merge(&merge, &merged));
		assert_true(merged.tensors > 10 && merged.dtype == cases[i].dtype);
		for (size_t m = 0; m < 2; m++) {
			double largest, apart = distance(cases[i].model, adapter, path, modules[m], SCALE, &largest);
			if (!(apart <= cases[i].apart * largest))
				fail_msg("%s as %s, %s: %g of %g", cases[i].model, rh_dtype_name(cases[i].dtype), modules[m], apart,
				         largest);
		}
	}
	check_ok(rh_dir_remove(dir));
}

/* Each row of the merged matrix is that of W + scale B A, as long as its magnitude says. */
static void test_rows_of_a_dora_adapter_have_its_magnitudes_as_norms(void **state)
{
	(void)state;
	enum { ROWS = 36, COLS = 52, R = 4 };
	static const char module[] = "model.layers.0.mlp.down_proj";
	static float before[ROWS * COLS], after[ROWS * COLS], a[R * COLS], b[ROWS * R], magnitude[ROWS];
	const struct {
		const char *kind;
		float *to;
		int64_t count;
	} parts[] = {{"lora_A.weight", a, R * COLS}, {"lora_B.weight", b, ROWS * R}, {"lora_magnitude_vector", magnitude, ROWS}};
	char name[256];
	struct rh_safetensors *file;
	struct rh_source *source, *merged;
	struct rh_merged out;
	scratch_make(dir);
	struct rh_merge merge = {
	        .model = MODELS "smollm2", .adapter = "tests/reference/train/kin/dora", .dir = in_dir("dora"), .dtype = RH_F32};
	check_ok(rh_merge(&merge, &out));
	check_ok(rh_safetensors_open("tests/reference/train/kin/dora/adapter_model.safetensors", &file));
	for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
		snprintf(name, sizeof name, "base_model.model.%s.%s", module, parts[p].kind);
		check_ok(rh_safetensors_read(file, rh_safetensors_find(file, name), 0, parts[p].to, 4 * parts[p].count));
	}
	snprintf(name, sizeof name, "%s.weight", module);
	check_ok(rh_source_open(MODELS "smollm2", &source));
	check_ok(rh_source_open(in_dir("dora"), &merged));
	check_ok(rh_source_read(source, name, 0, ROWS * COLS, RH_F32, before));
	check_ok(rh_source_read(merged, name, 0, ROWS * COLS, RH_F32, after));
	for (int o = 0; o < ROWS; o++) {
		double row[COLS], squares = 0;
		for (int i = 0; i < COLS; i++) {
			row[i] = (double)before[o * COLS + i];
			for (int k = 0; k < R; k++)
				row[i] += SCALE * (double)b[o * R + k] * (double)a[k * COLS + i];
			squares += row[i] * row[i];
		}
		for (int i = 0; i < COLS; i++)
			check_near((double)after[o * COLS + i], row[i] * (double)magnitude[o] / sqrt(squares), 1e-6);
	}
	rh_safetensors_close(file);
	rh_source_close(source);
	rh_source_close(merged);
	check_ok(rh_dir_remove(dir));
}

/* What a run changed of config.json, and the type that was asked for, are what the merged model says of itself. */
static void test_merged_configuration_is_what_was_asked_for(void **state)
{
	(void)state;
	static const struct {
		enum rh_dtype dtype;
		const char *name;
	} types[] = {{RH_F32, "float32"}, {RH_F16, "float16"}, {RH_BF16, "bfloat16"}};
	json_t *scaling = json_pack("{s:s, s:f}", "rope_type", "yarn", "factor", 4.0);
	scratch_make(dir);
	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		const char *path = in_dir("typed");
		struct rh_merge merge = {
		        .model = MODELS "llama2", .dir = path, .dtype = types[i].dtype, .rope_scaling = i ? scaling : NULL};
		struct rh_model_config config;
		struct rh_merged merged;
		check_ok(rh_merge(&merge, &merged));
		check_ok(rh_model_config_load(path, &config));
		assert_string_equal(json_string_value(json_object_get(config.source, "dtype")), types[i].name);
		assert_string_equal(json_string_value(json_object_get(config.source, "torch_dtype")), types[i].name);
		assert_int_equal(config.rope[0].type, i ? RH_ROPE_YARN : RH_ROPE_DEFAULT);
		assert_true(config.rope[0].factor == (i ? 4 : 0));
		rh_model_config_free(&config);
	}
	json_decref(scaling);
	check_ok(rh_dir_remove(dir));
}

/* A file of bert-cls in base/, in which `to` stands for `from`, of the same length. */
static void copy_renamed(const char *name, const char *from, const char *to)
{
	char path[128];
	struct rh_bytes file;
	snprintf(path, sizeof path, MODELS "bert-cls/%s", name);
	check_ok(rh_file_load(path, &file));
	char *at = memmem(file.bytes, file.length, from, strlen(from));
	assert_true(at && strlen(from) == strlen(to));
	memcpy(at, to, strlen(to));
	snprintf(path, sizeof path, "base/%s", name);
	check_ok(rh_file_write_whole(in_dir(path), file.bytes, file.length));
	rh_bytes_free(&file);
}

/* A base of another task, or without a head: the merged model has the run's task, and the classifier that its adapter holds. */
static void test_merged_model_has_the_task_of_its_adapter(void **state)
{
	(void)state;
	struct rh_merge merge = {
	        .adapter = MODELS "bert-cls/adapter", .task = RH_TASK_SEQUENCE_CLASSIFICATION, .num_labels = 3, .dtype = RH_F32};
	char base[128], path[128];
	struct rh_source *source;
	struct rh_bytes sums;
	float values[2][256] = {{0}};
	struct rh_merged merged;
	scratch_make(dir);
	snprintf(base, sizeof base, "%s", in_dir("base"));
	snprintf(path, sizeof path, "%s", in_dir("merged"));
	merge.model = base;
	merge.dir = path;
	check_ok(rh_dir_make(base));
	copy_renamed("model.safetensors", "classifier.weight", "unusedhead.weight");
	copy_renamed("config.json", "BertForSequenceClassification\"", "BertModel\"                    ");
	check_ok(rh_file_write_whole(in_dir("base/vocab.txt"), "[PAD]\n", 6));
	check_ok(rh_merge(&merge, &merged));
	check_ok(rh_file_load(in_dir("merged/SHA256SUMS"), &sums)); /* BERT's older tokenizer goes along */
	assert_true(rh_file_exists(in_dir("merged/vocab.txt")) && memmem(sums.bytes, sums.length, "vocab.txt", 9));
	rh_bytes_free(&sums);
	const char *from[] = {path, MODELS "bert-cls"};
	for (int i = 0; i < 2; i++) {
		check_ok(rh_source_open(from[i], &source));
		assert_int_equal(rh_source_config(source)->task, RH_TASK_SEQUENCE_CLASSIFICATION);
		int64_t count = 3 * rh_source_config(source)->hidden_size;
		assert_true(count <= 256);
		check_ok(rh_source_read(source, "classifier.weight", 0, count, RH_F32, values[i]));
		rh_source_close(source);
	}
	assert_memory_equal(values[0], values[1], sizeof values[0]); /* the adapter was made with it */
	check_ok(rh_dir_remove(path));
	copy_renamed("model.safetensors", "bert.pooler.dense.weight", "bert.unused.dense.weight");
	assert_int_equal(rh_merge(&merge, &merged), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "'bert.pooler.dense.weight' is neither in the model nor in the adapter"));
	check_ok(rh_dir_remove(dir));
}

/* A tensor as the file has it. */
static const struct rh_gguf_tensor *read_stored(const struct rh_gguf *file, const char *name, float *out, int64_t most)
{
	const struct rh_gguf_tensor *tensor = rh_gguf_find(file, name);
	assert_non_null(tensor);
	assert_true(tensor->dtype == RH_F32 && tensor->rank == 2 && tensor->bytes <= most * (int64_t)sizeof *out);
	check_ok(rh_file_read(tensor->file, tensor->offset, out, (size_t)tensor->bytes));
	return tensor;
}

/* base + alpha / rank * B A, as llama.cpp adds an adapter, against the merged file: the largest distance of any weight, in shares of the
 * largest value. *pairs: how many weights the adapter changes. */
static double distance_of_adapter(const char *base, const char *adapter, const char *merged, int64_t *pairs)
{
	enum { MOST = 1 << 16 };
	static float before[MOST], after[MOST], a[MOST], b[MOST];
	struct rh_gguf *file[3];
	const char *const path[] = {base, adapter, merged};
	double alpha, worst = 0;
	for (int i = 0; i < 3; i++)
		check_ok(rh_gguf_open(path[i], &file[i]));
	assert_int_equal(rh_gguf_real(file[1], "adapter.lora.alpha", &alpha), 1);
	*pairs = rh_gguf_count(file[1]) / 2;
	for (int64_t t = 0; t < rh_gguf_count(file[1]); t++) {
		char name[256];
		snprintf(name, sizeof name, "%s", rh_gguf_at(file[1], t)->name);
		char *end = strstr(name, ".lora_");
		assert_non_null(end);
		if (strcmp(end, ".lora_a"))
			continue;
		const struct rh_gguf_tensor *ta = read_stored(file[1], name, a, MOST);
		strcpy(end, ".lora_b");
		const struct rh_gguf_tensor *tb = read_stored(file[1], name, b, MOST);
		*end = 0;
		const struct rh_gguf_tensor *tw = read_stored(file[0], name, before, MOST);
		read_stored(file[2], name, after, MOST);
		int64_t rank = ta->shape[0], cols = ta->shape[1], rows = tb->shape[0];
		assert_true(tb->shape[1] == rank && tw->shape[0] == rows && tw->shape[1] == cols);
		double largest = 0, apart = 0, moved = 0;
		for (int64_t i = 0; i < rows * cols; i++) {
			double delta = 0;
			for (int64_t r = 0; r < rank; r++)
				delta += alpha / (double)rank * (double)b[i / cols * rank + r] * (double)a[r * cols + i % cols];
			moved = fmax(moved, fabs(delta));
			largest = fmax(largest, fabs((double)after[i]));
			apart = fmax(apart, fabs((double)before[i] + delta - (double)after[i]));
		}
		assert_true(moved > 1e-4);
		worst = fmax(worst, apart / largest);
	}
	for (int i = 0; i < 3; i++)
		rh_gguf_close(file[i]);
	return worst;
}

static void test_adapter_gguf_adds_what_the_merge_does(void **state)
{
	(void)state;
	static const struct {
		const char *model;
		const char *old, *new;                  /* an edit of adapter_config.json; NULL: none */
	} cases[] = {{MODELS "gguf-llama", NULL, NULL}, /* rows of q and k are permuted */
	             {MODELS "gguf-qwen2", NULL, NULL},
	             {MODELS "gguf-gpt2", NULL, NULL},
	             {MODELS "gguf-olmo3", NULL, NULL},
	             {MODELS "gguf-ministral3", NULL, NULL},
	             {MODELS "gguf-qwen3.5", NULL, NULL}, /* value heads are tiled */
	             {MODELS "gguf-llama", "\"use_rslora\": false", "\"use_rslora\": true"},
	             {MODELS "gguf-qwen2", "\"alpha_pattern\": {}", "\"alpha_pattern\": {\"q_proj\": 3}"}};
	scratch_make(dir);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char model[128], adapter[128], base[128], file[128], merged[128], from[256], to[256];
		struct rh_bytes config;
		int64_t pairs;
		struct rh_merged out, own;
		snprintf(model, sizeof model, "%s/model.gguf", cases[i].model);
		snprintf(adapter, sizeof adapter, "%s", in_dir("adapter"));
		snprintf(base, sizeof base, "%s", in_dir("base.gguf"));
		snprintf(file, sizeof file, "%s", in_dir("adapter.gguf"));
		snprintf(merged, sizeof merged, "%s", in_dir("merged.gguf"));
		check_ok(rh_dir_make(adapter));
		snprintf(from, sizeof from, "%s/adapter/adapter_model.safetensors", cases[i].model);
		snprintf(to, sizeof to, "%s/adapter_model.safetensors", adapter);
		check_ok(rh_file_load(from, &config));
		check_ok(rh_file_write_whole(to, config.bytes, config.length));
		rh_bytes_free(&config);
		snprintf(from, sizeof from, "%s/adapter/adapter_config.json", cases[i].model);
		snprintf(to, sizeof to, "%s/adapter_config.json", adapter);
		check_ok(rh_file_load(from, &config));
		char *text = calloc(1, config.length + 128), *at;
		memcpy(text, config.bytes, config.length);
		if (cases[i].old) {
			assert_non_null(at = strstr(text, cases[i].old));
			memmove(at + strlen(cases[i].new), at + strlen(cases[i].old), strlen(at + strlen(cases[i].old)) + 1);
			memcpy(at, cases[i].new, strlen(cases[i].new));
		}
		check_ok(rh_file_write_whole(to, text, strlen(text)));
		free(text);
		rh_bytes_free(&config);
		check_ok(rh_merge(&(struct rh_merge){.model = model, .gguf = base, .dtype = RH_F32}, &out));
		check_ok(rh_merge(&(struct rh_merge){.model = model, .adapter = adapter, .gguf = merged, .dtype = RH_F32}, &out));
		check_ok(rh_adapter_gguf_write(&(struct rh_adapter_gguf){model, adapter, file, RH_F32}, &own));
		double apart = distance_of_adapter(base, file, merged, &pairs);
		assert_true(pairs > 3 && own.tensors == 2 * pairs && own.matrices == own.tensors && !own.as_f16);
		if (!(apart < 1e-6))
			fail_msg("%s, %s: %g of the largest", cases[i].model, cases[i].new ? cases[i].new : "as it is", apart);
	}
	check_ok(rh_dir_remove(dir));
}

/* Copies model `from`'s file, under the same name, into dir/base. */
static void copy_to_base(const char *from, const char *name)
{
	char path[192];
	struct rh_bytes file;
	snprintf(path, sizeof path, "%s/%s", from, name);
	check_ok(rh_file_load(path, &file));
	snprintf(path, sizeof path, "base/%s", name);
	check_ok(rh_file_write_whole(in_dir(path), file.bytes, file.length));
	rh_bytes_free(&file);
}

/* A number of the metadata, which must be there. */
static double number_of(const struct rh_gguf *file, const char *key)
{
	int64_t whole;
	double real;
	if (rh_gguf_int(file, key, &whole) == 1)
		return (double)whole;
	if (rh_gguf_real(file, key, &real) != 1)
		fail_msg("%s: no %s", rh_gguf_path(file), key);
	return real;
}

/* What only these families have, as the gguf package's writer was told it of the same model. */
static void test_gguf_of_a_directory_says_what_the_model_is(void **state)
{
	(void)state;
	static const struct {
		const char *name, *keys[10];
	} cases[] = {{"gguf-qwen3.5",
	              {"qwen35.block_count", "qwen35.attention.key_length", "qwen35.rope.dimension_count", "qwen35.ssm.conv_kernel",
	               "qwen35.ssm.state_size", "qwen35.ssm.group_count", "qwen35.ssm.time_step_rank", "qwen35.ssm.inner_size",
	               "qwen35.full_attention_interval"}},
	             {"gguf-olmo3",
	              {"olmo2.attention.sliding_window", "olmo2.rope.scaling.factor", "olmo2.rope.scaling.original_context_length",
	               "olmo2.rope.scaling.yarn_attn_factor", "olmo2.rope.scaling.yarn_beta_fast", "olmo2.rope.scaling.yarn_beta_slow"}},
	             {"gguf-ministral3",
	              {"mistral3.rope.scaling.factor", "mistral3.rope.scaling.original_context_length",
	               "mistral3.rope.scaling.yarn_log_multiplier", "mistral3.attention.temperature_scale",
	               "mistral3.rope.scaling.yarn_beta_fast", "mistral3.rope.scaling.yarn_beta_slow"}}};
	scratch_make(dir);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char model[128], base[128], written[128], theirs[192];
		struct rh_merged out;
		struct rh_gguf *file[2];
		snprintf(model, sizeof model, MODELS "%s", cases[i].name);
		snprintf(base, sizeof base, "%s", in_dir("base"));
		snprintf(written, sizeof written, "%s", in_dir("of-directory.gguf"));
		snprintf(theirs, sizeof theirs, "%s/model.gguf", model);
		check_ok(rh_dir_make(base));
		copy_to_base(model, "config.json");
		copy_to_base(model, "model.safetensors");
		copy_to_base("tests/reference/adapters/qwen3", "tokenizer.json");
		copy_to_base("tests/reference/adapters/qwen3", "tokenizer_config.json");
		check_ok(rh_merge(&(struct rh_merge){.model = base, .gguf = written, .dtype = RH_F32}, &out));
		check_ok(rh_gguf_open(theirs, &file[0]));
		check_ok(rh_gguf_open(written, &file[1]));
		assert_int_equal(rh_gguf_count(file[0]), rh_gguf_count(file[1]));
		for (int64_t t = 0; t < rh_gguf_count(file[0]); t++)
			assert_non_null(rh_gguf_find(file[1], rh_gguf_at(file[0], t)->name));
		for (const char *const *key = cases[i].keys; *key; key++)
			if (number_of(file[0], *key) != number_of(file[1], *key))
				fail_msg("%s: %g, not %g", *key, number_of(file[1], *key), number_of(file[0], *key));
		for (int k = 0; k < 2; k++)
			rh_gguf_close(file[k]);
	}
	check_ok(rh_dir_remove(dir));
}

/* The same weights as a directory and as a GGUF give the adapter the same names, rows and types. */
static void test_adapter_gguf_is_the_same_from_a_directory(void **state)
{
	(void)state;
	static const char *const names[] = {"gguf-llama", "gguf-qwen2",      "gguf-gpt2",      "gguf-mistral3",
	                                    "gguf-phi3",  "gguf-gemma3",     "gguf-qwen3-moe", "gguf-gpt-oss",
	                                    "gguf-olmo3", "gguf-ministral3", "gguf-qwen3.5",   "gguf-qwen3-next"};
	scratch_make(dir);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		char model[2][128], adapter[128], path[2][128];
		struct rh_gguf *file[2];
		struct rh_merged own;
		snprintf(model[0], sizeof model[0], MODELS "%s", names[i]);
		snprintf(model[1], sizeof model[1], MODELS "%s/model.gguf", names[i]);
		snprintf(adapter, sizeof adapter, MODELS "%s/adapter", names[i]);
		for (int k = 0; k < 2; k++) {
			snprintf(path[k], sizeof path[k], "%s", in_dir(k ? "of-gguf" : "of-directory"));
			check_ok(rh_adapter_gguf_write(&(struct rh_adapter_gguf){model[k], adapter, path[k], RH_F32}, &own));
			check_ok(rh_gguf_open(path[k], &file[k]));
			assert_true(own.tensors > 3 && rh_gguf_count(file[k]) == own.tensors);
		}
		for (int64_t t = 0; t < own.tensors; t++) {
			static float values[2][1 << 16];
			const char *name = rh_gguf_at(file[1], t)->name;
			assert_int_equal(strncmp(name, "blk.", 4), 0);
			if (!rh_gguf_find(file[0], name))
				fail_msg("%s: from a directory there is no %s", names[i], name);
			const struct rh_gguf_tensor *a = read_stored(file[0], name, values[0], 1 << 16);
			const struct rh_gguf_tensor *b = read_stored(file[1], name, values[1], 1 << 16);
			assert_true(a->rank == b->rank && a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1]);
			assert_memory_equal(values[0], values[1], (size_t)(a->shape[0] * a->shape[1]) * sizeof(float));
		}
		const char *architecture[2];
		for (int k = 0; k < 2; k++)
			assert_int_equal(rh_gguf_string(file[k], "general.architecture", &architecture[k]), 1);
		/* llama.cpp's converter makes a llama of a directory of Mistral, and mistral3 of what sees too */
		assert_string_equal(architecture[0], strcmp(names[i], "gguf-mistral3") ? architecture[1] : "llama");
		rh_gguf_close(file[0]);
		rh_gguf_close(file[1]);
	}
	check_ok(rh_dir_remove(dir));
}

/* Of each of 2 key heads in_proj_qkvz has 16 rows of q and of k, and 32 of v and of z; there they are q, k and v of all heads, and z. */
static int64_t row_by_key_head(int is_gate, int64_t row)
{
	if (is_gate)
		return row / 32 * 96 + 64 + row % 32;
	if (row < 64)
		return row % 32 / 16 * 96 + row / 32 * 16 + row % 16;
	return (row - 64) / 32 * 96 + 32 + row % 32;
}

static void test_adapter_gguf_has_two_for_a_matrix_that_is_two_there(void **state)
{
	(void)state;
	enum { MOST = 1 << 12, RANK = 4, WIDTH = 32 };
	static const char *const stored[] = {"blk.1.attn_qkv.weight", "blk.1.attn_gate.weight"};
	static float a[MOST], b[MOST], part[MOST];
	const char *module = "base_model.model.model.layers.1.linear_attn.in_proj_qkvz";
	struct rh_merged own;
	struct rh_gguf *gguf;
	struct rh_safetensors *file;
	char name[128];
	scratch_make(dir);
	check_ok(rh_safetensors_open(MODELS "gguf-qwen3-next/adapter/adapter_model.safetensors", &file));
	for (int i = 0; i < 2; i++) {
		snprintf(name, sizeof name, "%s.lora_%c.weight", module, "AB"[i]);
		const struct rh_safetensor *tensor = rh_safetensors_find(file, name);
		assert_non_null(tensor);
		assert_true(tensor->bytes <= MOST * 4);
		check_ok(rh_safetensors_read(file, tensor, 0, i ? b : a, tensor->bytes));
	}
	check_ok(rh_adapter_gguf_write(
	        &(struct rh_adapter_gguf){MODELS "gguf-qwen3-next", MODELS "gguf-qwen3-next/adapter", in_dir("two"), RH_F32}, &own));
	check_ok(rh_gguf_open(in_dir("two"), &gguf));
	for (int i = 0; i < 2; i++) {
		snprintf(name, sizeof name, "%s.lora_a", stored[i]);
		(void)read_stored(gguf, name, part, MOST);
		assert_memory_equal(part, a, RANK * WIDTH * sizeof *a);
		snprintf(name, sizeof name, "%s.lora_b", stored[i]);
		const struct rh_gguf_tensor *tensor = read_stored(gguf, name, part, MOST);
		assert_true(tensor->shape[0] == (i ? 64 : 128) && tensor->shape[1] == RANK);
		for (int64_t row = 0; row < tensor->shape[0]; row++)
			assert_memory_equal(part + row * RANK, b + row_by_key_head(i, row) * RANK, RANK * sizeof *b);
	}
	rh_gguf_close(gguf);
	rh_safetensors_close(file);
	check_ok(rh_dir_remove(dir));
}

static void expect_refusal(struct rh_merge merge, const char *part)
{
	struct rh_merged merged;
	assert_int_equal(rh_merge(&merge, &merged), -EINVAL);
	if (!strstr(rh_error(-EINVAL), part))
		fail_msg("%s", rh_error(-EINVAL));
}

static void test_merge_refuses_what_does_not_fit(void **state)
{
	(void)state;
	char path[128];
	scratch_make(dir);
	snprintf(path, sizeof path, "%s", in_dir("out.gguf"));
	expect_refusal((struct rh_merge){.model = MODELS "qwen3", .adapter = MODELS "llama2/adapter", .dir = path, .dtype = RH_F16},
	               MODELS "llama2/adapter");
	assert_false(rh_file_exists(in_dir("out.gguf/model.safetensors")));
	check_ok(rh_dir_remove(path));
	expect_refusal(
	        (struct rh_merge){
	                .model = MODELS "gguf-qwen2/model.gguf", .adapter = MODELS "llama2/adapter", .gguf = path, .dtype = RH_F16},
	        MODELS "llama2/adapter: ");
	assert_false(rh_file_exists(path)); /* nothing appears */
	expect_refusal(
	        (struct rh_merge){.model = MODELS "gguf-mistral3/model.gguf",
	                          .adapter = MODELS "gguf-mistral3/adapter",
	                          .dir = path,
	                          .dtype = RH_F16},
	        "a config.json for MistralForCausalLM is not made of a GGUF file's metadata; take the model's directory, or train an "
	        "adapter and leave it unmerged");
	assert_false(rh_dir_exists(path));
	json_t *scaling = json_pack("{s:s, s:f}", "rope_type", "linear", "factor", 2.0);
	expect_refusal((struct rh_merge){.model = MODELS "gguf-qwen2/model.gguf", .gguf = path, .rope_scaling = scaling, .dtype = RH_F16},
	               "rope_scaling: ");
	json_decref(scaling);
	struct rh_merged own;
	assert_int_equal(rh_adapter_gguf_write(
	                         &(struct rh_adapter_gguf){MODELS "gguf-qwen2/model.gguf", MODELS "llama2/adapter", path, RH_F32}, &own),
	                 -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), MODELS "llama2/adapter: "));
	assert_false(rh_file_exists(path));
	check_ok(rh_dir_remove(dir));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_merge_adds_what_the_adapter_does),
	        cmocka_unit_test(test_rows_of_a_dora_adapter_have_its_magnitudes_as_norms),
	        cmocka_unit_test(test_merged_configuration_is_what_was_asked_for),
	        cmocka_unit_test(test_merged_model_has_the_task_of_its_adapter),
	        cmocka_unit_test(test_adapter_gguf_adds_what_the_merge_does),
	        cmocka_unit_test(test_adapter_gguf_is_the_same_from_a_directory),
	        cmocka_unit_test(test_adapter_gguf_has_two_for_a_matrix_that_is_two_there),
	        cmocka_unit_test(test_gguf_of_a_directory_says_what_the_model_is),
	        cmocka_unit_test(test_merge_refuses_what_does_not_fit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
