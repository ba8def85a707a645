/* Lowering: the slots of a program become commands on lanes (run/lane.h), slot by slot, in the order of the program. It decides contents,
 * places and order; the dispatcher (run/dispatcher.h) decides when. A pure function of the call and of what the calls before left behind.
 *
 * Lanes of device d are its streams, d * RH_STREAMS + stream. Beside them are one of the caller, two of each block at the optimizer, and
 * one of each device and block for uploads whose order is free, and those of lower_drive.c. */
#ifndef RH_RUN_LOWER_H
#define RH_RUN_LOWER_H

#include "core/alloc.h"
#include "offload/transfer.h"
#include "run/executor.h"
#include "run/ring.h"
#include "schedule/dispatch_steps.h"
#include "schedule/reload.h"

enum { LOWER_NEVER = RING_NEVER }; /* a position: of no command. Zeroed memory has none but this */

/* Buffers of device memory, written in turn. */
struct lower_ring {
	int64_t *freed, *read; /* of each: the latest copy, and the latest computation, that reads it */
	int count, next;
};

/* The room for weights: uploads go to its two ends in turn, so that one can arrive while the other is read. What lies where is remembered:
 * unchanged blocks are not sent again. */
struct lower_weights {
	int64_t capacity;
	int turn; /* the end that the latest upload went to: 0 low, 1 high */
	struct {
		int64_t bytes; /* of its latest upload */
		int64_t freed; /* the latest command that reads there */
	} end[2];
	int64_t *offset;  /* of each block of the model in the room, -1: not there */
	int64_t *version; /* of the bytes there */
	int64_t *sent;    /* the last command of each block's latest upload */
};

/* The room for plain matrices: where those of each block of the model lie, -1: not there; and the version of the weights that they were
 * made of. Computation alone touches it, in its order. */
struct lower_plain {
	int64_t *offset, *version;
};

/* A gradient in the room of rounded ones that is still to be sent. */
struct lower_download {
	int sum; /* 2 * block + use */
	int64_t step;
	int64_t offset, bytes, left;
	struct rh_place to; /* in host memory, whole */
};

/* What lies where on a device, and its latest commands. More than 20 members: some for each room of its memory. */
struct lower_device {
	struct lower_weights weights;
	struct lower_plain plain;
	struct lower_ring boundary, micro, result, saving;
	int64_t sums_read, sums_sent; /* the latest command of computation, and download, that uses the room of sums */
	int64_t rounded, rounded_sent;
	int64_t *fetched; /* of each sum: its latest upload */
	/* Of each micro-batch of the device's latest slot: the last copy of its activations up, and down. Bulk copies go behind them. */
	int64_t *copied_up, *copied_down;
	int gaps; /* micro-batches of that slot; 0: there was none */
	struct lower_download *download;
	int downloads;
	struct rh_transfer_piece *piece; /* of downloads, laid into the present slot's gaps */
	int pieces, next_piece;
	/* The upload of the next step's first slot, which has begun; kind -1: none has. */
	struct {
		int kind, lo, hi;
		int64_t weights; /* where its stage's begin in the room */
		int64_t first;   /* command */
	} ahead;
	int64_t last_slot; /* of the call's program, -1: it has none */
};

/* lower_drive.c. Positions stay from call to call. */
enum { LOWER_FRAMES = 8 }; /* of host memory, for pages of weights on NVMe */
struct lower_drives {
	int pages, reads, writes; /* lanes: frozen weights, boundaries */
	int64_t *copied;          /* of each frame: the latest copy from it */
	int64_t next_page;
	int write_buffers, read_buffers; /* host buffers in the rings of writes and reads; 0: boundaries stay in memory */
	int64_t *reread;                 /* of each record: the latest READ */
	struct {
		int first; /* record; those of a size lie side by side */
		int64_t bytes;
	} size[RH_RECORD_SIZES];
	/* of the call */
	struct rh_reloads reloads;
	int64_t write;                   /* the latest */
	int64_t next_read, first_in_use; /* reloads: the next to be read; the first whose buffer is in use */
	struct {
		int64_t position, bytes;
	} * written; /* of each write of the call: its WRITE */
	size_t written_capacity;
};

