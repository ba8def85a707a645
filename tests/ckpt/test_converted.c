/* GGUF files written of tiny models, against what llama.cpp's own converter writes of them (tests/reference/converted.py): every tensor's
 * name, type, sizes and bits, and every key. And read back: the values of the directory that they were made of. */
#include "check.h"
#include "scratch.h"

#include "ckpt/adapter_gguf.h"
#include "ckpt/gguf.h"
#include "ckpt/merge.h"
#include "ckpt/safetensors.h"
#include "ckpt/source_internal.h"
#include "core/alloc.h"
#include "core/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define ROOT "tests/reference/"

static char dir[64];

static const char *in_dir(const char *name)
{
	static char path[4][192];
	static int next;
	char *to = path[next++ % 4];
	snprintf(to, sizeof path[0], "%s/%s", dir, name);
	return to;
}

static void copy(const char *folder, const char *file)
{
	char from[192], to[64];
	struct rh_bytes bytes;
	snprintf(from, sizeof from, ROOT "%s/%s", folder, file);
	snprintf(to, sizeof to, "model/%s", file);
	check_ok(rh_file_load(from, &bytes));
	check_ok(rh_file_write_whole(in_dir(to), bytes.bytes, bytes.length));
	rh_bytes_free(&bytes);
}

static void lay_out(const char *model, const char *tokenizer)
{
	check_ok(rh_dir_remove(in_dir("model")));
	check_ok(rh_dir_make(in_dir("model")));
	copy(model, "config.json");
	copy(model, "model.safetensors");
	copy(tokenizer, "tokenizer.json");
	copy(tokenizer, "tokenizer_config.json");
}

/* In config.json, where it is there once. */
static void edit(const char *old, const char *new)
{
	struct rh_bytes bytes;
	check_ok(rh_file_load(in_dir("model/config.json"), &bytes));
	char *at = strstr(bytes.bytes, old), *text = calloc(1, bytes.length + strlen(new) + 1);
	if (!at || strstr(at + 1, old))
		fail_msg("config.json: '%s' is not there once", old);
	sprintf(text, "%.*s%s%s", (int)(at - bytes.bytes), bytes.bytes, new, at + strlen(old));
	check_ok(rh_file_write_whole(in_dir("model/config.json"), text, strlen(text)));
	free(text);
	rh_bytes_free(&bytes);
}

/* "OLD" => "NEW", each as JSON has a string. */
static void edit_as_said(const char *line)
{
	json_t *old = json_loads(line, JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK, NULL);
	json_t *new = json_loads(strstr(line, " => ") + 4, JSON_DECODE_ANY, NULL);
	assert_true(json_is_string(old) && json_is_string(new));
	edit(json_string_value(old), json_string_value(new));
	json_decref(old);
	json_decref(new);
}

static unsigned long crc_of(const void *bytes, size_t length)
{
	return crc32(0, bytes, (uInt)length);
}

/* Numbers of a list, as the reference says them: all, or their number and checksum. */
static void check_list(const char *key, const char *value, size_t count, const void *bytes, const char *numbers)
{
	char found[512];
	if (count > 16)
		snprintf(found, sizeof found, "%zu %08lx", count, crc_of(bytes, count * 4));
	else
		snprintf(found, sizeof found, "%s", numbers);
	if (strcmp(found, value))
		fail_msg("%s: %s, not %s", key, found, value);
}

static void check_ints(const struct rh_gguf *file, const char *key, const char *value, int are_flags)
{
	size_t count = 0, used = 0;
	int32_t *number = NULL;
	unsigned char *flag = NULL;
	char text[512] = "";
	assert_int_equal(are_flags ? rh_gguf_flags(file, key, &count, &flag) : rh_gguf_ints(file, key, &count, &number), 1);
	for (size_t i = 0; i < count && i < 17; i++)
		used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i ? " " : "", are_flags ? flag[i] : number[i]);
	check_list(key, value, count, number, text);
	rh_free(number);
	rh_free(flag);
}

