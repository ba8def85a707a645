/* The store's arrays, for its folder only. */
#ifndef RH_OFFLOAD_STORE_INTERNAL_H
#define RH_OFFLOAD_STORE_INTERNAL_H

#include "core/arena.h"
#include "offload/numa.h"
#include "offload/simd/kernels.h"
#include "offload/store.h"

#include <string.h>

/* Elements of one span at most. Fixed: it decides the order of the norm's sums. */
enum { STORE_SPAN = 32768 };

/* A run of elements inside one trainable tensor: the unit that optimizer tasks share out, and one partial sum of the norm. */
struct store_span {
	int64_t first; /* element in the block */
	int32_t count, block, tensor;
	uint32_t codes; /* 8-bit moments: which of the block's scales is its first */
	double squares; /* their sum, of the gradient */
};

/* rows.c: of a block whose gradient comes as some rows. */
struct store_rows {
	int64_t rows, cols;
	int32_t *place;     /* (rows): 1 + where the row lies among those that have come, 0: it has not */
	uint8_t *is_filled; /* (rows): the stored gradient has something there */
	int64_t count;      /* that came last */
	const char *data;   /* those that have come; NULL: none have since the last take */
	uint8_t *is_ahead;  /* (rows): rh_optimizer_update_rows has updated the row */
	int64_t aheads;     /* of them */
};

/* Pointers into the store's mapping; NULL where the block has none. */
struct store_block {
	void *weights;            /* the store's dtype; F32: the master */
	void *published;          /* what devices read; NULL: weights */
	void *stash;              /* older weights, a ring; NULL: none */
	int64_t stashed_versions; /* that were ever copied into it */
	uint16_t *lower;          /* split: the master's lower half */
	float *master;            /* plain */
	float *moment[2];         /* first, second, in fp32 */
	uint8_t *code[2];         /* the same in 8 bits, and the scale of each OPTIMIZER_CODES elements of a tensor */
	float *largest[2];
	float *factor;            /* Adafactor: of each tensor in turn, state_factors() floats */
	void *gradient;           /* the store's dtype */
	float *gradient_sum[2];   /* by use; may share the gradient's bytes, see store.h */
	struct store_rows *rows;  /* not in the mapping */
	int64_t span, span_count; /* first of the block's in rh_store.span */
	int piece, piece_count;   /* first of the block's in rh_store.piece; none of frozen blocks in memory */
	int64_t spilled;          /* bytes on NVMe that an update reads and writes */
	uint64_t version, published_version;
};

/* A run of whole spans of a trainable block (of whole tensors, where the optimizer needs them so), which is brought into memory and updated
 * at once. Of a frozen block on NVMe: a page of its weights, without spans. */
struct store_piece {
	int block;
	int64_t span, span_count;
	int64_t first, end;     /* elements of the block; of a page: bytes of its weights as devices read them */
	int record;             /* of the space; -1: nothing of it is spilled */
	int frame;              /* of the cache, -1: none */
	int ahead;              /* it has been read ahead, or is to be */
	int64_t first_checksum; /* of a trainable block's piece: number of the first of its checksums */
};

/* The arrays of a piece, each from its first element on, wherever they lie now; NULL as in store_block. */
struct store_view {
	int64_t first;
	void *weights; /* of a frozen block on NVMe */
	uint16_t *lower;
	float *master, *moment[2];
	uint8_t *code[2];
	const char *frame; /* where what is spilled of it lies, NULL: nothing is */
	unsigned parts;    /* the spilled ones among the parts that were acquired */
	unsigned unknown;  /* those of them that were read and not checked yet */
};

struct rh_store {
	const struct rh_block *spec;
	int count;
	enum rh_dtype dtype;
	struct rh_store_options options;
	enum optimizer_form form;
	struct rh_pool *pool;
	int nodes; /* NUMA nodes: each holds a part of every trainable block, and its threads update that part */
	const struct optimizer_kernels *kernels;
	struct store_block *block;
	struct store_span *span;
	int64_t spans;
	struct store_piece *piece;
	int pieces;
	struct store_cache *cache; /* NULL: nothing is spilled */
	uint64_t *checksum;        /* sums.c; in the cache's memory */
	void *scratch;             /* Adafactor's, for one tensor at a time */
	struct rh_arena memory;
};

