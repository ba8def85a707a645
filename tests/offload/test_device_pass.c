/* The pass of AdamW's weights that a device makes (rh_optimizer_device_op) against the host's own, bit for bit. */
#include "device/adamw_case.h"

#include "offload/optimizer.h"
#include "offload/store_internal.h"

/* Gaps, runs of tensors that decay alike and lie side by side, tensors without an element; several of the host's spans. */
static struct rh_tensor tensor[] = {{"norm", 1, 37, 3, 0, 1, 0},      {"q", 211, 311, 40, 1, 2, 0},     {"k", 13, 101, 65661, 1, 2, 0},
                                    {"none", 0, 9, 66974, 1, 2, 0},   {"v", 7, 1, 66974, 1, 2, 0},      {"bias", 1, 1, 66981, 0, 1, 0},
                                    {"norm2", 1, 64, 66990, 0, 1, 0}, {"last", 3, 5003, 67100, 1, 2, 0}};
enum { TENSORS = sizeof tensor / sizeof *tensor, ELEMENTS = 82200, OPS = 5 };
static const struct rh_block spec = {"block", ELEMENTS, 1, 1, tensor, TENSORS};

struct arrays {
	uint16_t gradient[ELEMENTS], upper[ELEMENTS], lower[ELEMENTS], new_upper[ELEMENTS], new_lower[ELEMENTS];
	float first[ELEMENTS], second[ELEMENTS];
};

static struct rh_store *store_of(struct rh_pool *pool, const struct arrays *from, enum rh_cpu_isa isa)
{
	static const char *const names[] = {[RH_CPU_BASE] = "base", [RH_CPU_AVX2] = "avx2", [RH_CPU_AVX512] = "avx512"};
	struct rh_store *store = NULL;
	setenv("RH_CPU_ISA", names[isa], 1);
	check_ok(rh_store_create(&spec, 1, &(struct rh_store_options){.dtype = RH_BF16}, pool, &store));
	unsetenv("RH_CPU_ISA");
	struct rh_optimizer_arrays host = rh_optimizer_host_arrays(store, 0);
	memcpy(host.gradient, from->gradient, sizeof from->gradient);
	memcpy(host.upper, from->upper, sizeof from->upper);
	memcpy(host.lower, from->lower, sizeof from->lower);
	memcpy(host.first, from->first, sizeof from->first);
	memcpy(host.second, from->second, sizeof from->second);
	return store;
}

/* All ops of the pass, by the oracle (no pool) or the CPU's kernels. */
static void run_ops(const struct rh_store *store, const struct rh_update *update, const struct rh_optimizer_arrays *on,
                    struct rh_pool *pool, enum rh_cpu_isa isa)
{
	struct cpu_context context = {.isa = isa, .pool = pool};
	struct rh_op op;
	int at = 0, ops = 0;
	for (; rh_optimizer_device_op(store, 0, update, on, &at, &op); ops++) {
		assert_null(rh_op_fault(&op));
		if (pool)
			check_ok(cpu_run(&context, &op));
		else
			rh_op_oracle(&op);
	}
	assert_int_equal(ops, OPS);
	assert_int_equal(at, TENSORS);
}

static struct rh_optimizer_arrays arrays_at(struct arrays *a, int in_place)
{
	return (struct rh_optimizer_arrays){.gradient = a->gradient,
	                                    .upper = a->upper,
	                                    .lower = a->lower,
	                                    .first = a->first,
	                                    .second = a->second,
	                                    .new_upper = in_place ? a->upper : a->new_upper,
	                                    .new_lower = in_place ? a->lower : a->new_lower};
}

static void check_update(const struct arrays *from, const struct rh_update *update, struct rh_pool *pool)
{
	static struct arrays want, got;
	for (int isa = RH_CPU_BASE; isa <= case_best_isa(); isa++) {
		struct rh_store *store = store_of(pool, from, (enum rh_cpu_isa)isa);
		for (int way = -1; way <= case_best_isa(); way++) { /* the oracle first; in place and not */
			got = *from;
			struct rh_optimizer_arrays on = arrays_at(&got, way & 1);
			run_ops(store, update, &on, way < 0 ? NULL : pool, (enum rh_cpu_isa)(way < 0 ? RH_CPU_BASE : way));
			if (isa == RH_CPU_BASE && way < 0)
				want = got;
			assert_memory_equal(on.new_upper, want.upper, sizeof want.upper);
			assert_memory_equal(on.new_lower, want.lower, sizeof want.lower);
			assert_memory_equal(got.first, from->first, sizeof from->first);
			assert_memory_equal(got.second, from->second, sizeof from->second);
		}
		uint64_t version = rh_store_version(store, 0);
		check_ok(rh_optimizer_update_piece(store, 0, 0, update, RH_UPDATE_WEIGHTS));
		assert_true(rh_store_version(store, 0) == version + 1);
		assert_memory_equal(store->block[0].weights, want.upper, sizeof want.upper);
		assert_memory_equal(store->block[0].lower, want.lower, sizeof want.lower);
		rh_store_destroy(store);
	}
}

