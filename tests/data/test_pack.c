/* Packing and drawing against the plainest programs for the same. */
#include "check.h"

#include "data/data_internal.h"

#include <string.h>

enum { MOST = 200 };

/* Best fit decreasing, by looking at every bin: of those with the least space that is enough, the one that has had it longest. Returns how
 * many bins there are; bin_of by document. */
static int64_t pack_plainly(const int64_t *length, int64_t documents, int64_t capacity, int64_t bin_of[MOST])
{
	int64_t space[MOST], since[MOST], bins = 0, turn = 0;
	for (int64_t wanted = capacity; wanted > 0; wanted--)
		for (int64_t d = 0; d < documents; d++) {
			int64_t best = -1;
			if (length[d] != wanted)
				continue;
			for (int64_t b = 0; b < bins; b++)
				if (space[b] >= wanted &&
				    (best < 0 || space[b] < space[best] || (space[b] == space[best] && since[b] < since[best])))
					best = b;
			if (best < 0) {
				best = bins++;
				space[best] = capacity;
			}
			bin_of[d] = best;
			space[best] -= wanted;
			since[best] = turn++;
		}
	return bins;
}

static void test_packing_is_best_fit_decreasing(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int run = 0; run < 2000; run++) {
		int64_t length[MOST], order[MOST], first[MOST + 1], expected[MOST], bins = -1;
		int64_t capacity = 1 + check_random(&seed) % 40, documents = 1 + check_random(&seed) % MOST;
		for (int64_t d = 0; d < documents; d++)
			length[d] = 1 + check_random(&seed) % (uint32_t)capacity;
		check_ok(data_pack(length, documents, capacity, order, first, &bins));
		assert_int_equal(bins, pack_plainly(length, documents, capacity, expected));
		assert_int_equal(first[0], 0);
		assert_int_equal(first[bins], documents);
		for (int64_t b = 0; b < bins; b++) {
			int64_t filled = 0;
			for (int64_t i = first[b]; i < first[b + 1]; i++) {
				filled += length[order[i]];
				assert_int_equal(expected[order[i]], b);
			}
			assert_in_range(filled, 1, capacity);
		}
	}
}

/* Lemire's method word by word: 2^64 mod bound of the low halves are refused, no fewer and no more. */
static uint64_t draw_plainly(uint64_t seed, uint32_t a, uint64_t index, uint64_t bound)
{
	unsigned __int128 all = (unsigned __int128)1 << 64;
	uint64_t refused = (uint64_t)(all % bound);
	for (uint32_t try = 0;; try++) {
		struct rh_philox_block block =
		        rh_philox(seed, (uint32_t)index, a, try | (uint32_t)(index >> 32) << 16, (uint32_t)RH_PHILOX_SHUFFLE);
		for (int half = 0; half < 2; half++) {
			unsigned __int128 word = ((unsigned __int128)block.word[2 * half + 1] << 32) + block.word[2 * half];
			unsigned __int128 product = word * bound;
			if (product % all >= refused)
				return (uint64_t)(product / all);
		}
	}
}

static void test_draws_refuse_what_favours_small_values_alone(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	static const uint64_t bounds[] = {
	        1, 2, 3, 1000, UINT64_C(1) << 32, (UINT64_C(1) << 62) + 1, (UINT64_C(1) << 63) + 1, UINT64_C(3) << 62, UINT64_MAX};
	for (size_t b = 0; b < sizeof bounds / sizeof *bounds; b++)
		for (uint64_t i = 0; i < 500; i++)
			assert_true(data_draw(seed, RH_PHILOX_SHUFFLE, 7, i << 20, bounds[b]) == draw_plainly(seed, 7, i << 20, bounds[b]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_packing_is_best_fit_decreasing),
	        cmocka_unit_test(test_draws_refuse_what_favours_small_values_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
