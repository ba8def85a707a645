/* The smaller and the larger of two. */
#ifndef RH_CORE_MINMAX_H
#define RH_CORE_MINMAX_H

#include <stdint.h>

static inline int64_t rh_min(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t rh_max(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static inline double rh_max_double(double a, double b)
{
	return a > b ? a : b;
}

#endif
