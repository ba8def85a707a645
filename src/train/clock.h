/* The one clock of the training loop. */
#ifndef RH_TRAIN_CLOCK_H
#define RH_TRAIN_CLOCK_H

#include <time.h>

/* Monotonic seconds. */
static inline double rh_clock_seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif
