#include "kernel_case.h"

#include "cuda/kernels.h"
#include "dora_case.h"

static void run_check(struct op_case *c, uint64_t *seed)
{
	kernel_check(c,
	             c->op.kind == RH_OP_DORA_NORM    ? cuda_dora_norm
	             : c->op.kind == RH_OP_DORA_SCALE ? cuda_dora_scale
	                                              : cuda_dora_gradient,
	             seed);
}

static void test_dora_ops_equal_the_oracle(void **state)
{
	(void)state;
	dora_each(run_check);
	cudaemu_release();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_dora_ops_equal_the_oracle),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
