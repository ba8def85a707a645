/* The split master: an fp32 weight kept as its upload copy (bf16, rounded half away from zero) and its low 16 bits. Every
 * finite pattern survives. */
#ifndef RH_OFFLOAD_SPLIT_H
#define RH_OFFLOAD_SPLIT_H

#include <stdint.h>

static inline uint16_t split_upper(uint32_t bits)
{
	return (uint16_t)((bits + 0x8000u) >> 16);
}

static inline uint16_t split_lower(uint32_t bits)
{
	return (uint16_t)bits;
}

static inline uint32_t split_join(uint16_t upper, uint16_t lower)
{
	return ((uint32_t)upper << 16 | lower) - ((uint32_t)(lower & 0x8000u) << 1);
}

#endif
