/* Inside the checker: what memory holds, who touched it, and what comes before what. */
#ifndef RH_RUN_CHECK_INTERNAL_H
#define RH_RUN_CHECK_INTERNAL_H

#include "core/alloc.h"
#include "run/check.h"

/* What bytes stand for. `base`: the offset in the room at which the content's first byte lies, or would lie. So pieces of one content that
 * lie at their places beside one another are alike. */
enum check_what {
	CHECK_NOTHING,
	CHECK_WEIGHTS,    /* which: block; step: updates that it has had */
	CHECK_PLAIN,      /* made of a block's packed weights; likewise */
	CHECK_SUM,        /* which: 2 * block + use; of micro-batches [0, count), and of deferred gradients [0, deferred) */
	CHECK_GRADIENT,   /* which: block: whole, in the store's dtype */
	CHECK_ACTIVATION, /* which: layer boundary */
	CHECK_BOUNDARY_GRADIENT,
	CHECK_NARROW, /* an activation's copy in 8 bits; likewise */
	CHECK_MICRO,
	CHECK_RESULT,
	CHECK_KEPT,             /* what a backward needs and is recomputed. which: the stage's first layer; depth: up to this layer */
	CHECK_ROW,              /* an activation that is kept or saved. which: layer; depth: row of the activation table */
	CHECK_DEFERRED,         /* of deferred weight gradients. which: the stage's first layer; depth: down to this layer */
	CHECK_RUNNING,          /* the arena's activation inside a stage; which: layer boundary */
	CHECK_RUNNING_GRADIENT, /* likewise */
	CHECK_SCALE,            /* the norm of a step's gradients */
	CHECK_MASTER,           /* which: block; step: updates */
	CHECK_CACHE,            /* keys and values of layers, of all calls up to `step`: -1, -2, ... */
	CHECK_CARRIED, /* of a text in chunks, up to this micro-batch; deferred: how many chunks' backwards have had it, last first */
	CHECK_ARRIVED  /* the optimizer knows that a gradient is there. which: block */
};
struct check_content {
	enum check_what what;
	int which, depth;
	int64_t step, micro_batch; /* of SUM micro_batch is the count */
	int64_t deferred, base;
};

struct check_interval {
	int64_t first, end;
	struct check_content content;
};

/* A command's read or write of bytes that no later write of all of them has covered. */
struct check_access {
	int64_t first, end, position;
	int lane, is_write;
};

struct check_piece {
	struct check_interval *interval; /* ascending; what lies in none was never written */
	struct check_access *access;
	size_t intervals, interval_capacity, accesses, access_capacity;
	int64_t bytes;
};

/* Bytes of a piece. */
struct check_range {
	struct check_piece *piece;
	int64_t first, end;
};

struct check_call {
	struct rh_check_call call;
	struct rh_place rows;       /* where its table travels by rows, whole; else in no room */
	int64_t outputs, sent;      /* results that were read; boundaries that were sent to other boxes */
	int64_t trained, published; /* blocks whose gradient was taken; blocks whose weights became ready */
};

struct rh_check {
	struct rh_check_options options;
	struct rh_region memory;
	struct check_piece *piece;
	int pieces, first_piece[RH_ROOMS]; /* a device's pieces of a room, and the next device's, follow one another */
	int64_t *master, *published;       /* updates of each block's master, and of what devices read */
	int64_t *offset;                   /* scratch: layouts */
	struct check_call *call;           /* in order of steps */
	size_t calls, call_capacity;
	/* Vector clocks (Fidge; Mattern): how much of each lane comes before something, as a row of positions, -1 none. now: of each lane's
	 * latest command. row: of each command that some other is still to wait for; waiter: the last that does, 0 none. */
	int64_t *now, *waiter, **row;
	int lanes;

	/* of the command that is run */
	const struct rh_lanes *recorded;
	const struct rh_command *command;

	struct rh_check_fault *fault;
	int rc;
};

/* The first fault stays. `other`: a position, or -1. */
void check_fault(struct rh_check *check, int64_t other, const char *format, ...) __attribute__((format(printf, 3, 4)));
static inline int check_failed(const struct rh_check *check)
{
	return check->rc || check->fault->position >= 0;
}

/* check_memory.c */
int check_memory_create(struct rh_check *check) RH_MUST;
/* The bytes of a place. piece NULL, and a fault: it is not within the plan. */
struct check_range check_resolve(struct rh_check *check, const struct rh_place *place);
/* Notes that the command reads or writes these bytes. A fault, unless every conflicting access comes before it. */
enum check_mode { CHECK_READS, CHECK_WRITES, CHECK_ANNOUNCES /* writes, in an order that is the server's own */ };
void check_touch(struct rh_check *check, struct check_range range, enum check_mode mode);
/* A fault, unless all of the range holds this. base: where its first byte must lie. */
void check_find(struct rh_check *check, struct check_range range, const struct check_content *content);
void check_leave(struct rh_check *check, struct check_range range, const struct check_content *content);
/* The content at a range's beginning; CHECK_NOTHING: none. */
const struct check_content *check_first(const struct check_range *range);
void check_carry(struct rh_check *check, struct check_range from, struct check_range to);

/* check_command.c */
void check_command(struct rh_check *check);
/* The command must find this there, and reads it; or it writes this there. */
void check_need(struct rh_check *check, struct check_range range, const struct check_content *content);
void check_put(struct rh_check *check, struct check_range range, const struct check_content *content);
/* A whole sum of the command's step, of all its micro-batches; a block's gradient; whether there is such a sum, else it is a fault. */
struct check_content check_whole_sum(const struct rh_check *check, int sum, int64_t base);
struct check_content check_gradient(const struct rh_check *check, int b, int64_t base);
int check_is_sum(struct rh_check *check, int sum);
struct check_call *check_call_of(const struct rh_check *check, int64_t step);
/* The rows that stand for a block in the command's step; NULL: it travels whole. */
const struct rh_place *check_rows(const struct rh_check *check, int b);

/* check_update.c */
void check_update(struct rh_check *check);

#endif
