/* Counter-based random numbers: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11).
 * No generator has a state: a number is a function of the key (the run's seed) and of where it is used. */
#ifndef RH_CORE_PHILOX_H
#define RH_CORE_PHILOX_H

#include <stdint.h>

struct rh_philox_block {
	uint32_t word[4];
};

static inline struct rh_philox_block rh_philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
		c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
		c1 = (uint32_t)p1;
		c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c3 = (uint32_t)p0;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	struct rh_philox_block block = {{c0, c1, c2, c3}};
	return block;
}

/* A stream of numbers for one purpose: `site` says which (enum rh_philox_site), (a, b) where, `index` counts within it. */
enum rh_philox_site {
	RH_PHILOX_INIT = 1, /* a: tensor ordinal */
	RH_PHILOX_SHUFFLE,  /* a: epoch */
	RH_PHILOX_SPLIT,
	RH_PHILOX_WEIGHT,        /* a: data file */
	RH_PHILOX_SAMPLE,        /* generation; a: token */
	RH_PHILOX_HIDE,          /* tokens of masked_lm; a: epoch + 1, 0: evaluation */
	RH_PHILOX_WIRE,          /* rounding of what boxes send each other: link/wire.c */
	RH_PHILOX_OPPORTUNISTIC, /* which samples idle time trains on */
	RH_PHILOX_IDLE_DROPOUT,  /* of their features; a: micro-batch, then the step of idle time */
};

/* Uniform in [0, 1) with 24 bits, from one word. */
static inline float rh_philox_unit(uint32_t word)
{
	return (float)(word >> 8) * 0x1p-24f;
}

#endif
