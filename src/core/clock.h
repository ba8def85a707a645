/* The one clock, for what a run tells of itself: nothing that is computed depends on it. */
#ifndef RH_CORE_CLOCK_H
#define RH_CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Monotonic seconds. */
static inline double rh_clock_seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The same clock in nanoseconds. */
static inline int64_t rh_clock_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
