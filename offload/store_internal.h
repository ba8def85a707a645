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

/* Pointers into the store's mapping; NULL where the block has none. */
struct store_block {
	void *weights;    /* the store's dtype; F32: the master */
	void *published;  /* what devices read; NULL: weights */
	void *stash;      /* older weights, a ring; NULL: none */
	int64_t stashed;     /* how many have joined it */
	uint16_t *lower;  /* split: the master's lower half */
	float *master;    /* plain */
	float *moment[2]; /* first, second, in fp32 */
	uint8_t *code[2]; /* the same in 8 bits, and the scale of each OPTIMIZER_CODES elements of a tensor */
	float *largest[2];
	float *factor;            /* Adafactor: of each tensor in turn, state_factors() floats */
	void *gradient;           /* the store's dtype */
	float *gradient_sum[2];   /* by use; may share the gradient's bytes, see store.h */
	int64_t span, span_count; /* first of the block's in rh_store.span */
	int piece, piece_count;   /* first of the block's in rh_store.piece; none of frozen blocks in memory */
	int64_t spilled;          /* bytes on NVMe that an update reads and writes */
	uint64_t version, published_version;
};

/* Of a trainable block: a run of whole spans, and of whole tensors where the optimizer needs them so, that is held, and updated,
 * at once. Of a frozen block on NVMe: a page of its weights, without spans. */
struct store_piece {
	int block;
	int64_t span, span_count;
	int64_t first, end; /* elements of the block; of a page: bytes of its weights as devices read them */
	int record;         /* of the space; -1: nothing of it is spilled */
	int frame;          /* of the cache, -1: none */
	int ahead;          /* read ahead, or to be: its turn comes */
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
	unsigned parts;    /* that are spilled, of those held */
	unsigned unknown;  /* of these, what was read and has not been checked */
};

struct rh_store {
	const struct rh_block *spec;
	int count;
	enum rh_dtype dtype;
	struct rh_store_options options;
	enum optimizer_form form;
	struct rh_pool *pool;
	int nodes; /* that hold a part each of every trainable block, and whose threads update it */
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
/* Its update is at this piece (from 0): so far nothing is to be read ahead any more. */
void store_requested(struct rh_store *store, int block, int piece);
/* Its update is over, and it is not expected any more: what is read ahead of it from now on is for the next. */
void store_done(struct rh_store *store, int block);
/* 0: the piece can be held without waiting; 1: it is on its way; 2: it is not. The caller has the pool. */
int store_distance(const struct rh_store *store, int piece);
/* What of a piece is read and written apart: lower halves or masters (of a frozen block weights), and each moment's values or codes. */
enum store_parts { STORE_WEIGHTS = 1, STORE_MOMENT = 2, STORE_SECOND = 4, STORE_ALL = 7 };
/* These of a piece's arrays are in memory until store_release, of those that are spilled the view has no others; the caller has the
 * pool. -EBADMSG: not what was written. */
int store_hold(struct rh_store *store, int piece, unsigned parts, struct store_view *view) RH_MUST;
/* The same, for who checks each span before it is used, and makes its checksums when it is changed (STORE_SUMMED). */
int store_hold_unknown(struct rh_store *store, int piece, unsigned parts, struct store_view *view) RH_MUST;
enum store_after {
	STORE_UNCHANGED,
	STORE_CHANGED, /* written to NVMe when its room is needed: more changes may follow */
	STORE_DONE,    /* changed, and its turn is over: written now */
	STORE_SUMMED   /* likewise, and the checksums are those of the change */
};
/* With the parts of its hold. */
void store_release(struct rh_store *store, int piece, unsigned parts, enum store_after after);

/* What a piece takes of NVMe and of a frame by part, each a multiple of the space's unit; all 0: it lies in memory. */
struct spill_parts {
	int64_t bytes[RH_SPACE_PARTS];
};
struct spill_parts spill_parts(const struct rh_store_options *options, const struct store_piece *piece);
/* Of a piece, at most, unless a span or a tensor is larger. */
int64_t spill_piece_elements(int is_spilled);

/* sums.c: checksums of a trainable block's piece, or of one span of it (from 0), of these parts; memory: of its frame. Checking: 0, or 1 +
 * the lowest of the record's blocks that does not match. Spans have nothing in common: any threads may do any of them. Those of a whole
 * piece take the pool. */
int64_t sums_count(const struct spill_parts *parts, int64_t spans);
int sums_check_span(const struct rh_store *store, const struct store_piece *piece, unsigned parts, int64_t span, const char *memory);
void sums_make_span(const struct rh_store *store, const struct store_piece *piece, unsigned parts, int64_t span, const char *memory);
int sums_check(struct rh_store *store, const struct store_piece *piece, unsigned parts, const char *memory);
void sums_make(struct rh_store *store, const struct store_piece *piece, unsigned parts, const char *memory);
/* By tasks of the pool, read when its run is over. */
void sums_keep_lowest(_Atomic int *lowest, int value);

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
/* A tensor's floats in its block's. */
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

#endif