static void test_device_pass_equals_the_hosts(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	static struct arrays from;
	static const struct rh_optimizer_settings settings[] = {
	        {0.9, 0.999, 1e-8, 0.1, 0}, {0.9, 0.95, 1e-8, 0, 0}, {0.4, 0.9, 1e-6, 0.01, 0}};
	static const int64_t steps[] = {1, 2, 100000};
	static const double rates[] = {1e-3, 3e-5};
	struct rh_pool *pool = NULL;
	check_ok(rh_pool_create(3, &pool));
	for (int t = 0; t < TENSORS; t++)
		for (int64_t i = tensor[t].offset; i < tensor[t].offset + tensor[t].rows * tensor[t].cols; i++) {
			struct adamw_element e = adamw_element(&seed);
			from.gradient[i] = e.gradient, from.upper[i] = e.upper, from.lower[i] = e.lower;
			from.first[i] = e.first, from.second[i] = e.second;
		}
	for (int n = 0; n < 18; n++) {
		struct rh_update update = {settings[n % 3], rates[n & 1], n / 9 ? 1 : 0.37, steps[n / 3 % 3]};
		check_update(&from, &update, pool);
	}
	rh_pool_destroy(pool);
}

/* A whole step whose weights come from elsewhere: as the host's. */
static void test_moments_after_weights_that_arrived_are_the_hosts(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	static struct arrays from, device;
	struct rh_pool *pool = NULL;
	check_ok(rh_pool_create(2, &pool));
	for (int64_t i = tensor[1].offset; i < tensor[1].offset + tensor[1].rows * tensor[1].cols; i++) {
		struct adamw_element e = adamw_element(&seed);
		from.gradient[i] = e.gradient, from.upper[i] = e.upper, from.lower[i] = e.lower;
		from.first[i] = e.first, from.second[i] = e.second;
	}
	struct rh_update update = {{0.9, 0.999, 1e-8, 0.1, 0}, 1e-3, 1, 3};
	struct rh_store *whole = store_of(pool, &from, RH_CPU_BASE), *apart = store_of(pool, &from, RH_CPU_BASE);
	check_ok(rh_optimizer_update(whole, 0, &update));
	device = from;
	struct rh_optimizer_arrays on = arrays_at(&device, 1), host = rh_optimizer_host_arrays(apart, 0);
	run_ops(apart, &update, &on, pool, RH_CPU_BASE);
	memcpy(host.new_upper, device.upper, sizeof device.upper);
	memcpy(host.new_lower, device.lower, sizeof device.lower);
	uint64_t version = rh_store_version(apart, 0);
	rh_optimizer_weights_arrived(apart, 0);
	assert_true(rh_store_version(apart, 0) == version + 1 && rh_store_weights(apart, 0) == host.new_upper);
	check_ok(rh_optimizer_update_piece(apart, 0, 0, &update, RH_UPDATE_MOMENTS));
	assert_memory_equal(apart->block[0].weights, whole->block[0].weights, sizeof from.upper);
	assert_memory_equal(apart->block[0].lower, whole->block[0].lower, sizeof from.lower);
	for (int k = 0; k < 2; k++)
		assert_memory_equal(apart->block[0].moment[k], whole->block[0].moment[k], sizeof from.first);
	rh_store_destroy(whole);
	rh_store_destroy(apart);
	rh_pool_destroy(pool);
}

/* A device says nothing of it. */
static void test_moments_name_the_tensor_whose_gradient_was_not_finite(void **state)
{
	(void)state;
	static struct arrays from;
	struct rh_pool *pool = NULL;
	check_ok(rh_pool_create(2, &pool));
	static const uint16_t bad[] = {0x7f80, 0xff80, 0x7fc0}; /* infinity of either sign, NaN */
	for (int i = 0; i < 3; i++) {
		struct rh_update update = {{0.9, 0.999, 1e-8, 0.1, 0}, 1e-3, 1, 3};
		struct rh_store *store = store_of(pool, &from, (enum rh_cpu_isa)case_best_isa());
		struct rh_optimizer_arrays host = rh_optimizer_host_arrays(store, 0);
		((uint16_t *)host.gradient)[tensor[7].offset + 15008] = bad[i];
		run_ops(store, &update, &host, pool, RH_CPU_BASE);
		rh_optimizer_weights_arrived(store, 0);
		int rc = rh_optimizer_update_piece(store, 0, 0, &update, RH_UPDATE_MOMENTS);
		assert_int_equal(rc, -EINVAL);
		assert_non_null(strstr(rh_error(rc), "last"));
		rh_store_destroy(store);
	}
	rh_pool_destroy(pool);
}

static void test_only_split_adamw_in_memory_has_a_device_pass(void **state)
{
	(void)state;
	static const struct {
		struct rh_store_options options;
		int has;
	} cases[] = {{{.dtype = RH_BF16}, 1},
	             {{.dtype = RH_BF16, .crosses_rounds = 1}, 1},
	             {{.dtype = RH_F32}, 0},
	             {{.dtype = RH_BF16, .published = 1}, 0},
	             {{.dtype = RH_BF16, .layout = RH_LAYOUT_PLAIN}, 0},
	             {{.dtype = RH_BF16, .layout = RH_LAYOUT_SPLIT8}, 0},
	             {{.dtype = RH_BF16, .optim = RH_OPTIM_LION}, 0},
	             {{.dtype = RH_BF16, .optim = RH_OPTIM_ADAFACTOR}, 0}};
	struct rh_pool *pool = NULL;
	check_ok(rh_pool_create(1, &pool));
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_store *store = NULL;
		check_ok(rh_store_create(&spec, 1, &cases[i].options, pool, &store));
		assert_int_equal(rh_optimizer_has_device_pass(store), cases[i].has);
		rh_store_destroy(store);
	}
	rh_pool_destroy(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_device_pass_equals_the_hosts),
	        cmocka_unit_test(test_moments_after_weights_that_arrived_are_the_hosts),
	        cmocka_unit_test(test_moments_name_the_tensor_whose_gradient_was_not_finite),
	        cmocka_unit_test(test_only_split_adamw_in_memory_has_a_device_pass),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
