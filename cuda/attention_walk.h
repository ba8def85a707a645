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

/* Makes delta of a row and keeps it for the kernels that walk over queries: the four lanes that share the row add up dO o, 16 bytes a lane
 * and load. */
template <int D> RH_DEVICE struct row_sums own_row_sums(const struct attention_args &a, int64_t row, int head, int there)
{
	int lane = (int)threadIdx.x % 4;
	struct row_sums sums = {INFINITY, 0};
	RH_UNROLL
	for (int c = lane * 8; c < D; c += 32) {
		rh_vec<rh_bf16> o = {}, d_o = {};
		if (there) {
			o = rh_load16(attention_at<rh_bf16>(a.o, row, (int64_t)head * D + c));
			d_o = rh_load16(attention_at<rh_bf16>(a.d_o, row, (int64_t)head * D + c));
		}
		RH_UNROLL
		for (int e = 0; e < 8; e++)
			sums.delta += rh_to_float(o.v[e]) * rh_to_float(d_o.v[e]);
	}
	sums.delta += rh_shuffle_xor(sums.delta, 1);
	sums.delta += rh_shuffle_xor(sums.delta, 2);
	if (!there)
		return sums;
	sums.lse_log2 = *attention_at<float>(a.lse, row, head) * 1.442695040888963f;
	if (lane == 0)
		*attention_at<float>(a.delta, row, head) = sums.delta;
	return sums;
}

/* A walk over the queries that see a tile of keys, N at a time and the last ones first, each for all heads of the group before the next.
 * Tiles of queries begin at multiples of N in their document, whatever the keys: so blocks of keys that share a tile agree on its rows. */
struct query_walk {
	int first, i, first_head, head, end_head;
};

template <int N> RH_DEVICE struct query_walk query_walk_of(const struct attention_args &a, const struct attention_tile &t, int kv_head)
{
	struct query_walk walk;
	int first = attention_first_query(a, t, t.first), end = attention_end_query(a, t, t.first + t.rows - 1);
	walk.first = first / N * N;
	walk.i = (end - 1) / N * N;
	walk.first_head = walk.head = kv_head * a.group;
	walk.end_head = first < end ? walk.head + a.group : walk.head;
	return walk;
}

RH_DEVICE int query_walk_is_over(const struct query_walk &walk)
{
	return walk.head >= walk.end_head;
}

template <int N> RH_DEVICE void query_walk_on(struct query_walk *walk)
{
	if (++walk->head < walk->end_head)
		return;
	walk->i -= N;
	walk->head = walk->i < walk->first ? walk->end_head : walk->first_head;
}

/* The tile of N queries that the walk is at, on its way; and the sums of one of them, a thread each. */
template <int D, int N, int THREADS = ATTENTION_THREADS>
RH_DEVICE struct row_sums query_tile_copy(const struct attention_args &a, const struct attention_tile &t, const struct query_walk &walk,
                                          rh_bf16 *q, rh_bf16 *d_o)
{
	int own = (int)threadIdx.x, there = t.lq - walk.i;
	tile_copy<N, D, THREADS>(q, a.q, t.q0 + walk.i, walk.head * D, there);
	tile_copy<N, D, THREADS>(d_o, a.d_o, t.q0 + walk.i, walk.head * D, there);
	return row_sums_at(a, t.q0 + walk.i + own, walk.head, own < N && own < there);
}

/* Of a warp's 16 M keys, the first of which is key first_key, by N queries from i on: scores p and the products dp of dO and v become
 * probabilities, and the gradients of scores over scale. */
template <int N, int M>
RH_DEVICE void query_weights(float (&p)[M][N / 8][4], float (&dp)[M][N / 8][4], const struct attention_args &a,
                             const struct attention_tile &t, const struct row_sums *sums, int i, int first_key)
{
	int lane = (int)threadIdx.x % RH_WARP;
	/* whether the first query misses the warp's last key, or the last one its first */
	int edge = attention_end_key(a, t, i) < first_key + 16 * M || attention_first_key(a, t, i + N - 1) > first_key;
	RH_UNROLL
	for (int m = 0; m < M; m++) {
		RH_UNROLL
		for (int e = 0; e < N / 2; e++) {
			struct row_sums sum = sums[e / 4 * 8 + lane % 4 * 2 + e % 2];
			p[m][e / 4][e % 4] = rh_exp2(p[m][e / 4][e % 4] * a.scale_log2 - sum.lse_log2);
		}
		if (edge)
			tile_hide_queries<N>(p[m], a, t, first_key + m * 16 + lane / 4, i + lane % 4 * 2);
		RH_UNROLL
		for (int e = 0; e < N / 2; e++) {
			struct row_sums sum = sums[e / 4 * 8 + lane % 4 * 2 + e % 2];
			dp[m][e / 4][e % 4] = p[m][e / 4][e % 4] * (dp[m][e / 4][e % 4] - sum.delta);
		}
	}
}

/* A warp's rows of dk or dv: `rows` of 16 from `row` on, columns from `col`. */
struct key_place {
	int64_t row, col;
	int rows;
};

/* They begin from the sums of later queries, COLS columns, as mma has them. */
template <int COLS> RH_DEVICE void key_sums_load(float (&d)[COLS / 8][4], const struct rh_view &sum, struct key_place at)
{
	int lane = (int)threadIdx.x % RH_WARP;
	RH_UNROLL
	for (int i = 0; i < COLS / 2; i++) {
		int r = lane / 4 + i % 4 / 2 * 8, c = i / 4 * 8 + lane % 4 * 2 + i % 2;
		d[i / 4][i % 4] = sum.data && r < at.rows ? *attention_at<float>(sum, at.row + r, at.col + c) : 0;
	}
}

/* They go back to the sums, or, where there are none, to the gradient `to`, as tile_store has it. */
template <int COLS>
RH_DEVICE void key_sums_store(const struct rh_view &sum, const struct rh_view &to, struct key_place at, rh_bf16 *tile,
                              const float (&d)[COLS / 8][4], const float (&factor)[2])
{
	int lane = (int)threadIdx.x % RH_WARP;
	if (!sum.data) {
		tile_store<COLS>(to, at.row, at.col, at.rows, tile, d, factor);
		return;
	}
	RH_UNROLL
	for (int i = 0; i < COLS / 2; i++) {
		int r = lane / 4 + i % 4 / 2 * 8, c = i / 4 * 8 + lane % 4 * 2 + i % 2;
		if (r < at.rows)
			*attention_at<float>(sum, at.row + r, at.col + c) = d[i / 4][i % 4];
	}
}

/* For SMs whose mma is slow: all three gradients in one pass, for D 64, 96 and 128, with a.space. (attention_one_pass.cu) */
int attention_one_pass(const struct attention_args *a, struct CUstream_st *stream);

/* Whether the SM is one for attention_keys_dk_dv; of D 128 and 256, after dq: dk and dv. (attention_keys.cu) */
int attention_has_keys(int dim);
int attention_keys_dk_dv(const struct attention_args *a, struct CUstream_st *stream);

/* Of D 256 on other SMs, after dq: dk, then dv. (attention_256.cu) */
int attention_256_dk_dv(const struct attention_args *a, struct CUstream_st *stream);

#endif
