#include "check.h"
#include "isa.h"
#include "tensor.h"

#include "core/float16.h"
#include "offload/optimizer.h"
#include "offload/simd/kernels.h"
#include "offload/store_internal.h"

#include <math.h>
#include <string.h>

static struct rh_pool *pool_of(int threads)
{
	struct rh_pool *pool = NULL;
	check_ok(rh_pool_create(threads, &pool));
	return pool;
}

/* tests/reference/offload/adamw.txt, written by tests/reference/adamw.py. */
enum { TENSORS = 3 };
static struct rh_tensor tensors[TENSORS] = {TENSOR("w0", 5, 7, 0, 1, 2), TENSOR("w1", 1, 33, 64, 0, 2), TENSOR("w2", 3, 16, 128, 1, 2)};
static struct rh_block reference_spec = {
        .name = "layer", .elements = 192, .trainable = 1, .uses = 1, .tensor = tensors, .tensors = TENSORS};

/* Makes all gradients final; their norm. */
static double norm_of(struct rh_store *store)
{
	for (int b = 0; b < rh_store_blocks(store); b++)
		if (rh_store_block(store, b)->trainable)
			rh_optimizer_take(store, b);
	return rh_optimizer_taken_norm(store);
}

static double number(FILE *file)
{
	double value;
	assert_int_equal(fscanf(file, "%la", &value), 1);
	return value;
}

/* Within 1e-6 of the largest that the element has been (`peak`, updated): sums that cancel keep the rounding errors of what they were. */
static void compare(FILE *file, const float *ours, double *peak, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		double theirs = number(file), error = fabs((double)ours[i] - theirs);
		peak[i] = fmax(peak[i], fabs(theirs));
		if (isinf(theirs) ? (double)ours[i] != theirs : !(error <= 1e-6 * peak[i]))
			fail_msg("element %lld: %.9g, torch has %.9g", (long long)i, (double)ours[i], theirs);
	}
}

static void reference_step(FILE *file, struct rh_store *store, const struct rh_optimizer_settings *adamw, double clip, int64_t step,
                           double peak[3][192])
{
	double rate = number(file);
	float *gradient = rh_store_gradient(store, 0);
	const float *now[3] = {rh_store_weights(store, 0), store->block[0].moment[0], store->block[0].moment[1]};
	for (int t = 0; t < TENSORS; t++)
		for (int64_t i = 0; i < tensors[t].rows * tensors[t].cols; i++)
			gradient[tensors[t].offset + i] = (float)number(file);
	double norm = norm_of(store), theirs = number(file);
	assert_true(fabs(norm - theirs) <= 1e-12 * theirs);
	check_ok(rh_optimizer_update(store, 0, &(struct rh_update){*adamw, rate, rh_optimizer_clip(norm, clip), step, 1}));
	for (int t = 0; t < TENSORS; t++)
		for (int array = 0; array < 3; array++)
			compare(file, now[array] + tensors[t].offset, peak[array] + tensors[t].offset, tensors[t].rows * tensors[t].cols);
}

static void test_update_equals_torch(void **state)
{
	(void)state;
	FILE *file = fopen("tests/reference/offload/adamw.txt", "r");
	if (!file)
		fail_msg("run from the repository's root");
	struct rh_pool *pool = pool_of(2);
	int cases = (int)number(file);
	assert_int_equal((int)number(file), TENSORS);
	for (int c = 0; c < cases; c++) {
		struct rh_store *store = NULL;
		check_ok(rh_store_create(&reference_spec, 1, &(struct rh_store_options){.dtype = RH_F32}, pool, &store));
		int64_t steps = (int64_t)number(file);
		struct rh_optimizer_settings adamw = {.beta1 = number(file)};
		adamw.beta2 = number(file);
		adamw.epsilon = number(file);
		adamw.weight_decay = number(file);
		double clip = number(file), peak[3][192] = {{0}};
		for (int t = 0; t < TENSORS; t++) {
			float values[64];
			int64_t n = tensors[t].rows * tensors[t].cols;
			for (int64_t i = 0; i < n; i++)
				values[i] = (float)number(file);
			check_ok(rh_store_set(store, 0, t, 0, n, values));
		}
		for (int64_t step = 1; step <= steps; step++)
			reference_step(file, store, &adamw, clip, step, peak);
		const float *weights = rh_store_weights(store, 0); /* gaps stay zero */
		for (int i = 35; i < 64; i++)
			assert_true(weights[i] == 0 && store->block[0].moment[0][i] == 0 && store->block[0].moment[1][i] == 0);
		rh_store_destroy(store);
	}
	fclose(file);
	rh_pool_destroy(pool);
}

