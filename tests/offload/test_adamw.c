/* AdamW's element against its paper, and its two passes (weights, then moments) against the one, bit for bit. */
#include "check.h"
#include "isa.h"
#include "tensor.h"

#include "core/float16.h"
#include "offload/optimizer.h"
#include "offload/simd/adamw.h"
#include "offload/store_internal.h"

#include <math.h>

/* Gaps, runs of tensors that decay alike and lie side by side, tensors without an element; several of the optimizer's spans. */
static struct rh_tensor tensor[] = {TENSOR("norm", 1, 37, 3, 0, 1),      TENSOR("q", 211, 311, 40, 1, 2),
                                    TENSOR("k", 13, 101, 65661, 1, 2),   TENSOR("none", 0, 9, 66974, 1, 2),
                                    TENSOR("v", 7, 1, 66974, 1, 2),      TENSOR("bias", 1, 1, 66981, 0, 1),
                                    TENSOR("norm2", 1, 64, 66990, 0, 1), TENSOR("last", 3, 5003, 67100, 1, 2)};
enum { TENSORS = sizeof tensor / sizeof *tensor, ELEMENTS = 82200 };
static const struct rh_block spec = {
        .name = "block", .elements = ELEMENTS, .trainable = 1, .uses = 1, .tensor = tensor, .tensors = TENSORS};

/* AdamW in fp64 (Loshchilov and Hutter 2019, algorithm 2), on usual numbers. */
static void test_adamw_is_adamw(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	const double rate = 1e-3, beta1 = 0.9, beta2 = 0.999, decay = 0.1, epsilon = 1e-8, scale = 0.5;
	for (int step = 1; step <= 1000; step *= 10) {
		double first_correction = 1 - pow(beta1, step), second_correction = 1 - pow(beta2, step);
		struct adamw_terms terms = {.scale = (float)scale,
		                            .keep = (float)(1 - rate * decay),
		                            .minus_step = (float)(-rate / first_correction),
		                            .lerp = (float)(1 - beta1),
		                            .beta2 = (float)beta2,
		                            .one_minus_beta2 = (float)(1 - beta2),
		                            .inverse_root = (float)(1 / sqrt(second_correction)),
		                            .epsilon = (float)epsilon};
		for (int i = 0; i < 1000; i++) {
			float weight = check_uniform(&seed), first = check_uniform(&seed), second = fabsf(check_uniform(&seed)) + 0.1f;
			float gradient = check_uniform(&seed);
			double g = scale * (double)gradient, m = beta1 * (double)first + (1 - beta1) * g;
			double v = beta2 * (double)second + (1 - beta2) * g * g;
			double want = (double)weight * (1 - rate * decay) -
			              rate * (m / first_correction) / (sqrt(v / second_correction) + epsilon);
			float got = adamw(&terms, weight, gradient, &first, &second);
			assert_true(fabs((double)got - want) < 3e-7);
			assert_true(fabs((double)first - m) < 2e-7 && fabs((double)second - v) < 2e-7);
		}
	}
}

/* Weights, moments and gradients among which are zeros, subnormal numbers, and squares that overflow. */
static void fill(struct rh_store *store, uint64_t seed)
{
	static const float magnitude[] = {1, 1, 1, 1, 0, 1e-38f, 1e25f};
	const struct store_block *at = &store->block[0];
	for (int t = 0; t < TENSORS; t++)
		for (int64_t i = tensor[t].offset; i < tensor[t].offset + tensor[t].rows * tensor[t].cols; i++) {
			float weight = check_uniform(&seed), gradient = check_uniform(&seed) * magnitude[check_random(&seed) % 7];
			check_ok(rh_store_set(store, 0, t, i - tensor[t].offset, 1, &weight));
			if (store->options.dtype == RH_F32)
				((float *)at->gradient)[i] = gradient;
			else
				((uint16_t *)at->gradient)[i] = rh_f32_to_bf16(gradient);
			at->moment[0][i] = check_uniform(&seed) * 0.1f * magnitude[check_random(&seed) % 6];
			at->moment[1][i] = fabsf(check_uniform(&seed)) * 0.01f * magnitude[check_random(&seed) % 7];
		}
}

static struct rh_store *make_store(const struct rh_store_options *options, struct rh_pool *pool, enum rh_cpu_isa isa, uint64_t seed)
{
	struct rh_store *store = NULL;
	char *kept = isa_lower(isa);
	check_ok(rh_store_create(&spec, 1, options, pool, &store));
	isa_restore(kept);
	fill(store, seed);
	return store;
}

