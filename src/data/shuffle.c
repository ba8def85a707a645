/* Uniform draws and permutations from the counter-based generator: number i of a stream needs none before it. */
#include "data/data_internal.h"

/* Lemire's method: the high half of word * bound is uniform once the few words that would favour small values are refused.
 * Counter: (index, a, try, site); the upper half of a long index goes with the try. */
uint64_t data_draw(uint64_t seed, enum rh_philox_site site, uint32_t a, uint64_t index, uint64_t bound)
{
	RH_ASSERT(bound > 0 && index >> 48 == 0);
	uint64_t refused_below = -bound % bound; /* 2^64 mod bound */
	for (uint32_t try = 0;; try++) {
		struct rh_philox_block block = rh_philox(seed, (uint32_t)index, a, try | (uint32_t)(index >> 32) << 16, (uint32_t)site);
		for (int half = 0; half < 2; half++) {
			uint64_t word = (uint64_t)block.word[2 * half + 1] << 32 | block.word[2 * half];
			unsigned __int128 product = (unsigned __int128)word * bound;
			if ((uint64_t)product >= refused_below)
				return (uint64_t)(product >> 64);
		}
	}
}

void data_shuffle(uint64_t seed, enum rh_philox_site site, uint32_t a, int64_t *order, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		order[i] = i;
	for (int64_t i = count - 1; i > 0; i--) {
		int64_t j = (int64_t)data_draw(seed, site, a, (uint64_t)i, (uint64_t)i + 1);
		int64_t kept = order[i];
		order[i] = order[j];
		order[j] = kept;
	}
}