/* A block of odd sizes, big enough for several spans. */
static struct rh_tensor odd[] = {TENSOR("o.a", 331, 311, 3, 1, 2), TENSOR("o.b", 1, 1, 103000, 0, 2),
                                 TENSOR("o.c", 47, 1013, 103009, 0, 2)};
enum { ODD_ELEMENTS = 151000, ODD_STEPS = 50 };
static const struct rh_optimizer_settings usual = {0.9, 0.95, 1e-8, 0.1, 0};

struct result {
	double norm[ODD_STEPS];
	float master[ODD_ELEMENTS], first[ODD_ELEMENTS], second[ODD_ELEMENTS];
};

static void fill_gradient(struct rh_store *store, uint64_t *seed, float size)
{
	float *wide = rh_store_gradient(store, 0);
	uint16_t *half = rh_store_gradient(store, 0);
	for (int t = 0; t < 3; t++)
		for (int64_t i = 0; i < odd[t].rows * odd[t].cols; i++) {
			uint16_t value = rh_f32_to_bf16(check_uniform(seed) * size); /* the same for both dtypes */
			if (rh_store_block(store, 0)->uses == 1 && !rh_store_sum(store, 0, 0))
				half[odd[t].offset + i] = value;
			else
				wide[odd[t].offset + i] = rh_bf16_to_f32(value);
		}
}

/* The same seeded run. In fp32 sums cross rounds only so that fill_gradient can tell the dtypes apart. */
static struct result *train_in(enum rh_dtype dtype, enum rh_state_layout layout, int steps, int threads, enum rh_cpu_isa isa)
{
	struct result *result = calloc(1, sizeof *result);
	struct rh_pool *pool = pool_of(threads);
	struct rh_block spec = {.name = "odd", .elements = ODD_ELEMENTS, .trainable = 1, .uses = 1, .tensor = odd, .tensors = 3};
	struct rh_store *store = NULL;
	char *kept = isa_lower(isa);
	check_ok(rh_store_create(&spec, 1, &(struct rh_store_options){.dtype = dtype, .crosses_rounds = dtype == RH_F32, .layout = layout},
	                         pool, &store));
	isa_restore(kept);
	uint64_t seed = 99, version = rh_store_version(store, 0);
	for (int t = 0; t < 3; t++)
		for (int64_t i = 0; i < odd[t].rows * odd[t].cols; i++) {
			float value = check_uniform(&seed);
			check_ok(rh_store_set(store, 0, t, i, 1, &value));
		}
	for (int step = 0; step < steps; step++) {
		fill_gradient(store, &seed, step == 1 ? 1e-6f : 3);
		result->norm[step] = norm_of(store);
		check_ok(rh_optimizer_update(store, 0,
		                             &(struct rh_update){usual, 1e-3, rh_optimizer_clip(result->norm[step], 1), step + 1, 1}));
		assert_true(rh_store_version(store, 0) != version);
		version = rh_store_version(store, 0);
	}
	for (int t = 0; t < 3; t++)
		check_ok(rh_store_get(store, 0, t, 0, odd[t].rows * odd[t].cols, result->master + odd[t].offset));
	memcpy(result->first, store->block[0].moment[0], sizeof result->first);
	memcpy(result->second, store->block[0].moment[1], sizeof result->second);
	rh_store_destroy(store);
	rh_pool_destroy(pool);
	return result;
}

static struct result *train(enum rh_dtype dtype, int threads, enum rh_cpu_isa isa)
{
	return train_in(dtype, RH_LAYOUT_SPLIT, 3, threads, isa);
}

static void expect_equal(struct result *a, struct result *b)
{
	assert_memory_equal(a->norm, b->norm, sizeof a->norm);
	assert_memory_equal(a->master, b->master, sizeof a->master);
	assert_memory_equal(a->first, b->first, sizeof a->first);
	assert_memory_equal(a->second, b->second, sizeof a->second);
	free(b);
}

static void test_layouts_are_bit_equal_over_50_steps(void **state)
{
	(void)state;
	struct result *split = train_in(RH_BF16, RH_LAYOUT_SPLIT, ODD_STEPS, 2, rh_cpu_best_isa());
	expect_equal(split, train_in(RH_BF16, RH_LAYOUT_PLAIN, ODD_STEPS, 2, rh_cpu_best_isa()));
	free(split);
	/* fp32 sums the squares of the norm in another order: equal while these sums are exact */
	split = train(RH_F32, 1, rh_cpu_best_isa());
	expect_equal(split, train(RH_BF16, 1, rh_cpu_best_isa()));
	free(split);
}

