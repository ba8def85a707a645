/* Issues the commands of the lowering (run/lower.h), in virtual time as in real: for each device the command with the lowest position that
 * is not blocked. It sleeps when all are blocked. A command is blocked while a command that it waits for has not been issued, or has not
 * been answered by the optimizer. A device that is full, as its stream takes no more launches, gets no computation.
 *
 * Issued commands end without anything more being issued, because waits point to smaller positions. */
#ifndef RH_RUN_DISPATCHER_H
#define RH_RUN_DISPATCHER_H

#include "device/marks.h"
#include "device/stalls.h"
#include "offload/space_queue.h"
#include "run/lower.h"

enum {
	DISPATCH_SLOTS_ALONE = 16, /* most slots of a device that are lowered and not over */
	DISPATCH_SLOTS = 64,       /* the same in one of several boxes, which posts receives ahead of time */
	DISPATCH_LAUNCHES = 640    /* most unfinished launches of a device: after about a thousand a launch on a GPU's stream blocks */
};

/* Indices of steps in flight are 0 and 1 (RUN_FLIGHT). AHEAD: the index of a step that has not begun; LEFT: a step does not wait for it. */
enum { DISPATCH_LEFT = -1, DISPATCH_AHEAD = 2, DISPATCH_INDICES, DISPATCH_DONE = DISPATCH_INDICES };

/* A span of a trace, between two records. */
struct run_span {
	struct rh_trace_span *in_trace; /* NULL: none */
	struct rh_event *begin, *end;
};

struct dispatch_stream {
	struct rh_stream_marks marks;
	struct ring_queue issued; /* commands that are not known to be over */
	int64_t *seen;            /* (streams): the latest command of each, by sequence, that this stream already waits for */
	struct run_span span;     /* the open one */
};

struct dispatch_device {
	int64_t launched, finished;     /* launches; of these at least so many have ended */
	int64_t lowered;                /* position at which its latest slot begins */
	int64_t end_of[DISPATCH_SLOTS]; /* its latest slots' last computations; slot i's is number i mod DISPATCH_SLOTS */
	int64_t slots;
	int blocks_left; /* unissued uploads of lanes whose order is free */
	int is_stalled;  /* a stall of its computation has been opened */
};

/* A lane's messages that are posted, oldest first: commands, and their numbers on the link. */
enum { DISPATCH_MESSAGES = 16 };
struct dispatch_link {
	struct ring_command *command[DISPATCH_MESSAGES];
	int64_t number[DISPATCH_MESSAGES];
	int first, posted;
};

/* A lane to or from drives. */
struct dispatch_drive {
	int lane, is_write;
	struct rh_space_queue *queue; /* NULL: nothing goes this way in this run */
	struct ring_queue submitted;
};
enum dispatch_flow { DISPATCH_PAGES, DISPATCH_READS, DISPATCH_WRITES, DISPATCH_DRIVES };

struct dispatch_lane {
	struct ring_command *head, *tail; /* unissued commands; NULL: none */
	struct ring_command *blocker;     /* the command that blocks the head; NULL: none */
	int next_waiter;                  /* the next lane with the same blocker, -1: none */
	int is_listed;                    /* in run_dispatcher.ready */
};

struct run_dispatcher {
	int64_t taken; /* position of the next command to be taken over */
	struct dispatch_lane *lane;
	/* (devices + 1), the last one the optimizer's: every lane whose head is not blocked, and perhaps others. */
	struct dispatch_ready {
		int *lane;
		int count;
	} * ready;
	int to_serve; /* commands of the optimizer that are not over */
	struct dispatch_stream *stream;
	struct dispatch_device *device;
	struct dispatch_drive drive[DISPATCH_DRIVES];
	struct dispatch_link link[LOWER_LINKS];
	int64_t step;                   /* of the command that is being issued, or was issued last */
	int is_ending;                  /* the last step that was begun is being finished */
	int is_due;                     /* the optimizer is to be served */
	int is_lowering_later;          /* the next slot waits: its step's index is taken, or its device has its maximum of slots */
	int64_t changes;                /* rh_updater_changes when the optimizer was served last */
	int64_t left[DISPATCH_INDICES]; /* of each index: unissued commands of streams, messages that it waits for */
};

static inline int64_t dispatch_slots(const struct rh_executor_options *options)
{
	return options->boxes ? DISPATCH_SLOTS : DISPATCH_SLOTS_ALONE;
}

struct rh_executor;
int dispatcher_create(struct rh_executor *executor) RH_MUST;
void dispatcher_destroy(struct rh_executor *executor);

/* Takes over what has been lowered, for the step of this index; DISPATCH_DONE: as commands that are over. Returns the lowering's fault. */
int dispatcher_take(struct rh_executor *executor, int index) RH_MUST;

