/* Lanes: the form in which a program runs. The slots of a program are lowered to commands on lanes; a checker proves them
 * (run/check.h), and a dispatcher issues them. A command is plain data: it names memory by number, never by address.
 *
 * Order. Every command has a position in one total order over all lanes and calls. A command may start when the command before it on
 * its own lane is done and every command that it waits for is done; nothing else orders commands. Waits point to smaller positions, so
 * that the order of positions is always legal and nothing can deadlock.
 *
 * A queue (a device's stream, the optimizer, a drive, a link, the calling thread) runs one command at a time. It may serve several
 * lanes; no order holds between these. So blocks whose uploads may go in any order have a lane each, and so has each block at the
 * optimizer. */
#ifndef RH_RUN_LANE_H
#define RH_RUN_LANE_H

#include "core/narrow.h"
#include "device/device.h"
#include "schedule/boundary.h"

enum rh_queue {
	RH_QUEUE_STREAM,    /* of a device */
	RH_QUEUE_CALLER,    /* the thread that calls: micro-batches in, results out, what it adds or copies itself */
	RH_QUEUE_OPTIMIZER, /* serves its lanes in any order: it chooses which ready block is next */
	RH_QUEUE_READS,     /* of a drive, or a group of drives that acts as one */
	RH_QUEUE_WRITES,
	RH_QUEUE_SENDS, /* of a link */
	RH_QUEUE_RECEIVES,
	RH_QUEUES
};

struct rh_lane {
	enum rh_queue queue;
	enum rh_stream stream; /* of RH_QUEUE_STREAM */
	int owner;             /* device, drive, or link; 0 where there is one alone */
};

/* The kind of memory where bytes lie. Most rooms consist of equal pieces: `number` says which piece, and `first` counts within it. In the
 * rooms of rh_room_is_whole offsets count from the room's start, and `number` only says what lies there. */
enum __attribute__((packed)) rh_room {
	RH_ROOM_NONE,
	/* of a device */
	RH_ROOM_WEIGHTS, /* number: the block that lies there; first: in the room */
	RH_ROOM_PLAIN, /* what is made of weights once a slot (rh_block_plain_bytes). number: the stage's first layer; first: in the room */
	RH_ROOM_SUMS,  /* fp32 gradient sums. number: 2 * block + use; first: in the room */
	RH_ROOM_ROUNDED,  /* sums rounded to the store's dtype; likewise */
	RH_ROOM_BOUNDARY, /* ring of boundaries: activations and their gradients */
	RH_ROOM_MICRO,    /* ring of micro-batches' integers */
	RH_ROOM_RESULT,   /* ring of losses, hits and scores */
	RH_ROOM_ARENA,    /* what one micro-batch's recompute keeps for its backward, and workspace */
	RH_ROOM_KEPT,     /* activations kept from a stage's forward to its backward; first: in the room */
	RH_ROOM_SAVING,   /* ring of activations on their way to host memory, or back */
	RH_ROOM_DEFERRED, /* what deferred weight gradients are made of; first: in the room */
	RH_ROOM_CACHE,    /* what mixers carry: keys and values, states; in a backward of chunks one layer's, with gradients */
	/* of the host. In these `first` counts from the piece's begin */
	RH_ROOM_HOST_WEIGHTS,  /* the upload form. number: block */
	RH_ROOM_HOST_STASH,    /* older versions of it. number: block, and on from them the numbers of further updates, modulo the stash */
	RH_ROOM_HOST_GRADIENT, /* number: block */
	RH_ROOM_HOST_SUM,      /* number: 2 * block + use. May share its bytes with the gradient: offload/store.h */
	RH_ROOM_HOST_SAVED,    /* activations saved from a stage's forward to its backward; first: in the room */
	RH_ROOM_HOST_BOUNDARY, /* boundary buffers, those of rings to and from NVMe included */
	RH_ROOM_HOST_MICRO,    /* number: the micro-batch's index */
	RH_ROOM_HOST_RESULT,   /* likewise */
	RH_ROOM_HOST_FOLD,     /* pieces of a tied embedding's sum */
	RH_ROOM_HOST_FRAME,    /* pages of weights that come from NVMe */
	RH_ROOM_HOST_ROWS, /* rows of the embedding's table that a step's tokens name: on their way up, then those of their gradient that
	                        * come down. number: steps of stale updates have two in turn */
	/* of a drive */
	RH_ROOM_RECORD, /* boundaries */
	RH_ROOM_PAGES,  /* frozen weights. number: block; first: in the block */
	RH_ROOMS
};

/* Bytes [first, first + bytes). */
struct rh_place {
	enum rh_room room;
	int16_t device; /* -1: none */
	int number;
	int64_t first, bytes;
};

