/* The smaller and the larger of two, and products of sizes. */
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

/* Of numbers; fmin and fmax are calls, as they look for what is none. */
static inline double rh_min_double(double a, double b)
{
	return a < b ? a : b;
}

static inline double rh_max_double(double a, double b)
{
	return a > b ? a : b;
}

/* More than any machine has, and so few that two dozen of them can be added up. */
#define RH_BYTES_MOST (INT64_C(1) << 58)

/* Of sizes that a user's keys make, neither below 0: RH_BYTES_MOST at most. */
static inline int64_t rh_bytes_times(int64_t bytes, int64_t count)
{
	int64_t product;
	return __builtin_mul_overflow(bytes, count, &product) ? RH_BYTES_MOST : rh_min(product, RH_BYTES_MOST);
}

#endif
