#include "check.h"

#include "core/alloc.h"
#include "data/data_internal.h"

#include <math.h>
#include <string.h>
#include <time.h>

static void test_draw_is_uniform_and_within_bounds(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (uint64_t bound = 1; bound < 12; bound++) {
		double count[12] = {0}, draws = 20000, chi = 0;
		for (uint64_t i = 0; i < (uint64_t)draws; i++) {
			uint64_t drawn = data_draw(seed, RH_PHILOX_SHUFFLE, 3, i, bound);
			assert_true(drawn < bound);
			count[drawn]++;
		}
		for (uint64_t i = 0; i < bound; i++)
			chi += (count[i] - draws / (double)bound) * (count[i] - draws / (double)bound) / (draws / (double)bound);
		assert_true(chi < 40); /* at most 10 degrees of freedom: p < 2e-5 */
	}
	/* a bound just above 2^63 refuses nearly half of all words, which exercises the retries */
	double sum = 0;
	for (uint64_t i = 0; i < 10000; i++) {
		uint64_t bound = (UINT64_C(1) << 63) + 1, drawn = data_draw(seed, RH_PHILOX_SHUFFLE, 0, i, bound);
		assert_true(drawn < bound);
		sum += (double)drawn / (double)bound;
	}
	assert_true(fabs(sum / 10000 - 0.5) < 0.015);
}

static void test_shuffle_gives_every_order_equally_often(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double count[27] = {0}, chi = 0;
	for (uint32_t epoch = 0; epoch < 6000; epoch++) {
		int64_t order[3];
		data_shuffle(seed, RH_PHILOX_SHUFFLE, epoch, order, 3);
		count[order[0] * 9 + order[1] * 3 + order[2]]++;
	}
	for (int i = 0; i < 27; i++)
		if (count[i] > 0)
			chi += (count[i] - 1000) * (count[i] - 1000) / 1000;
	assert_true(chi < 35); /* 5 degrees of freedom */
}

/* Every row once an epoch; a short last step with a short last micro-batch; orders differ by epoch and seed only. */
static void test_epoch_covers_every_row_once(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int64_t rows = 1; rows < 60; rows++)
		for (int64_t batch = 1; batch < 5; batch++)
			for (int64_t accumulation = 1; accumulation < 5; accumulation++) {
				struct rh_sampler *sampler;
				check_ok(rh_sampler_create(rows, batch, accumulation, RH_SAMPLING_RANDOM, seed, &sampler));
				int64_t steps = rh_sampler_steps_per_epoch(sampler);
				assert_int_equal(steps, (rows + batch * accumulation - 1) / (batch * accumulation));
				int seen[60] = {0};
				int64_t left = rows;
				for (int64_t step = 0; step < steps; step++)
					for (int64_t m = 0; m < rh_sampler_micro_batches(sampler, step); m++) {
						const int64_t *row;
						int64_t count = rh_sampler_rows(sampler, 2, step, m, &row);
						assert_int_equal(count, left < batch ? left : batch);
						left -= count;
						for (int64_t i = 0; i < count; i++)
							seen[row[i]]++;
					}
				assert_int_equal(left, 0);
				for (int64_t i = 0; i < rows; i++)
					assert_int_equal(seen[i], 1);
				rh_sampler_destroy(sampler);
			}
}

static void test_order_is_a_function_of_seed_and_epoch(void **state)
{
	(void)state;
	struct rh_sampler *one, *other, *in_order;
	const int64_t *a, *b, *c;
	check_ok(rh_sampler_create(100, 100, 1, RH_SAMPLING_RANDOM, 5, &one));
	check_ok(rh_sampler_create(100, 100, 1, RH_SAMPLING_RANDOM, 6, &other));
	check_ok(rh_sampler_create(100, 1000, INT64_MAX, RH_SAMPLING_SEQUENTIAL, 6, &in_order));
	int64_t kept[100];
	assert_int_equal(rh_sampler_rows(one, 0, 0, 0, &a), 100);
	memcpy(kept, a, sizeof kept);
	rh_sampler_rows(other, 0, 0, 0, &b);
	assert_memory_not_equal(kept, b, sizeof kept);
	rh_sampler_rows(one, 1, 0, 0, &a);
	assert_memory_not_equal(kept, a, sizeof kept);
	rh_sampler_rows(one, 0, 0, 0, &a);
	assert_memory_equal(kept, a, sizeof kept);
	assert_int_equal(rh_sampler_rows(in_order, 3, 0, 0, &c), 100);
	for (int64_t i = 0; i < 100; i++)
		assert_int_equal(c[i], i);
	rh_sampler_destroy(one);
	rh_sampler_destroy(other);
	rh_sampler_destroy(in_order);
	rh_sampler_destroy(NULL);
}