static void check_strings(const struct rh_gguf *file, const char *key, const char *value)
{
	const char **text;
	size_t count, *bytes;
	unsigned long sum = crc32(0, NULL, 0);
	char found[64];
	assert_int_equal(rh_gguf_strings(file, key, &count, &text, &bytes), 1);
	for (size_t i = 0; i < count; i++)
		sum = crc32(crc32(sum, (const Bytef *)text[i], (uInt)bytes[i]), (const Bytef *)"", 1);
	snprintf(found, sizeof found, "%zu %08lx", count, sum);
	if (strcmp(found, value))
		fail_msg("%s: %s, not %s", key, found, value);
	rh_free(text);
	rh_free(bytes);
}

static void check_key(const struct rh_gguf *file, const char *key, const char *type, const char *value)
{
	int64_t whole = 0;
	double real = 0;
	int truth = 0, there = 1;
	const char *text = "";
	size_t count;
	float *floats;
	if (!strcmp(type, "[STR]")) {
		check_strings(file, key, value);
	} else if (!strcmp(type, "[I32]") || !strcmp(type, "[BOOL]")) {
		check_ints(file, key, value, type[1] == 'B');
	} else if (!strcmp(type, "[F32]")) {
		assert_int_equal(rh_gguf_floats(file, key, &count, &floats), 1);
		check_list(key, value, count, floats, "");
		rh_free(floats);
	} else if (!strcmp(type, "U32")) {
		there = rh_gguf_int(file, key, &whole);
	} else if (!strcmp(type, "F32")) {
		there = rh_gguf_real(file, key, &real);
	} else if (!strcmp(type, "BOOL")) {
		there = rh_gguf_bool(file, key, &truth);
	} else {
		there = rh_gguf_string(file, key, &text);
	}
	if (there != 1)
		fail_msg("%s: no %s", rh_gguf_path(file), key);
	int is_same = !strcmp(type, "U32")    ? whole == atoll(value)
	              : !strcmp(type, "F32")  ? (float)real == strtof(value, NULL)
	              : !strcmp(type, "BOOL") ? truth == atoi(value)
	              : !strcmp(type, "STR")  ? !strcmp(text, value)
	                                      : 1;
	if (!is_same)
		fail_msg("%s: %lld, %.9g, %d or '%s', not %s", key, (long long)whole, real, truth, text, value);
}

/* What exp makes may differ in the last bit. */
static void check_values(const char *name, const float *found, size_t count, const char *values)
{
	char *end;
	for (size_t i = 0; i < count; i++, values = end) {
		double value = strtod(values, &end);
		assert_true(end > values);
		if (!(fabs((double)found[i] - value) <= 1.2e-7 * fabs(value)))
			fail_msg("%s[%zu]: %.9g, not %.9g", name, i, (double)found[i], value);
	}
}

static void check_tensor(const struct rh_gguf *file, char *line)
{
	char *name = strsep(&line, " "), *type = strsep(&line, " "), *sizes = strsep(&line, " "), found[64] = "";
	const struct rh_gguf_tensor *tensor = rh_gguf_find(file, name);
	if (!tensor)
		fail_msg("%s: no tensor %s", rh_gguf_path(file), name);
	for (int d = tensor->rank - 1; d >= 0; d--)
		snprintf(found + strlen(found), sizeof found - strlen(found), "%lld%s", (long long)tensor->shape[d], d ? "x" : "");
	if (strcmp(found, sizes) || strcmp(rh_dtype_name(tensor->dtype), type))
		fail_msg("%s: %s of %s, not %s of %s", name, rh_dtype_name(tensor->dtype), found, type, sizes);
	char *bytes = malloc((size_t)tensor->bytes);
	check_ok(rh_file_read(tensor->file, tensor->offset, bytes, (size_t)tensor->bytes));
	if (!strcmp(name + strlen(name) - strlen(".ssm_a"), ".ssm_a"))
		check_values(name, (const float *)(const void *)bytes, (size_t)tensor->bytes / 4, line);
	else if (crc_of(bytes, (size_t)tensor->bytes) != strtoul(line, NULL, 16))
		fail_msg("%s: other values", name);
	free(bytes);
}