static void test_update_is_the_same_on_any_threads(void **state)
{
	(void)state;
	for (enum rh_dtype dtype = RH_F32; dtype <= RH_BF16; dtype += RH_BF16 - RH_F32) {
		struct result *one = train(dtype, 1, rh_cpu_best_isa());
		for (int threads = 2; threads <= 4; threads++)
			expect_equal(one, train(dtype, threads, rh_cpu_best_isa()));
		free(one);
	}
}

static void test_update_is_the_same_on_any_instruction_set(void **state)
{
	(void)state;
	for (enum rh_dtype dtype = RH_F32; dtype <= RH_BF16; dtype += RH_BF16 - RH_F32) {
		struct result *base = train(dtype, 1, RH_CPU_BASE);
		for (enum rh_cpu_isa isa = RH_CPU_AVX2; isa <= rh_cpu_best_isa(); isa++)
			expect_equal(base, train(dtype, 1, isa));
		free(base);
	}
}

/* Norms and sums of odd counts and extreme values through each kernel that this machine has; updates: test_optimizers.c. */
static void test_kernels_agree_on_tails_and_extremes(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int count = 1; count < 100; count++) {
		float weight[100], gradient[100];
		uint16_t half[100], added[RH_CPU_ISAS][100];
		double squares[RH_CPU_ISAS][2];
		for (int i = 0; i < count; i++) {
			int extreme = (int)(check_random(&seed) % 8);
			float size = extreme == 0 ? 1e-38f : extreme == 1 ? 1e30f : extreme == 2 ? 0 : 1;
			weight[i] = check_uniform(&seed);
			gradient[i] = check_uniform(&seed) * size;
			half[i] = rh_f32_to_bf16(gradient[i]);
		}
		for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++) {
			const struct optimizer_kernels *kernels = &RH_CPU_PICK(isa, optimizer_kernels);
			memset(added[isa], 0, sizeof added[isa]);
			squares[isa][0] = kernels->squares_f32(gradient, count);
			squares[isa][1] = kernels->squares_bf16(half, count);
			kernels->add_bf16(added[isa], gradient, weight, count);
			assert_memory_equal(added[isa], added[0], sizeof added[0]);
			assert_memory_equal(squares[isa], squares[0], sizeof squares[0]);
		}
		for (int i = 0; i < count; i++)
			assert_int_equal(added[0][i], rh_f32_to_bf16(gradient[i] + weight[i]));
	}
}

static void test_norm_equals_a_plain_sum(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct rh_pool *pool = pool_of(3);
	const struct rh_block specs[] = {
	        {.name = "odd", .elements = ODD_ELEMENTS, .trainable = 1, .uses = 1, .tensor = odd, .tensors = 3},
	        {.name = "still", .elements = 192, .trainable = 0, .uses = 1, .tensor = tensors, .tensors = TENSORS},
	        reference_spec};
	for (enum rh_dtype dtype = RH_F32; dtype <= RH_BF16; dtype += RH_BF16 - RH_F32) {
		struct rh_store *store = NULL;
		check_ok(rh_store_create(specs, 3, &(struct rh_store_options){.dtype = dtype}, pool, &store));
		double naive = 0;
		for (int b = 0; b < 3; b += 2)
			for (int t = 0; t < 3; t++) {
				struct rh_tensor *tensor = &specs[b].tensor[t];
				for (int64_t i = tensor->offset; i < tensor->offset + tensor->rows * tensor->cols; i++) {
					float value = check_uniform(&seed) * 100;
					if (dtype == RH_F32)
						((float *)rh_store_gradient(store, b))[i] = value;
					else
						((uint16_t *)rh_store_gradient(store, b))[i] = rh_f32_to_bf16(value);
					value = dtype == RH_F32 ? value : rh_bf16_to_f32(rh_f32_to_bf16(value));
					naive += (double)value * (double)value;
				}
			}
		double norm = norm_of(store);
		assert_true(fabs(norm - sqrt(naive)) <= 1e-13 * norm);
		assert_true(norm == norm_of(store)); /* one use: nothing is used up */
		if (dtype == RH_F32) {
			((float *)rh_store_gradient(store, 2))[191 - 16] = INFINITY;
			assert_true(isinf(norm_of(store)));
			((float *)rh_store_gradient(store, 2))[191 - 16] = NAN;
			assert_true(isnan(norm_of(store)));
		}
		rh_store_destroy(store);
	}
	rh_pool_destroy(pool);
}

