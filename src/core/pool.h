/* Threads that share out numbered tasks. What a task computes depends on its number alone, so a result does not depend on how
 * many threads there are. */
#ifndef RH_CORE_POOL_H
#define RH_CORE_POOL_H

#include "core/error.h"

#include <stdint.h>

struct rh_pool;

/* `threads` counts the caller of rh_pool_run, so threads-1 are started. */
int rh_pool_create(int threads, struct rh_pool **out) RH_MUST;
void rh_pool_destroy(struct rh_pool *pool);
int rh_pool_threads(const struct rh_pool *pool);

/* Calls task(context, i) once for each i in [0, count), on all threads, and returns when all are done. One caller at a time.
 * Tasks start in ascending order. */
void rh_pool_run(struct rh_pool *pool, void (*task)(void *context, int64_t i), void *context, int64_t count);

#endif