static enum rh_dtype type_named(const char *name)
{
	static const struct {
		const char *name;
		enum rh_dtype dtype;
	} types[] = {{"f32", RH_F32}, {"f16", RH_F16}, {"bf16", RH_BF16}, {"q8_0", RH_Q8_0}};
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (!strcmp(types[i].name, name))
			return types[i].dtype;
	fail_msg("no type %s", name);
	return RH_F32;
}

static void test_files_are_those_of_llama_cpps_converter(void **state)
{
	(void)state;
	struct rh_bytes reference;
	struct rh_gguf *file = NULL;
	enum rh_dtype dtype = RH_F32;
	int64_t models = 0, tensors = 0, keys = 0, here = 0;
	scratch_make(dir);
	check_ok(rh_file_load(ROOT "ckpt/converted.txt", &reference));
	for (char *text = reference.bytes, *line; (line = strsep(&text, "\n"));) {
		char *word = strsep(&line, " ");
		if (file && (!strcmp(word, "model") || !*word)) {
			assert_int_equal(here, rh_gguf_count(file)); /* and no other tensor */
			rh_gguf_close(file);
			file = NULL;
		}
		if (!strcmp(word, "model")) {
			const char *model = strsep(&line, " ");
			dtype = type_named(strsep(&line, " "));
			lay_out(model, line);
			models++;
			here = 0;
		} else if (!strcmp(word, "edit")) {
			edit_as_said(line);
		} else if (*word && !file) {
			struct rh_merge merge = {.model = in_dir("model"), .gguf = in_dir("written.gguf"), .dtype = dtype, .threads = 2};
			struct rh_merged merged;
			check_ok(rh_merge(&merge, &merged));
			check_ok(rh_gguf_open(in_dir("written.gguf"), &file));
		}
		if (!strcmp(word, "key")) {
			char *key = strsep(&line, " "), *type = strsep(&line, " ");
			check_key(file, key, type, line);
			keys++;
		} else if (!strcmp(word, "tensor")) {
			check_tensor(file, line);
			tensors++;
			here++;
		}
	}
	assert_true(!file && models == 18 && tensors > 400 && keys > 200);
	rh_bytes_free(&reference);
	check_ok(rh_dir_remove(dir));
}

/* The same rows of both sources; where the GGUF has experts apart, those of expert `expert`. */
static void compare_rows(const struct rh_source *one, const struct source_entry *entry, int64_t first, const struct rh_source *two,
                         const char *name)
{
	enum { MOST = 1 << 14 };
	static float a[MOST], b[MOST];
	const struct source_entry *other = source_entries_find(&two->entries, name);
	assert_non_null(other);
	int64_t count = other->rows * other->cols;
	assert_true(count <= MOST && other->cols == entry->cols);
	check_ok(rh_source_read(one, entry->name, first * entry->cols, count, RH_F32, a));
	check_ok(rh_source_read(two, name, 0, count, RH_F32, b));
	/* 1 + w and -exp(w) are rounded in the file */
	double tolerance = other->has_one_added ? 1.2e-7 : other->is_minus_exp ? 3e-7 : 0;
	for (int64_t i = 0; i < count; i++)
		if (!(fabs((double)a[i] - (double)b[i]) <= tolerance * (1 + fabs((double)a[i]))))
			fail_msg("%s[%lld]: %.9g, not %.9g", name, (long long)i, (double)b[i], (double)a[i]);
}

