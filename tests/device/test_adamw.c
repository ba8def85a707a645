/* The weights' half of AdamW's update: device/adamw.h against another way to say it, the CPU's kernels against the oracle to the last bit.
 * Against the host's optimizer: tests/offload/test_device_pass.c. */
#include "adamw_case.h"

static void check(struct op_case *c, uint64_t *seed)
{
	(void)seed;
	case_check(c);
}

static void test_adamw_weights_equal_the_oracle(void **state)
{
	(void)state;
	adamw_each(check);
}

/* Larger than a task, on all threads. */
static void test_adamw_weights_of_several_tasks_equal_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct op_case c = adamw_case(100003, 6, &seed);
	case_check(&c);
}

/* AdamW in fp64, as its paper has it (Loshchilov and Hutter 2019, algorithm 2), on usual numbers. */
static void test_adamw_is_adamw(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	const double rate = 1e-3, beta1 = 0.9, beta2 = 0.999, decay = 0.1, epsilon = 1e-8, scale = 0.5;
	for (int step = 1; step <= 1000; step *= 10) {
		double first_correction = 1 - pow(beta1, step), second_correction = 1 - pow(beta2, step);
		struct rh_adamw_terms terms = {.scale = (float)scale,
		                               .keep = (float)(1 - rate * decay),
		                               .minus_step = (float)(-rate / first_correction),
		                               .lerp = (float)(1 - beta1),
		                               .beta2 = (float)beta2,
		                               .one_minus_beta2 = (float)(1 - beta2),
		                               .inverse_root = (float)(1 / sqrt(second_correction)),
		                               .epsilon = (float)epsilon};
		for (int i = 0; i < 1000; i++) {
			float weight = check_uniform(&seed), first = check_uniform(&seed), second = fabsf(check_uniform(&seed)) + 0.1f;
			float gradient = rh_bf16_to_f32(rh_f32_to_bf16(check_uniform(&seed)));
			double g = scale * (double)gradient, m = beta1 * (double)first + (1 - beta1) * g;
			double v = beta2 * (double)second + (1 - beta2) * g * g;
			double want = (double)weight * (1 - rate * decay) -
			              rate * (m / first_correction) / (sqrt(v / second_correction) + epsilon);
			uint32_t bits = rh_f32_bits(weight);
			float got = rh_bits_f32(rh_adamw_split(&terms, rh_f32_to_bf16(gradient), rh_split_upper(bits), rh_split_lower(bits),
			                                       first, second));
			assert_true(fabs((double)got - want) < 3e-7);
			float apart = rh_adamw(&terms, weight, gradient, &first, &second);
			assert_true(apart == got && fabs((double)first - m) < 2e-7 && fabs((double)second - v) < 2e-7);
		}
	}
}

static void test_cost_is_18_bytes_an_element(void **state)
{
	(void)state;
	uint64_t seed = 1;
	struct op_case c = adamw_case(1000, 1, &seed);
	assert_true(rh_op_cost(&c.op).bytes == 18000 && rh_op_cost(&c.op).product_flops == 0);
	case_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_adamw_weights_equal_the_oracle),
	        cmocka_unit_test(test_adamw_weights_of_several_tasks_equal_the_oracle),
	        cmocka_unit_test(test_adamw_is_adamw),
	        cmocka_unit_test(test_cost_is_18_bytes_an_element),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
