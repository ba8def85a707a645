/* Models whose matrices have scales of their own: each value is what the quantiser's own code makes of it. */
#include "source_case.h"
#include "tensor_bytes.h"

#include "core/log.h"
#include "device/op.h"
#include "model/model.h"

#include <math.h>

#define PACKED "tests/reference/packed/"

static const struct {
	const char *model;
	enum rh_form form;
	const char *beside, *line; /* a tensor without which it is refused, and what the line then says */
} cases[] = {
        {"bnb-nf4", RH_FORM_NF4, "quant_map", "quant_map', without which its numbers mean nothing, is missing"},
        {"bnb-nf4-nested", RH_FORM_NF4_NESTED, "nested_absmax", "nested_absmax', without which its numbers mean nothing, is missing"},
        {"bnb-fp4", RH_FORM_BNB_FP4, "absmax", "absmax', without which its numbers mean nothing, is missing"},
        {"bnb-fp4-nested", RH_FORM_BNB_FP4_NESTED, "absmax", "absmax', without which its numbers mean nothing, is missing"},
        {"bnb-int8", RH_FORM_INT8, "SCB", "SCB', without which its numbers mean nothing, is missing"},
        {"fp8-blocks", RH_FORM_FP8_BLOCKS, "weight_scale_inv", "weight_scale_inv', without which its numbers mean nothing, is missing"},
        {"fp8", RH_FORM_FP8, "weight_scale_inv", "weight_scale_inv', without which its numbers mean nothing, is missing"},
        {"fp8-blocks-e8m0", RH_FORM_FP8_BLOCKS, "weight_scale_inv",
         "weight_scale_inv', without which its numbers mean nothing, is missing"},
        {"nvfp4-compressed", RH_FORM_NVFP4, "weight_global_scale",
         "weight_global_scale', without which its numbers mean nothing, is missing"},
        {"nvfp4-modelopt", RH_FORM_NVFP4, "weight_scale", "weight_scale', without which its numbers mean nothing, is missing"},
        {"nvfp4-modelopt", RH_FORM_NVFP4, "weight_scale_2", "weight_scale_2', without which its numbers mean nothing, is missing"}};
enum { CASES = sizeof cases / sizeof *cases };

/* What the oracle of DEQUANTISE makes of a matrix's bytes. */
static void dequantise(enum rh_form form, char *bytes, int64_t rows, int64_t cols, float *out)
{
	const struct rh_form_traits *of = rh_form_traits(form);
	struct rh_op op = {.kind = RH_OP_DEQUANTISE, .dequantise = {of->run, of->tall, RH_INT8_UNIT}};
	int64_t scale_rows = rh_form_scale_rows(form, rows), runs = rh_form_runs(form, cols);
	int64_t factors = (scale_rows * runs + RH_NESTED_RUN - 1) / RH_NESTED_RUN;
	char *tail = bytes + rh_form_tail_at(form, rows, cols);
	op.operand[RH_DEQUANTISE_X] = rh_view_of(bytes, of->element, rows, cols);
	op.operand[RH_DEQUANTISE_Y] = rh_view_of(out, RH_F32, rows, cols);
	op.operand[RH_DEQUANTISE_SCALE] = rh_view_of(bytes + rh_form_scales_at(form, rows, cols), of->scale, scale_rows, runs);
	if (of->tail == RH_TAIL_FACTORS)
		op.operand[RH_DEQUANTISE_NESTED] = rh_view_of(tail, RH_F32, 1, RH_FACTORS);
	if (of->tail == RH_TAIL_NESTED) {
		op.operand[RH_DEQUANTISE_NESTED] = rh_view_of(tail, RH_F32, 1, factors);
		op.operand[RH_DEQUANTISE_MAP] = rh_view_of(tail + 4 * factors, RH_F32, 1, RH_NESTED_MAP);
	}
	assert_null(rh_op_fault(&op));
	rh_op_oracle(&op);
}

/* Equal to the last bit; but ModelOpt's zeros have no sign. */
static int are_equal(const float *a, const float *b, int64_t count)
{
	int64_t i = 0;
	while (i < count && a[i] == b[i])
		i++;
	return i == count;
}

