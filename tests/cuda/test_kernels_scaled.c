/* QUANTISE, TRANSPOSE, and SCALED_GEMM with fp16 sums; that of 8-bit operands is cuBLASLt's, tested through the device. */
#include "kernel_case.h"

#include "scaled_case.h"

#include "cuda/kernels.h"

static void check_quantise(struct op_case *c, uint64_t *seed)
{
	kernel_check(c, cuda_quantise, seed);
}

static void check_transpose(struct op_case *c, uint64_t *seed)
{
	kernel_check(c, cuda_transpose, seed);
}

static void check_rows(struct op_case *c, uint64_t *seed)
{
	kernel_check(c, cuda_quantise_rows, seed);
}

static void check_half_gemm(struct op_case *c, uint64_t *seed)
{
	kernel_check(c, cuda_half_gemm, seed);
}

static void test_quantise_equals_the_oracle(void **state)
{
	(void)state;
	scaled_quantise_each(check_quantise);
	scaled_rows_each(check_rows);
	cudaemu_release();
}

static void test_transpose_equals_the_oracle(void **state)
{
	(void)state;
	scaled_transpose_each(check_transpose);
	cudaemu_release();
}

static void test_half_gemm_equals_the_oracle(void **state)
{
	(void)state;
	scaled_gemm_each(scaled_half, sizeof scaled_half / sizeof *scaled_half, check_half_gemm);
	cudaemu_release();
}

/* A tensor that holds what is no number has the scale NaN, and so has all that comes of it. */
static void test_half_gemm_of_an_infinity_is_nan(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct scaled_shape shape = {9, 16, 24, 32, 0, 1, SCALED_F32};
	struct op_case c = scaled_gemm_case(&shape, &seed);
	case_put(c.op.operand[RH_SCALED_GEMM_SCALE_B], 0, 0, (double)NAN);
	kernel_check(&c, cuda_half_gemm, &seed);
	cudaemu_release();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_quantise_equals_the_oracle),
	        cmocka_unit_test(test_transpose_equals_the_oracle),
	        cmocka_unit_test(test_half_gemm_equals_the_oracle),
	        cmocka_unit_test(test_half_gemm_of_an_infinity_is_nan),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
