/* Matrices that stay as their files have them: their rows are in Hugging Face's order, and worth what reading them as numbers gives. */
#include "source_case.h"

#include "core/blocks.h"
#include "core/log.h"
#include "model/model.h"

#define MODELS "tests/reference/models/"

static void values_of(enum rh_form form, const void *elements, const uint8_t *scales, int64_t count, float *out)
{
	if (form != RH_FORM_MXFP4) {
		check_ok(rh_dequantise(rh_form_traits(form)->element, elements, count, out));
		return;
	}
	for (int64_t i = 0; i < count; i++)
		out[i] = rh_fp4_value(((const uint8_t *)elements)[i / 2] >> i % 2 * 4 & 15) * rh_e8m0_value(scales[i / 32]);
}

/* Rows in pieces of three. */
static void check_matrix(const struct rh_source *source, const struct source_entry *entry, enum rh_form form)
{
	enum { PIECE = 3 };
	int64_t rows = entry->rows, cols = entry->cols;
	char *bytes = malloc((size_t)rh_form_bytes(form, PIECE, cols));
	float *expected = malloc((size_t)(PIECE * cols) * 4), *values = malloc((size_t)(PIECE * cols) * 4);
	uint8_t *scales = malloc((size_t)rh_form_scale_bytes(form, rows, cols) + 1);
	assert_true(bytes && expected && values && scales);
	if (rh_form_traits(form)->run)
		check_ok(rh_source_read_scales(source, entry->name, scales, NULL));
	for (int64_t first = 0; first < rows; first += PIECE) {
		int64_t count = rows - first < PIECE ? rows - first : PIECE;
		check_ok(rh_source_read(source, entry->name, first * cols, count * cols, RH_F32, expected));
		check_ok(rh_source_read_packed(source, entry->name, first, count, bytes));
		values_of(form, bytes, scales + first * rh_form_runs(form, cols), count * cols, values);
		if (memcmp(values, expected, (size_t)(count * cols) * 4))
			fail_msg("%s differs in rows from %lld on", entry->name, (long long)first);
	}
	free(scales);
	free(bytes);
	free(expected);
	free(values);
}

/* How many matrices have this form. */
static int check_model(const char *path, enum rh_form form)
{
	struct rh_source *source;
	int found = 0;
	check_ok(rh_source_open(path, &source));
	for (size_t i = 0; i < source->entries.count; i++) {
		const struct source_entry *entry = &source->entries.entry[i];
		enum rh_form has = rh_source_form(source, &(struct rh_tensor){.name = entry->name});
		if (has)
			check_matrix(source, entry, has);
		found += has == form;
	}
	assert_int_equal(rh_source_form(source, &(struct rh_tensor){.name = (char *)(uintptr_t) "model.norm.weight"}), RH_FORM_PLAIN);
	assert_int_equal(rh_source_form(source, &(struct rh_tensor){.name = (char *)(uintptr_t) "no.such"}), RH_FORM_PLAIN);
	rh_source_close(source);
	return found;
}

static void test_packed_rows_are_those_of_the_file(void **state)
{
	(void)state;
	assert_true(check_model(REFERENCE "llama.gguf", RH_FORM_Q8_0) > 0); /* whose queries' and keys' rows move */
	assert_true(check_model(MODELS "gguf-llama/model.gguf", RH_FORM_Q8_0) > 0);
	assert_true(check_model(MODELS "gguf-qwen3-moe/model.gguf", RH_FORM_Q8_0) > 10); /* an expert is part of a tensor */
	assert_true(check_model(MODELS "gguf-gpt2/model.gguf", RH_FORM_Q8_0) > 0);
	assert_true(check_model(MODELS "gguf-gemma3/model.gguf", RH_FORM_Q8_0) > 0);
	assert_int_equal(check_model(REFERENCE "gpt-oss", RH_FORM_MXFP4), 2);
}

/* Gates and ups of GPT-OSS are two tensors, whose rows are alternately the model's. */
static void test_packed_rows_of_two_tensors_alternate(void **state)
{
	(void)state;
	enum { EXPERTS = 3, WIDE = 5, COLS = 64, BLOCK = 34, OF_ONE = EXPERTS * WIDE * COLS / 32 * BLOCK };
	static uint8_t bytes[2 * OF_ONE];
	char dir[64], path[96];
	struct rh_file_in *file;
	for (int i = 0; i < 2 * OF_ONE; i++)
		bytes[i] = (uint8_t)(i % BLOCK == 1 ? 0x20 : i * i / 7); /* small scales */
	scratch_make(dir);
	scratch_write(dir, "two", bytes, sizeof bytes);
	snprintf(path, sizeof path, "%s/two", dir);
	check_ok(rh_file_open(path, &file));
	struct source_entry entry = {.name = path,
	                             .tensor = {.dtype = RH_Q8_0, .rank = 3, .shape = {EXPERTS, WIDE, COLS}},
	                             .file = file,
	                             .rows = 2 * EXPERTS * WIDE,
	                             .cols = COLS,
	                             .stored2 = path,
	                             .file2 = file,
	                             .dtype2 = RH_Q8_0,
	                             .offset2 = OF_ONE};
	const struct rh_source source = {.path = path, .entries = {&entry, 1, 1}};
	const struct rh_tensor tensor = {.name = path};
	assert_int_equal(rh_source_form(&source, &tensor), RH_FORM_Q8_0);
	check_matrix(&source, &entry, RH_FORM_Q8_0);
	entry.dtype2 = RH_Q5_0; /* no matrix has two types */
	assert_int_equal(rh_source_form(&source, &tensor), RH_FORM_PLAIN);
	rh_file_close(file);
	check_ok(rh_dir_remove(dir));
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_packed_rows_are_those_of_the_file),
	                                   cmocka_unit_test(test_packed_rows_of_two_tensors_alternate)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