/* Rooms of a device in which offsets alone count: there `number` says what lies at them. */
static inline int rh_room_is_whole(enum rh_room room)
{
	return room == RH_ROOM_WEIGHTS || room == RH_ROOM_PLAIN || room == RH_ROOM_SUMS || room == RH_ROOM_ROUNDED;
}

struct rh_room_size {
	int count; /* pieces, with numbers from 0 on */
	int64_t bytes;
};
/* Pieces and bytes of each of a device's rooms; together they are the plan's device_bytes. */
void rh_rooms_of_device(const struct rh_stage_plan *plan, struct rh_room_size room[RH_ROOMS]);

/* What a compute command of layers works on beside their own state. Buffers are numbers in the device's rings, -1: none. */
struct rh_operands {
	int64_t weights; /* offset in the device's room at which the layout of the stage begins */
	int16_t micro;
	int16_t x;  /* activation at `lo`, of a backward slot perhaps its copy in 8 bits, which BACKWARD does not read; -1 where
	                             * lo is 0, or inside the stage: then it is in the arena */
	int16_t y;  /* FORWARD: activation at `hi`, where anybody reads it; else it stays in the arena */
	int16_t dy; /* BACKWARD: gradient at `hi`; -1: the head's own, or inside the stage */
	union {
		int16_t dx;     /* BACKWARD: gradient at `lo`; -1: inside the stage, or nothing below is trained */
		int16_t narrow; /* FORWARD: copy in 8 bits of the activation at `hi`; -1: nobody reads one */
	};
	int16_t result;             /* of the head's loss or scores */
	int16_t saving;             /* of activations that are saved: FORWARD leaves them there, RECOMPUTE and BACKWARD read them */
	uint8_t later_chunks;       /* of its text, that are not empty */
	uint8_t is_backward_upload; /* that layout: rh_stage_plan_upload_layout's `is_backward`, by the slot that uploads it */
};

enum __attribute__((packed)) rh_command_kind {
	/* On a device's compute stream. Layers [lo, hi) of `stage`, one or several of them, for one micro-batch. A boundary that somebody else
	 * reads is made at `hi` alone, and a layer's gradients are final only at a command's end: there a command has to end.
	 *   FORWARD          source: KEPT, where the stage leaves activations there. target: CACHE, where it attends to keys and values of
	 *                    calls or chunks before
	 *   CARRY            of a backward slot, each chunk of a text before its last one's backward: what the mixer carries. source: KEPT.
	 *                    target: CACHE
	 *   RECOMPUTE        makes activations that the backward needs, but for those that are kept or saved; with the loss where hi is the
	 *                    model's end. source: KEPT, or DEFERRED, where operands of weight gradients go. target: ARENA, or CACHE, of
	 *                    chunks
	 *   BACKWARD         source: KEPT, or ARENA; where the stage recomputes it always reads ARENA. Also reads x where lo is the stage's
	 *                    first. Adds to the sums of its layers. target: DEFERRED, where weight gradients of linears wait, not added; of
	 *                    chunks CACHE, whose last chunk comes first
	 *   WEIGHT_GRADIENT  what waits. source: DEFERRED */
	RH_COMMAND_FORWARD,
	RH_COMMAND_CARRY,
	RH_COMMAND_RECOMPUTE,
	RH_COMMAND_BACKWARD,
	RH_COMMAND_WEIGHT_GRADIENT,
	/* target: PLAIN, in the layout of the stage (rh_stage_plan_plain_layout). Makes its packed weights plain and quantises what
	 * `multiply` asks for, once they are there and before the slot's first micro-batch */
	RH_COMMAND_DEQUANTISE,
	RH_COMMAND_CLEAR, /* target: SUMS. Zeros */
	RH_COMMAND_ROUND, /* source: SUMS, the whole step's; target: ROUNDED */

	/* Between rooms of a device and of the host, or within the host's. Contents stay what they are. A boundary's have lo = its layer. */
	RH_COMMAND_COPY,
	/* source: HOST_FOLD, elements of use 0's sum; target: the same of HOST_GRADIENT = use 1's HOST_SUM + source, rounded once */
	RH_COMMAND_HOST_ADD,
	/* the caller's micro-batch; target: HOST_MICRO. source: HOST_ROWS, where no more of the embedding's table travels in the step: copies
	 * to a device name as many bytes of the block, from its first on, in HOST_WEIGHTS, WEIGHTS and SUMS; its gradient goes to HOST_ROWS */
	RH_COMMAND_INPUT,
	RH_COMMAND_OUTPUT, /* the caller reads results; source: HOST_RESULT */