static void check_equal(const struct rh_store *a, const struct rh_store *b)
{
	size_t weights = (size_t)rh_dtype_bytes(a->options.dtype, ELEMENTS);
	assert_memory_equal(a->block[0].weights, b->block[0].weights, weights);
	if (a->block[0].lower)
		assert_memory_equal(a->block[0].lower, b->block[0].lower, ELEMENTS * 2);
	if (a->block[0].master)
		assert_memory_equal(a->block[0].master, b->block[0].master, ELEMENTS * 4);
	for (int k = 0; k < 2; k++)
		assert_memory_equal(a->block[0].moment[k], b->block[0].moment[k], ELEMENTS * 4);
}

static const struct rh_store_options forms[] = {
        {.dtype = RH_BF16}, {.dtype = RH_BF16, .layout = RH_LAYOUT_PLAIN}, {.dtype = RH_F32, .layout = RH_LAYOUT_PLAIN}};
enum { FORMS = sizeof forms / sizeof *forms };

static void test_weights_then_moments_equal_one_pass(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	static const struct rh_optimizer_settings settings[] = {
	        {0.9, 0.999, 1e-8, 0.1, 0}, {0.9, 0.95, 1e-8, 0, 0}, {0.4, 0.9, 1e-6, 0.01, 0}};
	struct rh_pool *pool = NULL;
	check_ok(rh_pool_create(3, &pool));
	for (int n = 0; n < 3 * FORMS; n++)
		for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++) {
			const struct rh_update update = {settings[n % 3], 1e-3, n & 1 ? 1 : 0.37, n ? 3 : 1, 1};
			struct rh_store *whole = make_store(&forms[n / 3], pool, RH_CPU_BASE, seed);
			struct rh_store *apart = make_store(&forms[n / 3], pool, isa, seed);
			check_ok(rh_optimizer_update(whole, 0, &update));
			uint64_t version = rh_store_version(apart, 0);
			check_ok(rh_optimizer_update_piece(apart, 0, 0, &update, RH_UPDATE_WEIGHTS));
			assert_true(rh_store_version(apart, 0) == version + 1);
			check_ok(rh_optimizer_update_piece(apart, 0, 0, &update, RH_UPDATE_MOMENTS));
			assert_true(rh_store_version(apart, 0) == version + 1);
			check_equal(whole, apart);
			rh_store_destroy(whole);
			rh_store_destroy(apart);
		}
	rh_pool_destroy(pool);
}

static void test_weights_pass_names_the_tensor_that_is_not_finite(void **state)
{
	(void)state;
	static const uint16_t bad[] = {0x7f80, 0xff80, 0x7fc0}; /* infinity of either sign, NaN */
	const struct rh_update update = {{0.9, 0.999, 1e-8, 0.1, 0}, 1e-3, 1, 3, 1};
	struct rh_pool *pool = NULL;
	check_ok(rh_pool_create(2, &pool));
	for (int i = 0; i < 3; i++) {
		struct rh_store *store = make_store(&forms[0], pool, rh_cpu_best_isa(), 1);
		((uint16_t *)store->block[0].gradient)[tensor[7].offset + 15008] = bad[i];
		int rc = rh_optimizer_update_piece(store, 0, 0, &update, RH_UPDATE_WEIGHTS);
		assert_int_equal(rc, -EINVAL);
		assert_non_null(strstr(rh_error(rc), "last"));
		rh_store_destroy(store);
	}
	rh_pool_destroy(pool);
}

static void test_only_adamw_of_fp32_moments_in_memory_has_passes(void **state)
{
	(void)state;
	static const struct {
		struct rh_store_options options;
		int has;
	} cases[] = {{{.dtype = RH_BF16}, 1},
	             {{.dtype = RH_BF16, .crosses_rounds = 1}, 1},
	             {{.dtype = RH_F32}, 1},
	             {{.dtype = RH_BF16, .layout = RH_LAYOUT_PLAIN}, 1},
	             {{.dtype = RH_BF16, .layout = RH_LAYOUT_SPLIT8}, 0},
	             {{.dtype = RH_BF16, .optim = RH_OPTIM_LION}, 0},
	             {{.dtype = RH_BF16, .optim = RH_OPTIM_ADAFACTOR}, 0}};
	struct rh_pool *pool = NULL;
	check_ok(rh_pool_create(1, &pool));
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_store *store = NULL;
		check_ok(rh_store_create(&spec, 1, &cases[i].options, pool, &store));
		assert_int_equal(rh_optimizer_has_passes(store), cases[i].has);
		rh_store_destroy(store);
	}
	rh_pool_destroy(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_adamw_is_adamw),
	        cmocka_unit_test(test_weights_then_moments_equal_one_pass),
	        cmocka_unit_test(test_weights_pass_names_the_tensor_that_is_not_finite),
	        cmocka_unit_test(test_only_adamw_of_fp32_moments_in_memory_has_passes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
