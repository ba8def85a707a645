#include "kernel_case.h"

#include "delta_case.h"

#include "cuda/kernels.h"

static const struct delta_shape shapes[] = {
        {1, 1, 4, 4, 0, 1, {1}},
        {1, 2, 16, 33, 0, 1, {64}},
        {2, 2, 5, 7, 3, 3, {90, 1, 37}},            /* rows outside */
        {1, 2, 128, 128, 0, 2, {70, 66}},           /* Qwen3.5's vectors */
        {2, 4, 12, 40, 0, 6, {0, 64, 0, 66, 1, 0}}, /* empty documents */
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void test_delta_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < 2 * SHAPES; i++) {
		enum rh_dtype dtype = i % 2 ? RH_BF16 : RH_F32;
		struct op_case forward = delta_case(&shapes[i / 2], dtype, i % 4 ? 0 : 5, &seed);
		struct op_case backward = delta_backward_case(&shapes[i / 2], dtype, i % 4 ? 0 : 5, &seed);
		struct op_case state_alone = case_clone(&forward);
		state_alone.op.operand[RH_DELTA_O] = (struct rh_view){0};
		kernel_check(&forward, cuda_delta, &seed);
		kernel_check(&state_alone, cuda_delta, &seed);
		kernel_check(&backward, cuda_delta_backward, &seed);
	}
}

static void test_conv_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < 2 * SHAPES; i++)
		for (int taps = 1; taps <= RH_CONV_MOST; taps += taps < 5 ? 3 : 4) {
			enum rh_dtype dtype = i % 2 ? RH_BF16 : RH_F32;
			struct op_case forward = conv_case(&shapes[i / 2], taps, dtype, i % 4 ? 0 : 5, &seed);
			struct op_case backward = conv_backward_case(&shapes[i / 2], taps, dtype, i % 4 ? 0 : 5, &seed);
			kernel_check(&forward, cuda_conv, &seed);
			kernel_check(&backward, cuda_conv_backward, &seed);
		}
}

static void run_kernel(struct rh_op *op, void *context)
{
	(void)context;
	kernel_entry *entry = op->kind == RH_OP_CONV            ? cuda_conv
	                      : op->kind == RH_OP_DELTA         ? cuda_delta
	                      : op->kind == RH_OP_CONV_BACKWARD ? cuda_conv_backward
	                                                        : cuda_delta_backward;
	check_ok(entry(op, NULL));
}

/* Packed documents that are cut: bit-equal to them at once. */
static void test_runs_equal_the_documents_at_once(void **state)
{
	(void)state;
#ifdef RH_ON_GPU
	check_skip("the kernel reads host memory here, which only emulation allows");
#endif
	uint64_t seed = check_seed();
	for (int bf16 = 0; bf16 < 2; bf16++)
		delta_check_runs(bf16 ? RH_BF16 : RH_F32, run_kernel, NULL, &seed);
	cudaemu_release();
}

static void check_gate(const struct case_shape *s, uint64_t *seed)
{
	struct op_case forward = gate_case(s, seed), backward = gate_backward_case(s, seed);
	kernel_check(&forward, cuda_gate, seed);
	kernel_check(&backward, cuda_gate_backward, seed);
}

static void test_gate_equals_the_oracle(void **state)
{
	(void)state;
	static const int lengths[] = {1, 7, 8, 9, 100, 128, 256, 1025};
	kernel_each_shape(lengths, sizeof lengths / sizeof *lengths, check_gate);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_delta_equals_the_oracle),
	        cmocka_unit_test(test_conv_equals_the_oracle),
	        cmocka_unit_test(test_runs_equal_the_documents_at_once),
	        cmocka_unit_test(test_gate_equals_the_oracle),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