/* The slow way: look at every bin. Among equal spaces the one that has had it longest. */
static int64_t pack_slowly(const int64_t *length, int64_t documents, int64_t capacity, int64_t *bin_of)
{
	int64_t bins = 0, clock = 0, *space = rh_alloc((size_t)documents, 8), *since = rh_alloc((size_t)documents, 8);
	for (int64_t size = capacity; size > 0; size--)
		for (int64_t i = 0; i < documents; i++) {
			if (length[i] != size)
				continue;
			int64_t best = -1;
			for (int64_t bin = 0; bin < bins; bin++)
				if (space[bin] >= size &&
				    (best < 0 || space[bin] < space[best] || (space[bin] == space[best] && since[bin] < since[best])))
					best = bin;
			if (best < 0) {
				best = bins++;
				space[best] = capacity;
			}
			space[best] -= size;
			since[best] = clock++;
			bin_of[i] = best;
		}
	rh_free(space);
	rh_free(since);
	return bins;
}

static void test_packing_equals_the_slow_way(void **state)
{
	(void)state;
	uint64_t random = check_seed();
	for (int trial = 0; trial < 300; trial++) {
		int64_t documents = 1 + check_random(&random) % 80, capacity = 1 + check_random(&random) % 40;
		int64_t length[80], order[80], first[81], bin_of[80], bins;
		for (int64_t i = 0; i < documents; i++)
			length[i] = 1 + check_random(&random) % capacity;
		check_ok(data_pack(length, documents, capacity, order, first, &bins));
		assert_int_equal(bins, pack_slowly(length, documents, capacity, bin_of));
		assert_int_equal(first[bins], documents);
		for (int64_t bin = 0; bin < bins; bin++)
			for (int64_t at = first[bin]; at < first[bin + 1]; at++) {
				assert_int_equal(bin_of[order[at]], bin);
				if (at > first[bin]) /* within a bin in the order they were put */
					assert_true(length[order[at - 1]] >= length[order[at]]);
			}
	}
}

static void test_packing_a_hundred_thousand_rows_is_quick(void **state)
{
	(void)state;
	enum { ROWS = 100000 };
	uint64_t random = check_seed();
	int64_t *length = rh_alloc(ROWS, 8), *order = rh_alloc(ROWS, 8), *first = rh_alloc(ROWS + 1, 8), bins, sum = 0;
	for (int i = 0; i < ROWS; i++)
		sum += length[i] = 1 + (int64_t)(powf(fabsf(check_uniform(&random)), 3) * 2047);
	clock_t start = clock();
	check_ok(data_pack(length, ROWS, 2048, order, first, &bins));
	double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
	printf("100000 rows into %lld bins of 2048, filled to %.4f, in %.3f s\n", (long long)bins, (double)sum / (double)bins / 2048,
	       seconds);
	assert_true(seconds < 5);
	assert_true((double)sum / (double)bins > 0.99 * 2048);
	rh_free(length);
	rh_free(order);
	rh_free(first);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_draw_is_uniform_and_within_bounds), cmocka_unit_test(test_shuffle_gives_every_order_equally_often),
	        cmocka_unit_test(test_epoch_covers_every_row_once),       cmocka_unit_test(test_order_is_a_function_of_seed_and_epoch),
	        cmocka_unit_test(test_packing_equals_the_slow_way),       cmocka_unit_test(test_packing_a_hundred_thousand_rows_is_quick),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
