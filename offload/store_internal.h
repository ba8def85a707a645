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
	double sum; /* of squares */
};

/* Pointers into the store's mapping; NULL where the block has none. */
struct store_block {
	void *weights;            /* the store's dtype; F32: the master */
	uint16_t *lower;          /* BF16 trainable: the master's lower half */
	float *moment[2];         /* first, second */
	void *gradient;           /* the store's dtype */
	float *sum[2];            /* by use; may share the gradient's bytes, see store.h */
	int64_t span, span_count; /* first of the block's in rh_store.span */
	uint64_t version;
};

struct rh_store {
	const struct rh_block *spec;
	int count;
	enum rh_dtype dtype;
	struct rh_pool *pool;
	const struct optimizer_kernels *kernels;
	struct store_block *block;
	struct store_span *span;
	int64_t spans;
	struct rh_arena memory;
};

#endif