/* The block of which a call sends some rows alone: together these have `elements` numbers, at the front of its place. 0: none does. */
struct lower_table {
	int block;
	int64_t elements;
	int index; /* of HOST_ROWS */
};

struct lower_call {
	int trains, is_local;
	struct lower_table table;
	int is_joined;                      /* the next step's first slots may go beside this one's last */
	int64_t step;                       /* of the run: the program's first */
	int64_t number;                     /* of the call */
	int64_t first_index, micro_batches; /* of its first step; of a step */
	int updates;                        /* an update was opened: weights change */
	int clips;                          /* it waits for all gradients */
	int shift;                          /* of the round robin */
};

struct lower_lane {
	struct rh_waits pending; /* what its next command waits for */
	int64_t last;            /* command */
};

struct lower_block {
	int64_t version;                             /* of its weights: rises with each update, and when they are set by hand */
	int64_t ready, taken, arrival, uploads_over; /* latest commands of the optimizer */
	int64_t stashed_versions;                    /* with local updates: how many the store's stash was given */
	int64_t uploaded_step;                       /* the latest step that uploaded the block: `number` of its call */
	int arrived;                                 /* a gradient, whose update the uploads of the next step wait for */
};

/* A micro-batch's latest commands. */
struct lower_micro_batch {
	int64_t input;        /* the copy of its integers into staging */
	int64_t output;       /* the download of its results */
	int64_t sent;         /* the message that sent its activation to another box */
	int64_t last_command; /* in this box; LOWER_NEVER until it is lowered */
};

/* With local updates: versions of layers' weights (lower_versions.c). */
struct lower_versions {
	struct rh_versions *of; /* (micro-batches, layers) */
	int64_t *unresolved;    /* (layers): micro-batches in flight */
};

/* What a whole run is lowered with. */
struct lower_limits {
	struct rh_dispatch dispatch;
	int64_t micro_batches, steps_in_flight; /* that are kept at once: struct rh_executor */
	int64_t gaps;                           /* micro-batches of a slot, at most */
	struct rh_transfer_limits pieces;       /* how bulk copies are cut */
	int64_t most_pieces;                    /* of one upload or download */
	struct rh_boundary_needs boundaries;
};

/* What the lowering carries from slot to slot and from call to call, and scratch. More than 20 members: the positions that later commands
 * may have to wait for, by who waits. */
struct lowering {
	const struct rh_executor_options *options;
	struct lower_limits limits;
	struct rh_region memory;
	struct rh_micro_batch *batch; /* (micro-batches) */
	struct rh_program program;
	struct rh_dispatch_steps steps; /* where is_open */
	int is_open;                    /* the program is made piece by piece, and goes on behind its last slot */
	struct rh_lanes lanes;          /* and of a recording (ring.keeps) all commands */
	struct run_ring ring;
	struct lower_lane *lane;
	int caller, optimizer, free; /* first lanes; from `free` on those of uploads in any order */
	int links;                   /* likewise, by enum lower_link; -1: no other box */
	struct lower_device *device;
	struct lower_drives drives;
	struct rh_boundaries boundaries; /* where they stay in memory */
	int has_input_buffer;            /* the micro-batch that is lowered gave back the buffer of its input, and no other has since */
	int64_t *buffer_filled;          /* of each of the host's buffers for boundaries: the latest command that wrote it */
	int64_t *buffer_read;            /* (buffers, devices + 1): lower_buffer.c */
	/* Of places in host memory for saved activations, (layers, micro_batches of a stage at once): the latest copy there of the layers that
	 * begin with this one, and the latest one back of the backward stage that does. */
	struct {
		int64_t micro_batches;
		int64_t *filled, *read;
	} saved;
	struct lower_call call;
	size_t next_slot;
	int64_t latest_step; /* of the run: the latest slot's */
	int rc;
	struct lower_block *block;
	struct lower_micro_batch *micro;
	struct lower_versions versions;
	int64_t *summed;         /* [2 * block + use]: latest download of that sum */
	int64_t *uploaded;       /* (blocks, devices): the last commands of lower_block.uploaded_step's upload */
	int64_t *computed;       /* (micro-batches, devices): the latest computation with each */
	int trainable, expected; /* blocks; those whose gradients of the step have not arrived */
	int makes_gradients;     /* of the step, a slot that makes gradients has been lowered */
	struct {
		int64_t step, count; /* of that step, so many activations from below are received ahead */
	} ahead;
	int64_t fold[2]; /* the host's latest addition from each piece of staging */
	struct {
		int device, block; /* -1: none */
		int64_t first;     /* in the room of sums */
	} unsent_sum;              /* the finished sum of an embedding whose table the head uses, too */
	/* scratch */
	int64_t *offset, *bytes, *load;
	struct rh_transfer_piece *piece;
};

