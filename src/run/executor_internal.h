/* What a device of the executor holds, and the verbs that slots.c is written with. */
#ifndef RH_RUN_EXECUTOR_INTERNAL_H
#define RH_RUN_EXECUTOR_INTERNAL_H

#include "model/emit.h"
#include "offload/memory.h"
#include "offload/pin.h"
#include "offload/staging.h"
#include "offload/transfer.h"
#include "partition/made.h"
#include "run/boundary.h"
#include "run/executor.h"
#include "run/feed.h"
#include "run/waits.h"

/* A piece of device memory with one writer and one reader at a time: `ready` after the write, `freed` after the read. */
struct run_buffer {
	char *memory;
	struct rh_event *ready, *freed;
};

/* Buffers taken in turn. */
struct run_ring {
	struct run_buffer *buffer;
	int count, next;
};

/* The room for weights: uploads go to its two ends in turn, so that one can arrive while the other is read. What lies where is remembered:
 * unchanged blocks are not sent again. */
struct run_weights {
	char *memory;
	int64_t capacity;
	int turn; /* the end that the latest upload went to: 0 low, 1 high */
	struct {
		int64_t bytes;                  /* of its latest upload */
		struct rh_event *ready, *freed; /* uploaded; read to the end */
	} end[2];
	int64_t *offset;   /* of each block of the model in the room, -1: not there */
	uint64_t *version; /* of the bytes there */
};

/* A rounded gradient that is still to be sent. */
struct run_download {
	int sum; /* 2 * block + use */
	char *to;
	const char *from;
	int64_t bytes, left;
};

/* The weights of a slot on their way. */
struct run_upload {
	int begun;                   /* they have their places, and some may have been sent */
	int64_t *bytes;              /* of each block of the model, 0: not to be sent */
	char *sent;                  /* of each block */
	const struct rh_slot *first; /* of this step's slots, until it begins; NULL: they began, or there is none. Of the next step's: */
	struct rh_slot expected;
};

/* Bulk copies in the windows between activations. */
struct run_bulk {
	struct rh_event **up, **down; /* by number in the latest slot: a micro-batch's activations have come up, gone down */
	int windows;                  /* micro-batches of the latest slot of this step; 0: there was none */
	int sums_leave;               /* the present slot sends sums from where they are added up */
	struct run_late_sum {
		int sum, is_final;
	} * late; /* sums that stay there until the gradients before them have been taken, and the place is needed */
	int lates;
	struct run_download *download;
	struct rh_transfer_piece *piece; /* of downloads, laid into the present slot's windows */
	int downloads, pieces, sent;
};

/* Weights that the device makes after its last slot of the step (made.c). */
struct run_made {
	char *memory;
	struct rh_event *ready, *freed; /* what they are made of is up; all is down, and may be overwritten */
	struct rh_event **weights;      /* [block]: its upper halves are down */
	struct rh_event *done, **whole; /* of late ones: made; [block]: its lower halves are down */
	enum rh_made_when comes;        /* in this step, in this slot: */
	struct rh_slot last;
	int64_t next_bytes; /* of the weights that are likely to come next */
	struct rh_update update;
	int *block, blocks; /* whose are made, of the slot from its beginning until they are sent */
	struct rh_made_place (*place)[RH_MADE_ARRAYS];
	struct rh_optimizer_arrays *on; /* [block of the model]: on the device */
	int in_weights, in_rounded;     /* some lies between weights, behind rounded sums */
	enum { MADE_COMING, MADE_ENQUEUED, MADE_SENT } are;
	int64_t *bytes; /* scratch: of each array */
	struct rh_transfer_piece *piece;
	int pieces, sent, first_window;
};

enum { RUN_FOLD_ELEMENTS = 1 << 20 }; /* of the embedding's sum, at once */

/* Of a step in flight, on a device. */
struct run_flight {
	struct run_waits waits;
	struct rh_event *results, *gradients; /* what its slots sent down is there, on both ways */
};

enum { RUN_FLIGHT = 2 }; /* steps whose ends are told apart */

/* How far a device's slots of the program are enqueued, and when: by a clock that its launches move on, and that of inputs where they come
 * later (turns.c). */
struct run_cursor {
	size_t slot;  /* of the turns: the present one, or the next */
	int64_t next; /* micro-batch of the slot; -1: it has not begun */
	int updated;  /* the slot's weights are */
	int64_t clock;
};

