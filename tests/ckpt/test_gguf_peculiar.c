/* What GGUF files of some families have beside the rest: layers that predict further tokens, pairs that do not turn, -exp of a vector. */
#include "check.h"
#include "scratch.h"

#include "ckpt/gguf.h"
#include "ckpt/gguf_out.h"
#include "ckpt/merge.h"
#include "ckpt/source_internal.h"
#include "core/file.h"

#include <string.h>

#define MODELS "tests/reference/models/"

static char dir[64];

static const char *in_dir(const char *name)
{
	static char path[128];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

static void copy_tensor(struct rh_gguf_out *out, const struct rh_gguf_tensor *tensor)
{
	static char bytes[1 << 18];
	assert_true(tensor->bytes <= (int64_t)sizeof bytes);
	check_ok(rh_file_read(tensor->file, tensor->offset, bytes, (size_t)tensor->bytes));
	check_ok(rh_gguf_out_write(out, bytes, tensor->bytes));
	check_ok(rh_gguf_out_end(out));
}

/* `model` with one layer more, as llama.cpp's converter has multi-token prediction; `said` layers of it predict. */
static void add_prediction(const char *model, const char *path, int64_t said)
{
	static const char *const without[] = {"qwen35.block_count", NULL};
	static const char *const more[] = {"blk.4.nextn.eh_proj.weight", "blk.4.attn_norm.weight"};
	static const float zero[32];
	struct rh_gguf *from;
	struct rh_gguf_out *out;
	check_ok(rh_gguf_open(model, &from));
	check_ok(rh_gguf_out_create(path, &out));
	check_ok(rh_gguf_out_copy(out, from, without));
	check_ok(rh_gguf_out_u32(out, "qwen35.block_count", 5));
	check_ok(rh_gguf_out_u32(out, "qwen35.nextn_predict_layers", said));
	for (int64_t t = 0; t < rh_gguf_count(from); t++) {
		const struct rh_gguf_tensor *tensor = rh_gguf_at(from, t);
		int is_matrix = tensor->rank == 2;
		check_ok(rh_gguf_out_tensor(out, tensor->name, tensor->dtype, is_matrix ? tensor->shape[0] : 0, tensor->shape[is_matrix]));
	}
	for (int i = 0; i < 2; i++)
		check_ok(rh_gguf_out_tensor(out, more[i], RH_F32, 0, 32));
	check_ok(rh_gguf_out_begin(out));
	for (int64_t t = 0; t < rh_gguf_count(from); t++)
		copy_tensor(out, rh_gguf_at(from, t));
	for (int i = 0; i < 2; i++) {
		check_ok(rh_gguf_out_write(out, zero, sizeof zero));
		check_ok(rh_gguf_out_end(out));
	}
	check_ok(rh_gguf_out_commit(out));
	rh_gguf_close(from);
}

static void test_layers_that_predict_further_tokens_are_left_out(void **state)
{
	(void)state;
	static const char model[] = MODELS "gguf-qwen3.5/model.gguf";
	static float a[1 << 16], b[1 << 16];
	struct rh_source *plain, *source;
	struct rh_merged merged;
	char path[128];
	scratch_make(dir);
	snprintf(path, sizeof path, "%s", in_dir("predicts.gguf"));
	add_prediction(model, path, 1);
	check_ok(rh_source_open(model, &plain));
	check_ok(rh_source_open(path, &source));
	assert_int_equal(rh_source_config(source)->num_hidden_layers, 4);
	assert_int_equal(source->entries.count, plain->entries.count);
	for (size_t i = 0; i < plain->entries.count; i++) {
		const struct source_entry *entry = &plain->entries.entry[i];
		int64_t count = entry->rows * entry->cols;
		assert_true(count <= 1 << 16);
		check_ok(rh_source_read(plain, entry->name, 0, count, RH_F32, a));
		check_ok(rh_source_read(source, entry->name, 0, count, RH_F32, b));
		assert_memory_equal(a, b, (size_t)count * sizeof *a);
	}
	rh_source_close(plain);
	rh_source_close(source);
	int rc = rh_merge(&(struct rh_merge){.model = path, .gguf = in_dir("out.gguf"), .dtype = RH_F16}, &merged);
	assert_int_equal(rc, -EINVAL);
	assert_non_null(strstr(rh_error(rc), "has layers that predict further tokens, which are not copied into another GGUF file"));
	assert_false(rh_file_exists(in_dir("out.gguf")));
	add_prediction(model, path, 5);
	rc = rh_source_open(path, &source);
	assert_int_equal(rc, -EINVAL);
	assert_non_null(strstr(rh_error(rc), "5 of 5 layers predict further tokens, which makes no sense"));
	check_ok(rh_dir_remove(dir));
}

/* A copy of the model, in whose vector number `place` is another. */
static void change_number(const char *model, const char *tensor, int64_t place, float number, const char *path)
{
	struct rh_gguf *gguf;
	check_ok(rh_file_copy(model, path));
	check_ok(rh_gguf_open(path, &gguf));
	const struct rh_gguf_tensor *found = rh_gguf_find(gguf, tensor);
	assert_non_null(found);
	assert_true(found->dtype == RH_F32 && place < found->shape[0]);
	int64_t at = found->offset + place * (int64_t)sizeof number;
	rh_gguf_close(gguf);
	FILE *file = fopen(path, "r+b");
	assert_non_null(file);
	assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
	assert_int_equal(fwrite(&number, sizeof number, 1, file), 1);
	fclose(file);
}

/* Gemma 4's pairs turn, or do not: 1, and behind it 1e30. */
static void test_pairs_that_turn_by_another_number_are_refused(void **state)
{
	(void)state;
	static const struct {
		int64_t place;
		float number;
		const char *line;
	} cases[] = {{0, 2, "rope_freqs.weight[0] is 2; 1 and behind it 1e30 are supported"},
	             {0, 1e30f, "rope_freqs.weight[1] is 1; 1 and behind it 1e30 are supported"}};
	char path[128];
	scratch_make(dir);
	snprintf(path, sizeof path, "%s", in_dir("turns.gguf"));
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_source *source;
		change_number(MODELS "gguf-gemma4/model.gguf", "rope_freqs.weight", cases[i].place, cases[i].number, path);
		int rc = rh_source_open(path, &source);
		assert_int_equal(rc, -EINVAL);
		if (!strstr(rh_error(rc), cases[i].line))
			fail_msg("'%s' does not hold '%s'", rh_error(rc), cases[i].line);
	}
	check_ok(rh_dir_remove(dir));
}

static void test_what_is_no_minus_exp_is_refused(void **state)
{
	(void)state;
	struct rh_source *source;
	float values[8];
	char path[128];
	scratch_make(dir);
	snprintf(path, sizeof path, "%s", in_dir("decay.gguf"));
	change_number(MODELS "gguf-qwen3-next/model.gguf", "blk.0.ssm_a", 2, 0.5f, path);
	check_ok(rh_source_open(path, &source));
	int rc = rh_source_read(source, "model.layers.0.linear_attn.A_log", 0, 4, RH_F32, values);
	assert_int_equal(rc, -EINVAL);
	assert_non_null(strstr(rh_error(rc), "'blk.0.ssm_a' has 0.5, where -exp of a number must be"));
	rh_source_close(source);
	check_ok(rh_dir_remove(dir));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers_that_predict_further_tokens_are_left_out),
	                                   cmocka_unit_test(test_pairs_that_turn_by_another_number_are_refused),
	                                   cmocka_unit_test(test_what_is_no_minus_exp_is_refused)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