int lower_create(const struct rh_executor_options *options, const struct lower_limits *limits, struct lowering *out) RH_MUST;
void lower_destroy(struct lowering *lowering);

/* A fault stays in lowering.rc, from which on nothing is added: dispatcher_take returns it. */

/* Begins a call, whose program is there. It lowers the inputs, too, except with local updates: there lower_input follows. */
void lower_begin(struct lowering *lowering, const struct lower_call *call);
/* Lowers the inputs, or the results, of a step's micro-batches, which have the indices from `first` on. */
void lower_input(struct lowering *lowering, int64_t step, int64_t first, int64_t count);
void lower_output(struct lowering *lowering, int64_t step, int64_t first, int64_t count);
/* The program's next slot. */
void lower_next_slot(struct lowering *lowering);
static inline int lower_is_over(const struct lowering *lowering)
{
	return !lowering->is_open && lowering->next_slot == lowering->program.slots;
}
/* 0: the next slot of a program that is open is still to be made: run_stretch_extend. */
static inline int lower_has_slot(const struct lowering *lowering)
{
	return lowering->next_slot < (lowering->is_open ? lowering->steps.noted : lowering->program.slots);
}
/* After the last slot, where no other step follows at once: sends down what devices still have. */
void lower_end(struct lowering *lowering);
/* The receives of a step's first activations from below, at most `count`, where it is the next to begin: the first has index `first`. */
void lower_expect(struct lowering *lowering, int64_t step, int64_t first, const int64_t *tokens, int64_t count);
/* The first uploads of a step that is likely to follow. */
void lower_ahead(struct lowering *lowering);
/* Between steps, where updates are stale: the caller publishes all updates up to this step's. */
void lower_flush(struct lowering *lowering, int64_t step);

/* ---- inside: lower*.c ---- */

struct lower_slot {
	struct lowering *lowering;
	struct lower_device *state;
	int device;
	const struct rh_slot *slot; /* NULL: only gradients of an earlier slot are sent */
	int64_t step;
	int64_t weights; /* where its stage's begin in the room */
	int adds;        /* to uploaded sums: a layer's first backward waits for its own alone */
	int by_layer;    /* no slot computes while its weights go up: in its first micro-batch a layer waits for its own alone */
	int is_ahead;    /* of a step whose tokens are not known */
};

static inline int lower_lane(int device, enum rh_stream stream)
{
	return device * RH_STREAMS + (int)stream;
}

static inline int lower_lane_of(const struct lower_slot *slot, enum rh_stream stream)
{
	return lower_lane(slot->device, stream);
}
/* The latest command of that lane. */
static inline int64_t lower_last_of(const struct lower_slot *slot, enum rh_stream stream)
{
	return slot->lowering->lane[lower_lane_of(slot, stream)].last;
}

/* A boundary of one micro-batch. */
struct lower_boundary {
	enum rh_boundary_kind kind;
	int layer;
	int64_t index, step, bytes;
};