/* Slots that are to be enqueued, of the steps in flight: slot.step is their place. */
struct run_turns {
	struct rh_slot *slot;
	struct run_turn_buffers {
		int64_t writes, net; /* of boundaries: what a micro-batch takes, and how many more are taken when it is over */
	} * buffers;                 /* of each slot */
	size_t slots, capacity, buffers_capacity;
	size_t oldest; /* those before are over */
	struct run_step {
		size_t begin, end, making; /* its slots; the first that makes gradients, or `end` */
		int left_sent;             /* the step before has left nothing */
	} step[RUN_FLIGHT];
};

struct run_device {
	struct rh_device *device;
	struct run_cursor at;
	size_t first[RUN_FLIGHT]; /* of each step's slots */
	int place;                /* among the flights: of the latest slot's step */
	struct run_weights weights;
	struct run_flight flight[RUN_FLIGHT];
	struct run_buffer gradients; /* fp32 sums; ready: uploaded, or added up; freed: downloaded or rounded */
	struct run_buffer rounded;   /* their bf16 copy; freed: downloaded */
	struct run_upload upload;
	struct run_bulk bulk;
	struct run_made made;
	struct rh_event **downloaded; /* [2*block+use]: this device's latest download of that sum */
	struct rh_event **uploaded;   /* [block]: its latest upload here; stale updates: of trainable blocks, else NULL */
	struct run_ring boundary, micro, result;
	struct rh_arena arena;
	char *saved; /* activations that stay from a stage's forward to its backward */
	char *late;  /* what put-off weight gradients are made of */
	char *cache;
	struct rh_stage_state state;
	struct {
		int is, lo, hi; /* layers */
		int64_t step;
	} owes; /* in a stretch: the update of a stage whose gradients are on their way */
	/* what the present slot's emission reads */
	char **block_weights;
	float *(*block_gradient)[2];
	struct rh_view *kept; /* (layers + 1) boundary outputs */
};

enum run_pin { RUN_PIN_BOUNDARIES, RUN_PIN_MICRO, RUN_PIN_FEED, RUN_PIN_STORE, RUN_PINS };

struct work;

struct rh_executor {
	struct rh_executor_options options;
	struct run_device *on;
	struct work *work; /* of each device: its present slot's */
	struct run_turns turns;
	struct rh_boundaries boundaries;
	struct rh_arena boundary_memory, micro_memory;
	struct rh_arena feed_memory;
	struct run_feed *feed;            /* NULL: all weights are in memory */
	struct rh_host_pin pin[RUN_PINS]; /* by enum run_pin: by the first device, which does it for all */
	struct rh_staging *staging;       /* for what is not registered of the store; NULL: all is, or nothing can be */
	struct rh_arena staging_memory;
	struct rh_host_pin staging_pin;
	int64_t micro_batches;            /* that have a place in host staging */
	float *fold[2];                   /* host staging for pieces of the embedding's sum */
	char **micro, **result;           /* host staging, one of each a micro-batch */
	int *summed_on;                   /* [2*block+use]: device that last downloaded the running sum this step, -1 none */
	int64_t *offset;                  /* scratch: [2*block+use] */
	int64_t *item_bytes;              /* likewise */
	struct rh_transfer_limits pieces; /* how bulk is cut */
	struct rh_transfer_piece *piece;  /* scratch: of one upload */
	int64_t *load;                    /* scratch: of each window */
	struct rh_program program;
	int turn, shift; /* of the round robin, over all steps; by the latest step */
	char *wanted;    /* scratch: (blocks) */
	int goes_on;     /* weights of the next step may be on their way */
	/* Of steps that have places at once step k has place k mod `steps_held`, and its micro-batches lie from there *
	 * options.train_micro_batches on. Of a stretch k counts its own steps; else all that begin, of which `flights` have places. */
	struct rh_micro_batch *batch; /* (micro_batches) */
	float *loss_scale;            /* (steps_held) */
	int64_t steps_held, flights;
	int64_t begun, finished;
	int64_t first; /* place of the step that is being enqueued; of a stretch's first: 0 */
	struct {
		int64_t step, count;
		int64_t number;   /* executor->begun, with it */
		double awaited_s; /* for updates, by the host */
	} flight[RUN_FLIGHT];
	/* stale updates: the step's uploads of each block, by the devices that made them */
	struct {
		int64_t step; /* whose, by its number */
		int told;     /* to the updater */
		struct rh_event **event;
		int count;
	} * uploads;
	struct rh_event **uploading; /* (blocks, devices) */
	int trains, is_stretch;
	int64_t step;
	struct rh_step_times times; /* of the latest step that was finished */
	struct rh_trace *trace;     /* NULL: none */
	struct rh_recorder *recorder; /* run/record.h; NULL: none */
	int64_t traced_step;
	struct {
		int device, block; /* -1: none */
		const char *sum;   /* on the device */
	} left;                    /* the embedding's finished sum, of a table that the head uses too: see fold_embedding */
};

