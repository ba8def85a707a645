/* Matrices made packed: what DEQUANTISE's oracle makes of them is within half a step of what they were made of. */
#include "check.h"

#include "ckpt/quantise_form.h"
#include "core/blocks.h"
#include "core/float8.h"
#include "device/op.h"

#include <math.h>
#include <string.h>

enum { ROWS = 260, COLS = 192 };

static float values[ROWS * COLS], out[ROWS * COLS];
static char packed[ROWS * COLS * 2];
static float scale[ROWS * COLS];

static void dequantise(enum rh_form form, int64_t rows, int64_t cols)
{
	const struct rh_form_traits *of = rh_form_traits(form);
	struct rh_op op = {.kind = RH_OP_DEQUANTISE, .dequantise = {of->run, of->run ? of->tall : 0, RH_INT8_UNIT}};
	int64_t scale_rows = rh_form_scale_rows(form, rows), runs = rh_form_runs(form, cols);
	char *tail = packed + rh_form_tail_at(form, rows, cols);
	int64_t factors = (scale_rows * runs + RH_NESTED_RUN - 1) / RH_NESTED_RUN;
	op.operand[RH_DEQUANTISE_X] = rh_view_of(packed, of->element, rows, cols);
	op.operand[RH_DEQUANTISE_Y] = rh_view_of(out, RH_F32, rows, cols);
	if (of->run)
		op.operand[RH_DEQUANTISE_SCALE] = rh_view_of(packed + rh_form_scales_at(form, rows, cols), of->scale, scale_rows, runs);
	if (of->tail == RH_TAIL_NESTED) {
		op.operand[RH_DEQUANTISE_NESTED] = rh_view_of(tail, RH_F32, 1, factors);
		op.operand[RH_DEQUANTISE_MAP] = rh_view_of(tail + 4 * factors, RH_F32, 1, RH_NESTED_MAP);
	}
	assert_null(rh_op_fault(&op));
	rh_op_oracle(&op);
}

static void make(enum rh_form form, int64_t rows, int64_t cols)
{
	assert_true(rh_form_bytes(form, rows, cols) <= (int64_t)sizeof packed);
	memset(packed, 0, sizeof packed);
	rh_form_quantise(form, values, rows, cols, packed, scale);
	if (rh_form_traits(form)->run)
		rh_form_store_scales(form, rows, cols, scale, packed + rh_form_scales_at(form, rows, cols),
		                     packed + rh_form_tail_at(form, rows, cols));
	dequantise(form, rows, cols);
}

/* The widest gap between neighbours of a type's values, of which the largest is 1. */
static float widest(enum rh_form form)
{
	switch (form) {
	case RH_FORM_NF4:
	case RH_FORM_NF4_NESTED:
		return 1 - 0.6961928f;
	case RH_FORM_BNB_FP4:
	case RH_FORM_BNB_FP4_NESTED:
	case RH_FORM_MXFP4:
		return 1 / 3.0f;
	case RH_FORM_INT8:
	case RH_FORM_Q8_0:
		return 1 / 127.0f;
	case RH_FORM_FP8_BLOCKS:
		return 32 / 448.0f;
	default: /* Q4_0, which has no code for the largest value's opposite */
		return 2 / 8.0f;
	}
}

/* The largest value that shares the element's scale. */
static float largest(enum rh_form form, int64_t row, int64_t col, int64_t rows, int64_t cols)
{
	const struct rh_form_traits *of = rh_form_traits(form);
	int64_t run = of->run ? of->run : rh_dtype_block(of->element), r = row / of->tall * of->tall, c = col / run * run;
	float most = 0;
	for (int64_t i = r; i < rows && i < r + of->tall; i++)
		for (int64_t j = c; j < cols && j < c + run; j++)
			most = fmaxf(most, fabsf(values[i * cols + j]));
	return most;
}

static void test_made_matrices_are_within_half_a_step(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int f = RH_FORM_PLAIN + 1; f < RH_FORMS; f++) {
		enum rh_form form = (enum rh_form)f;
		if (!rh_may_quantise_form(form))
			continue;
		for (int i = 0; i < ROWS * COLS; i++)
			values[i] = check_uniform(&seed) * (1 + (float)(i / 64 % 7)) / 8;
		for (int i = 64; i < 128; i++)
			values[i] = 0;
		make(form, ROWS, COLS);
		int is_nested = rh_form_traits(form)->tail == RH_TAIL_NESTED;
		for (int64_t r = 0; r < ROWS; r++)
			for (int64_t c = 0; c < COLS; c++) {
				float value = values[r * COLS + c], most = largest(form, r, c, ROWS, COLS);
				/* a nested scale is off by half a step of its own map, and of MXFP4's largest values those above 6 are cut */
				float beside = is_nested ? 0.02f : form == RH_FORM_MXFP4 ? most / 4 : most * 0x1p-10f;
				if (!(fabsf(out[r * COLS + c] - value) <= most * widest(form) / 2 + beside))
					fail_msg("%s: row %d, column %d: %g for %g of %g", rh_form_traits(form)->name, (int)r, (int)c,
					         (double)out[r * COLS + c], (double)value, (double)most);
			}
	}
}

/* What a type has exactly comes back to the bit. */
static void test_values_that_the_type_has_come_back(void **state)
{
	(void)state;
	for (int i = 0; i < 64; i++)
		values[i] = 3 * rh_nf4_value(i % 16);
	make(RH_FORM_NF4, 1, 64);
	assert_memory_equal(out, values, 64 * sizeof *out);
	assert_int_equal((uint8_t)packed[0], 0x01); /* the first of two in the high half */
	for (int i = 0; i < 64; i++)
		values[i] = 5 * rh_bnb_fp4_value(i % 16);
	values[8] = 0;
	for (int i = 24; i < 64; i += 16)
		values[i] = 0;
	make(RH_FORM_BNB_FP4, 1, 64);
	assert_memory_equal(out, values, 64 * sizeof *out);
	for (int i = 0; i < 64; i++)
		values[i] = 0.25f * rh_fp4_value(i % 8);
	make(RH_FORM_MXFP4, 1, 64);
	assert_memory_equal(out, values, 64 * sizeof *out);
	for (int i = 0; i < 64; i++)
		values[i] = rh_e4m3_to_f32((uint8_t)(64 + i));
	values[0] = 448;
	make(RH_FORM_FP8_BLOCKS, 1, 64);
	assert_memory_equal(out, values, 64 * sizeof *out);
	for (int i = 0; i < 64; i++)
		values[i] = (float)(i - 32);
	values[0] = 127;
	make(RH_FORM_INT8, 1, 64);
	for (int i = 0; i < 64; i++)
		assert_true(fabsf(out[i] - values[i]) < 1e-4f);
}

/* A matrix of zeros has scales of 0, and no value that is no number. */
static void test_zeros_stay_zeros(void **state)
{
	(void)state;
	memset(values, 0, sizeof values);
	for (int f = RH_FORM_PLAIN + 1; f < RH_FORMS; f++)
		if (rh_may_quantise_form((enum rh_form)f)) {
			make((enum rh_form)f, 130, COLS);
			for (int i = 0; i < 130 * COLS; i++)
				assert_true(out[i] == 0);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_made_matrices_are_within_half_a_step),
	                                   cmocka_unit_test(test_values_that_the_type_has_come_back),
	                                   cmocka_unit_test(test_zeros_stay_zeros)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