/* Experts that a directory has in one tensor and a GGUF has apart: gates first, then ups. */
static void compare_experts(const struct rh_source *one, const struct source_entry *entry, const struct rh_source *two)
{
	const struct rh_model_config *config = rh_source_config(one);
	int64_t wide = config->expert_size;
	int is_down = strstr(entry->name, "down_proj") != NULL;
	char name[256];
	for (int64_t e = 0; e < config->experts; e++)
		for (int k = 0; k < (is_down ? 1 : 2); k++) {
			snprintf(name, sizeof name, "%.*s.%lld.%s_proj.weight", (int)(strrchr(entry->name, '.') - entry->name), entry->name,
			         (long long)e,
			         is_down ? "down"
			         : k     ? "up"
			                 : "gate");
			compare_rows(one, entry, is_down ? e * config->hidden_size : (2 * e + k) * wide, two, name);
		}
}

static void test_what_is_written_is_read_back(void **state)
{
	(void)state;
	static const struct {
		const char *model, *tokenizer;
	} cases[] = {{"models/gguf-gpt-oss", "adapters/qwen3"},        {"ckpt/gpt-oss", "ckpt/converted/small"},
	             {"models/gguf-qwen3.5", "adapters/qwen3"},        {"models/gguf-qwen3.5-moe", "adapters/qwen3"},
	             {"models/gguf-muse-glimmer", "adapters/qwen3"},   {"models/gguf-gemma4", "ckpt/converted/gemma4"},
	             {"models/gemma4-vision", "ckpt/converted/small"}, {"ckpt/converted/gemma4-e2b", "ckpt/converted/gemma4"},
	             {"models/gguf-smollm3", "adapters/qwen3"},        {"models/gguf-granite", "adapters/qwen3"},
	             {"models/gguf-qwen3-next", "adapters/qwen3"}};
	int64_t compared = 0;
	scratch_make(dir);
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		struct rh_source *source[3];
		struct rh_merged merged;
		lay_out(cases[c].model, cases[c].tokenizer);
		check_ok(rh_merge(&(struct rh_merge){.model = in_dir("model"), .gguf = in_dir("one.gguf"), .dtype = RH_F32}, &merged));
		/* a GGUF of a GGUF: of the same values again */
		check_ok(rh_merge(&(struct rh_merge){.model = in_dir("one.gguf"), .gguf = in_dir("two.gguf"), .dtype = RH_F32}, &merged));
		check_ok(rh_source_open(in_dir("model"), &source[0]));
		check_ok(rh_source_open(in_dir("one.gguf"), &source[1]));
		check_ok(rh_source_open(in_dir("two.gguf"), &source[2]));
		for (size_t t = 0; t < source[0]->entries.count; t++) {
			const struct source_entry *entry = &source[0]->entries.entry[t];
			char name[256];
			const char *inside = strstr(entry->name, "language_model.");
			int is_wrapped = inside && !strstr(rh_model_names(rh_source_config(source[1]))->layers, "language_model.");
			snprintf(name, sizeof name, "%s%s", is_wrapped ? "model." : "",
			         is_wrapped ? inside + strlen("language_model.") : entry->name);
			for (int k = 1; k < 3; k++)
				if (source_entries_find(&source[k]->entries, name))
					compare_rows(source[0], entry, 0, source[k], name);
				else
					compare_experts(source[0], entry, source[k]);
			compared++;
		}
		for (int k = 0; k < 3; k++)
			rh_source_close(source[k]);
	}
	assert_true(compared > 300);
	check_ok(rh_dir_remove(dir));
}

