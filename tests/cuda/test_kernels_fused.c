/* Fused ops: a residual with its norm, norms of heads with their rotation, the adapters of a joint. */
#include "kernel_case.h"

#include "fused_case.h"

#include "cuda/kernels.h"

static void check_add_rmsnorm(struct op_case *c, uint64_t *seed)
{
	kernel_check(c, cuda_add_rmsnorm, seed);
}

static int heads_backward(const struct rh_op *op, struct CUstream_st *stream)
{
	static float part[RH_RMSNORM_PART_BYTES / 4];
	memset(part, 0xff, sizeof part); /* NaN: nothing may be read that was not written */
	return cuda_qk_rope_backward(op, part, stream);
}

static void check_heads(struct op_case *c, uint64_t *seed)
{
	kernel_check(c, c->op.kind == RH_OP_QK_ROPE ? cuda_qk_rope : heads_backward, seed);
}

static int taken;

static int lora(const struct rh_op *op, struct CUstream_st *stream)
{
	int rc = cuda_lora(op, stream);
	assert_in_range(rc, 0, 1);
	return rc == 1 ? 0 : -EINVAL;
}

/* What the kernels leave to the op's parts is tested through the device. */
static void check_lora(struct op_case *c, uint64_t *seed)
{
	int fits = c->op.operand[RH_LORA_WIDE].dtype == RH_BF16 && c->op.operand[RH_LORA_WIDE].cols % 8 == 0 &&
	           c->op.operand[RH_LORA_WIDE].stride % 8 == 0 && !(c->op.kind == RH_OP_LORA_PART && c->op.operand[RH_LORA_C].data);
	for (int m = 0; m < RH_LORA_MODULES; m++)
		fits = fits && c->op.lora.out[m] % 8 == 0 && c->op.operand[RH_LORA_LOWS + m].cols % 8 == 0;
#ifndef RH_ON_GPU
	if (!fits) {
		assert_int_equal(c->op.operand[RH_LORA_WIDE].rows ? cuda_lora(&c->op, NULL) : 0, 0);
		case_free(c);
		return;
	}
#endif
	taken += fits;
	kernel_check(c, lora, seed);
}

static void test_add_rmsnorm_equals_the_oracle(void **state)
{
	(void)state;
	fused_add_rmsnorm_each(check_add_rmsnorm);
	cudaemu_release();
}

static void test_qk_rope_equals_the_oracle(void **state)
{
	(void)state;
	fused_heads_each(check_heads);
	cudaemu_release();
}

static void test_lora_equals_the_oracle(void **state)
{
	(void)state;
	fused_lora_each(check_lora);
	assert_in_range(taken, 30, 100);
	cudaemu_release();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_add_rmsnorm_equals_the_oracle),
	        cmocka_unit_test(test_qk_rope_equals_the_oracle),
	        cmocka_unit_test(test_lora_equals_the_oracle),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