static inline int64_t tensor_elements(const struct rh_tensor *tensor)
{
	return tensor->rows * tensor->cols;
}

/* A block's weights and gradient from element `first` on, which lies in the view, as kernels take them; no state. */
static inline struct optimizer_span store_span_at(const struct rh_store *store, const struct store_block *block,
                                                  const struct store_view *view, int64_t first)
{
	int64_t wide = store->form == FORM_WIDE ? 4 : 2, at = first - view->first;
	return (struct optimizer_span){.weights = (char *)block->weights + first * wide,
	                               .lower = view->lower ? view->lower + at : NULL,
	                               .master = view->master ? view->master + at : NULL,
	                               .gradient = (char *)block->gradient + first * wide};
}

/* spill.c */
/* Is this block's weights' place on NVMe? Ask it of all blocks in order; *turn begins at 0. */
int spill_takes_weights(const struct rh_block *spec, const struct rh_store_options *options, int *turn);
/* Bytes an element of each kind of array that is spilled, 0 where there is none of the kind. */
struct spill_widths {
	int64_t lower, master, moment, code;
	int moments; /* arrays of moment or code */
};
struct spill_widths spill_widths(const struct rh_store_options *options);
/* Cache and NVMe of blocks not yet made. */
struct spill_sizes {
	int pieces, frames;        /* frames: of the cache */
	int64_t frame_bytes, sums; /* of each; checksums, of 8 bytes */
	int64_t cache_bytes;       /* frames and checksums */
	struct rh_store_nvme nvme;
};
/* Of each trainable block: store_block.spilled. */
void spill_weigh(struct rh_store *store);
struct spill_sizes spill_measure(const struct rh_block *specs, int count, const struct rh_store_options *options);
/* Cuts trainable blocks into pieces; takes records and maps the cache where anything is spilled. */
int spill_create(struct rh_store *store) RH_MUST;
void spill_destroy(struct rh_store *store);

/* cache.c: of these sizes, without records. */
int cache_create(struct rh_store *store, const struct spill_sizes *sizes) RH_MUST;
void cache_destroy(struct rh_store *store);
/* The block is updated before all that are expected. */
void store_first(struct rh_store *store, int block);
/* The block's update has reached this piece (from 0): nothing before it needs to be read ahead any more. */
void store_requested(struct rh_store *store, int block, int piece);
/* The block's update is finished, and the block is no longer expected: what is read ahead of it from now on is for its next update. */
void store_done(struct rh_store *store, int block);
/* Where the piece is: 0: it can be acquired without waiting; 1: it is being read; 2: it is on NVMe. The caller has the pool. */
int store_distance(const struct rh_store *store, int piece);
/* The parts of a piece that are read and written separately: lower halves or masters (of a frozen block its weights), and each moment's
 * values or codes. */
enum store_parts { STORE_WEIGHTS = 1, STORE_MOMENT = 2, STORE_SECOND = 4, STORE_ALL = 7 };
/* Brings these parts of a piece into memory, where they stay until store_release; of the spilled arrays the view has only these. The
 * caller has the pool. -EBADMSG: NVMe returned other bytes than were written. */
int store_acquire(struct rh_store *store, int piece, unsigned parts, struct store_view *view) RH_MUST;
/* The same for a caller that checks each span before it uses it, and makes the checksums of what it changes (STORE_SUMMED). */
int store_acquire_unknown(struct rh_store *store, int piece, unsigned parts, struct store_view *view) RH_MUST;
enum store_after {
	STORE_UNCHANGED,
	STORE_CHANGED, /* written to NVMe when the cache needs its frame, as more changes may follow */
	STORE_DONE,    /* changed for the last time in this step: written now */
	STORE_SUMMED   /* likewise, and the caller has made its checksums */
};
/* `parts`: the same as at its store_acquire. */
void store_release(struct rh_store *store, int piece, unsigned parts, enum store_after after);

