/* PACI's partitioner against brute force over all cuts, the design's counterexample to a single pass over pairs, and the window. */
#include "check.h"

#include "core/alloc.h"
#include "partition/paci.h"

#include <math.h>
#include <string.h>

enum { LAYERS_MOST = 9 };

static uint32_t below(uint64_t *random, uint32_t limit)
{
	return check_random(random) % limit;
}

struct best {
	int64_t overshoot, bytes[2]; /* bytes: a partition's largest stage, the smallest of all and one drawn at random */
	double slowest;
	uint32_t seen;
};

/* Cut masks: bit l set when a stage begins at layer l + 1. */
static void try_all(const struct rh_paci_request *request, int64_t step, uint64_t *random, struct best *best)
{
	*best = (struct best){.overshoot = INT64_MAX, .slowest = INFINITY, .bytes = {INT64_MAX, 0}};
	for (uint32_t mask = 0; mask < 1u << (request->layers - 1); mask++) {
		if (__builtin_popcount(mask) != request->boxes - 1)
			continue;
		int64_t most = 0;
		double slowest = 0;
		for (int lo = 0, hi, j = 1; lo < request->layers; lo = hi, j++) {
			double seconds = 0;
			int64_t fixed = 0, activation = 0;
			for (hi = lo; hi < request->layers; hi++) {
				seconds += request->layer[hi].seconds;
				fixed += request->layer[hi].static_bytes;
				activation += request->layer[hi].activation_bytes;
				if (mask >> hi & 1) {
					hi++;
					break;
				}
			}
			int64_t bytes = fixed + (1 + (request->boxes - j) * step) * activation;
			most = bytes > most ? bytes : most;
			slowest = seconds > slowest ? seconds : slowest;
		}
		int64_t over = most > request->cap_bytes ? most - request->cap_bytes : 0;
		if (over < best->overshoot || (over == best->overshoot && slowest < best->slowest)) {
			best->overshoot = over;
			best->slowest = slowest;
		}
		best->bytes[0] = most < best->bytes[0] ? most : best->bytes[0];
		if (below(random, ++best->seen) == 0)
			best->bytes[1] = most;
	}
}

static void make_layers(uint64_t *random, int kind, struct rh_paci_layer layer[LAYERS_MOST])
{
	uint32_t most = kind == 1 ? 2 : 12;
	for (int l = 0; l < LAYERS_MOST; l++)
		layer[l] = (struct rh_paci_layer){below(random, most), below(random, most), below(random, most)};
	if (kind == 2)
		layer[below(random, LAYERS_MOST)] = (struct rh_paci_layer){1000, 500, 50};
}

static void check_cuts(const struct rh_paci_request *request, const struct rh_paci_partition *found)
{
	assert_int_equal(found->cut[0], 0);
	assert_int_equal(found->cut[request->boxes], request->layers);
	double slowest = 0;
	int64_t over = 0;
	for (int j = 0; j < request->boxes; j++) {
		assert_true(found->cut[j] < found->cut[j + 1]);
		double seconds = 0;
		int64_t bytes = 0;
		for (int l = found->cut[j]; l < found->cut[j + 1]; l++) {
			seconds += request->layer[l].seconds;
			bytes += request->layer[l].static_bytes +
			         rh_paci_window(request->boxes, j + 1, found->window_step) * request->layer[l].activation_bytes;
		}
		slowest = fmax(slowest, seconds);
		over = bytes - request->cap_bytes > over ? bytes - request->cap_bytes : over;
	}
	check_near(slowest, found->slowest_s, 0);
	assert_int_equal(over, found->overshoot_bytes);
}

static void test_partition_equals_brute_force(void **state)
{
	(void)state;
	uint64_t random = check_seed();
	int instances = 0, over = 0;
	for (int round = 0; round < 1500; round++) {
		struct rh_paci_layer layer[LAYERS_MOST];
		make_layers(&random, round % 3, layer);
		struct rh_paci_request request = {.layer = layer, .layers = 1 + (int)below(&random, LAYERS_MOST)};
		request.boxes = 1 + (int)below(&random, (uint32_t)request.layers);
		int64_t step = 1 + below(&random, 4);
		struct best best;
		request.cap_bytes = 0;
		try_all(&request, step, &random, &best);
		const int64_t caps[] = {best.bytes[1], best.bytes[1] - 1, best.bytes[0], best.bytes[0] - 1, INT64_MAX / 4};
		for (int c = 0; c < 5; c++, instances++) {
			struct rh_paci_partition found;
			request.cap_bytes = caps[c];
			try_all(&request, step, &random, &best);
			check_ok(rh_paci_partition_windowed(&request, step, &found));
			assert_int_equal(found.overshoot_bytes, best.overshoot);
			check_near(found.slowest_s, best.slowest, 0);
			check_cuts(&request, &found);
			over += best.overshoot > 0;
			rh_paci_partition_free(&found);
		}
	}
	printf("%d instances, %d of them above the cap\n", instances, over);
	assert_true(over > 1000);
}

