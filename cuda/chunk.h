/* Eight consecutive elements of a row as fp32: what a thread of the elementwise kernels holds. Whole chunks of rows that begin on 16 bytes
 * go by vector instructions, others element by element. For .cu files only. */
#ifndef RH_CUDA_CHUNK_H
#define RH_CUDA_CHUNK_H

#include "cuda/rh_cuda.h"

enum { CHUNK = 8 };

struct chunk {
	float v[CHUNK];
};

/* Of `left` elements at `at`, the first 8; zeros where there are fewer. */
template <typename T> RH_DEVICE struct chunk chunk_load(const T *at, int64_t left, int aligned)
{
	struct chunk chunk;
	if (aligned && left >= CHUNK) {
		RH_UNROLL
		for (int part = 0; part < CHUNK / rh_vec<T>::N; part++) {
			rh_vec<T> vec = rh_load16(at + part * rh_vec<T>::N);
			RH_UNROLL
			for (int i = 0; i < rh_vec<T>::N; i++)
				chunk.v[part * rh_vec<T>::N + i] = rh_to_float(vec.v[i]);
		}
	} else {
		RH_UNROLL
		for (int i = 0; i < CHUNK; i++)
			chunk.v[i] = i < left ? rh_to_float(at[i]) : 0;
	}
	return chunk;
}

/* The first `left` of 8 elements. */
template <typename T> RH_DEVICE void chunk_store(T *at, const struct chunk &chunk, int64_t left, int aligned)
{
	if (aligned && left >= CHUNK) {
		RH_UNROLL
		for (int part = 0; part < CHUNK / rh_vec<T>::N; part++) {
			rh_vec<T> vec;
			RH_UNROLL
			for (int i = 0; i < rh_vec<T>::N; i++)
				vec.v[i] = rh_from_float<T>(chunk.v[part * rh_vec<T>::N + i]);
			rh_store16(at + part * rh_vec<T>::N, vec);
		}
	} else {
		RH_UNROLL
		for (int i = 0; i < CHUNK; i++)
			if (i < left)
				at[i] = rh_from_float<T>(chunk.v[i]);
	}
}

/* Whether all rows of the views begin on 16 bytes, absent ones aside. */
static inline int chunk_aligned(const struct rh_view *view, int views)
{
	for (int i = 0; i < views; i++)
		if (view[i].data && !rh_rows_aligned(view[i].data, view[i].rows > 1 ? view[i].stride : 0, view[i].dtype == RH_BF16 ? 2 : 4))
			return 0;
	return 1;
}

#endif
