/* QUANTISE, TRANSPOSE and SCALED_GEMM: the oracle by hand. */
#include "scaled_case.h"

static void test_quantise_known_answer(void **state)
{
	(void)state;
	float x[6] = {896, -3, 1000, 0.1f, 448, -2000}, part[RH_QUANTISE_PARTS], scale;
	uint8_t y[6], t[3 * 16];
	struct rh_op op = {.kind = RH_OP_QUANTISE, .quantise.limit = RH_E4M3_LARGEST};
	op.operand[RH_QUANTISE_X] = rh_view_of(x, RH_F32, 2, 3);
	op.operand[RH_QUANTISE_PART] = rh_view_of(part, RH_F32, 1, RH_QUANTISE_PARTS);
	op.operand[RH_QUANTISE_SCALE] = rh_view_of(&scale, RH_F32, 1, 1);
	op.operand[RH_QUANTISE_Y] = rh_view_of(y, RH_E4M3, 2, 3);
	op.operand[RH_QUANTISE_T] = rh_view_of(t, RH_E4M3, 3, 16);
	rh_op_oracle(&op);
	assert_true(scale == 8);
	/* 112, -0.375, 125 -> 128, 0.0125 -> 3 * 2^-8 = 0.01171875, 56, -250 -> -256 */
	const float worth[6] = {112, -0.375f, 128, 0.01171875f, 56, -256};
	for (int i = 0; i < 6; i++) {
		assert_true(rh_e4m3_to_f32(y[i]) == worth[i]);
		assert_int_equal(t[i % 3 * 16 + i / 3], y[i]);
	}
	for (int i = 0; i < 48; i++)
		assert_true(i % 16 < 2 || t[i] == 0);
}

/* (1 2) times itself, both scaled; and 2048 + 1 + 1: in one chunk of fp16 each 1 is lost, in two the last is kept. */
static void test_scaled_gemm_known_answers(void **state)
{
	(void)state;
	_Alignas(16) uint8_t eight[16 * 16] = {0};
	_Alignas(16) uint16_t a[72] = {0}, b[72] = {0};
	_Alignas(16) float d[16] = {0};
	float scale = 4, one = 1;
	eight[0] = rh_f32_to_e4m3(1), eight[1] = rh_f32_to_e4m3(2);
	struct rh_op op = {.kind = RH_OP_SCALED_GEMM, .scaled_gemm = {.trans_b = 1, .alpha = 2}};
	op.operand[RH_SCALED_GEMM_A] = rh_view_of(eight, RH_E4M3, 1, 16);
	op.operand[RH_SCALED_GEMM_B] = rh_view_of(eight, RH_E4M3, 16, 16);
	op.operand[RH_SCALED_GEMM_SCALE_A] = rh_view_of(&scale, RH_F32, 1, 1);
	op.operand[RH_SCALED_GEMM_SCALE_B] = rh_view_of(&one, RH_F32, 1, 1);
	op.operand[RH_SCALED_GEMM_D] = rh_view_of(d, RH_F32, 1, 16);
	rh_op_oracle(&op);
	assert_true(d[0] == 2 * 4 * 5 && d[1] == 0);
	a[0] = a[16] = a[64] = rh_f32_to_bf16(1), b[0] = rh_f32_to_bf16(2048), b[16] = b[64] = a[0];
	op.operand[RH_SCALED_GEMM_A] = rh_view_of(a, RH_BF16, 1, 72);
	op.operand[RH_SCALED_GEMM_B] = rh_view_of(b, RH_BF16, 1, 72);
	op.operand[RH_SCALED_GEMM_SCALE_A] = rh_view_of(&one, RH_F32, 1, 1);
	op.operand[RH_SCALED_GEMM_D] = (struct rh_view){d, RH_F32, 1, 1, 4};
	op.scaled_gemm.alpha = 1;
	op.scaled_gemm.chunk = 96;
	rh_op_oracle(&op);
	assert_true(d[0] == 2048);
	op.scaled_gemm.chunk = 64;
	rh_op_oracle(&op);
	assert_true(d[0] == 2049);
}

