/* Work shared out by NUMA node, on machines that hwloc makes up: who does what changes, no bit of what is done. */
#include "check.h"
#include "tensor.h"

#include "core/clock.h"
#include "offload/memory.h"
#include "offload/optimizer.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ELEMENTS = 5 * 32768 + 77, THREADS = 4 };

static struct rh_tensor tensors[] = {TENSOR("a", 3 * 32768, 1, 0, 1, 2), TENSOR("b", 2 * 32768 + 77, 1, 3 * 32768, 1, 2)};
static struct rh_block spec = {.name = "layer", .elements = ELEMENTS, .trainable = 1, .uses = 1, .tensor = tensors, .tensors = 2};

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
		check_ok(rh_optimizer_update(store, 0, &(struct rh_update){{0.9, 0.999, 1e-8, 0.01, 0}, 1e-3, 0.5, step, 1}));
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

/* Of any first so many threads each node has its share of the cores. */
static void check_dealt(const struct rh_numa *numa, const int *cores, int nodes)
{
	int node[32], given[4] = {0}, all = 0;
	for (int n = 0; n < nodes; n++)
		all += cores[n];
	rh_numa_deal(numa, 32, node);
	for (int i = 0; i < 32; i++) {
		given[node[i]]++;
		for (int n = 0; n < nodes; n++)
			assert_true(abs(given[n] * all - cores[n] * (i + 1)) < all);
	}
}

/* two-nodes.xml: node 0 with three cores, node 1 with one, and a GPU on each. No comment stands in it: hwloc's own parser, all that there
 * is without libhwloc-plugins, knows none. */
static void test_threads_are_dealt_to_nodes_in_turn(void **state)
{
	(void)state;
	static const struct {
		const char *key, *machine;
		int nodes, cores[4];
	} cases[] = {{"HWLOC_SYNTHETIC", "numa:2 core:8 pu:1", 2, {8, 8}},
	             {"HWLOC_SYNTHETIC", "numa:4 core:2 pu:2", 4, {4, 4, 4, 4}},
	             {"HWLOC_XMLFILE", "tests/offload/two-nodes.xml", 2, {3, 1}}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		setenv(cases[i].key, cases[i].machine, 1);
		struct rh_numa *numa = rh_numa_open();
		unsetenv(cases[i].key);
		assert_int_equal(rh_numa_nodes(numa), cases[i].nodes);
		check_dealt(numa, cases[i].cores, cases[i].nodes);
		rh_numa_close(numa);
	}
}

static _Atomic int begun[2];

/* Ends when the other node is at work too; or, where it has no thread, after a while. */
static void await_the_other(void *context, int64_t i)
{
	double until = rh_clock_seconds() + 5;
	(void)context;
	begun[i / 2]++;
	while (!begun[1 - i / 2] && rh_clock_seconds() < until)
		sched_yield();
}

static void test_throttled_threads_are_some_of_each_node(void **state)
{
	(void)state;
	setenv("HWLOC_SYNTHETIC", "numa:2 core:4 pu:1", 1);
	struct rh_numa *numa = rh_numa_open();
	unsetenv("HWLOC_SYNTHETIC");
	struct rh_pool *pool;
	check_ok(rh_pool_create(THREADS, &pool));
	rh_numa_group(numa, pool);
	rh_pool_limit(pool, 2);
	/* two tasks for each node: two threads of one node would take its own first */
	double began = rh_clock_seconds();
	rh_pool_run_shared(pool, await_the_other, NULL, (const int64_t[]){0, 2, 4});
	assert_true(rh_clock_seconds() - began < 4);
	rh_pool_destroy(pool);
	rh_numa_close(numa);
}

static void test_memory_of_devices_is_near_them(void **state)
{
	(void)state;
	static const struct {
		const char *address[3];
		int devices;
		unsigned nodes;
	} cases[] = {{{"0000:16:00.0"}, 1, 1},
	             {{"0000:c8:00.0"}, 1, 2},
	             {{"0000:c8:00.0", "0000:16:00.0"}, 2, 3},
	             {{""}, 1, 3},
	             {{"0000:c8:00.0", ""}, 2, 3},
	             {{"0000:77:00.0"}, 1, 3},
	             {{"nonsense"}, 1, 3}};
	setenv("HWLOC_XMLFILE", "tests/offload/two-nodes.xml", 1);
	struct rh_numa *numa = rh_numa_open();
	assert_non_null(numa);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_device device[3] = {0}, *list[] = {&device[0], &device[1], &device[2]};
		struct rh_arena memory;
		for (int d = 0; d < cases[i].devices; d++)
			snprintf(device[d].address, sizeof device[d].address, "%s", cases[i].address[d]);
		assert_int_equal(rh_numa_near(numa, list, cases[i].devices), cases[i].nodes);
		check_ok(rh_host_reserve_near(list, cases[i].devices, 10000, "a test", &memory));
		memset(memory.base, 1, 10000);
		rh_host_release(&memory);
	}
	unsetenv("HWLOC_XMLFILE");
	rh_numa_close(numa);
	struct rh_device *none = NULL;
	assert_int_equal(rh_numa_near(NULL, &none, 0), 1);
}

