/* Work that is begun before its result is needed. An idle thread runs it; else its owner runs it when it takes the result; if nobody
 * takes the result it may not run at all. Neither results nor printed lines (core/log.h) depend on the number of threads: a task's work
 * depends on its context alone, and its lines are printed when its result is taken. */
#ifndef RH_CORE_TASKS_H
#define RH_CORE_TASKS_H

#include "core/fault.h"
#include "core/log.h"

struct rh_tasks;

/* Owned by whoever begins it; does not move until it has ended. */
struct rh_task {
	int (*run)(void *context); /* 0 or negative errno; may begin and finish tasks itself */
	void *context;             /* only the task uses it until it has ended */
	struct rh_tasks *tasks;
	struct rh_task *next;                                                    /* protected by the tasks' lock */
	enum { RH_TASK_NONE, RH_TASK_BEGUN, RH_TASK_RUNS, RH_TASK_ENDED } state; /* protected by it too */
	struct rh_fault fault;
	struct rh_log_kept log;
};

/* Calls root(tasks, context) on one of so many threads, the others doing tasks; returns what it returns. */
int rh_tasks_run(int threads, int (*root)(struct rh_tasks *tasks, void *context), void *context) RH_MUST;

/* tasks: NULL: there is no thread beside the caller's. Whoever begins a task must finish or drop it. Threads take tasks in the order in
 * which they were begun. */
void rh_task_begin(struct rh_tasks *tasks, struct rh_task *task, int (*run)(void *context), void *context);
/* Waits for the task, meanwhile running other tasks, and returns its result, with its line as the thread's. 0 for a zeroed task. */
int rh_task_finish(struct rh_task *task) RH_MUST;
/* For a task whose result is not needed, or is finished already: returns once no thread runs it. The thread's line stays. */
void rh_task_drop(struct rh_task *task);

#endif