static void check_entry(const struct rh_source *source, const struct source_entry *entry, const float *expected, enum rh_form form)
{
	int64_t rows = entry->rows, cols = entry->cols, count = rows * cols;
	float *values = malloc((size_t)count * 4);
	assert_non_null(values);
	int64_t pieces[] = {0, rows / 3, rows};
	for (int p = 0; p < 2; p++)
		check_ok(rh_source_read(source, entry->name, pieces[p] * cols, (pieces[p + 1] - pieces[p]) * cols, RH_F32,
		                        values + pieces[p] * cols));
	if (!are_equal(values, expected, count))
		fail_msg("%s: %s differs as numbers", source->path, entry->name);
	if (form) {
		char *bytes = calloc(1, (size_t)rh_form_bytes(form, rows, cols));
		assert_non_null(bytes);
		check_ok(rh_source_read_packed(source, entry->name, 0, rows, bytes));
		check_ok(rh_source_read_scales(source, entry->name, bytes + rh_form_scales_at(form, rows, cols),
		                               bytes + rh_form_tail_at(form, rows, cols)));
		dequantise(form, bytes, rows, cols, values);
		if (!are_equal(values, expected, count))
			fail_msg("%s: %s differs as it is", source->path, entry->name);
		free(bytes);
	}
	free(values);
}

static void test_values_are_those_of_the_quantiser(void **state)
{
	(void)state;
	for (int c = 0; c < CASES; c++) {
		char path[96];
		struct rh_source *source;
		struct rh_safetensors *values;
		int packed = 0;
		snprintf(path, sizeof path, PACKED "%s", cases[c].model);
		check_ok(rh_source_open(path, &source));
		snprintf(path, sizeof path, PACKED "%s.safetensors", cases[c].model);
		check_ok(rh_safetensors_open(path, &values));
		for (size_t i = 0; i < source->entries.count; i++) {
			const struct source_entry *entry = &source->entries.entry[i];
			const struct rh_safetensor *expected = rh_safetensors_find(values, entry->name);
			enum rh_form form = rh_source_form(source, &(struct rh_tensor){.name = entry->name});
			assert_non_null(expected);
			int is_one_block = cases[c].form == RH_FORM_FP8_BLOCKS && form == RH_FORM_FP8;
			assert_true(!form || form == cases[c].form || is_one_block);
			packed += form != RH_FORM_PLAIN;
			check_entry(source, entry, (const float *)(const void *)tensor_bytes(values, expected), form);
		}
		assert_int_equal(packed, 7);
		rh_safetensors_close(values);
		rh_source_close(source);
	}
}

/* A copy of a model of theirs, to be spoilt. */
static void copy_packed(const char *model, char *dir)
{
	char from[160], to[160];
	scratch_make(dir);
	for (int f = 0; f < 2; f++) {
		snprintf(from, sizeof from, PACKED "%s/%s", model, f ? "config.json" : "model.safetensors");
		snprintf(to, sizeof to, "%s/%s", dir, f ? "config.json" : "model.safetensors");
		check_ok(rh_file_copy(from, to));
	}
}

/* Powers of two are also stored as bytes. */
static void test_scales_of_fp8_may_be_bytes(void **state)
{
	(void)state;
	static const char name[] = "model.layers.0.mlp.up_proj.weight";
	char dir[64];
	float values[2][192 * 64];
	struct rh_source *source;
	for (int is_byte = 0; is_byte < 2; is_byte++) {
		copy_packed("fp8-blocks-e8m0", dir);
		if (is_byte)
			replace(dir, "model.safetensors", "\"model.layers.0.mlp.up_proj.weight_scale_inv\":{\"dtype\":\"F8_E8M0\"",
			        "\"model.layers.0.mlp.up_proj.weight_scale_inv\":{\"dtype\":\"U8\"     ");
		check_ok(rh_source_open(dir, &source));
		assert_int_equal(rh_source_form(source, &(struct rh_tensor){.name = (char *)(uintptr_t)name}), RH_FORM_FP8_BLOCKS);
		check_ok(rh_source_read(source, name, 0, 192 * 64, RH_F32, values[is_byte]));
		rh_source_close(source);
		check_ok(rh_dir_remove(dir));
	}
	assert_memory_equal(values[0], values[1], sizeof values[0]);
}

/* The tensor's name is changed where the header has it. */
static void test_a_matrix_without_its_scales_is_refused(void **state)
{
	(void)state;
	for (int c = 0; c < CASES; c++) {
		char dir[64], name[128], other[128];
		struct rh_source *source;
		copy_packed(cases[c].model, dir);
		const char *of = strncmp(cases[c].beside, "weight", 6) && strcmp(cases[c].beside, "SCB") ? "weight." : "";
		snprintf(name, sizeof name, "\"model.layers.0.mlp.up_proj.%s%s\"", of, cases[c].beside);
		snprintf(other, sizeof other, "%s", name);
		other[strlen(other) - 2] = 'X';
		replace(dir, "model.safetensors", name, other);
		check_refused(rh_source_open(dir, &source), cases[c].line);
		check_ok(rh_dir_remove(dir));
	}
}

