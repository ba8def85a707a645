#include "core/tasks.h"

#include "core/pool.h"

#include <pthread.h>

struct rh_tasks {
	int (*root)(struct rh_tasks *tasks, void *context);
	void *context;
	int result;
	struct rh_fault fault; /* the root's */
	pthread_mutex_t lock;
	pthread_cond_t changed;       /* a task has begun or ended, or all is over */
	struct rh_task *first, *last; /* begun and not taken by anybody; protected by lock */
	int is_over;                  /* protected by lock */
};

/* With the lock, as run_task. */
static void take(struct rh_tasks *tasks, struct rh_task *task)
{
	struct rh_task **link = &tasks->first, *before = NULL;
	for (; *link != task; link = &before->next)
		before = *link;
	*link = task->next;
	if (tasks->last == task)
		tasks->last = before;
}

static void work(struct rh_task *task)
{
	struct rh_log_kept *before = rh_log_keep(&task->log);
	rh_error_clear();
	rh_fault_keep(&task->fault, task->run(task->context));
	rh_log_keep(before);
}

/* Lets the lock go meanwhile. */
static void run_task(struct rh_tasks *tasks, struct rh_task *task)
{
	take(tasks, task);
	task->state = RH_TASK_RUNS;
	pthread_mutex_unlock(&tasks->lock);
	work(task);
	pthread_mutex_lock(&tasks->lock);
	task->state = RH_TASK_ENDED;
	pthread_cond_broadcast(&tasks->changed);
}

static void run_others(struct rh_tasks *tasks)
{
	pthread_mutex_lock(&tasks->lock);
	while (!tasks->is_over)
		if (tasks->first)
			run_task(tasks, tasks->first);
		else
			pthread_cond_wait(&tasks->changed, &tasks->lock);
	pthread_mutex_unlock(&tasks->lock);
}

static void run_root(struct rh_tasks *tasks)
{
	tasks->result = tasks->root(tasks, tasks->context);
	if (tasks->result < 0)
		rh_fault_keep(&tasks->fault, tasks->result);
	pthread_mutex_lock(&tasks->lock);
	RH_ASSERT(!tasks->first);
	tasks->is_over = 1;
	pthread_cond_broadcast(&tasks->changed);
	pthread_mutex_unlock(&tasks->lock);
}

/* One of these on each thread. */
static void serve(void *context, int64_t i)
{
	if (i)
		run_others(context);
	else
		run_root(context);
}

int rh_tasks_run(int threads, int (*root)(struct rh_tasks *tasks, void *context), void *context)
{
	struct rh_tasks tasks = {.root = root, .context = context};
	struct rh_pool *pool;
	int rc = rh_pool_create(threads, &pool);
	if (rc && threads > 1) { /* where no more threads may be: one changes nothing but the time */
		threads = 1;
		rc = rh_pool_create(threads, &pool);
	}
	if (rc)
		return rc;
	pthread_mutex_init(&tasks.lock, NULL);
	pthread_cond_init(&tasks.changed, NULL);
	rh_pool_run(pool, serve, &tasks, threads);
	rh_pool_destroy(pool);
	pthread_cond_destroy(&tasks.changed);
	pthread_mutex_destroy(&tasks.lock);
	return tasks.result < 0 ? rh_fault_get(&tasks.fault) : tasks.result;
}

void rh_task_begin(struct rh_tasks *tasks, struct rh_task *task, int (*run)(void *context), void *context)
{
	*task = (struct rh_task){.run = run, .context = context, .tasks = tasks, .state = RH_TASK_BEGUN};
	if (!tasks)
		return;
	pthread_mutex_lock(&tasks->lock);
	*(tasks->last ? &tasks->last->next : &tasks->first) = task;
	tasks->last = task;
	pthread_cond_broadcast(&tasks->changed);
	pthread_mutex_unlock(&tasks->lock);
}

int rh_task_finish(struct rh_task *task)
{
	struct rh_tasks *tasks = task->tasks;
	if (tasks) {
		pthread_mutex_lock(&tasks->lock);
		while (task->state != RH_TASK_ENDED) {
			struct rh_task *next = task->state == RH_TASK_BEGUN ? task : tasks->first;
			if (next)
				run_task(tasks, next);
			else
				pthread_cond_wait(&tasks->changed, &tasks->lock);
		}
		pthread_mutex_unlock(&tasks->lock);
	} else if (task->state == RH_TASK_BEGUN) {
		work(task);
	}
	task->tasks = NULL;
	task->state = RH_TASK_NONE;
	rh_log_say(&task->log);
	rh_error_clear();
	return rh_fault_get(&task->fault);
}

void rh_task_drop(struct rh_task *task)
{
	struct rh_tasks *tasks = task->tasks;
	if (tasks) {
		pthread_mutex_lock(&tasks->lock);
		if (task->state == RH_TASK_BEGUN)
			take(tasks, task);
		while (task->state == RH_TASK_RUNS)
			pthread_cond_wait(&tasks->changed, &tasks->lock);
		pthread_mutex_unlock(&tasks->lock);
	}
	task->tasks = NULL;
	task->state = RH_TASK_NONE;
	rh_log_forget(&task->log);
}
