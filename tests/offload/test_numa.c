/* Work shared out by NUMA node, on machines that hwloc makes up: who does what changes, no bit of what is done. */
#include "check.h"

#include "offload/numa.h"
#include "offload/optimizer.h"

#include <stdatomic.h>
#include <string.h>

enum { ELEMENTS = 5 * 32768 + 77, THREADS = 4 };

static struct rh_tensor tensors[] = {{"a", 3 * 32768, 1, 0, 1, 2}, {"b", 2 * 32768 + 77, 1, 3 * 32768, 1, 2}};
static struct rh_block spec = {"layer", ELEMENTS, 1, 1, tensors, 2};

static void update(const char *machine, enum rh_dtype dtype, enum rh_state_layout layout, float *weights, double *norm)
{
	struct rh_pool *pool;
	struct rh_store *store;
	uint64_t seed = 7;
	if (machine)
		setenv("HWLOC_SYNTHETIC", machine, 1);
	check_ok(rh_pool_create(THREADS, &pool));
	check_ok(rh_store_create(&spec, 1, &(struct rh_store_options){.dtype = dtype, .layout = layout}, pool, &store));
	unsetenv("HWLOC_SYNTHETIC");
	for (int step = 1; step <= 3; step++) {
		uint16_t *half = rh_store_gradient(store, 0);
		float *whole = rh_store_gradient(store, 0);
		for (int i = 0; i < ELEMENTS; i++) {
			float value = (float)(check_random(&seed) % 2048) / 1024 - 1;
			uint32_t bits;
			memcpy(&bits, &value, sizeof bits);
			if (dtype == RH_F32)
				whole[i] = value;
			else
				half[i] = (uint16_t)(bits >> 16);
		}
		rh_optimizer_take(store, 0);
		*norm = rh_optimizer_block_norm(store, 0);
		check_ok(rh_optimizer_update(store, 0, &(struct rh_optimizer_settings){0.9, 0.999, 1e-8, 0.01, 0}, 1e-3, 0.5, step));
	}
	for (int t = 0; t < 2; t++)
		check_ok(rh_store_get(store, 0, t, 0, tensors[t].rows, weights + tensors[t].offset));
	rh_store_destroy(store);
	rh_pool_destroy(pool);
}

static void test_updates_on_made_up_machines_are_the_same(void **state)
{
	(void)state;
	static float one[ELEMENTS], many[ELEMENTS];
	static const char *const machines[] = {"numa:2 core:2 pu:1", "numa:3 core:1 pu:2", "pack:4 numa:1 core:8 pu:1",
	                                       "numa:20 core:1 pu:1"};
	for (int wide = 0; wide < 2; wide++) {
		double norm, other;
		enum rh_dtype dtype = wide ? RH_F32 : RH_BF16;
		enum rh_state_layout layout = wide ? RH_LAYOUT_PLAIN : RH_LAYOUT_SPLIT;
		update(NULL, dtype, layout, one, &norm);
		for (int m = 0; m < 4; m++) {
			update(machines[m], dtype, layout, many, &other);
			assert_true(norm == other && norm > 0);
			assert_memory_equal(one, many, sizeof one);
		}
	}
}

static atomic_int by_group[RH_POOL_GROUPS];
static const int64_t share[] = {0, 40, 100};

static void note_task(void *context, int64_t i)
{
	(void)context;
	atomic_fetch_add(&by_group[i >= share[1]], 1);
}

static void test_threads_are_grouped_by_the_nodes_cores(void **state)
{
	(void)state;
	assert_int_equal(rh_numa_nodes(NULL), 1);
	setenv("HWLOC_SYNTHETIC", "numa:2 core:4 pu:1", 1);
	struct rh_numa *numa = rh_numa_open();
	assert_non_null(numa);
	assert_int_equal(rh_numa_nodes(numa), 2);
	struct rh_pool *pool;
	check_ok(rh_pool_create(THREADS, &pool));
	rh_numa_group(numa, pool);
	rh_pool_run_shared(pool, note_task, NULL, share);
	assert_int_equal(by_group[0], 40);
	assert_int_equal(by_group[1], 60);
	static char memory[1 << 16];
	rh_numa_place(numa, 1, memory, sizeof memory);
	rh_pool_destroy(pool);
	rh_numa_close(numa);
	setenv("HWLOC_SYNTHETIC", "numa:1 core:4 pu:1", 1);
	assert_null(rh_numa_open());
	unsetenv("HWLOC_SYNTHETIC");
}

static void test_parts_cover_all_elements(void **state)
{
	(void)state;
	const int64_t sizes[] = {0, 1, 5, 32768, INT64_C(1) << 40};
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
		for (int nodes = 1; nodes <= RH_POOL_GROUPS; nodes++) {
			assert_int_equal(rh_numa_part(sizes[s], nodes, 0), 0);
			assert_int_equal(rh_numa_part(sizes[s], nodes, nodes), sizes[s]);
			for (int n = 0; n < nodes; n++) {
				int64_t part = rh_numa_part(sizes[s], nodes, n + 1) - rh_numa_part(sizes[s], nodes, n);
				assert_true(part >= sizes[s] / nodes && part <= sizes[s] / nodes + 1);
			}
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_updates_on_made_up_machines_are_the_same),
	        cmocka_unit_test(test_threads_are_grouped_by_the_nodes_cores),
	        cmocka_unit_test(test_parts_cover_all_elements),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
