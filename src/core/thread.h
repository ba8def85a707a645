/* Threads and timed waits: stacks of a size of their own, deadlines on the clock that nobody sets. */
#ifndef RH_CORE_THREAD_H
#define RH_CORE_THREAD_H

#include "core/error.h"

#include <pthread.h>
#include <time.h>

/* Starts a thread whose stack does not depend on the shell's `ulimit -s`: neither too small for the kernels' buffers, nor so large that
 * address space runs out. 0 or negative errno, without a line. */
int rh_thread_start(pthread_t *thread, void *(*main)(void *), void *argument) RH_MUST;

/* A condition whose timed waits count on CLOCK_MONOTONIC: neither a suspend nor a clock that is set makes a deadline pass. */
void rh_cond_init(pthread_cond_t *condition);
/* The moment `seconds` from now, for pthread_cond_timedwait on such a condition. */
struct timespec rh_cond_deadline(double seconds);

#endif