/* What llama.cpp has built in otherwise, and would run without a word. */
static void test_models_that_llama_cpp_would_run_otherwise_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *model, *old, *new, *line;
	} cases[] = {{"models/gguf-qwen3-moe", "\"hidden_act\"", "\"hidden_act\"", "has layers without experts (mlp_only_layers)"},
	             {"models/gguf-qwen3-moe", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false", "norm_topk_prob is false"},
	             {"models/qwen3.5-moe-vision", "\"model_type\": \"qwen3_5_moe\"", "\"model_type\": \"qwen3_5_moe\"",
	              "linear_key_head_dim is 8 and linear_value_head_dim 12"},
	             {"models/gguf-muse-glimmer", "\"post_norm_eps\": 1e-08", "\"post_norm_eps\": 1e-06", "post_norm_eps is 1e-06"},
	             {"models/gemma4-e2b", "\"enable_moe_block\"", "\"enable_moe_block\"", "num_kv_shared_layers 2: llama.cpp lends"},
	             {"models/gemma3", "\"hidden_size\"", "\"hidden_size\"", "models of type gemma3_text are not written to GGUF"}};
	scratch_make(dir);
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		struct rh_merged merged;
		lay_out(cases[c].model, strstr(cases[c].model, "gguf") ? "adapters/qwen3" : "ckpt/converted/small");
		edit(cases[c].old, cases[c].new);
		if (strstr(cases[c].old, "norm_topk_prob")) /* then it is the first thing to be said */
			edit("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1"), edit("[\n    1\n  ]", "[]");
		struct rh_merge merge = {.model = in_dir("model"), .gguf = in_dir("written.gguf"), .dtype = RH_F32};
		assert_int_equal(rh_merge(&merge, &merged), -EINVAL);
		if (!strstr(rh_error(-EINVAL), cases[c].line))
			fail_msg("%s", rh_error(-EINVAL));
		assert_false(rh_file_exists(in_dir("written.gguf")));
	}
	const char *model = ROOT "models/gemma4-e2b", *adapter = ROOT "models/gemma4-e2b/adapter";
	struct rh_merged merged;
	check_refused(rh_adapter_gguf_write(&(struct rh_adapter_gguf){model, adapter, in_dir("lora.gguf"), RH_F32}, &merged),
	              "adapts per_layer_model_projection, which llama.cpp would not do");
	assert_false(rh_file_exists(in_dir("lora.gguf")));
	check_ok(rh_dir_remove(dir));
}

enum { RANK = 2, MOST_FACTORS = 64 };

/* An adapter of all experts' two parameters, as PEFT saves it: random, but the same each time. */
static void write_adapter(const struct rh_model_config *config)
{
	const struct rh_family_names *names = rh_model_names(config);
	int64_t experts = config->experts, wide = config->expert_size ? config->expert_size : config->intermediate_size;
	const int64_t hidden = config->hidden_size,
	              sizes[4][2] = {
	                      {experts * RANK, hidden}, {2 * wide, RANK * experts}, {experts * RANK, wide}, {hidden, RANK * experts}};
	const char *experts_of = names->experts ? names->experts : "mlp.experts";
	struct rh_safetensors_entry entry[MOST_FACTORS];
	char name[MOST_FACTORS][128], text[512];
	struct rh_safetensors_out *out;
	uint64_t seed = 7;
	int64_t count = 0;
	for (int64_t layer = 0; layer < config->num_hidden_layers; layer++)
		for (int k = 0; k < 4; k++, count++) {
			assert_true(count < MOST_FACTORS);
			snprintf(name[count], sizeof name[0], "base_model.model.%s%lld.%s%s.lora_%c.weight", names->layers,
			         (long long)layer, experts_of, k < 2 ? ".base_layer" : "", "AB"[k % 2]);
			entry[count] = (struct rh_safetensors_entry){name[count], RH_F32, 2, {sizes[k][0], sizes[k][1]}};
		}
	check_ok(rh_dir_make(in_dir("adapter")));
	check_ok(rh_safetensors_create(in_dir("adapter/adapter_model.safetensors"), entry, count, &out));
	for (int64_t e = 0; e < count; e++)
		for (int64_t i = 0; i < entry[e].shape[0] * entry[e].shape[1]; i++) {
			float value = check_uniform(&seed) - 0.5F;
			check_ok(rh_safetensors_write(out, &value, sizeof value));
		}
	check_ok(rh_safetensors_commit(out));
	snprintf(text, sizeof text,
	         "{\"peft_type\": \"LORA\", \"r\": %d, \"lora_alpha\": 3, \"target_modules\": [], \"bias\": \"none\", "
	         "\"target_parameters\": [\"%s.gate_up_proj\", \"%s.down_proj\"]}",
	         RANK, experts_of, experts_of);
	scratch_text(in_dir("adapter"), "adapter_config.json", text);
}

