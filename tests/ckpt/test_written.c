/* Whole directories as a run would leave them, from every tiny source, under build/<variant>/ckpt-written: read back here, and by
 * transformers and PEFT in tests/reference/ckpt_written.py. */
#include "scratch.h"

#include "ckpt/model_out.h"
#include "ckpt/peft.h"
#include "ckpt/source_internal.h"
#include "core/log.h"

static const struct {
	const char *name, *source, *names; /* names: a safetensors file with the model's tensors */
} models[] = {
        {"llama", REFERENCE "llama.gguf", REFERENCE "llama.safetensors"}, {"qwen2", REFERENCE "qwen2.gguf", REFERENCE "qwen2.safetensors"},
        {"qwen3", REFERENCE "qwen3.gguf", REFERENCE "qwen3.safetensors"}, {"llama-dir", REFERENCE "llama", REFERENCE "llama.safetensors"},
        {"qwen2-dir", REFERENCE "qwen2", REFERENCE "qwen2.safetensors"},  {"qwen3-dir", REFERENCE "qwen3", REFERENCE "qwen3.safetensors"},
};
enum { MODELS = sizeof models / sizeof *models, MOST_TENSORS = 64 };

/* The name and shape of each tensor that the model has, from its reference file. */
static int64_t list_entries(const struct rh_safetensors *names, enum rh_dtype dtype, struct rh_safetensors_entry *out)
{
	int64_t count = rh_safetensors_count(names);
	assert_true(count <= MOST_TENSORS);
	for (int64_t i = 0; i < count; i++) {
		const struct rh_safetensor *tensor = rh_safetensors_at(names, i);
		out[i] = (struct rh_safetensors_entry){.name = tensor->name, .dtype = dtype, .rank = tensor->rank};
		memcpy(out[i].shape, tensor->shape, sizeof out[i].shape);
	}
	return count;
}

static int64_t entry_elements(const struct rh_safetensors_entry *entry)
{
	return entry->shape[0] * (entry->rank == 2 ? entry->shape[1] : 1);
}

static void write_weights(const struct rh_source *source, const struct rh_safetensors_entry *entries, int64_t count, const char *dir)
{
	struct rh_model_out *out;
	check_ok(rh_model_out_create(dir, entries, count, 30000, &out));
	for (int64_t i = 0; i < count; i++) {
		int64_t elements = entry_elements(&entries[i]);
		void *values = malloc((size_t)elements * 4);
		check_ok(rh_source_read(source, entries[i].name, 0, elements, entries[i].dtype, values));
		check_ok(rh_model_out_write(out, values, rh_dtype_bytes(entries[i].dtype, elements)));
		free(values);
	}
	check_ok(rh_model_out_commit(out));
}

static void write_config(const struct rh_source *source, const char *torch_dtype, const char *dir)
{
	json_t *json;
	check_ok(rh_model_config_write(rh_source_config(source), torch_dtype, &json));
	char *text = json_dumps(json, JSON_INDENT(2));
	scratch_text(dir, "config.json", text);
	free(text);
	json_decref(json);
}

/* LoRA on q_proj and down_proj of both layers, A counting up and B down. */
static void write_adapter(const struct rh_source *source, const char *dir)
{
	static const char *const modules[] = {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj",
	                                      "model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"};
	char *targets[] = {(char[]){"q_proj"}, (char[]){"down_proj"}}, base[] = "base", name[8][128];
	struct rh_peft_override rank = {(char[]){"mlp.down_proj"}, 3};
	struct rh_peft_config config = {.r = 2,
	                                .lora_alpha = 4,
	                                .use_rslora = 1,
	                                .target = targets,
	                                .targets = 2,
	                                .base_model_name_or_path = base,
	                                .rank_override = &rank,
	                                .rank_overrides = 1};
	struct rh_safetensors_entry entries[8];
	for (int m = 0; m < 4; m++) {
		char weight[128];
		int64_t r;
		double alpha;
		snprintf(weight, sizeof weight, "%s.weight", modules[m]);
		const struct source_entry *entry = source_entries_find(&source->entries, weight);
		assert_non_null(entry);
		assert_int_equal(rh_peft_matches(&config, modules[m]), 1);
		check_ok(rh_peft_module(&config, modules[m], &r, &alpha));
		for (int part = 0; part < 2; part++)
			snprintf(name[2 * m + part], sizeof name[0], "base_model.model.%s.lora_%c.weight", modules[m], "AB"[part]);
		entries[2 * m] = (struct rh_safetensors_entry){name[2 * m], RH_F32, 2, {r, entry->tensor.shape[1]}};
		entries[2 * m + 1] = (struct rh_safetensors_entry){name[2 * m + 1], RH_F32, 2, {entry->tensor.shape[0], r}};
	}
	char *path = rh_path_join(dir, "adapter_model.safetensors");
	struct rh_safetensors_out *out;
	check_ok(rh_safetensors_create(path, entries, 8, &out));
	for (int e = 0; e < 8; e++)
		for (int64_t i = 0; i < entry_elements(&entries[e]); i++) {
			float value = (float)(i + 1) / (e % 2 ? -512.0f : 1024.0f);
			check_ok(rh_safetensors_write(out, &value, sizeof value));
		}
	check_ok(rh_safetensors_commit(out));
	check_ok(rh_peft_config_save(&config, dir));
	rh_free(path);
}

static void compare(const struct rh_source *a, const struct rh_source *b, const struct rh_safetensors_entry *entries, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		int64_t elements = entry_elements(&entries[i]);
		float *x = malloc((size_t)elements * 4), *y = malloc((size_t)elements * 4);
		check_ok(rh_source_read(a, entries[i].name, 0, elements, RH_F32, x));
		check_ok(rh_source_read(b, entries[i].name, 0, elements, RH_F32, y));
		assert_memory_equal(x, y, (size_t)elements * 4);
		free(x);
		free(y);
	}
}

static void test_written_directories_read_back(void **state)
{
	(void)state;
	const char *build = getenv("RH_BUILD");
	char root[256], dir[512];
	snprintf(root, sizeof root, "%s/ckpt-written", build ? build : "build/release");
	check_ok(rh_dir_remove(root));
	for (int m = 0; m < MODELS; m++) {
		struct rh_source *source, *again;
		struct rh_safetensors *names;
		struct rh_safetensors_entry entries[MOST_TENSORS];
		snprintf(dir, sizeof dir, "%s/%s", root, models[m].name);
		check_ok(rh_dir_make(dir));
		check_ok(rh_source_open(models[m].source, &source));
		check_ok(rh_safetensors_open(models[m].names, &names));
		int64_t count = list_entries(names, RH_F32, entries);
		write_weights(source, entries, count, dir);
		write_config(source, "float32", dir);
		check_ok(rh_source_open(dir, &again));
		compare(source, again, entries, count);
		strcat(dir, "/adapter"); /* beside the model, transformers would load it unasked */
		check_ok(rh_dir_make(dir));
		write_adapter(source, dir);
		rh_source_close(again);
		rh_safetensors_close(names);
		rh_source_close(source);
	}
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_written_directories_read_back)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
