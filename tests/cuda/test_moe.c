/* Mixtures of experts, emulated, against the oracle. */
#include "kernel_case.h"
#include "moe_case.h"

#include "cuda/kernels.h"

/* Around a warp of experts, and 4 of them. */
static const struct router_shape router_shapes[] = {
        {0, 4, 2, 0, RH_F32, RH_ROUTER_OVER_ALL, 1},       {1, 1, 1, 0, RH_BF16, RH_ROUTER_OVER_CHOSEN, 1},
        {9, 8, 2, 0, RH_F32, RH_ROUTER_OVER_CHOSEN, 1},    {8, 32, 4, 1, RH_BF16, RH_ROUTER_OVER_CHOSEN, 4},
        {17, 61, 7, 5, RH_F32, RH_ROUTER_OVER_ALL, 20},    {7, 128, 8, 3, RH_BF16, RH_ROUTER_OVER_ALL, 2},
        {5, 129, 32, 0, RH_F32, RH_ROUTER_OVER_CHOSEN, 2}, {4, 1024, 32, 0, RH_BF16, RH_ROUTER_OVER_ALL, 3},
        {3, 1023, 10, 1, RH_BF16, RH_ROUTER_OVER_ALL, 3},
};
enum { ROUTER_SHAPES = sizeof router_shapes / sizeof router_shapes[0] };

static void test_router_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < ROUTER_SHAPES; i++) {
		struct op_case c = router_case(&router_shapes[i], &seed), b = router_backward_case(&router_shapes[i], &seed);
		kernel_check(&c, cuda_router, &seed);
		kernel_check(&b, cuda_router_backward, &seed);
	}
	cudaemu_release();
}

static const struct sigmoid_shape sigmoid_shapes[] = {
        {{0, 4, 2, 0, RH_F32, RH_ROUTER_OVER_CHOSEN, 1}, 0, 0},   {{17, 64, 4, 0, RH_F32, RH_ROUTER_OVER_CHOSEN, 4}, 1, 1},
        {{7, 61, 7, 5, RH_BF16, RH_ROUTER_OVER_ALL, 20}, 0, 0},   {{10, 160, 8, 2, RH_F32, RH_ROUTER_OVER_CHOSEN, 2}, 8, 4},
        {{9, 12, 4, 0, RH_BF16, RH_ROUTER_OVER_CHOSEN, 3}, 6, 2}, {{9, 33, 3, 1, RH_F32, RH_ROUTER_OVER_ALL, 1}, 3, 1},
};

static void test_router_of_sigmoids_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (size_t i = 0; i < sizeof sigmoid_shapes / sizeof *sigmoid_shapes; i++) {
		struct op_case c = router_sigmoid_case(&sigmoid_shapes[i], &seed),
		               b = router_sigmoid_backward_case(&sigmoid_shapes[i], &seed);
		kernel_check(&c, cuda_router, &seed);
		kernel_check(&b, cuda_router_backward, &seed);
	}
	cudaemu_release();
}

static void test_router_of_nans_and_infinities_names_distinct_experts(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct op_case c = router_unruly_case(&seed);
	kernel_check(&c, cuda_router, &seed);
	cudaemu_release();
}

/* Pairs around a warp, a block's warps, and what a warp takes at once. */
static const struct permute_shape permute_shapes[] = {
        {0, 3, 2, 5, 0, RH_F32, SPREAD_RANDOM},     {1, 1, 1, 1, 0, RH_BF16, SPREAD_ONE},     {7, 5, 3, 17, 2, RH_F32, SPREAD_RANDOM},
        {130, 7, 2, 24, 0, RH_BF16, SPREAD_RANDOM}, {64, 8, 4, 9, 1, RH_BF16, SPREAD_ONE},    {33, 128, 8, 16, 0, RH_F32, SPREAD_EVEN},
        {21, 6, 32, 3, 0, RH_F32, SPREAD_FEW},      {5, 4, 2, 520, 5, RH_F32, SPREAD_RANDOM}, {5, 4, 2, 520, 8, RH_BF16, SPREAD_RANDOM},
        {1100, 3, 2, 1, 0, RH_F32, SPREAD_RANDOM},
};
enum { PERMUTE_SHAPES = sizeof permute_shapes / sizeof permute_shapes[0] };

static void test_permute_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < PERMUTE_SHAPES; i++) {
		struct op_case c = permute_case(&permute_shapes[i], &seed);
		kernel_check(&c, cuda_permute, &seed);
	}
	cudaemu_release();
}

static void test_unpermute_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < PERMUTE_SHAPES - 1; i++) {
		struct op_case first = unpermute_case(&permute_shapes[i], i, &seed),
		               second = unpermute_case(&permute_shapes[i], i + 5, &seed);
		struct op_case back = unpermute_backward_case(&permute_shapes[i], &seed);
		kernel_check(&first, cuda_unpermute, &seed);
		kernel_check(&second, cuda_unpermute, &seed);
		kernel_check(&back, cuda_unpermute_backward, &seed);
	}
	cudaemu_release();
}

