#include "kernel_case.h"

#include "activation_case.h"

#include "cuda/kernels.h"

/* Around a chunk of 8, a warp of chunks, and (for LayerNorm) the longest vector of a warp and of a block's one round. */
static const int lengths[] = {1, 7, 8, 9, 32, 65, 255, 256, 520}, long_lengths[] = {1, 8, 9, 100, 256, 257, 1024, 1025, 2056};
enum { LENGTHS = sizeof lengths / sizeof lengths[0], LONG_LENGTHS = sizeof long_lengths / sizeof long_lengths[0] };

static struct case_shape shape_of(const struct case_shape *s)
{
	return (struct case_shape){s->dtype, s->cols > 500 ? s->rows % 7 : s->rows, s->cols, s->pad, s->index / 2};
}

static void check_curves(const struct case_shape *kernel_shape, uint64_t *seed)
{
	struct case_shape s = shape_of(kernel_shape);
	for (enum rh_activation act = 0; act < RH_ACTS; act++) {
		if (act != RH_ACT_TANH) {
			struct op_case glu = glu_case(act, &s, seed), glu_backward = glu_backward_case(act, &s, seed);
			kernel_check(&glu, cuda_glu, seed);
			kernel_check(&glu_backward, cuda_glu_backward, seed);
		}
		if (act == RH_ACT_GPT_OSS)
			continue;
		struct op_case plain = activation_case(act, &s, seed), backward = activation_backward_case(act, &s, seed);
		kernel_check(&plain, cuda_activation, seed);
		kernel_check(&backward, cuda_activation_backward, seed);
	}
}

static void test_activations_equal_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_curves);
}

static void check_layernorm(const struct case_shape *kernel_shape, uint64_t *seed)
{
	struct case_shape s = shape_of(kernel_shape);
	struct op_case forward = layernorm_case(&s, seed), backward = layernorm_backward_case(&s, seed);
	kernel_check(&forward, cuda_layernorm, seed);
	kernel_check(&backward, cuda_layernorm_backward, seed);
}

static void test_layernorm_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(long_lengths, LONG_LENGTHS, check_layernorm);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_activations_equal_the_oracle),
	        cmocka_unit_test(test_layernorm_equals_the_oracle),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
