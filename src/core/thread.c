#include "core/thread.h"

#include <stdint.h>

enum { STACK_BYTES = 2 << 20 };

int rh_thread_start(pthread_t *thread, void *(*main)(void *), void *argument)
{
	pthread_attr_t attributes;
	int rc = -pthread_attr_init(&attributes);
	if (rc)
		return rc;
	rc = -pthread_attr_setstacksize(&attributes, STACK_BYTES);
	if (!rc)
		rc = -pthread_create(thread, &attributes, main, argument);
	pthread_attr_destroy(&attributes);
	return rc;
}

void rh_cond_init(pthread_cond_t *condition)
{
	pthread_condattr_t attributes;
	pthread_condattr_init(&attributes);
	RH_ASSERT(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
	pthread_cond_init(condition, &attributes);
	pthread_condattr_destroy(&attributes);
}

struct timespec rh_cond_deadline(double seconds)
{
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	int64_t ns = until.tv_nsec + (int64_t)(seconds * 1e9);
	until.tv_sec += (time_t)(ns / 1000000000);
	until.tv_nsec = (long)(ns % 1000000000);
	return until;
}
