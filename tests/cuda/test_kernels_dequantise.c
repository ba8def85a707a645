#include "kernel_case.h"

#include "dequantise_case.h"

#include "cuda/kernels.h"

static void check_kernel(struct op_case *c, uint64_t *seed)
{
	kernel_check(c, cuda_dequantise, seed);
}

static void test_dequantise_equals_the_oracle(void **state)
{
	(void)state;
	dequantise_each(check_kernel);
	cudaemu_release();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_dequantise_equals_the_oracle),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
