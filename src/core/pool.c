#include "core/pool.h"

#include "core/alloc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* A run hands out numbers from `next`; the run is over when all workers have checked out. Workers sleep between runs, after a short
 * spin: one op follows the next within microseconds while a step runs. */
enum { SPINS = 2000 };

struct rh_pool {
	int threads;
	pthread_t *workers;
	pthread_mutex_t lock;
	pthread_cond_t wake, done;
	_Atomic uint64_t run; /* counts runs; a worker that sees it change joins in. Written under lock */
	_Atomic int busy;     /* workers still in the current run */
	int stop;             /* protected by lock */
	void (*task)(void *, int64_t); /* these four are set before `run` changes (release) and read after (acquire) */
	void *context;
	int64_t count;
	_Atomic int64_t next;
};

static void take_tasks(struct rh_pool *pool)
{
	for (int64_t i; (i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) < pool->count;)
		pool->task(pool->context, i);
}

static void *worker_main(void *argument)
{
	struct rh_pool *pool = argument;
	uint64_t seen = 0;
	for (;;) {
		int spins = 0;
		while (atomic_load_explicit(&pool->run, memory_order_acquire) == seen && ++spins < SPINS)
			__builtin_ia32_pause();
		if (spins == SPINS) {
			pthread_mutex_lock(&pool->lock);
			while (atomic_load_explicit(&pool->run, memory_order_acquire) == seen && !pool->stop)
				pthread_cond_wait(&pool->wake, &pool->lock);
			int stop = pool->stop;
			pthread_mutex_unlock(&pool->lock);
			if (stop)
				return NULL;
		}
		seen++; /* runs cannot be missed: the next one starts only when all workers left this one */
		take_tasks(pool);
		if (atomic_fetch_sub_explicit(&pool->busy, 1, memory_order_acq_rel) == 1) {
			pthread_mutex_lock(&pool->lock);
			pthread_cond_signal(&pool->done);
			pthread_mutex_unlock(&pool->lock);
		}
	}
}

int rh_pool_create(int threads, struct rh_pool **out)
{
	RH_ASSERT(threads >= 1);
	struct rh_pool *pool = rh_alloc(1, sizeof *pool);
	if (!pool)
		return -ENOMEM;
	pool->threads = 1;
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->wake, NULL);
	pthread_cond_init(&pool->done, NULL);
	pool->workers = rh_alloc((size_t)threads, sizeof *pool->workers);
	int rc = pool->workers ? 0 : -ENOMEM;
	for (; !rc && pool->threads < threads; pool->threads++) {
		int fault = pthread_create(&pool->workers[pool->threads - 1], NULL, worker_main, pool);
		if (fault) {
			rc = rh_fail(-fault, "cannot start thread %d of %d: %s", pool->threads, threads, strerror(fault));
			break;
		}
	}
	if (rc)
		rh_pool_destroy(pool);
	else
		*out = pool;
	return rc;
}

void rh_pool_destroy(struct rh_pool *pool)
{
	if (!pool)
		return;
	pthread_mutex_lock(&pool->lock);
	pool->stop = 1;
	pthread_cond_broadcast(&pool->wake);
	pthread_mutex_unlock(&pool->lock);
	for (int i = 0; i < pool->threads - 1; i++)
		pthread_join(pool->workers[i], NULL);
	pthread_cond_destroy(&pool->done);
	pthread_cond_destroy(&pool->wake);
	pthread_mutex_destroy(&pool->lock);
	rh_free(pool->workers);
	rh_free(pool);
}

int rh_pool_threads(const struct rh_pool *pool)
{
	return pool->threads;
}

void rh_pool_run(struct rh_pool *pool, void (*task)(void *, int64_t), void *context, int64_t count)
{
	if (count <= 0)
		return;
	if (pool->threads == 1 || count == 1) {
		for (int64_t i = 0; i < count; i++)
			task(context, i);
		return;
	}
	pool->task = task;
	pool->context = context;
	pool->count = count;
	atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
	atomic_store_explicit(&pool->busy, pool->threads - 1, memory_order_relaxed);
	pthread_mutex_lock(&pool->lock); /* a worker going to sleep holds it between its last look and its wait */
	atomic_fetch_add_explicit(&pool->run, 1, memory_order_release);
	pthread_cond_broadcast(&pool->wake);
	pthread_mutex_unlock(&pool->lock);
	take_tasks(pool);
	int spins = 0;
	while (atomic_load_explicit(&pool->busy, memory_order_acquire) && ++spins < SPINS)
		__builtin_ia32_pause();
	pthread_mutex_lock(&pool->lock);
	while (atomic_load_explicit(&pool->busy, memory_order_acquire))
		pthread_cond_wait(&pool->done, &pool->lock);
	pthread_mutex_unlock(&pool->lock);
}
