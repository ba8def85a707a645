/* The executor, its devices, and what the files of src/run share. */
#ifndef RH_RUN_EXECUTOR_INTERNAL_H
#define RH_RUN_EXECUTOR_INTERNAL_H

#include "model/emit.h"
#include "offload/host_copies.h"
#include "offload/memory.h"
#include "offload/transfer.h"
#include "run/dispatcher.h"
#include "run/executor.h"

#include <stdatomic.h>

enum { RUN_FLIGHT = 2 }; /* steps that are in flight at once where they are joined; else one is */

/* Of a step in flight, on a device. */
struct run_flight {
	struct rh_stalls stalls;
	int64_t computed;           /* the last computation, until it is issued; then LOWER_NEVER */
	int64_t results, gradients; /* the last downloads of its slots */
};

/* Memory of a room. */
struct run_room {
	char *base;
	int64_t stride; /* from one piece to the next, where there are several */
};

/* A device's memory, and what its computation is in the middle of. */
struct run_device {
	struct rh_device *device;
	struct rh_executor *executor;
	int index;
	struct run_flight flight[RUN_FLIGHT];
	struct run_room room[RH_ROOMS];
	struct rh_arena arena, deferred_arena, kept, saved;
	struct rh_stage_state state;
	struct rh_stage_pass pass;
	struct rh_emit emit;
	/* the stage whose blocks emit.weights and emit.gradient name */
	struct rh_stage stage;
	int64_t stage_weights;
	int is_backward_upload;
};

/* The indices of a step's micro-batches. */
struct run_book {
	int64_t first, count;
	float loss_scale;
};

/* The embedding's table by rows (table.c). */
struct run_table {
	int block;
	int64_t rows, cols, row_bytes; /* of the whole table */
	int32_t *number;               /* scratch, (rows): 1 + the row's number in a step, 0: none */
	int64_t begun;                 /* steps; the k-th has index k mod run_table_steps */
	struct run_table_step {
		int64_t number;          /* of the run */
		int32_t *id;             /* (planned.table_rows): the rows in the order of their numbers; not known on simulated devices */
		int64_t count, gathered; /* count 0: there is no such step */
	} step[RUN_FLIGHT];
};

/* Steps without a flush between them, counted from the call's first. */
struct run_stretch {
	const struct rh_stretch *call;
	int64_t begun, ended;
	int64_t until;    /* no step begins from this one on */
	int64_t backward; /* steps whose letters of RH_LETTER_BACKWARD are lowered */
	double told_s;    /* when the latest step ended, on the updater's clock; of the first step: when the stretch began */
};

/* One run of a plan: its devices, what is lowered for them and in flight, the host memory that they share, and the books of its steps. More
 * than 20 members: every file of src/run works on it. */
struct rh_executor {
	struct rh_executor_options options;
	struct rh_region memory; /* of arrays */
	struct run_device *device;
	struct lowering lowering;
	struct run_dispatcher dispatcher;
	struct rh_arena boundary_memory, micro_memory;
	struct rh_arena frame_memory; /* of pages of weights on NVMe */
	struct rh_host_copies copies;
	struct run_room room[RH_ROOMS]; /* of the host, but the store's */
	int64_t *offset;                /* scratch: [2*block+use] */
	int turn;                       /* of the round robin, over all steps */
	/* Step k has index k mod lowering.limits.steps_in_flight, k counted within a stretch; outside stretches k mod `flights`, k counted
	 * over all steps. Its micro-batches have the indices from (its index) * options.planned.train_micro_batches on. */
	struct run_book *book; /* (steps_in_flight) */
	int64_t flights;
	int64_t begun, finished, calls, inferred;
	struct run_table table;
	int uploads_ahead; /* uploads for the next step may be in flight */
	int64_t first;     /* index of the step that is being enqueued; in a stretch 0 */
	struct {
		int64_t step;
		double awaited_s; /* for updates, by the host */
	} flight[RUN_FLIGHT];
	/* (blocks, devices), of trainable blocks, else NULL: the latest download of a gradient; where updates are stale, the latest upload */
	struct rh_event **downloaded, **uploaded;
	uint64_t *version;    /* (blocks): the store's when the block was uploaded last */
	atomic_int *arriving; /* (blocks): a gradient is on its way through the staging */
	struct run_stretch stretch;
	struct {
		const struct rh_follower *message;
		int count, posted;
	} follow[LOWER_LINKS];
	int trains, is_stretch;
	int64_t step;
	struct rh_step_times times;   /* of the latest step that was finished */
	struct rh_watch_trace traced; /* trace NULL: none */
	int64_t traced_step;
	struct run_span *span; /* those whose times are still to be read from their events */
	size_t spans, span_capacity;
};

