/* The weights' half of AdamW's update. Bound by memory: 14 bytes read an element, 4 written; the roofline is 18 bytes an element / DRAM
 * bandwidth (a root and a quotient an element, correctly rounded, are some 40 instructions: below it on all GPUs with fp32 units to match
 * their memory). Tile: 8 elements a thread, 256 threads a block. */
#include "cuda/chunk.h"
#include "cuda/kernels.h"

#include "device/adamw.h"

enum { ADAMW_THREADS = 256 };

struct adamw_args {
	const rh_bf16 *gradient;
	const uint16_t *upper, *lower;
	const float *first, *second;
	uint16_t *new_upper, *new_lower;
	int64_t count;
	int aligned;
	struct rh_adamw_terms terms;
};

struct halves {
	uint16_t v[CHUNK];
};

/* As chunk_load, without a meaning. */
RH_DEVICE struct halves halves_load(const uint16_t *at, int64_t left, int aligned)
{
	struct halves halves;
	if (aligned && left >= CHUNK) {
		rh_vec<uint16_t> vec = rh_load16(at);
		RH_UNROLL
		for (int i = 0; i < CHUNK; i++)
			halves.v[i] = vec.v[i];
	} else {
		RH_UNROLL
		for (int i = 0; i < CHUNK; i++)
			halves.v[i] = i < left ? at[i] : (uint16_t)0;
	}
	return halves;
}

RH_DEVICE void halves_store(uint16_t *at, const struct halves &halves, int64_t left, int aligned)
{
	if (aligned && left >= CHUNK) {
		rh_vec<uint16_t> vec;
		RH_UNROLL
		for (int i = 0; i < CHUNK; i++)
			vec.v[i] = halves.v[i];
		rh_store16(at, vec);
	} else {
		RH_UNROLL
		for (int i = 0; i < CHUNK; i++)
			if (i < left)
				at[i] = halves.v[i];
	}
}

/* New halves may be over the old ones: a thread reads its chunk before it writes it. */
RH_KERNEL(ADAMW_THREADS, 4) adamw_weights(struct adamw_args a)
{
	int64_t at = ((int64_t)blockIdx.x * ADAMW_THREADS + threadIdx.x) * CHUNK, left = a.count - at;
	if (left <= 0)
		return;
	struct halves upper = halves_load(a.upper + at, left, a.aligned), lower = halves_load(a.lower + at, left, a.aligned);
	struct chunk gradient = chunk_load(a.gradient + at, left, a.aligned);
	struct chunk first = chunk_load(a.first + at, left, a.aligned), second = chunk_load(a.second + at, left, a.aligned);
	RH_UNROLL
	for (int i = 0; i < CHUNK; i++) {
		float weight = rh_bits_float(rh_split_join(upper.v[i], lower.v[i]));
		uint32_t bits = rh_float_bits(rh_adamw(&a.terms, weight, gradient.v[i], &first.v[i], &second.v[i]));
		upper.v[i] = rh_split_upper(bits);
		lower.v[i] = rh_split_lower(bits);
	}
	halves_store(a.new_upper + at, upper, left, a.aligned);
	halves_store(a.new_lower + at, lower, left, a.aligned);
}

extern "C" int cuda_adamw_weights(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct adamw_args a = {(const rh_bf16 *)view[RH_ADAMW_WEIGHTS_GRADIENT].data, (const uint16_t *)view[RH_ADAMW_WEIGHTS_UPPER].data,
	                       (const uint16_t *)view[RH_ADAMW_WEIGHTS_LOWER].data,   (const float *)view[RH_ADAMW_WEIGHTS_FIRST].data,
	                       (const float *)view[RH_ADAMW_WEIGHTS_SECOND].data,     (uint16_t *)view[RH_ADAMW_WEIGHTS_NEW_UPPER].data,
	                       (uint16_t *)view[RH_ADAMW_WEIGHTS_NEW_LOWER].data,     view[RH_ADAMW_WEIGHTS_GRADIENT].cols,
	                       chunk_aligned(view, rh_op_info(op->kind)->operands),   op->adamw_weights};
	if (!a.count)
		return 0;
	return RH_LAUNCH(adamw_weights, (unsigned)rh_ceil_div(a.count, ADAMW_THREADS * CHUNK), ADAMW_THREADS, 0, stream, a);
}