/* Issues commands, and lowers slots of the call's program as they are needed. ALL: until the call is done. STEP: until this step is. IDLE:
 * until a device has nothing more to do, so that the next step's first slots may run beside this step's last. */
enum dispatch_until { DISPATCH_ALL, DISPATCH_STEP, DISPATCH_IDLE };
int dispatcher_run(struct rh_executor *executor, enum dispatch_until until, int index) RH_MUST;
/* 1: the command has ended on its device; 0: not yet, or it has not been issued; or a fault. */
int dispatcher_has_ended(struct rh_executor *executor, int64_t position) RH_MUST;
/* Waits until the command, which has been issued, has ended. */
int dispatcher_await(struct rh_executor *executor, int64_t position) RH_MUST;
/* Issues uploads of the next step while the optimizer still takes gradients of this one. */
int dispatcher_run_ahead(struct rh_executor *executor) RH_MUST;
/* After a fault: drops the commands that are not issued. */
void dispatcher_drop(struct rh_executor *executor);
/* All commands before this position are done: forgets them. */
void dispatcher_mark_done(struct rh_executor *executor, int64_t before);
/* Finds out which of a device's commands are over. */
int dispatcher_look(struct rh_executor *executor, int device) RH_MUST;

/* Waits until no drive's transfer is in flight, whatever happened before. Returns the first fault. */
int dispatcher_rest_drives(struct rh_executor *executor) RH_MUST;

/* The kind of a stall of a computation that waits for this command. */
enum rh_stall_kind dispatcher_stall_kind(const struct rh_command *command);
/* After a gradient's copy through the staging was enqueued: lets the staging's thread tell the optimizer that it has arrived. */
int dispatcher_stage_arrival(struct rh_executor *executor, int device, int block) RH_MUST;

/* issue.c: issues a command on its stream, behind all that it waits for. */
int issue_command(struct rh_executor *executor, const struct rh_command *command) RH_MUST;
/* `launch` of struct rh_emit; sink: a struct run_device. */
struct rh_op;
int issue_launch(void *sink, const struct rh_op *op) RH_MUST;
/* The host waits for those of the command's waits that are on this stream of their devices; RH_STREAMS: on any. */
int issue_await(struct rh_executor *executor, const struct rh_command *command, enum rh_stream stream) RH_MUST;
/* A mark of the command's stream that is reached when the command has ended, or later. */
int issue_mark(struct rh_executor *executor, const struct ring_command *command, const struct rh_stream_mark **out) RH_MUST;

/* ---- inside: dispatcher*.c ---- */

/* 1: the lane has a next command, and it is not blocked. */
static inline int dispatcher_is_ready(const struct run_dispatcher *dispatcher, int lane)
{
	return dispatcher->lane[lane].head && !dispatcher->lane[lane].blocker;
}
/* 1: all commands that this one waits for have ended; 0: not yet; or a fault. */
int dispatcher_waits_have_ended(struct rh_executor *executor, const struct rh_command *command) RH_MUST;
/* Takes lane number i from the list. */
void dispatcher_unlist(struct run_dispatcher *dispatcher, struct dispatch_ready *ready, int i);
/* Takes the head from its lane: it has been issued, or is over. */
void dispatcher_advance(struct rh_executor *executor, int lane);
/* A command of a lane that is not a stream's is over; or the head of such a lane. */
void dispatcher_end(struct rh_executor *executor, struct ring_command *command);
void dispatcher_end_head(struct rh_executor *executor, int lane);

/* dispatcher_serve.c: serves the optimizer's commands and drives. may_wait: the host may wait for devices, for one command at most. 1:
 * something was done; 0: nothing, for now; or a fault. */
int dispatcher_serve(struct rh_executor *executor, int may_wait) RH_MUST;

/* dispatcher_link.c: messages to and from the boxes beside this one. _serve_links: 1: something was done; 0: nothing, for now; or a fault.
 * _is_linked: 1: some messages are not over. */
int dispatcher_serve_links(struct rh_executor *executor) RH_MUST;
int dispatcher_is_linked(const struct rh_executor *executor);

/* dispatcher_drive.c.
 *
 * serve    1: something was submitted or is over; 0: nothing, for now; or a fault
 * await    waits until a transfer is over or, where there is an updater, it has something new: 1; 0: no drive is busy */
int dispatcher_create_drives(struct rh_executor *executor) RH_MUST;
int dispatcher_serve_drives(struct rh_executor *executor) RH_MUST;
int dispatcher_await_drives(struct rh_executor *executor) RH_MUST;
int dispatcher_drives_are_busy(const struct run_dispatcher *dispatcher);

#endif
