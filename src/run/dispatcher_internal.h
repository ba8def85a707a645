/* Inside the dispatcher: dispatcher*.c. */
#ifndef RH_RUN_DISPATCHER_INTERNAL_H
#define RH_RUN_DISPATCHER_INTERNAL_H

#include "run/executor_internal.h"

/* The lane has a next command, and nothing that it waits for is still to be issued, told or answered. */
static inline int dispatcher_is_ready(const struct run_dispatcher *dispatcher, int lane)
{
	return dispatcher->lane[lane].head && !dispatcher->lane[lane].blocked;
}
/* 1: all commands that this one waits for have ended; 0: not yet; or a fault. */
int dispatcher_waits_have_ended(struct rh_executor *executor, const struct rh_command *command) RH_MUST;
/* Takes lane number i from the list. */
void dispatcher_unlist(struct run_dispatcher *dispatcher, struct dispatch_ready *ready, int i);
/* The lane's next command is issued, or over. */
void dispatcher_advance(struct rh_executor *executor, int lane);
/* Of a lane that is no stream's: it is over. */
void dispatcher_end(struct rh_executor *executor, struct ring_command *command);
void dispatcher_end_head(struct rh_executor *executor, int lane);

/* dispatcher_serve.c. 1: something was done; 0: nothing, for now; or a fault. may_wait: what the host waits for itself, of which one is
 * done at most. */
int dispatcher_serve(struct rh_executor *executor, int may_wait) RH_MUST;

/* dispatcher_link.c: messages to and from the boxes beside this one. 1: something was done; 0: nothing, for now; or a fault. And are there
 * any that are not over? */
int dispatcher_serve_links(struct rh_executor *executor) RH_MUST;
int dispatcher_is_linked(const struct rh_executor *executor);

/* dispatcher_drive.c.
 *
 * serve    1: something was submitted or is over; 0: nothing, for now; or a fault
 * await    until a transfer is over or, where there is an updater, it has something new: 1; 0: no drive is busy */
int dispatcher_create_drives(struct rh_executor *executor) RH_MUST;
int dispatcher_serve_drives(struct rh_executor *executor) RH_MUST;
int dispatcher_await_drives(struct rh_executor *executor) RH_MUST;
int dispatcher_drives_are_busy(const struct run_dispatcher *dispatcher);

#endif
