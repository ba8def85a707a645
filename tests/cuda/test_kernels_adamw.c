#include "adamw_case.h"
#include "kernel_case.h"

#include "cuda/kernels.h"

static void check(struct op_case *c, uint64_t *seed)
{
	kernel_check(c, cuda_adamw_weights, seed);
}

static void test_adamw_weights_equal_the_oracle(void **state)
{
	(void)state;
	adamw_each(check);
	cudaemu_release();
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_adamw_weights_equal_the_oracle)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
