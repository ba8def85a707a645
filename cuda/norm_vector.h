/* Which vectors a block of the norms' kernels takes, and sums over them: one of up to NORM_WARP_LENGTH elements belongs to a warp, a longer
 * one to the whole block. For .cu files only. */
#ifndef RH_CUDA_NORM_VECTOR_H
#define RH_CUDA_NORM_VECTOR_H

#include "cuda/chunk.h"

enum {
	NORM_THREADS = 256,
	NORM_WARPS = NORM_THREADS / RH_WARP,
	NORM_WARP_LENGTH = 1024, /* longest vector that one warp takes */
};

/* Where this thread's vector lies: its row, its group, and the thread's place among the PER_VECTOR warps that share it. */
template <int PER_VECTOR> struct place {
	int64_t row, group, first;
	int absent;
};

template <int PER_VECTOR> RH_DEVICE struct place<PER_VECTOR> find_place(int64_t vectors, int64_t groups) {
	static_assert(PER_VECTOR == 1 || PER_VECTOR == NORM_WARPS, "a warp's or the block's: vector_sum waits for the whole block");
	int warp = (int)threadIdx.x / RH_WARP;
	int64_t vector = (int64_t)blockIdx.x * (NORM_WARPS / PER_VECTOR) + warp / PER_VECTOR;
	struct place<PER_VECTOR> p;
	p.absent = vector >= vectors;
	vector = p.absent ? vectors - 1 : vector;
	p.row = vector / groups;
	p.group = vector % groups;
	p.first = (int64_t)(threadIdx.x % (PER_VECTOR * RH_WARP)) * CHUNK;
	return p;
}

/* Over the warps that share a vector, one or the block's. Every thread of a block that shares one comes here; a kernel's calls differ in
 * TURN. */
template <int PER_VECTOR, int TURN = 0>
RH_DEVICE float vector_sum(float x)
{
	x = rh_warp_sum(x);
	if constexpr (PER_VECTOR > 1) {
		RH_SHARED(float, part, PER_VECTOR);
		if (threadIdx.x % RH_WARP == 0)
			part[threadIdx.x / RH_WARP] = x;
		__syncthreads();
		x = 0;
		RH_UNROLL
		for (int i = 0; i < PER_VECTOR; i++)
			x += part[i];
	}
	return x;
}

/* The largest magnitude over the warps that share a vector. A barrier of theirs lies between two calls with the same TURN. */
template <int PER_VECTOR, int TURN> RH_DEVICE uint32_t vector_largest(uint32_t most)
{
	most = lanes_largest(most, RH_WARP);
	if constexpr (PER_VECTOR > 1) {
		RH_SHARED(uint32_t, part, PER_VECTOR);
		if (threadIdx.x % RH_WARP == 0)
			part[threadIdx.x / RH_WARP] = most;
		__syncthreads();
		RH_UNROLL
		for (int i = 0; i < PER_VECTOR; i++)
			most = part[i] > most ? part[i] : most;
	}
	return most;
}

static inline unsigned norm_blocks(int64_t vectors, int per_vector)
{
	return (unsigned)rh_ceil_div(vectors, NORM_WARPS / per_vector);
}

#endif