/* The bytes that each part of a piece takes on NVMe and in a frame, multiples of the space's unit. All 0: the piece lies in memory. */
struct spill_parts {
	int64_t bytes[RH_SPACE_PARTS];
};
struct spill_parts spill_parts(const struct rh_store_options *options, const struct store_piece *piece);
/* The most elements of a piece, unless a span or a tensor is larger. */
int64_t spill_piece_elements(int is_spilled);

/* sums.c: checksums of a trainable block's piece, or of one span of it (from 0), of these parts; memory: of its frame. Checking: 0, or 1 +
 * the lowest of the record's blocks that does not match. Spans have nothing in common: any threads may do any of them. Those of a whole
 * piece take the pool. */
int64_t sums_count(const struct spill_parts *parts, int64_t spans);
int sums_check_span(const struct rh_store *store, const struct store_piece *piece, unsigned parts, int64_t span, const char *memory);
void sums_make_span(const struct rh_store *store, const struct store_piece *piece, unsigned parts, int64_t span, const char *memory);
int sums_check(struct rh_store *store, const struct store_piece *piece, unsigned parts, const char *memory);
void sums_make(struct rh_store *store, const struct store_piece *piece, unsigned parts, const char *memory);
/* Tasks of the pool call it at the same time; the result is read after they are done. */
void sums_keep_lowest(_Atomic int *lowest, int value);

/* rows.c: lays those of a span that have come into the gradient; 0: it is zeros. _laid: this was done for all spans. */
int store_rows_lay(const struct rh_store *store, const struct store_span *span);
void store_rows_laid(struct store_rows *rows);
void store_rows_free(struct store_rows *rows);
/* These rows were updated ahead of the others; and the pass over all rows that leaves them out is over. */
void store_rows_are_ahead(struct store_rows *rows, const int32_t *row, int64_t count);
void store_rows_are_behind(struct store_rows *rows, int pass);

/* Runs task(context, i) for spans first + i, i < count, of one block, on the threads of the node that holds each where they can. */
void store_run_spans(struct rh_store *store, int64_t first, int64_t count, void (*task)(void *context, int64_t i), void *context);

/* state.c. Cuts a trainable block's optimizer state from `memory`, which may only be measuring. */
void state_place(const struct rh_block *spec, const struct rh_store_options *options, struct rh_arena *memory, struct store_block *block);
/* Scales that a tensor of so many elements needs for each 8-bit moment. */
int64_t state_codes(int64_t elements);

/* Adafactor sees a tensor as a matrix whose rows are shared out in groups: a function of the shape alone. A vector is one row, and keeps
 * its second moment whole. */
struct state_factors {
	int factored;
	int64_t rows, cols, group_rows, groups;
	int64_t floats;  /* kept: of each row, then of each column; or of each element */
	int64_t scratch; /* bytes */
};
struct state_factors state_factors(const struct rh_tensor *tensor);
/* Moments that the optimizer keeps. */
int state_moments(const struct rh_store_options *options);
/* Bytes of scratch for the largest of all tensors. */
int64_t state_scratch(const struct rh_block *specs, int count, const struct rh_store_options *options);
/* The tensor's first float in the block's `factor`. */
float *state_factor_at(const struct rh_block *spec, const struct store_block *block, int tensor);

/* Between the store and someone else's memory. */
enum store_direction { STORE_IN, STORE_OUT };
static inline void store_copy(enum store_direction direction, void *inside, void *outside, int64_t bytes)
{
	if (direction == STORE_IN)
		memcpy(inside, outside, (size_t)bytes);
	else
		memcpy(outside, inside, (size_t)bytes);
}

/* adafactor.c: rh_optimizer_update for one tensor of a block, which lies in the view; nonzero if a weight became non-finite. */
struct rh_update;
int adafactor_update(struct rh_store *store, int block, int tensor, const struct store_view *view, const struct rh_update *update);
/* optimizer.c. The learning rate of a tensor. */
double optimizer_rate(const struct rh_update *update, int is_lora_b);

#endif