	/* The optimizer, of one block and step. The first two announce, and are done at once; the others are done when the server says so.
	 *   GRADIENT_ARRIVED  waits for the downloads of the step's gradient. source: HOST_ROWS, where it came there
	 *   UPLOADS_OVER      waits for the step's uploads; of stale updates alone, before the step's GRADIENT_ARRIVED
	 *   NORM              of steps that clip: waits for GRADIENT_ARRIVED of every trainable block. block -1
	 *   WEIGHTS_READY     HOST_WEIGHTS hold the update by this step's gradient. Waits for GRADIENT_ARRIVED, and NORM where there is one;
	 *                     of stale updates for GRADIENT_TAKEN, and UPLOADS_OVER of the step after, or with local updates its own
	 *   GRADIENT_TAKEN    HOST_GRADIENT may be overwritten; waits as WEIGHTS_READY, or for it; of stale updates for GRADIENT_ARRIVED, NORM,
	 *                     and WEIGHTS_READY of the step before */
	RH_COMMAND_GRADIENT_ARRIVED,
	RH_COMMAND_UPLOADS_OVER,
	RH_COMMAND_NORM,
	RH_COMMAND_WEIGHTS_READY,
	RH_COMMAND_GRADIENT_TAKEN,

	RH_COMMAND_READ,    /* source: RECORD, PAGES; target: HOST_BOUNDARY, HOST_FRAME */
	RH_COMMAND_WRITE,   /* source: HOST_BOUNDARY; target: RECORD */
	RH_COMMAND_SEND,    /* source: HOST_BOUNDARY; by the lane's link */
	RH_COMMAND_RECEIVE, /* target: HOST_BOUNDARY; likewise */
	/* A message of the caller's, who has its bytes: struct rh_letters of executor.h. `step` is that which the message speaks of */
	RH_COMMAND_SEND_LETTER,
	RH_COMMAND_RECEIVE_LETTER,
	RH_COMMANDS
};

/* Fields that a kind has no use for are 0; block, micro_batch -1. */
struct rh_command {
	enum rh_command_kind kind;
	int16_t waits,
	        paces; /* positions that it waits for. The last `paces` of them keep an order that no result needs (a bulk copy behind
	                       * an activation's): the checker does not count on them */
	int16_t chunk; /* which one of its text, where a micro-batch is a chunk; else 0 */
	int lane;
	int first_wait; /* where its waits begin, in struct rh_lanes or a chunk of run/ring.h */
	int64_t position;
	int step;        /* of the run: an update's is that of its gradient; an upload's that of the slot that computes with it */
	int micro_batch; /* within the step */
	int tokens;      /* of the micro-batch: compute, and copies of boundaries */
	int block;
	int lo, hi; /* layers */
	struct rh_stage stage;
	union {                                 /* by kind */
		struct rh_operands operands;    /* FORWARD, CARRY, RECOMPUTE, BACKWARD, WEIGHT_GRADIENT, DEQUANTISE */
		enum rh_boundary_kind boundary; /* SEND, RECEIVE */
		int sender;                     /* GRADIENT_ARRIVED: the device that sends the gradient down, -1: several do */
		int letter;                     /* SEND_LETTER, RECEIVE_LETTER: the caller's `kind` */
	};
	struct rh_place source, target;
};
_Static_assert(sizeof(struct rh_command) <= 128, "a run keeps thousands of commands");

/* Commands in the order of their positions: command[i] has position first + i. Positions count on over calls; what comes before `first` is
 * done. */
struct rh_lanes {
	struct rh_lane *lane;
	int lanes;
	struct rh_command *command;
	int64_t *wait;
	int64_t first, commands, waits;
	size_t lane_capacity, command_capacity, wait_capacity;
};

static inline struct rh_command *rh_command_at(const struct rh_lanes *lanes, int64_t position)
{
	return &lanes->command[position - lanes->first];
}

/* What a command that is still to be made waits for. RH_WAIT_PACES: an order that no result needs. */
enum rh_wait_for { RH_WAIT_NEEDS, RH_WAIT_PACES };
struct rh_wait {
	int64_t position;
	int lane;
	enum rh_wait_for why;
};
struct rh_waits {
	struct rh_wait *wait; /* the last `paces` only pace */
	int count, paces;
	size_t capacity;
};
/* Of two on one lane the smaller is dropped, unless it is needed and the other only paces. -ENOMEM. */
int rh_waits_add(struct rh_waits *waits, struct rh_wait wait) RH_MUST;

/* Returns the lane's number. -ENOMEM. */
int rh_lanes_add_lane(struct rh_lanes *lanes, struct rh_lane lane) RH_MUST;
/* `command` gets the next position. Waits for what comes before lanes->first are dropped. */
int rh_lanes_add(struct rh_lanes *lanes, const struct rh_command *command, const struct rh_waits *waits) RH_MUST;
void rh_lanes_free(struct rh_lanes *lanes);

const char *rh_command_name(enum rh_command_kind kind);
/* "1234 copy, block 3 step 2, device 1 weights 4096+256, lane 7", for faults and dumps. */
void rh_command_describe(const struct rh_lanes *lanes, const struct rh_command *command, char *text, size_t bytes);

#endif
