/* Work that is begun before its result is asked for: it is done beside its owner where a thread is idle, else by the owner as soon as the
 * result is asked for, and not at all where it is never asked for. Neither results nor what is said (core/log.h) depend on how many
 * threads there are: what a task does depends on its context alone, and its lines are said when its result is taken. */
#ifndef RH_CORE_TASKS_H
#define RH_CORE_TASKS_H

#include "core/fault.h"
#include "core/log.h"

struct rh_tasks;

/* The owner's; stays where it is from its beginning to its end. */
struct rh_task {
	int (*run)(void *context); /* 0 or negative errno; may begin and finish tasks itself */
	void *context;             /* until the end nobody else's */
	struct rh_tasks *tasks;
	struct rh_task *next;                                                    /* protected by the tasks' lock */
	enum { RH_TASK_NONE, RH_TASK_BEGUN, RH_TASK_RUNS, RH_TASK_ENDED } state; /* protected by it too */
	struct rh_fault fault;
	struct rh_log_kept log;
};

/* Calls root(tasks, context) on one of so many threads, the others doing tasks; returns what it returns. */
int rh_tasks_run(int threads, int (*root)(struct rh_tasks *tasks, void *context), void *context) RH_MUST;

/* tasks: NULL: there is no thread beside the caller's. Each that is begun is then finished or dropped by whom it was begun by. Threads
 * take them in the order of their beginning. */
void rh_task_begin(struct rh_tasks *tasks, struct rh_task *task, int (*run)(void *context), void *context);
/* What it returns, and its line as the thread's; meanwhile the thread does other tasks. Of a zeroed task 0. */
int rh_task_finish(struct rh_task *task) RH_MUST;
/* Not wanted any more, or already finished: returns once nobody is at it. The thread's line stays. */
void rh_task_drop(struct rh_task *task);

#endif