/* The machine below, taken for this one. */
static struct rh_numa *open_as_this_machine(const char *machine)
{
	setenv("HWLOC_SYNTHETIC", machine, 1);
	setenv("HWLOC_THISSYSTEM", "1", 1);
	struct rh_numa *numa = rh_numa_open();
	unsetenv("HWLOC_SYNTHETIC");
	unsetenv("HWLOC_THISSYSTEM");
	return numa;
}

static void test_what_the_process_is_bound_to_is_all_there_is(void **state)
{
	(void)state;
	cpu_set_t all, one;
	check_ok(sched_getaffinity(0, sizeof all, &all));
	if (!CPU_ISSET(0, &all) || !CPU_ISSET(1, &all))
		check_skip("bound to cores: this machine does not give the test its processors 0 and 1");
	struct rh_numa *numa = open_as_this_machine("numa:2 core:1 pu:1");
	assert_int_equal(rh_numa_nodes(numa), 2);
	struct rh_pool *pool;
	check_ok(rh_pool_create(2, &pool));
	rh_numa_group(numa, pool);
	assert_int_equal(pthread_getaffinity_np(rh_pool_worker(pool, 1), sizeof one, &one), 0);
	assert_true(CPU_COUNT(&one) == 1 && CPU_ISSET(1, &one));
	rh_pool_destroy(pool);
	rh_numa_close(numa);
	CPU_ZERO(&one);
	CPU_SET(1, &one);
	check_ok(sched_setaffinity(0, sizeof one, &one)); /* taskset -c 1 */
	numa = open_as_this_machine("numa:2 core:1 pu:1");
	int other = rh_numa_nodes(numa);
	rh_numa_close(numa);
	numa = open_as_this_machine("numa:1 core:2 pu:1");
	check_ok(sched_setaffinity(0, sizeof all, &all));
	assert_int_equal(other, 1);
	assert_null(numa);
}

static int policy(unsigned long nodes[16])
{
	int mode = -1;
	memset(nodes, 0, 16 * sizeof *nodes);
	return syscall(SYS_get_mempolicy, &mode, nodes, 1025L, NULL, 0L) ? -1 : mode;
}

static void test_the_callers_memory_policy_comes_back(void **state)
{
	(void)state;
	enum { BIND = 2, INTERLEAVE = 3 };
	unsigned long first[16] = {1}, before[16], now[16];
	if (policy(before) < 0 || syscall(SYS_set_mempolicy, (long)INTERLEAVE, first, 1025L))
		check_skip("memory policies: this system does not let the test set one");
	struct rh_numa *numa = open_as_this_machine("numa:2 core:1 pu:1");
	if (!numa)
		check_skip("memory policies: this machine does not give the test its processors 0 and 1");
	int mode = policy(before);
	rh_numa_spread_begin(numa);
	rh_numa_spread_end(numa);
	assert_int_equal(policy(now), mode);
	assert_int_equal(mode, INTERLEAVE);
	assert_memory_equal(now, before, sizeof now);
	assert_int_equal(syscall(SYS_set_mempolicy, (long)BIND, first, 1025L), 0);
	rh_numa_spread_begin(numa);
	int meanwhile = policy(now);
	rh_numa_spread_end(numa);
	mode = policy(now);
	check_ok((int)syscall(SYS_set_mempolicy, 0L, NULL, 0L));
	assert_int_equal(meanwhile, INTERLEAVE);
	assert_int_equal(mode, BIND);
	assert_true(now[0] == 1 && !now[1]);
	rh_numa_close(numa);
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
	        cmocka_unit_test(test_threads_are_dealt_to_nodes_in_turn),
	        cmocka_unit_test(test_throttled_threads_are_some_of_each_node),
	        cmocka_unit_test(test_memory_of_devices_is_near_them),
	        cmocka_unit_test(test_what_the_process_is_bound_to_is_all_there_is),
	        cmocka_unit_test(test_the_callers_memory_policy_comes_back),
	        cmocka_unit_test(test_parts_cover_all_elements),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
