/* What the kernels of attention's backward share: a row's sums, and the walk of a block of keys over the queries that see it. For .cu files
 * only. */
#ifndef RH_CUDA_ATTENTION_WALK_H
#define RH_CUDA_ATTENTION_WALK_H

#include "cuda/attention_mma.h"

/* Of an own row or a streamed one. An absent row has lse +infinity, so that its p is 0. */
struct row_sums {
	float lse_log2, delta;
};

RH_DEVICE struct row_sums row_sums_at(const struct attention_args &a, int64_t row, int head, int there)
{
	struct row_sums sums = {INFINITY, 0};
	if (there) {
		sums.lse_log2 = *attention_at<float>(a.lse, row, head) * 1.442695040888963f;
		sums.delta = *attention_at<float>(a.delta, row, head);
	}
	return sums;
}

/* A walk over the queries that see a tile of keys: [first, end) of each head of a group, from i on. */
struct query_walk {
	int first, end, i, head, end_head;
};

RH_DEVICE struct query_walk query_walk_of(const struct attention_args &a, const struct attention_tile &t)
{
	struct query_walk walk;
	walk.i = walk.first = attention_first_query(t, t.first);
	walk.end = attention_end_query(a, t, t.first + t.rows - 1);
	walk.head = (int)blockIdx.y * a.group;
	walk.end_head = walk.first < walk.end ? walk.head + a.group : walk.head;
	return walk;
}

template <int N> RH_DEVICE void query_walk_on(struct query_walk *walk)
{
	walk->i += N;
	if (walk->i < walk->end)
		return;
	walk->i = walk->first;
	walk->head++;
}

/* The tile of N queries that the walk is at, on its way; and the sums of one of them, a thread each. */
template <int D, int N>
RH_DEVICE struct row_sums query_tile_copy(const struct attention_args &a, const struct attention_tile &t, const struct query_walk &walk,
                                          rh_bf16 *q, rh_bf16 *d_o)
{
	int own = (int)threadIdx.x, there = t.lq - walk.i;
	tile_copy<N, D>(q, a.q, t.q0 + walk.i, walk.head * D, there);
	tile_copy<N, D>(d_o, a.d_o, t.q0 + walk.i, walk.head * D, there);
	return row_sums_at(a, t.q0 + walk.i + own, walk.head, own < N && own < there);
}

/* Of D 256, after dq: dk, then dv. (attention_wide.cu) */
int attention_wide_dk_dv(const struct attention_args *a, struct CUstream_st *stream);

#endif
