#include "core/pool.h"

#include "core/alloc.h"
#include "core/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* A run hands out numbers from each group's `next`; the run is over when all workers have checked out. Workers sleep between runs, after a
 * short spin: one op follows the next within microseconds while a step runs. A spin in vain makes the next one shorter: where others have
 * work for the core, whoever is awaited may be waiting for it. */
enum { SPINS = 2000, SPINS_LEAST = 50 };

struct worker {
	struct rh_pool *pool;
	pthread_t thread;
	int number, group;
};

struct rh_pool {
	int threads, groups;
	struct worker *worker; /* [0]: the caller */
	_Atomic int limit;
	pthread_mutex_t lock;
	pthread_cond_t wake, done;
	_Atomic uint64_t run;          /* counts runs; a worker that sees it change joins in. Written under lock */
	_Atomic int busy;              /* workers still in the current run */
	int spins;                     /* how long the caller spins for the workers, at most */
	int stop;                      /* protected by lock */
	void (*task)(void *, int64_t); /* these five are set before `run` changes (release) and read after (acquire) */
	void *context;
	int64_t end[RH_POOL_GROUPS];
	int running_groups;
	_Atomic int64_t next[RH_POOL_GROUPS];
};

static void take_tasks(struct worker *worker)
{
	struct rh_pool *pool = worker->pool;
	for (int k = 0; k < pool->running_groups; k++) {
		int group = (worker->group + k) % pool->running_groups;
		for (int64_t i;;) {
			if (worker->number >= atomic_load_explicit(&pool->limit, memory_order_relaxed))
				return; /* the caller's number is 0: somebody goes on */
			i = atomic_fetch_add_explicit(&pool->next[group], 1, memory_order_relaxed);
			if (i >= pool->end[group])
				break;
			pool->task(pool->context, i);
		}
	}
}

/* How long to spin after one that met what it waited for, or did not. */
static int next_spins(int spins, int met)
{
	return met ? SPINS : (spins / 2 > SPINS_LEAST ? spins / 2 : SPINS_LEAST);
}

static void *worker_main(void *argument)
{
	struct worker *worker = argument;
	struct rh_pool *pool = worker->pool;
	uint64_t seen = 0;
	for (int most = SPINS;;) {
		int spins = 0;
		while (atomic_load_explicit(&pool->run, memory_order_acquire) == seen && ++spins < most)
			__builtin_ia32_pause();
		int met = spins < most;
		most = next_spins(most, met);
		if (!met) {
			pthread_mutex_lock(&pool->lock);
			while (atomic_load_explicit(&pool->run, memory_order_acquire) == seen && !pool->stop)
				pthread_cond_wait(&pool->wake, &pool->lock);
			int stop = pool->stop;
			pthread_mutex_unlock(&pool->lock);
			if (stop)
				return NULL;
		}
		seen++; /* runs cannot be missed: the next one starts only when all workers left this one */
		take_tasks(worker);
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
	pool->threads = pool->groups = 1;
	pool->spins = SPINS;
	atomic_init(&pool->limit, threads);
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->wake, NULL);
	pthread_cond_init(&pool->done, NULL);
	pool->worker = rh_alloc((size_t)threads, sizeof *pool->worker);
	int rc = pool->worker ? 0 : -ENOMEM;
	for (int i = 0; !rc && i < threads; i++)
		pool->worker[i] = (struct worker){.pool = pool, .number = i};
	for (; !rc && pool->threads < threads; pool->threads++) {
		struct worker *worker = &pool->worker[pool->threads];
		int fault = -rh_thread_start(&worker->thread, worker_main, worker);
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
	for (int i = 1; pool->worker && i < pool->threads; i++)
		pthread_join(pool->worker[i].thread, NULL);
	pthread_cond_destroy(&pool->done);
	pthread_cond_destroy(&pool->wake);
	pthread_mutex_destroy(&pool->lock);
	rh_free(pool->worker);
	rh_free(pool);
}

int rh_pool_threads(const struct rh_pool *pool)
{
	return pool->threads;
}

void rh_pool_limit(struct rh_pool *pool, int threads)
{
	RH_ASSERT(threads >= 0);
	atomic_store_explicit(&pool->limit, threads && threads < pool->threads ? threads : pool->threads, memory_order_relaxed);
}

void rh_pool_group(struct rh_pool *pool, const int *group, int groups)
{
	RH_ASSERT(groups >= 1 && groups <= RH_POOL_GROUPS);
	pool->groups = groups;
	for (int i = 0; i < pool->threads; i++)
		pool->worker[i].group = group[i];
}

pthread_t rh_pool_worker(const struct rh_pool *pool, int i)
{
	RH_ASSERT(i >= 1 && i < pool->threads);
	return pool->worker[i].thread;
}

static void run_groups(struct rh_pool *pool, void (*task)(void *, int64_t), void *context, const int64_t *share, int groups)
{
	int64_t count = share[groups];
	if (count <= 0)
		return;
	if (pool->threads == 1 || count == 1) {
		for (int64_t i = 0; i < count; i++)
			task(context, i);
		return;
	}
	for (int g = 0; g < groups; g++) {
		atomic_store_explicit(&pool->next[g], share[g], memory_order_relaxed);
		pool->end[g] = share[g + 1];
	}
	pool->running_groups = groups;
	pool->task = task;
	pool->context = context;
	atomic_store_explicit(&pool->busy, pool->threads - 1, memory_order_relaxed);
	pthread_mutex_lock(&pool->lock); /* a worker going to sleep holds it between its last look and its wait */
	atomic_fetch_add_explicit(&pool->run, 1, memory_order_release);
	pthread_cond_broadcast(&pool->wake);
	pthread_mutex_unlock(&pool->lock);
	take_tasks(&pool->worker[0]);
	int spins = 0;
	while (atomic_load_explicit(&pool->busy, memory_order_acquire) && ++spins < pool->spins)
		__builtin_ia32_pause();
	pool->spins = next_spins(pool->spins, spins < pool->spins);
	pthread_mutex_lock(&pool->lock);
	while (atomic_load_explicit(&pool->busy, memory_order_acquire))
		pthread_cond_wait(&pool->done, &pool->lock);
	pthread_mutex_unlock(&pool->lock);
}

void rh_pool_run(struct rh_pool *pool, void (*task)(void *, int64_t), void *context, int64_t count)
{
	run_groups(pool, task, context, (int64_t[]){0, count}, 1);
}

void rh_pool_run_shared(struct rh_pool *pool, void (*task)(void *, int64_t), void *context, const int64_t *share)
{
	run_groups(pool, task, context, share, pool->groups);
}