static void test_grouped_column_sum_equals_the_oracle(void **state)
{
	(void)state;
	static const struct grouped_shape shapes[] = {
	        {1, 0, 1, 9, 0, RH_F32, SPREAD_RANDOM, 0},   {3, 1, 1, 1, 0, RH_BF16, SPREAD_ONE, 2},
	        {5, 70, 1, 33, 3, RH_F32, SPREAD_RANDOM, 1}, {4, 200, 1, 40, 0, RH_BF16, SPREAD_ONE, 0},
	        {37, 30, 1, 64, 8, RH_BF16, SPREAD_EVEN, 0},
	};
	uint64_t seed = check_seed();
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		struct op_case c = grouped_column_case(&shapes[i], &seed);
		kernel_check(&c, cuda_grouped_column_sum, &seed);
	}
	cudaemu_release();
}

static const int extras[] = {0, GROUPED_BIAS, GROUPED_C | GROUPED_SCALED | GROUPED_F32, GROUPED_IN_PLACE | GROUPED_BIAS};

/* Around tiles of 64 and 128 rows (from 192 rows an expert on) by 128 columns, and stages of 32: several stages, fewer than are kept, none;
 * experts with no row, one, all. Rows begin on 16 bytes: a pad makes up for odd lengths. */
static const struct grouped_shape mma_shapes[] = {
        {1, 0, 8, 8, 0, RH_BF16, SPREAD_RANDOM, 0},    {1, 1, 8, 8, 0, RH_BF16, SPREAD_ONE, 0},
        {3, 40, 33, 17, 7, RH_BF16, SPREAD_RANDOM, 2}, {5, 7, 64, 41, 7, RH_BF16, SPREAD_RANDOM, 1},
        {13, 9, 24, 40, 0, RH_BF16, SPREAD_EVEN, 0},   {4, 150, 104, 136, 0, RH_BF16, SPREAD_ONE, 0},
        {3, 130, 136, 72, 0, RH_BF16, SPREAD_FEW, 3},  {1, 200, 72, 130, 6, RH_BF16, SPREAD_ONE, 1},
        {1, 257, 32, 264, 0, RH_BF16, SPREAD_ONE, 0},  {2, 390, 200, 24, 0, RH_BF16, SPREAD_FEW, 0},
};

/* Around tiles of 64 and stages of 16; bf16 with rows that begin anywhere. */
static const struct grouped_shape plain_shapes[] = {
        {1, 0, 5, 6, 0, RH_F32, SPREAD_RANDOM, 0},    {1, 1, 1, 1, 0, RH_BF16, SPREAD_ONE, 0},
        {3, 40, 33, 17, 0, RH_F32, SPREAD_RANDOM, 2}, {5, 7, 64, 48, 3, RH_BF16, SPREAD_RANDOM, 1},
        {13, 9, 24, 40, 0, RH_F32, SPREAD_EVEN, 0},   {4, 150, 100, 70, 1, RH_BF16, SPREAD_ONE, 0},
        {6, 130, 130, 65, 0, RH_F32, SPREAD_FEW, 3},  {8, 190, 20, 129, 0, RH_F32, SPREAD_RANDOM, 0},
};

enum { MMA_SHAPES = sizeof mma_shapes / sizeof mma_shapes[0], PLAIN_SHAPES = sizeof plain_shapes / sizeof plain_shapes[0] };

static void check_grouped(const struct grouped_shape *shapes, int count)
{
	uint64_t seed = check_seed();
	for (int i = 0; i < count; i++) {
		for (int k = 0; k < 2; k++) {
			struct op_case c = grouped_gemm_case(&shapes[i], extras[(i / 2 + 2 * k) % 4] | k, &seed);
			kernel_check(&c, cuda_grouped_gemm, &seed);
		}
		struct op_case c = grouped_gradient_case(&shapes[i], i % 2 ? GROUPED_SCALED : 0, &seed);
		kernel_check(&c, cuda_grouped_gemm_gradient, &seed);
	}
	cudaemu_release();
}

static void test_grouped_gemm_bf16_equals_the_oracle(void **state)
{
	(void)state;
	check_grouped(mma_shapes, MMA_SHAPES);
}

/* An SM of 228 KB has two blocks whose stages are 64 deep. */
static void test_grouped_gemm_bf16_on_large_sms_equals_the_oracle(void **state)
{
	(void)state;
	cudaemu_set_shared_bytes(228 << 10);
	check_grouped(mma_shapes, MMA_SHAPES);
	cudaemu_set_shared_bytes(100 << 10);
}

static void test_grouped_gemm_plain_equals_the_oracle(void **state)
{
	(void)state;
	check_grouped(plain_shapes, PLAIN_SHAPES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_router_equals_the_oracle),
	        cmocka_unit_test(test_router_of_sigmoids_equals_the_oracle),
	        cmocka_unit_test(test_router_of_nans_and_infinities_names_distinct_experts),
	        cmocka_unit_test(test_permute_equals_the_oracle),
	        cmocka_unit_test(test_unpermute_equals_the_oracle),
	        cmocka_unit_test(test_grouped_column_sum_equals_the_oracle),
	        cmocka_unit_test(test_grouped_gemm_bf16_equals_the_oracle),
	        cmocka_unit_test(test_grouped_gemm_bf16_on_large_sms_equals_the_oracle),
	        cmocka_unit_test(test_grouped_gemm_plain_equals_the_oracle),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
