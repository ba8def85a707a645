#include "core/fault.h"

#include <pthread.h>
#include <stdio.h>

/* One lock for all faults: two at a time are rare. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void rh_fault_keep(struct rh_fault *fault, int code)
{
	if (!code)
		return;
	RH_ASSERT(code < 0);
	pthread_mutex_lock(&lock);
	if (!__atomic_load_n(&fault->code, __ATOMIC_RELAXED)) {
		snprintf(fault->line, sizeof fault->line, "%s", rh_error(code));
		__atomic_store_n(&fault->code, code, __ATOMIC_RELEASE); /* the line comes before it */
	}
	pthread_mutex_unlock(&lock);
}

int rh_fault_code(const struct rh_fault *fault)
{
	return __atomic_load_n(&fault->code, __ATOMIC_ACQUIRE);
}

int rh_fault_get(const struct rh_fault *fault)
{
	int code = rh_fault_code(fault);
	return code ? rh_fail_copy(code, fault->line) : 0;
}
