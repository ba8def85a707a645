#include "scratch.h"

#include "ckpt/gguf.h"
#include "ckpt/safetensors.h"
#include "ckpt/source.h"
#include "core/float16.h"
#include "core/log.h"

static const char *const models[] = {"llama", "qwen2", "qwen3"};

static int64_t elements(const int64_t *shape, int rank)
{
	int64_t count = 1;
	for (int d = 0; d < rank; d++)
		count *= shape[d];
	return count;
}

/* Reads tensor `name` whole, then by halves of its rows, as F32 and as BF16; all must tell the same. */
static void check_tensor(const struct rh_source *source, const struct rh_safetensor *wanted)
{
	struct rh_source_tensor found;
	if (!rh_source_find(source, wanted->name, &found))
		fail_msg("%s is not found", wanted->name);
	assert_int_equal(found.rank, wanted->rank);
	assert_memory_equal(found.shape, wanted->shape, (size_t)found.rank * sizeof(int64_t));
	int64_t count = elements(found.shape, found.rank), cols = found.rank == 2 ? found.shape[1] : 1;
	float *values = malloc((size_t)count * 4), *expected = malloc((size_t)count * 4);
	uint16_t *halves = malloc((size_t)count * 2);
	check_ok(rh_dequantise(wanted->dtype, wanted->data, count, expected));
	check_ok(rh_source_read(source, wanted->name, 0, count, RH_F32, values));
	if (memcmp(values, expected, (size_t)count * 4))
		fail_msg("%s: %s differs", rh_source_path(source), wanted->name);
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
		check_tensor(source, rh_safetensors_at(file, i));
	float nothing;
	struct rh_source_tensor tensor;
	assert_int_equal(rh_source_find(source, "model.layers.2.mlp.up_proj.weight", &tensor), 0);
	int rc = rh_source_read(source, "model.layers.2.mlp.up_proj.weight", 0, 1, RH_F32, &nothing);
	assert_int_equal(rc, -ENOENT);
	check_refused(rc, "there is no tensor 'model.layers.2.mlp.up_proj.weight'");
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
			assert_non_null(a.rope_divisor);
			assert_true(a.rope_divisor[0] == 1 && a.rope_divisor[3] == 8);
			json_t *json;
			struct rh_model_config written;
			check_ok(rh_model_config_write(&a, "float32", &json));
			check_ok(rh_model_config_parse(json, "written", &written));
			assert_int_equal(written.rope_type, RH_ROPE_LLAMA3);
			assert_true(written.rope_factor == 8 && written.rope_low_freq_factor == 1 && written.rope_high_freq_factor == 4);
			assert_int_equal(written.rope_original_max_position, 8192);
			json_decref(json);
			rh_model_config_free(&written);
			b.rope_type = RH_ROPE_DEFAULT;
			b.rope_factor = b.rope_low_freq_factor = b.rope_high_freq_factor = 0;
			b.rope_original_max_position = 0;
		}
		a.rope_divisor = NULL;
		a.source = b.source = NULL;
		assert_memory_equal(&a, &b, sizeof a);
		assert_int_equal(a.tie_word_embeddings, m == 1);
		assert_int_equal(a.family, m);
		struct rh_source_tensor head;
		assert_int_equal(rh_source_find(gguf, "lm_head.weight", &head), m != 1);
		rh_source_close(gguf);
		rh_source_close(directory);
	}
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_source_gguf_has_hugging_face_names_and_order),
	        cmocka_unit_test(test_source_directory_reads_single_files_and_shards),
	        cmocka_unit_test(test_source_configurations_of_gguf_and_directory_agree),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
