/* Numbers into fewer bits, checked. */
#ifndef RH_CORE_NARROW_H
#define RH_CORE_NARROW_H

#include "core/error.h"

#include <stdint.h>

static inline int rh_int32(int64_t number)
{
	RH_ASSERT(number >= INT32_MIN && number <= INT32_MAX);
	return (int)number;
}

static inline int16_t rh_int16(int64_t number)
{
	RH_ASSERT(number >= INT16_MIN && number <= INT16_MAX);
	return (int16_t)number;
}

static inline uint8_t rh_uint8(int64_t number)
{
	RH_ASSERT(number >= 0 && number <= UINT8_MAX);
	return (uint8_t)number;
}

#endif