/* step.c: lowers the program's next slot, for the step of this index, or skips it if its step shall not begin. 1: neither yet, as the slot
 * would begin a step whose index is taken. */
int run_lower_slot(struct rh_executor *executor, int index) RH_MUST;
/* The book of a command's step, and the stalls of its device in that step. */
const struct run_book *run_book_of(const struct rh_executor *executor, const struct rh_command *command);
struct rh_stalls *run_stalls_of(struct rh_executor *executor, const struct rh_command *command);
/* Begins a call: from then on its program is lowered. */
int run_begin(struct rh_executor *executor, const struct lower_call *call) RH_MUST;
/* Issues all that is left, and waits until devices are at rest, whatever rc is. Returns the first fault. */
int run_end(struct rh_executor *executor, int rc);
/* Waits for uploads of a step that does not come: nothing is running afterwards. */
void run_rest(struct rh_executor *executor);
/* Copies a step's micro-batches to the memory of their indices; reads their results there. */
void run_copy_inputs(struct rh_executor *executor, struct run_book *book, const struct rh_micro_batch *batch, int64_t count);
int run_collect_results(struct rh_executor *executor, const struct run_book *book, int64_t step) RH_MUST;

/* issue.c: the address of a place in host memory. */
char *run_host_address(const struct rh_executor *executor, struct rh_place place);

static inline char *run_piece(const struct run_room room[RH_ROOMS], enum rh_room which, int64_t number)
{
	return room[which].base + number * room[which].stride;
}

/* table.c.
 *
 * _stride    bytes of a piece of HOST_ROWS, of which there are _steps; 0: the run's table travels whole
 * _begin     of a call whose micro-batches are in HOST_MICRO: finds the rows that they name, by whose numbers it replaces ids there
 * _index     where rows of the command's block lie in HOST_ROWS; -1: it travels whole in the command's step
 * _up        copies such rows to a device
 * _arrives   tells the store where the block's gradient has come, before the updater is told that it has */
int64_t run_table_stride(const struct rh_executor_options *options);
int run_table_steps(const struct rh_executor_options *options);
int run_table_create(struct rh_executor *executor) RH_MUST;
struct lower_table run_table_begin(struct rh_executor *executor, const struct run_book *book);
int run_table_index(const struct rh_executor *executor, const struct rh_command *command);
int run_table_up(struct rh_executor *executor, struct rh_device *device, const struct rh_command *command, char *to) RH_MUST;
void run_table_arrives(struct rh_executor *executor, const struct rh_command *command);

/* spans.c: a trace's spans. _begin, _end: around each command. _settle: when all have ended. _drop: when executor or trace are given up. */
int run_span_begin(struct rh_executor *executor, const struct rh_command *command, int stream) RH_MUST;
int run_span_end(struct rh_executor *executor, const struct rh_command *command, int stream) RH_MUST;
void run_spans_settle(struct rh_executor *executor);
void run_spans_drop(struct rh_executor *executor);

/* stretch.c.
 *
 * _extend   where the program is open and has no slot: makes more of it, or ends it
 * _collect  ends the steps that are over
 * _reach    the same, and begins steps up to this slot's
 * _letters  lowers a place's letters */
enum run_step { RUN_STEP_BEGUN, RUN_STEP_LATER, RUN_STEP_NONE };
int run_stretch_extend(struct rh_executor *executor) RH_MUST;
int run_stretch_collect(struct rh_executor *executor) RH_MUST;
int run_stretch_reach(struct rh_executor *executor, const struct rh_slot *slot) RH_MUST;

#endif