static float *read_f32(const struct rh_gguf *file, const char *name, const struct rh_gguf_tensor **out)
{
	const struct rh_gguf_tensor *tensor = rh_gguf_find(file, name);
	if (!tensor || tensor->dtype != RH_F32)
		fail_msg("%s: no %s in F32", rh_gguf_path(file), name);
	float *values = malloc((size_t)tensor->bytes);
	check_ok(rh_file_read(tensor->file, tensor->offset, values, (size_t)tensor->bytes));
	*out = tensor;
	return values;
}

/* The same tensors, and the same values but for what exp made. */
static void compare_files(const struct rh_gguf *one, const char *path)
{
	struct rh_gguf *two;
	check_ok(rh_gguf_open(path, &two));
	assert_int_equal(rh_gguf_count(one), rh_gguf_count(two));
	for (int64_t t = 0; t < rh_gguf_count(one); t++) {
		const struct rh_gguf_tensor *a, *b;
		const char *name = rh_gguf_at(one, t)->name;
		float *x = read_f32(one, name, &a), *y = read_f32(two, name, &b);
		assert_true(a->rank == b->rank && !memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape));
		for (int64_t i = 0; i < a->bytes / 4; i++)
			if (!(fabsf(x[i] - y[i]) <= (strstr(name, ".ssm_a") ? 3e-7F * fabsf(x[i]) : 0)))
				fail_msg("%s[%lld]: %.9g and %.9g", name, (long long)i, (double)x[i], (double)y[i]);
		free(x);
		free(y);
	}
	rh_gguf_close(two);
}

/* Of one tensor of experts: the merged one against scale * W x + alpha / rank * B A x, as llama.cpp has it, where the scale beside W is the
 * merged file's too. `stem` is its name up to ".lora_a". */
static void check_experts(struct rh_gguf *const *file, const char *stem)
{
	char name[4][160];
	const struct rh_gguf_tensor *t[4];
	for (int k = 0; k < 4; k++)
		snprintf(name[k], sizeof name[0], "%s%s", stem, k == 1 ? ".lora_a" : k == 2 ? ".lora_b" : "");
	float *w = read_f32(file[0], name[0], &t[0]), *a = read_f32(file[1], name[1], &t[1]), *b = read_f32(file[1], name[2], &t[2]),
	      *merged = read_f32(file[2], name[3], &t[3]), *scale = NULL, moved = 0;
	const int64_t *shape = t[0]->shape, experts = shape[0], rows = shape[1], cols = shape[2];
	assert_true(t[1]->rank == 3 && t[1]->shape[0] == experts && t[1]->shape[1] == RANK && t[1]->shape[2] == cols);
	assert_true(t[2]->rank == 3 && t[2]->shape[0] == experts && t[2]->shape[1] == rows && t[2]->shape[2] == RANK);
	snprintf(name[0], sizeof name[0], "%.*s.scale", (int)(strlen(stem) - strlen(".weight")), stem);
	if (rh_gguf_find(file[0], name[0]))
		scale = read_f32(file[0], name[0], &t[0]);
	for (int64_t i = 0; i < experts * rows * cols; i++) {
		int64_t row = i / cols, e = row / rows;
		float delta = 0;
		for (int k = 0; k < RANK; k++)
			delta += 3.0F / RANK * b[row * RANK + k] * a[(e * RANK + k) * cols + i % cols];
		check_near((double)(scale ? scale[e] : 1) * (double)merged[i],
		           (double)(scale ? scale[e] : 1) * (double)w[i] + (double)delta, 1e-5);
		moved = fmaxf(moved, fabsf(delta));
	}
	assert_true(moved > 0.1F);
	free(w);
	free(a);
	free(b);
	free(merged);
	free(scale);
}

