/* Mixtures of experts on the CPU against the oracle. */
#include "moe_case.h"

static const struct router_shape router_shapes[] = {
        {0, 4, 2, 0, RH_F32, RH_ROUTER_OVER_ALL, 1},        {1, 1, 1, 0, RH_BF16, RH_ROUTER_OVER_CHOSEN, 1},
        {5, 8, 2, 0, RH_F32, RH_ROUTER_OVER_CHOSEN, 1},     {6, 8, 8, 3, RH_BF16, RH_ROUTER_OVER_ALL, 1},
        {150, 32, 4, 1, RH_BF16, RH_ROUTER_OVER_CHOSEN, 4}, {140, 128, 8, 0, RH_F32, RH_ROUTER_OVER_ALL, 2},
        {9, 61, 7, 5, RH_F32, RH_ROUTER_OVER_CHOSEN, 20},   {4, 1024, 32, 0, RH_BF16, RH_ROUTER_OVER_ALL, 3},
        {3, 1023, 10, 1, RH_F32, RH_ROUTER_OVER_ALL, 3},
};
enum { ROUTER_SHAPES = sizeof router_shapes / sizeof router_shapes[0] };

static void test_router_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < ROUTER_SHAPES; i++) {
		struct op_case c = router_case(&router_shapes[i], &seed), b = router_backward_case(&router_shapes[i], &seed);
		case_check(&c);
		case_check(&b);
	}
}

static const struct sigmoid_shape sigmoid_shapes[] = {
        {{0, 4, 2, 0, RH_F32, RH_ROUTER_OVER_CHOSEN, 1}, 0, 0},    {{150, 64, 4, 0, RH_F32, RH_ROUTER_OVER_CHOSEN, 4}, 1, 1},
        {{7, 61, 7, 5, RH_BF16, RH_ROUTER_OVER_ALL, 20}, 0, 0},    {{40, 160, 8, 2, RH_F32, RH_ROUTER_OVER_CHOSEN, 2}, 8, 4},
        {{21, 12, 4, 0, RH_BF16, RH_ROUTER_OVER_CHOSEN, 3}, 6, 2}, {{9, 33, 3, 1, RH_F32, RH_ROUTER_OVER_ALL, 1}, 3, 1},
};

static void test_router_of_sigmoids_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (size_t i = 0; i < sizeof sigmoid_shapes / sizeof *sigmoid_shapes; i++) {
		struct op_case c = router_sigmoid_case(&sigmoid_shapes[i], &seed),
		               b = router_sigmoid_backward_case(&sigmoid_shapes[i], &seed);
		case_check(&c);
		case_check(&b);
	}
}

static void test_router_of_nans_and_infinities_names_distinct_experts(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct op_case c = router_unruly_case(&seed);
	case_check(&c);
}

static const struct permute_shape permute_shapes[] = {
        {0, 3, 2, 5, 0, RH_F32, SPREAD_RANDOM},      {1, 1, 1, 1, 0, RH_BF16, SPREAD_ONE},      {7, 5, 3, 17, 2, RH_F32, SPREAD_RANDOM},
        {90, 37, 4, 130, 0, RH_BF16, SPREAD_RANDOM}, {64, 8, 2, 67, 1, RH_BF16, SPREAD_ONE},    {33, 128, 8, 16, 0, RH_F32, SPREAD_EVEN},
        {21, 6, 32, 3, 0, RH_F32, SPREAD_FEW},       {5, 4, 2, 1031, 5, RH_F32, SPREAD_RANDOM}, {5, 4, 2, 1031, 5, RH_BF16, SPREAD_RANDOM},
};
enum { PERMUTE_SHAPES = sizeof permute_shapes / sizeof permute_shapes[0] };

static void test_permute_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < PERMUTE_SHAPES; i++) {
		struct op_case c = permute_case(&permute_shapes[i], &seed);
		case_check(&c);
	}
}

static void test_unpermute_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < PERMUTE_SHAPES; i++) {
		for (int variant = 0; variant < 4; variant++) {
			struct op_case c = unpermute_case(&permute_shapes[i], i + variant, &seed);
			case_check(&c);
		}
		struct op_case back = unpermute_backward_case(&permute_shapes[i], &seed);
		case_check(&back);
	}
}

static const struct grouped_shape grouped_shapes[] = {
        {1, 0, 5, 6, 0, RH_F32, SPREAD_RANDOM, 0},       {1, 1, 1, 1, 0, RH_BF16, SPREAD_ONE, 0},
        {3, 40, 33, 17, 0, RH_F32, SPREAD_RANDOM, 2},    {5, 7, 64, 48, 3, RH_BF16, SPREAD_RANDOM, 1},
        {37, 30, 24, 40, 0, RH_F32, SPREAD_EVEN, 0},     {4, 150, 100, 70, 1, RH_BF16, SPREAD_ONE, 0},
        {6, 200, 130, 65, 0, RH_F32, SPREAD_FEW, 3},     {6, 200, 130, 65, 0, RH_BF16, SPREAD_FEW, 3},
        {8, 190, 200, 96, 0, RH_BF16, SPREAD_RANDOM, 0},
};
enum { GROUPED_SHAPES = sizeof grouped_shapes / sizeof grouped_shapes[0] };

static void test_grouped_gemm_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < GROUPED_SHAPES; i++) {
		for (int k = 0; k < 4; k++) {
			static const int extras[] = {0, GROUPED_BIAS, GROUPED_C | GROUPED_SCALED | GROUPED_F32,
			                             GROUPED_IN_PLACE | GROUPED_BIAS};
			struct op_case c = grouped_gemm_case(&grouped_shapes[i], extras[(i + k) % 4] | k % 2, &seed);
			case_check(&c);
		}
	}
}

static void test_grouped_gradients_equal_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < GROUPED_SHAPES; i++) {
		struct op_case c = grouped_gradient_case(&grouped_shapes[i], i % 2 ? GROUPED_SCALED : 0, &seed);
		case_check(&c);
		struct op_case sum = grouped_column_case(&grouped_shapes[i], &seed);
		case_check(&sum);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_router_equals_the_oracle),
	        cmocka_unit_test(test_router_of_sigmoids_equals_the_oracle),
	        cmocka_unit_test(test_router_of_nans_and_infinities_names_distinct_experts),
	        cmocka_unit_test(test_permute_equals_the_oracle),
	        cmocka_unit_test(test_unpermute_equals_the_oracle),
	        cmocka_unit_test(test_grouped_gemm_equals_the_oracle),
	        cmocka_unit_test(test_grouped_gradients_equal_the_oracle),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