/* Lanes between this box and those beside it: in the order of enum rh_letter_way. */
enum lower_link {
	LOWER_FROM_BELOW = RH_LETTER_FROM_BELOW,
	LOWER_TO_BELOW = RH_LETTER_TO_BELOW,
	LOWER_FROM_ABOVE = RH_LETTER_FROM_ABOVE,
	LOWER_TO_ABOVE = RH_LETTER_TO_ABOVE,
	LOWER_LINKS
};

/* So many lanes of this kind: the number of the first. */
int lower_lanes(struct lowering *lowering, int count, struct rh_lane lane);
/* The next command of this lane waits for this position (LOWER_NEVER: no wait). */
void lower_await(struct lowering *lowering, int lane, int64_t position, enum rh_wait_for why);
/* Its position. After a fault nothing is added. */
int64_t lower_add(struct lowering *lowering, const struct rh_command *command);
/* A command on this lane, without operands. */
static inline struct rh_command lower_command_on(enum rh_command_kind kind, int lane, int64_t step)
{
	return (struct rh_command){.kind = kind,
	                           .lane = lane,
	                           .step = rh_int32(step),
	                           .micro_batch = -1,
	                           .block = -1,
	                           .source.device = -1,
	                           .target.device = -1};
}
/* A command of the slot on one of its device's streams, with what all of them have; without operands. */
struct rh_command lower_command(const struct lower_slot *slot, enum rh_command_kind kind, enum rh_stream stream);

/* What computes with the slot's weights; none of the device's buffers. */
struct rh_operands lower_operands(const struct lower_slot *slot);

/* Bytes of a room of this device, -1: of the host or a drive. */
static inline struct rh_place lower_bytes(int device, enum rh_room room, int64_t number, int64_t first, int64_t bytes)
{
	return (struct rh_place){.room = room, .device = rh_int16(device), .number = rh_int32(number), .first = first, .bytes = bytes};
}
static inline struct rh_place lower_nowhere(void)
{
	return (struct rh_place){.device = -1};
}

/* lower_bulk.c: weights up and gradients down, among the activations of lower_slot.c.
 *
 * lower_bulk_begin  uploads the slot's weights in the gaps of the device's slot before, and lays that slot's gradients into this slot's
 *                   gaps; begins this slot's gradient sums
 * lower_bulk_gap    before micro-batch number k of the slot: sends down the gradients of this gap
 * lower_bulk_weights  the next command reads these layers' weights, which it waits for, where the slot's layers wait one by one
 * lower_bulk_sums   the next command adds to this layer's sums, which it waits for
 * lower_bulk_layer  a layer's gradients are final in this slot
 * lower_bulk_end    the slot is over
 * lower_bulk_left   sends down at once the gradients that the device still has
 * lower_bulk_ahead  uploads weights of a slot that is likely to be the device's next
 * lower_bulk_keep   first: the device's first slot in this call, NULL: none. Another slot's upload that was begun ahead is dropped */
void lower_bulk_begin(struct lower_slot *slot);
void lower_bulk_gap(struct lower_slot *slot, int64_t k);
void lower_bulk_weights(struct lower_slot *slot, int lo, int hi);
void lower_bulk_sums(struct lower_slot *slot, int layer);
void lower_bulk_layer(struct lower_slot *slot, int layer);
void lower_bulk_end(struct lower_slot *slot);
void lower_bulk_left(struct lowering *lowering, int device);
void lower_bulk_ahead(struct lowering *lowering, int device, const struct rh_slot *expected);
void lower_bulk_keep(struct lowering *lowering, int device, const struct rh_slot *first);

/* Does the block travel by rows in this call? And the elements of it that do travel. */
static inline int lower_is_by_rows(const struct lowering *lowering, int block)
{
	return lowering->call.table.elements && block == lowering->call.table.block;
}
static inline int64_t lower_elements(const struct lowering *lowering, int block)
{
	return lower_is_by_rows(lowering, block) ? lowering->call.table.elements : lowering->options->model->block[block].elements;
}

