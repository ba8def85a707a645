/* Issues the commands of the lowering (run/lower.h) to all devices, in virtual time as in real. For each device it issues the command of
 * the lowest position that is not held, and sleeps when all are. Held is a command that waits for one that has not been issued, or that the
 * optimizer has not answered; and a device that has as much ahead of it as its streams take.
 *
 * What has been issued ends without anything more being issued: waits point to smaller positions. */
#ifndef RH_RUN_DISPATCHER_H
#define RH_RUN_DISPATCHER_H

#include "device/marks.h"
#include "device/stalls.h"
#include "offload/space_queue.h"
#include "run/lower.h"

enum {
	DISPATCH_SLOTS_ALONE = 16, /* of a device that are lowered and not over, at most */
	DISPATCH_SLOTS = 64,       /* the same of one of several boxes, which receives ahead of time */
	DISPATCH_LAUNCHES = 640    /* of a device ahead of it: a stream of a GPU takes about a thousand, then the call waits */
};

/* Places of steps in flight are 0 and 1 (RUN_FLIGHT). AHEAD: of a step that has not begun. */
enum { DISPATCH_AHEAD = 2, DISPATCH_PLACES, DISPATCH_DONE = DISPATCH_PLACES };

/* A span of a trace, between two records. */
struct run_span {
	struct rh_trace_span *in_trace; /* NULL: none */
	struct rh_event *begin, *end;
};

struct dispatch_stream {
	struct rh_stream_marks marks;
	struct ring_queue issued; /* and not known to be over */
	int64_t *seen;            /* of each stream: sequence that this one comes after */
	struct run_span span;     /* that has begun */
};

struct dispatch_device {
	int64_t launched, finished;     /* at least */
	int64_t lowered;                /* position at which its latest slot begins */
	int64_t end_of[DISPATCH_SLOTS]; /* its latest slots' last computations; slot i's is number i mod DISPATCH_SLOTS */
	int64_t slots;
	int blocks_left; /* commands of lanes of uploads in any order */
	int is_held;     /* its computation: a wait has been begun */
};

/* A lane's messages that the link has, oldest first: commands, and their numbers on the link. */
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
	struct ring_command *head, *tail; /* what is to be issued; NULL: nothing */
	struct ring_command *blocked;     /* that the head waits for; NULL: it may be issued */
	int next_waiter;                  /* the next lane whose head waits for the same command, -1: none */
	int is_listed;                    /* among those of run_dispatcher.ready */
};

struct run_dispatcher {
	int64_t taken; /* position of the next command to be taken over */
	struct dispatch_lane *lane;
	/* Of each device, and last of the optimizer: lanes whose head waits for nothing, and perhaps others. */
	struct dispatch_ready {
		int *lane;
		int count;
	} * ready;
	int to_serve; /* commands of the optimizer that are not over */
	struct dispatch_stream *stream;
	struct dispatch_device *device;
	struct dispatch_drive drive[DISPATCH_DRIVES];
	struct dispatch_link link[LOWER_LINKS];
	int64_t step;                  /* of the command that is issued, or was last */
	int is_ending;                 /* the last step that was begun is being finished */
	int is_due;                    /* the optimizer is to be told something */
	int is_lowering_later;         /* the next slot begins a step whose place is taken, or its device has slots enough */
	int64_t changes;               /* of the updater's, when it was asked last */
	int64_t left[DISPATCH_PLACES]; /* of each: commands of streams to be issued, messages that are not over */
};

static inline int64_t dispatch_slots(const struct rh_executor_options *options)
{
	return options->boxes ? DISPATCH_SLOTS : DISPATCH_SLOTS_ALONE;
}

struct rh_executor;
int dispatcher_create(struct rh_executor *executor) RH_MUST;
void dispatcher_destroy(struct rh_executor *executor);

/* What has been lowered is taken over, for the step of this place; DISPATCH_DONE: all of it is done. The fault of the lowering. */
int dispatcher_take(struct rh_executor *executor, int place) RH_MUST;

/* Issues until nothing is left of the call, or of a step; or until a device has nothing more to do: the next
 * step's first slots may go beside this one's last. Slots of the call's program are lowered as they are needed. */
enum dispatch_until { DISPATCH_ALL, DISPATCH_STEP, DISPATCH_IDLE };
int dispatcher_run(struct rh_executor *executor, enum dispatch_until until, int place) RH_MUST;
/* 1: the command has ended on its device; 0: not yet, or it has not been issued; or a fault. */
int dispatcher_has_ended(struct rh_executor *executor, int64_t position) RH_MUST;
/* Until it has ended; it has been issued. */
int dispatcher_await(struct rh_executor *executor, int64_t position) RH_MUST;
/* Issues uploads of the next step while gradients of this one are still taken. */
int dispatcher_run_ahead(struct rh_executor *executor) RH_MUST;
/* What is not issued never will be, after a fault. */
void dispatcher_drop(struct rh_executor *executor);
/* All commands before this position are done: forgets them. */
void dispatcher_mark_done(struct rh_executor *executor, int64_t before);
/* Looks which of a device's commands are over. */
int dispatcher_look(struct rh_executor *executor, int device) RH_MUST;

/* Nothing is on its way to or from a drive any more, whatever happened before. */
int dispatcher_rest_drives(struct rh_executor *executor) RH_MUST;

/* What a device's computation waits for that waits for this command. */
enum rh_stall_kind dispatcher_stall_kind(const struct rh_command *command);
/* The device's copy of a gradient that goes through the staging is enqueued: the staging's thread tells the optimizer. */
int dispatcher_stage_arrival(struct rh_executor *executor, int device, int block) RH_MUST;

/* issue.c: one command on its stream, after all that it waits for. */
int issue_command(struct rh_executor *executor, const struct rh_command *command) RH_MUST;
/* Of struct rh_emit, for struct run_device. */
struct rh_op;
int issue_launch(void *sink, const struct rh_op *op) RH_MUST;
/* The host waits for those of the command's waits that are on this stream of their devices; RH_STREAMS: on any. */
int issue_await(struct rh_executor *executor, const struct rh_command *command, enum rh_stream stream) RH_MUST;
/* A mark of its stream that stands for the command. */
int issue_mark(struct rh_executor *executor, const struct ring_command *command, const struct rh_stream_mark **out) RH_MUST;

/* ---- inside: dispatcher*.c ---- */

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