static void test_adapters_of_experts_add_what_the_merge_does(void **state)
{
	(void)state;
	static const struct {
		const char *model, *tokenizer;
		int tensors; /* of experts, of each layer */
	} cases[] = {{"models/gguf-gpt-oss", "adapters/qwen3", 3},
	             {"models/gguf-qwen3.5-moe", "adapters/qwen3", 3},
	             {"models/gguf-qwen3-next", "adapters/qwen3", 3},
	             {"models/gguf-gemma4", "ckpt/converted/gemma4", 2}, /* gates and ups are one tensor */
	             {"models/gguf-qwen3-moe", "adapters/qwen3", 3}};
	scratch_make(dir);
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		struct rh_source *source;
		struct rh_merged merged;
		struct rh_gguf *file[3];
		const char *const path[] = {"base.gguf", "lora.gguf", "merged.gguf"};
		lay_out(cases[c].model, cases[c].tokenizer);
		if (strstr(cases[c].model, "qwen3-moe"))
			edit("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1"), edit("[\n    1\n  ]", "[]");
		check_ok(rh_source_open(in_dir("model"), &source));
		write_adapter(rh_source_config(source));
		int64_t layers = rh_source_config(source)->num_hidden_layers;
		rh_source_close(source);
		char model[192];
		snprintf(model, sizeof model, "%s", in_dir("model"));
		check_ok(rh_merge(&(struct rh_merge){.model = model, .gguf = in_dir(path[0]), .dtype = RH_F32}, &merged));
		/* the adapter's GGUF is the same from the model's */
		check_ok(rh_adapter_gguf_write(&(struct rh_adapter_gguf){in_dir(path[0]), in_dir("adapter"), in_dir(path[1]), RH_F32},
		                               &merged));
		check_ok(rh_merge(
		        &(struct rh_merge){
		                .model = in_dir(path[0]), .adapter = in_dir("adapter"), .gguf = in_dir(path[2]), .dtype = RH_F32},
		        &merged));
		for (int k = 0; k < 3; k++)
			check_ok(rh_gguf_open(in_dir(path[k]), &file[k]));
		assert_int_equal(rh_gguf_count(file[1]), 2 * cases[c].tensors * layers);
		for (int64_t t = 0; t < rh_gguf_count(file[1]); t++) {
			char stem[128];
			snprintf(stem, sizeof stem, "%s", rh_gguf_at(file[1], t)->name);
			char *end = strstr(stem, ".lora_a");
			if (end) {
				*end = 0;
				check_experts(file, stem);
			}
		}
		check_ok(rh_adapter_gguf_write(&(struct rh_adapter_gguf){model, in_dir("adapter"), in_dir("again.gguf"), RH_F32}, &merged));
		compare_files(file[1], in_dir("again.gguf"));
		check_ok(rh_merge(
		        &(struct rh_merge){.model = model, .adapter = in_dir("adapter"), .gguf = in_dir("again.gguf"), .dtype = RH_F32},
		        &merged));
		compare_files(file[2], in_dir("again.gguf"));
		for (int k = 0; k < 3; k++)
			rh_gguf_close(file[k]);
	}
	check_ok(rh_dir_remove(dir));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_files_are_those_of_llama_cpps_converter),
	        cmocka_unit_test(test_what_is_written_is_read_back),
	        cmocka_unit_test(test_adapters_of_experts_add_what_the_merge_does),
	        cmocka_unit_test(test_models_that_llama_cpp_would_run_otherwise_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