/* lower_update.c: what the optimizer is told and asked. device: that sends the block's gradient down; -1: several do. to: where it is. */
void lower_arrived(struct lowering *lowering, int block, int64_t step, int64_t downloaded, int device, struct rh_place to);
void lower_uploads_over(struct lowering *lowering, int block, int64_t step);
/* Adds up the two sums of a tied table. */
void lower_fold(struct lowering *lowering, int64_t step);
/* Elements of the embedding's sum that are added at once: enough that their copy takes longer than its launch and the addition. */
enum { LOWER_FOLD_ELEMENTS = 4 << 20 };

/* lower_drive.c: reads and writes of drives.
 *
 * lower_page          a page's READ, for which this lane's next command waits; where it will lie. That command's position goes to
 *                     drives.copied
 * lower_ring_next     the buffer for the next boundary that a device sends
 * lower_ring_filled   the copy to it; its WRITE, if it is to be reloaded
 * lower_ring_find     the buffer that a boundary is in when the program reads it
 * lower_read_ahead    reloads that have a buffer by now */
void lower_drives_create(struct lowering *lowering, const struct rh_boundary_needs *needs);
void lower_drives_destroy(struct lowering *lowering);
int lower_drives_begin(struct lowering *lowering) RH_MUST;
struct rh_place lower_page(struct lowering *lowering, int lane, int64_t step, struct rh_place page);
int lower_ring_next(struct lowering *lowering, const struct lower_boundary *boundary);
void lower_ring_filled(struct lowering *lowering, const struct lower_boundary *boundary, int64_t copy);
int lower_ring_find(struct lowering *lowering, const struct lower_boundary *boundary);
void lower_read_ahead(struct lowering *lowering, int64_t step);
/* Bytes of a record of boundaries. */
int64_t lower_record_bytes(const struct lowering *lowering, int record);

/* lower_buffer.c: buffers of host memory for boundaries.
 *
 * lower_buffer_await   nobody uses the buffer any more: a wait of this lane
 * lower_buffer_take    the buffer for a boundary that this lane's next command brings to the host; it waits until it is free
 * lower_buffer_filled  that command's position
 * lower_buffer_find    the buffer that a boundary is in, which this lane's next command reads; it waits until it is there
 * lower_buffer_place   where it lies
 * lower_buffer_read_again  that command's position, where the boundary is read once more
 * lower_buffer_read    the same of its last read, or of one of several readers'; reader: its device, or the number of devices: a message */
void lower_buffer_await(struct lowering *lowering, int lane, int buffer);
int lower_buffer_take(struct lowering *lowering, int lane, const struct lower_boundary *boundary);
void lower_buffer_filled(struct lowering *lowering, const struct lower_boundary *boundary, int buffer, int64_t position);
int lower_buffer_find(struct lowering *lowering, int lane, const struct lower_boundary *boundary);
struct rh_place lower_buffer_place(const struct lowering *lowering, int buffer, int64_t bytes);
void lower_buffer_read_again(struct lowering *lowering, const struct lower_boundary *boundary, int buffer, int reader, int64_t position);
void lower_buffer_read(struct lowering *lowering, const struct lower_boundary *boundary, int buffer, int reader, int64_t position);

/* lower_slot.c */
void lower_slot(struct lower_slot *slot);
/* The index of the slot's first micro-batch. */
static inline int64_t lower_first_index(const struct lowering *to, const struct rh_slot *slot)
{
	int64_t step_index = to->call.is_local ? slot->step % to->limits.steps_in_flight : 0;
	return to->call.first_index + step_index * to->options->planned.train_micro_batches + slot->first;
}

/* lower_letter.c: a message of the caller's; one that follows a step's (struct rh_follower), which is over when it is posted. */
void lower_letter(struct lowering *lowering, const struct rh_letter *letter);
void lower_follower(struct lowering *lowering, enum lower_link way, int64_t step);

/* lower_versions.c */
void lower_versions_create(struct lowering *lowering);
/* With local updates: call it before a slot is lowered. */
void lower_versions_note(struct lowering *lowering, const struct rh_slot *slot);

#endif
