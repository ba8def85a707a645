/* DEQUANTISE on the CPU: its formats by hand and against the reader of files, its kernels against the oracle to the last bit. */
#include "dequantise_case.h"

#include "ckpt/gguf.h"
#include "core/blocks.h"

static void check_cpu(struct op_case *c, uint64_t *seed)
{
	(void)seed;
	case_check(c);
}

static void test_dequantise_equals_the_oracle(void **state)
{
	(void)state;
	dequantise_each(check_cpu);
}

/* Which is bit-equal to gguf.quants.dequantize (tests/ckpt/test_gguf.c). */
static void test_dequantise_of_ggml_blocks_equals_the_reader_of_files(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	enum { ROWS = 3, COLS = 512 };
	float read[COLS];
	for (int t = 0; t < DEQUANTISE_TYPES && dequantise_types[t] >= RH_Q4_0; t++) {
		struct op_case c =
		        dequantise_case(&(struct dequantise_shape){dequantise_types[t], RH_F32, ROWS, COLS, 1, 0, 0, 0, 0}, &seed);
		struct rh_view x = c.op.operand[RH_DEQUANTISE_X], y = c.op.operand[RH_DEQUANTISE_Y];
		rh_op_oracle(&c.op);
		for (int64_t r = 0; r < ROWS; r++) {
			check_ok(rh_dequantise(x.dtype, (char *)x.data + rh_dtype_bytes(x.dtype, r * x.stride), COLS, read));
			assert_memory_equal(read, (float *)y.data + r * y.stride, sizeof read);
		}
		case_free(&c);
	}
}

/* transformers' convert_moe_packed_tensors gives 1.5, -0.5, 96, 2^-127 and so on for these. */
static void test_dequantise_of_mxfp4_blocks_by_hand(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct op_case c = dequantise_case(&(struct dequantise_shape){RH_FP4, RH_F32, 1, 128, 0, 32, 0, 0, 0}, &seed);
	uint8_t *bytes = c.op.operand[RH_DEQUANTISE_X].data, *scale = c.op.operand[RH_DEQUANTISE_SCALE].data;
	struct rh_view y = c.op.operand[RH_DEQUANTISE_Y];
	memset(bytes, 0x93, 64); /* low half first: 1.5, -0.5 */
	bytes[16] = 0x7f;        /* -6, 6 */
	scale[0] = 127, scale[1] = 131, scale[2] = 0, scale[3] = 255;
	rh_op_oracle(&c.op);
	assert_true(case_get(y, 0, 0) == 1.5 && case_get(y, 0, 1) == -0.5 && case_get(y, 0, 31) == -0.5);
	assert_true(case_get(y, 0, 32) == -96 && case_get(y, 0, 33) == 96 && case_get(y, 0, 34) == 24);
	assert_true(case_get(y, 0, 64) == 0x1.8p-127 && case_get(y, 0, 65) == -0x1p-128);
	assert_true(isnan(case_get(y, 0, 96)));
	case_free(&c);
}

/* bitsandbytes: the first of two values is in the high half; absmax of a block of 64, itself map[q] * nested absmax + offset. */
static void test_dequantise_of_nf4_blocks_by_hand(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int nested = 0; nested < 2; nested++) {
		struct op_case c = dequantise_case(&(struct dequantise_shape){RH_NF4, RH_F32, 1, 128, 0, 64, nested, 0, 0}, &seed);
		uint8_t *bytes = c.op.operand[RH_DEQUANTISE_X].data;
		struct rh_view y = c.op.operand[RH_DEQUANTISE_Y], scale = c.op.operand[RH_DEQUANTISE_SCALE];
		memset(bytes, 0x0f, 32); /* -1, 1 */
		memset(bytes + 32, 0x7e, 32);
		if (nested) {
			((uint8_t *)scale.data)[0] = 3;
			((uint8_t *)scale.data)[1] = 255;
			case_put(c.op.operand[RH_DEQUANTISE_MAP], 0, 3, 0.5);
			case_put(c.op.operand[RH_DEQUANTISE_MAP], 0, 255, 1);
			case_put(c.op.operand[RH_DEQUANTISE_NESTED], 0, 0, 4);
			case_put(c.op.operand[RH_DEQUANTISE_MAP], 0, 256, 1);
		} else {
			case_put(scale, 0, 0, 3);
			case_put(scale, 0, 1, 5);
		}
		rh_op_oracle(&c.op);
		assert_true(case_get(y, 0, 0) == -3 && case_get(y, 0, 1) == 3 && case_get(y, 0, 63) == 3);
		assert_true(case_get(y, 0, 64) == 0 && case_get(y, 0, 65) == (double)(0.7229568362236023f * 5.0f));
		case_free(&c);
	}
}

/* LLM.int8: a scale for each row, the largest absolute value, which 127 stands for. */
static void test_dequantise_of_int8_rows_by_hand(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct op_case c = dequantise_case(&(struct dequantise_shape){RH_I8, RH_F32, 2, 21, 0, 24, 0, 0, 0}, &seed);
	int8_t *q = c.op.operand[RH_DEQUANTISE_X].data;
	c.op.dequantise.unit = 7.874015718698502e-3f;
	q[0] = 127, q[20] = -127, q[21] = -128;
	case_put(c.op.operand[RH_DEQUANTISE_SCALE], 0, 0, 2);
	case_put(c.op.operand[RH_DEQUANTISE_SCALE], 1, 0, 8);
	assert_int_equal(c.op.operand[RH_DEQUANTISE_SCALE].cols, 1);
	rh_op_oracle(&c.op);
	struct rh_view y = c.op.operand[RH_DEQUANTISE_Y];
	assert_true(case_get(y, 0, 0) == 2 && case_get(y, 0, 20) == -2);
	assert_true(fabs(case_get(y, 1, 0) + 8 * 128.0 / 127) < 1e-6);
	case_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_dequantise_equals_the_oracle),
	        cmocka_unit_test(test_dequantise_of_ggml_blocks_equals_the_reader_of_files),
	        cmocka_unit_test(test_dequantise_of_mxfp4_blocks_by_hand),
	        cmocka_unit_test(test_dequantise_of_nf4_blocks_by_hand),
	        cmocka_unit_test(test_dequantise_of_int8_rows_by_hand),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