/* One pass over (overshoot, time) pairs in lexicographic order finds (9,11) here. */
static void test_partition_that_fits_nowhere_is_least_worst_then_fastest(void **state)
{
	(void)state;
	static const struct rh_paci_layer layer[] = {{9, 4, 0}, {2, 5, 1}, {5, 5, 2}, {5, 5, 2}, {4, 7, 2}};
	struct rh_paci_request request = {.layer = layer, .layers = 5, .boxes = 3, .cap_bytes = 7};
	struct rh_paci_partition found;
	check_ok(rh_paci_partition(&request, &found));
	assert_int_equal(found.overshoot_bytes, 9);
	check_near(found.slowest_s, 9, 0);
	check_cuts(&request, &found);
	rh_paci_partition_free(&found);
}

static void test_window_and_partition_agree(void **state)
{
	(void)state;
	uint64_t random = check_seed();
	int agree = 0, swing = 0;
	for (int round = 0; round < 1500; round++) {
		struct rh_paci_layer layer[LAYERS_MOST];
		make_layers(&random, round % 3, layer);
		for (int l = 0; l < LAYERS_MOST; l++)
			layer[l].seconds += 1;
		struct rh_paci_request request = {.layer = layer, .layers = 2 + (int)below(&random, LAYERS_MOST - 1)};
		request.boxes = 1 + (int)below(&random, (uint32_t)request.layers);
		request.latency_s = below(&random, 40);
		struct best best;
		try_all(&request, 1, &random, &best);
		request.cap_bytes = below(&random, 2) ? best.bytes[0] + below(&random, 60) : INT64_MAX / 4;
		struct rh_paci_partition found;
		check_ok(rh_paci_partition(&request, &found));
		check_cuts(&request, &found);
		try_all(&request, found.window_step, &random, &best);
		assert_int_equal(found.overshoot_bytes, best.overshoot);
		check_near(found.slowest_s, best.slowest, 0);
		int64_t asked = rh_paci_window_step(request.latency_s, found.slowest_s);
		assert_true(asked <= found.window_step); /* the latency is hidden */
		agree += asked == found.window_step;
		if (asked < found.window_step) { /* one step less would not hide it */
			swing++;
			try_all(&request, found.window_step - 1, &random, &best);
			assert_true(rh_paci_window_step(request.latency_s, best.slowest) > found.window_step - 1);
		}
		rh_paci_partition_free(&found);
	}
	printf("%d fixed points, %d swings\n", agree, swing);
	assert_true(agree > 1000);
}

static void test_partition_of_impossible_requests_is_refused(void **state)
{
	(void)state;
	static const struct rh_paci_layer layer[] = {{1, INT64_MAX, 1}, {1, 1, INT64_MAX}};
	struct rh_paci_request request = {.layer = layer, .layers = 1, .boxes = 2, .cap_bytes = 1};
	struct rh_paci_partition found;
	assert_int_equal(rh_paci_partition(&request, &found), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "use fewer boxes"));
	request.layers = 2;
	assert_int_equal(rh_paci_partition(&request, &found), -EOVERFLOW);
	int rc = -ENOMEM;
	request.layer = (const struct rh_paci_layer[]){{1, 1, 1}, {1, 1, 1}};
	for (uint64_t nth = 1; rc; nth++) {
		rh_alloc_fail_nth(nth);
		rc = rh_paci_partition(&request, &found);
		rh_alloc_fail_nth(0);
		assert_true(rc == 0 || rc == -ENOMEM);
	}
	rh_paci_partition_free(&found);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_partition_equals_brute_force),
	        cmocka_unit_test(test_partition_that_fits_nowhere_is_least_worst_then_fastest),
	        cmocka_unit_test(test_window_and_partition_agree),
	        cmocka_unit_test(test_partition_of_impossible_requests_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
