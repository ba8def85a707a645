/* Which elements dropout keeps, by counter: rh_philox of core/philox.h, which is no device function. For .cu files only.
 *
 * A block of 10 rounds costs some 60 instructions for four elements. In products, where a tile's elements lie in mma's fragments, each lane
 * makes the bits of a stretch of its own (mask words), and lanes ask each other. */
#ifndef RH_CUDA_PHILOX_H
#define RH_CUDA_PHILOX_H

#include "cuda/rh_cuda.h"

struct dropout_key {
	uint32_t key_low, key_high, site, micro_batch, step;
	uint32_t threshold; /* word that keeps its element: rh_philox_unit(word) >= p, of which 24 bits are exact */
	float scale;        /* 1 / (1 - p) */
};

static inline struct dropout_key dropout_key_of(uint64_t seed, uint32_t site, uint32_t micro_batch, uint32_t step, float p)
{
	uint32_t least = (uint32_t)ceil((double)p * 0x1p24) << 8;
	float scale = (float)(1 / (1 - (double)p));
	return {(uint32_t)seed, (uint32_t)(seed >> 32), site, micro_batch, step, least, scale};
}

struct philox_words {
	uint32_t word[4];
};

/* Of block `index`, a word an element. */
RH_DEVICE struct philox_words philox_words_of(const struct dropout_key &key, uint32_t index)
{
	uint32_t c0 = index, c1 = key.site, c2 = key.micro_batch, c3 = key.step, k0 = key.key_low, k1 = key.key_high;
	RH_UNROLL
	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
		c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
		c1 = (uint32_t)p1;
		c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c3 = (uint32_t)p0;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	return {{c0, c1, c2, c3}};
}

/* Bit w: whether word w of block `index` keeps its element. */
RH_DEVICE uint32_t kept_bits(const struct dropout_key &key, uint32_t index)
{
	struct philox_words of = philox_words_of(key, index);
	uint32_t bits = 0;
	RH_UNROLL
	for (int w = 0; w < 4; w++)
		bits |= (uint32_t)(of.word[w] >= key.threshold) << w;
	return bits;
}

/* Bits of `count` elements from `element` on, both multiples of 4, count at most 32. */
RH_DEVICE uint32_t kept_run(const struct dropout_key &key, int64_t element, int count)
{
	uint32_t bits = 0;
	RH_UNROLL
	for (int i = 0; i < count / 4; i++)
		bits |= kept_bits(key, (uint32_t)(element / 4) + (uint32_t)i) << 4 * i;
	return bits;
}

#endif