static void test_half_limit_keeps_a_chunk_within_fp16(void **state)
{
	(void)state;
	for (int chunk = RH_CHUNK_UNIT; chunk <= RH_CHUNK_MOST; chunk += RH_CHUNK_UNIT) {
		float limit = rh_half_limit(chunk), sum = 0;
		assert_true(limit >= 4);
		for (int k = 0; k < chunk; k += 16)
			sum = rh_f16_to_f32(rh_f32_to_f16(sum + 16 * limit * limit));
		assert_true(sum < 65504);
	}
}

/* The CPU device runs them by the oracle: bit-equal whatever the threads. */
static void check_cpu(struct op_case *c, uint64_t *seed)
{
	(void)seed;
	case_check(c);
}

static void test_quantise_on_the_cpu_equals_the_oracle(void **state)
{
	(void)state;
	scaled_quantise_each(check_cpu);
	scaled_rows_each(check_cpu);
}

/* By hand: a row whose largest is 900 has the scale 4 (900 / 448 is above 2), in which numbers have four bits. */
static void test_quantise_rows_known_answer(void **state)
{
	(void)state;
	float x[2][8] = {{900, -1, 0.3F, 0, 100, 4, 1e-3F, -448}, {0}}, scale[2] = {-1, -1}, back[2][8];
	const float want[8] = {896, -1, 0.3125F, 0, 96, 4, 0, -448}; /* 225 -> 224, 0.075 -> 0.078125, 25 -> 24 (even), 0.00025 -> 0 */
	uint8_t y[2][8];
	struct rh_op op = {.kind = RH_OP_QUANTISE_ROWS}, undo = {.kind = RH_OP_DEQUANTISE};
	op.operand[RH_QUANTISE_ROWS_X] = rh_view_of(x, RH_F32, 2, 8);
	op.operand[RH_QUANTISE_ROWS_SCALE] = undo.operand[RH_DEQUANTISE_SCALE] = rh_view_of(scale, RH_F32, 2, 1);
	op.operand[RH_QUANTISE_ROWS_Y] = undo.operand[RH_DEQUANTISE_X] = rh_view_of(y, RH_E4M3, 2, 8);
	undo.operand[RH_DEQUANTISE_Y] = rh_view_of(back, RH_F32, 2, 8);
	undo.dequantise.run = 8, undo.dequantise.tall = 1;
	assert_null(rh_op_fault(&op));
	rh_op_oracle(&op);
	assert_true(scale[0] == 4 && scale[1] == 1);
	assert_null(rh_op_fault(&undo));
	rh_op_oracle(&undo);
	for (int i = 0; i < 8; i++)
		assert_true(back[0][i] == want[i] && back[1][i] == 0);
}

static void test_transpose_known_answer(void **state)
{
	(void)state;
	_Alignas(16) uint8_t x[16 * 32], y[32 * 16];
	struct rh_op op = {.kind = RH_OP_TRANSPOSE};
	op.operand[RH_TRANSPOSE_X] = rh_view_of(x, RH_E4M3, 16, 32);
	op.operand[RH_TRANSPOSE_Y] = rh_view_of(y, RH_E4M3, 32, 16);
	for (int i = 0; i < 512; i++)
		x[i] = (uint8_t)(7 * i);
	rh_op_oracle(&op);
	for (int i = 0; i < 512; i++)
		assert_int_equal(y[i % 32 * 16 + i / 32], (uint8_t)(7 * i));
	scaled_transpose_each(check_cpu);
}

static void test_scaled_gemm_on_the_cpu_equals_the_oracle(void **state)
{
	(void)state;
	scaled_gemm_each(scaled_half, 3, check_cpu);
	scaled_gemm_each(scaled_eight, sizeof scaled_eight / sizeof *scaled_eight, check_cpu);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_quantise_known_answer),
	        cmocka_unit_test(test_scaled_gemm_known_answers),
	        cmocka_unit_test(test_half_limit_keeps_a_chunk_within_fp16),
	        cmocka_unit_test(test_quantise_rows_known_answer),
	        cmocka_unit_test(test_quantise_on_the_cpu_equals_the_oracle),
	        cmocka_unit_test(test_transpose_known_answer),
	        cmocka_unit_test(test_scaled_gemm_on_the_cpu_equals_the_oracle),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