static void test_other_quantisers_are_refused_by_name(void **state)
{
	(void)state;
	static const struct {
		const char *model, *from, *to, *line;
	} others[] = {{"fp8", "\"quant_method\": \"fp8\"", "\"quant_method\": \"awq\"", "stored quantised by 'awq'"},
	              {"fp8", "\"quant_method\": \"fp8\"", "\"quant_method\": \"gptq\"", "stored quantised by 'gptq'"},
	              {"fp8", "\"quant_method\": \"fp8\"", "\"quant_method\": \"torchao\"", "stored quantised by 'torchao'"},
	              {"fp8", "\"quant_method\": \"fp8\"", "\"quant_method\": \"mxfp8\"", "stored quantised by 'mxfp8'"},
	              {"fp8", "\"quant_method\": \"fp8\"", "\"quant_method\": \"mxfp4\"", "stored quantised by 'mxfp4'"},
	              {"fp8-blocks", "128,", "64,", "has the weight_block_size 64 x 128, which is not supported"},
	              {"nvfp4-compressed", "nvfp4-pack-quantized", "pack-quantized",
	               "stored quantised by 'compressed-tensors' in the format 'pack-quantized'"},
	              {"nvfp4-compressed", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
	               "stored quantised by 'compressed-tensors' in the format 'mxfp4-pack-quantized'"},
	              {"nvfp4-modelopt", "\"NVFP4\"", "\"FP8\"", "stored quantised by 'modelopt' in the quant_algo 'FP8'"},
	              {"nvfp4-modelopt", "\"NVFP4\"", "\"MIXED_PRECISION\"",
	               "stored quantised by 'modelopt' in the quant_algo 'MIXED_PRECISION'"},
	              {"nvfp4-modelopt", "\"quant_algo\"", "\"quant_algorithm\"", "stored quantised by 'modelopt' in the quant_algo ''"}};
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		char dir[64];
		struct rh_source *source;
		copy_packed(others[i].model, dir);
		replace(dir, "config.json", others[i].from, others[i].to);
		check_refused(rh_source_open(dir, &source), others[i].line);
		check_ok(rh_dir_remove(dir));
	}
}

/* A factor that is 0 or negative; scales multiplied into activations beforehand; scales of another type. Its name, or its first bytes. */
static void test_nvfp4_that_means_something_else_is_refused(void **state)
{
	(void)state;
	static const struct {
		const char *model, *from, *to, *line;
	} others[] = {{"nvfp4-modelopt", "up_proj.input_scale\":{\"dtype\":\"F32\"", "up_proj.pre_quant_scale\":{\"dtype\":\"F32\"",
	               "up_proj.weight' is stored by NVFP4_AWQ"},
	              {"nvfp4-modelopt", "up_proj.weight_scale\":{\"dtype\":\"F8_E4M3\"", "up_proj.weight_scale\":{\"dtype\":\"U8\"     ",
	               "up_proj.weight' has scales of type U8, which is not supported"}};
	char dir[64];
	struct rh_source *source;
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		copy_packed(others[i].model, dir);
		replace(dir, "model.safetensors", others[i].from, others[i].to);
		if (!i) /* the header stays as long as it was */
			replace(dir, "model.safetensors", "{\"format\":\"pt\"}", "{\"abc\":\"d\"}");
		check_refused(rh_source_open(dir, &source), others[i].line);
		check_ok(rh_dir_remove(dir));
	}
	static const float wrong[] = {0, -1, INFINITY, NAN};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		char path[96];
		struct rh_safetensors *file;
		copy_packed("nvfp4-compressed", dir);
		snprintf(path, sizeof path, "%s/model.safetensors", dir);
		check_ok(rh_safetensors_open(path, &file));
		int64_t at = rh_safetensors_find(file, "model.layers.0.mlp.up_proj.weight_global_scale")->offset;
		rh_safetensors_close(file);
		FILE *out = fopen(path, "r+b");
		assert_non_null(out);
		assert_int_equal(fseek(out, (long)at, SEEK_SET), 0);
		assert_int_equal(fwrite(&wrong[i], sizeof *wrong, 1, out), 1);
		fclose(out);
		check_refused(rh_source_open(dir, &source), "up_proj.weight_global_scale' is ");
		check_ok(rh_dir_remove(dir));
	}
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_values_are_those_of_the_quantiser),
	                                   cmocka_unit_test(test_scales_of_fp8_may_be_bytes),
	                                   cmocka_unit_test(test_a_matrix_without_its_scales_is_refused),
	                                   cmocka_unit_test(test_nvfp4_that_means_something_else_is_refused),
	                                   cmocka_unit_test(test_other_quantisers_are_refused_by_name)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
