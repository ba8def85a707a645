/* The split master: an fp32 weight kept as its upload form (bf16, rounded half away from zero) and its low 16 bits. Every
 * finite pattern survives. */
#ifndef RH_CORE_SPLIT_H
#define RH_CORE_SPLIT_H

#include "core/portable.h"

#include <stdint.h>

RH_PORTABLE uint16_t rh_split_upper(uint32_t bits)
{
	return (uint16_t)((bits + 0x8000u) >> 16);
}

RH_PORTABLE uint16_t rh_split_lower(uint32_t bits)
{
	return (uint16_t)bits;
}

RH_PORTABLE uint32_t rh_split_join(uint16_t upper, uint16_t lower)
{
	return ((uint32_t)upper << 16 | lower) - ((uint32_t)(lower & 0x8000u) << 1);
}

#endif