/* What the executor walks is made of. */
struct rh_dispatch run_dispatch(const struct rh_executor_options *options);

/* record.c: what its vtable does not see. The host has waited for an event; all of a layer's gradients are launched; a micro-batch is laid
 * into its place; its results are about to be read; a piece of the embedding's sum is added to the head's. */
void run_recorded_sync(struct rh_executor *executor, const struct rh_event *event);
void run_recorded_layer(struct rh_executor *executor, int device, int layer);
void run_recorded_input(struct rh_executor *executor, int64_t place);
void run_recorded_output(struct rh_executor *executor, int64_t place);
void run_recorded_add(struct rh_executor *executor, int64_t first, int64_t count, const float *sum);
static inline int run_await(struct rh_executor *executor, struct rh_event *event)
{
	int rc = event->ops->event_sync(event);
	run_recorded_sync(executor, event);
	return rc;
}

/* host.c: registration of all that devices copy from and to; and such copies, cut where one registration ends and the next begins, or
 * through the staging. */
int run_host_pin(struct rh_executor *executor) RH_MUST;
void run_host_unpin(struct rh_executor *executor);
int run_copy_up(struct rh_executor *executor, struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes);
int run_copy_down(struct rh_executor *executor, struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes);
/* Whether copies of these bytes go through the staging, at least in part. */
int run_is_staged(const struct rh_executor *executor, const void *host, int64_t bytes);

/* made.c: `pieces` that are sent up at most. */
int made_create(const struct rh_executor_options *options, struct rh_device *device, struct rh_arena *memory, int64_t pieces,
                struct run_made *out) RH_MUST;
void made_destroy(struct run_made *made, int blocks);

/* step.c: a call's beginning, when its books are empty; all its slots are enqueued; and the end, when all devices are idle, whatever rc is:
 * the first fault comes back. */
void run_begin(struct rh_executor *executor);
/* executor->program is what comes. */
int run_begin_boundaries(struct rh_executor *executor) RH_MUST;
int run_enqueued(struct rh_executor *executor) RH_MUST;
/* All slots of one device are, of the step that has this place. */
int run_device_enqueued(struct rh_executor *executor, int device, int64_t place) RH_MUST;
int run_end(struct rh_executor *executor, int rc);
/* Weights that are on their way up for a step that does not come. */
void run_stop_ahead(struct rh_executor *executor);
/* A micro-batch goes to its place; its results come from there. */
void run_stage_micro(struct rh_executor *executor, int64_t place, const struct rh_micro_batch *batch);
void run_collect_result(struct rh_executor *executor, int64_t place);

/* boundary_room.c: what boundaries take, for the worst of all programs that the run may ask for. */
struct run_boundary_room {
	int count;           /* buffers in host memory; none where everything is one stage */
	int64_t bytes_each;  /* of a buffer, and of a record */
	int down, up;        /* of the buffers, the two rings to and from NVMe; 0: all stay in memory */
	int records;         /* on NVMe */
	int64_t step_writes; /* of records in a step */
};
int run_boundary_room(const struct rh_executor_options *options, struct run_boundary_room *out) RH_MUST;
/* Micro-batches of a forward-only round. */
int64_t run_infer_round(const struct rh_executor_options *options);

/* step.c: steps that may be in flight, outside a stretch: 1, or RUN_FLIGHT. */
int64_t run_flights(const struct rh_executor_options *options);

/* stretch.c: steps whose micro-batches have places at once; 1 where steps are flushed. Boundary buffers that any stretch can need. */
int64_t run_steps_held(const struct rh_executor_options *options);
int run_stretch_boundaries(const struct rh_executor_options *options);

/* slots.c: enqueues one slot; the same in parts: its beginning, and for each micro-batch, by number from 0 on, what of the slot before goes
 * down meanwhile, and then the micro-batch, of which the last ends the slot. */
int run_slot(struct rh_executor *executor, const struct rh_slot *slot) RH_MUST;
int run_slot_begin(struct rh_executor *executor, const struct rh_slot *slot) RH_MUST;
int run_slot_window(struct rh_executor *executor, int device, int64_t number) RH_MUST;
int run_slot_next(struct rh_executor *executor, int device, int64_t number) RH_MUST;
/* Whether what a micro-batch reads is in the books, of boundaries in memory; *ready: when, at the earliest, on the clock of turns.c. */
int run_slot_inputs(const struct rh_executor *executor, const struct rh_slot *slot, int64_t number, int64_t *ready);

#endif
