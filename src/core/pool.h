/* Threads that share out numbered tasks. What a task computes depends on its number alone, so a result does not depend on how
 * many threads there are. */
#ifndef RH_CORE_POOL_H
#define RH_CORE_POOL_H

#include "core/error.h"

#include <pthread.h>
#include <stdint.h>

struct rh_pool;

/* `threads` counts the caller of rh_pool_run, so threads-1 are started. */
int rh_pool_create(int threads, struct rh_pool **out) RH_MUST;
void rh_pool_destroy(struct rh_pool *pool);
int rh_pool_threads(const struct rh_pool *pool);

/* At most so many threads take tasks from now on, those of the lowest numbers; 0: all of them. Any thread may say so, also during a run. */
void rh_pool_limit(struct rh_pool *pool, int threads);

enum { RH_POOL_GROUPS = 16 };
/* Threads in groups, such as NUMA nodes: of thread i (0 the caller) group[i] < groups. Between runs. */
void rh_pool_group(struct rh_pool *pool, const int *group, int groups);
/* Worker i's thread, 1 <= i < threads. */
pthread_t rh_pool_worker(const struct rh_pool *pool, int i);

/* Calls task(context, i) once for each i in [0, count), on all threads, and returns when all are done. One caller at a time.
 * Tasks start in ascending order. */
void rh_pool_run(struct rh_pool *pool, void (*task)(void *context, int64_t i), void *context, int64_t count);
/* The same, with tasks [share[g], share[g+1]) for group g first: its threads do others only when their own are all begun. share has one
 * more number than there are groups, from 0 to count. */
void rh_pool_run_shared(struct rh_pool *pool, void (*task)(void *context, int64_t i), void *context, const int64_t *share);

#endif