static void test_norm_adds_two_uses_and_rounds_once(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct rh_pool *pool = pool_of(2);
	struct rh_block spec = {.name = "tied", .elements = ODD_ELEMENTS, .trainable = 1, .uses = 2, .tensor = odd, .tensors = 3};
	static float expected[ODD_ELEMENTS];
	static float apart[ODD_ELEMENTS];
	for (int variant = 0; variant < 4; variant++) {
		enum rh_dtype dtype = variant & 1 ? RH_BF16 : RH_F32;
		int crosses = variant >> 1; /* then the store holds both sums, else the embedding's comes in pieces */
		struct rh_store *store = NULL;
		check_ok(rh_store_create(&spec, 1, &(struct rh_store_options){.dtype = dtype, .crosses_rounds = crosses}, pool, &store));
		float *embedding = crosses ? rh_store_sum(store, 0, 0) : apart, *head = rh_store_sum(store, 0, 1);
		assert_true(!rh_store_sum(store, 0, 0) == !crosses);
		memset(expected, 0, sizeof expected);
		for (int t = 0; t < 3; t++)
			for (int64_t i = odd[t].offset; i < odd[t].offset + odd[t].rows * odd[t].cols; i++) {
				embedding[i] = check_uniform(&seed);
				head[i] = check_uniform(&seed) * 1e-2f;
				expected[i] = head[i] + embedding[i];
			}
		for (int64_t first = 0, piece = 70001; !crosses && first < ODD_ELEMENTS; first += piece)
			rh_store_add_use(store, 0, first, piece < ODD_ELEMENTS - first ? piece : ODD_ELEMENTS - first, apart + first);
		double norm = norm_of(store), naive = 0;
		for (int64_t i = 0; i < ODD_ELEMENTS; i++) {
			if (dtype == RH_F32) {
				assert_true(((float *)rh_store_gradient(store, 0))[i] == expected[i]);
			} else {
				assert_int_equal(((uint16_t *)rh_store_gradient(store, 0))[i], rh_f32_to_bf16(expected[i]));
				expected[i] = rh_bf16_to_f32(rh_f32_to_bf16(expected[i]));
			}
			naive += (double)expected[i] * (double)expected[i];
		}
		assert_true(fabs(norm - sqrt(naive)) <= 1e-13 * norm);
		rh_store_destroy(store);
	}
	rh_pool_destroy(pool);
}

static void test_clip_is_torchs_factor(void **state)
{
	(void)state;
	assert_true(rh_optimizer_clip(5, 0) == 1);
	assert_true(rh_optimizer_clip(0.5, 1) == 1);
	assert_true(rh_optimizer_clip(0, 1) == 1);
	assert_true(rh_optimizer_clip(4, 1) == 1 / (4 + 1e-6));
	assert_true(rh_optimizer_clip(INFINITY, 1) == 0);
	assert_true(isnan(rh_optimizer_clip(NAN, 1)));
}

static void test_update_names_the_weight_that_left_the_numbers(void **state)
{
	(void)state;
	struct rh_pool *pool = pool_of(4);
	struct rh_block spec = {.name = "odd", .elements = ODD_ELEMENTS, .trainable = 1, .uses = 1, .tensor = odd, .tensors = 3};
	for (enum rh_dtype dtype = RH_F32; dtype <= RH_BF16; dtype += RH_BF16 - RH_F32) {
		struct rh_store *store = NULL;
		check_ok(rh_store_create(&spec, 1, &(struct rh_store_options){.dtype = dtype}, pool, &store));
		for (int t = 2; t >= 0; t--) { /* the lowest is named */
			int64_t last = odd[t].offset + odd[t].rows * odd[t].cols - 1;
			if (dtype == RH_F32)
				((float *)rh_store_gradient(store, 0))[last] = NAN;
			else
				((uint16_t *)rh_store_gradient(store, 0))[last] = 0x7fc0;
			int rc = rh_optimizer_update(store, 0, &(struct rh_update){usual, 1e-3, 1, 7, 1});
			assert_int_equal(rc, -EINVAL);
			assert_non_null(strstr(rh_error(rc), odd[t].name));
			assert_non_null(strstr(rh_error(rc), "step 7"));
		}
		rh_store_destroy(store);
	}
	rh_pool_destroy(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_update_equals_torch),
	        cmocka_unit_test(test_layouts_are_bit_equal_over_50_steps),
	        cmocka_unit_test(test_update_is_the_same_on_any_threads),
	        cmocka_unit_test(test_update_is_the_same_on_any_instruction_set),
	        cmocka_unit_test(test_kernels_agree_on_tails_and_extremes),
	        cmocka_unit_test(test_norm_equals_a_plain_sum),
	        cmocka_unit_test(test_norm_adds_two_uses_and_rounds_once),
	        cmocka_unit_test(test_clip_is_torchs_factor),
	        cmocka_unit_test(test_update_names_the_weight_that_left_the_numbers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
