/* What hangs fails: a signal ends it. */
#ifndef RH_TESTS_LIMIT_TIME_H
#define RH_TESTS_LIMIT_TIME_H

#include "check.h"

/* Ends this process so many seconds from now; where a sanitizer slows it down, twenty times as many. */
static inline void limit_time(unsigned seconds)
{
	enum { SLOWER = CHECK_RESIDENT ? 1 : 20 };
	alarm(seconds * SLOWER);
}

#endif
