/* The store's arrays, for its folder only. */
#ifndef RH_OFFLOAD_STORE_INTERNAL_H
#define RH_OFFLOAD_STORE_INTERNAL_H

#include "core/arena.h"
#include "offload/simd/kernels.h"
#include "offload/store.h"

/* Elements of one span at most. Fixed: it decides the order of the norm's sums. */
enum { STORE_SPAN = 32768 };

/* A run of elements inside one trainable tensor: the unit that optimizer tasks share out, and one partial sum of the norm. */
struct store_span {
	int64_t first; /* element in the block */
	int32_t count, block, tensor;
	uint32_t codes; /* 8-bit moments: which of the block's scales is its first */
	double sum;     /* of squares */
};

/* Pointers into the store's mapping; NULL where the block has none. */
struct store_block {
	void *weights;    /* the store's dtype; F32: the master */
	void *published;  /* what devices read; NULL: weights */
	uint16_t *lower;  /* split: the master's lower half */
	float *master;    /* plain */
	float *moment[2]; /* first, second, in fp32 */
	uint8_t *code[2]; /* the same in 8 bits, and the scale of each OPTIMIZER_CODES elements of a tensor */
	float *largest[2];
	float *factor;            /* Adafactor: of each tensor in turn, state_factors() floats */
	void *gradient;           /* the store's dtype */
	float *sum[2];            /* by use; may share the gradient's bytes, see store.h */
	int64_t span, span_count; /* first of the block's in rh_store.span */
	uint64_t version, published_version;
};

struct rh_store {
	const struct rh_block *spec;
	int count;
	enum rh_dtype dtype;
	struct rh_store_options options;
	enum optimizer_form form;
	struct rh_pool *pool;
	const struct optimizer_kernels *kernels;
	struct store_block *block;
	struct store_span *span;
	int64_t spans;
	void *scratch; /* Adafactor's, for one tensor at a time */
	struct rh_arena memory;
};

static inline int64_t tensor_elements(const struct rh_tensor *tensor)
{
	return tensor->rows * tensor->cols;
}

/* A block's weights and gradient from element `first` on, as kernels take them; no state. */
static inline struct optimizer_span store_span_at(const struct rh_store *store, const struct store_block *block, int64_t first)
{
	int64_t wide = store->form == FORM_WIDE ? 4 : 2;
	return (struct optimizer_span){.weights = (char *)block->weights + first * wide,
	                               .lower = block->lower ? block->lower + first : NULL,
	                               .master = block->master ? block->master + first : NULL,
	                               .gradient = (char *)block->gradient + first * wide};
}

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
/* Bytes of scratch for the largest of all tensors. */
int64_t state_scratch(const struct rh_block *specs, int count, const struct rh_store_options *options);
/* A tensor's floats in its block's. */
float *state_factor_at(const struct rh_block *spec, const struct store_block *block, int tensor);

/* adafactor.c: rh_optimizer_update for one tensor of a block; nonzero if a weight became non-finite. */
struct rh_optimizer_settings;
int adafactor_update(struct rh_store *store, int block, int tensor, const struct rh_optimizer_settings *settings, double learning_rate,
                     double scale, int64_t step);

#endif
