/* Attention's backward for heads of 256 elements (Gemma 3): dk, and dv, each by a kernel of its own, as 128 registers a lane hold one of
 * them. The pass is that of attention_dk_dv (attention_backward.cu), whose order of sums it has.
 *
 * Tile: a block of 4 warps takes 64 keys of one key head, 16 a warp, and walks the queries that see them, head after head of its group,
 * 16 at a time, two tiles by turns. Keys (and values, for dk) stay in shared memory: 64 KB in all for dv, 96 for dk, one block an SM of
 * 100 KB. FLOPs: 4 D a pair for dv, 6 D for dk, with dq 16 D where 10 are needed. Bound by mma.sync, at one block of 4 warps an SM by
 * its latency. */
#include "cuda/attention_walk.h"

/* In bytes. OF_KEYS: of dk, else of dv. */
template <bool OF_KEYS> struct layout_256 {
	static constexpr int D = 256, N = 16, rows = ATTENTION_ROWS, tiles = 2 * N * D * 2, own = rows * D * 2;
	static constexpr int d_o = tiles, keys = 2 * tiles, values = keys + own, sums = values + (OF_KEYS ? own : 0);
	static constexpr int bytes = sums + 2 * N * (int)sizeof(struct row_sums);
};

/* Where a warp's rows and the streamed queries lie, and what the warp's tiles begin with. */
struct part_256 {
	const rh_bf16 *keys, *values, *q, *d_o;
	const struct row_sums *sums;
	int left, right, warp_row, first_key, first_query;
};

/* The probabilities of the warp's 16 keys by 16 queries, or the gradients of their scores. */
template <bool OF_KEYS>
RH_DEVICE void weights_256(float (&p)[1][2][4], const struct attention_args &a, const struct attention_tile &t, const struct part_256 &at)
{
	typedef struct layout_256<OF_KEYS> layout;
	constexpr int D = layout::D, N = layout::N;
	int lane = (int)threadIdx.x % RH_WARP;
	float dp[1][2][4] = {};
	RH_UNROLL
	for (int k = 0; k < D / 16; k++) {
		uint32_t own[1][4];
		tile_left<D>(own[0], at.keys, at.left, at.warp_row, k);
		tile_scores<D, N, 1>(p, own, at.q, at.right, k);
		if constexpr (OF_KEYS) {
			tile_left<D>(own[0], at.values, at.left, at.warp_row, k);
			tile_scores<D, N, 1>(dp, own, at.d_o, at.right, k);
		}
	}
	int i = at.first_query;
	int edge = attention_end_key(a, t, i) < at.first_key + 16 || attention_first_key(a, t, i + N - 1) > at.first_key;
	RH_UNROLL
	for (int e = 0; e < N / 2; e++) {
		struct row_sums sum = at.sums[e / 4 * 8 + lane % 4 * 2 + e % 2];
		float *own = &p[0][e / 4][e % 4];
		*own = rh_exp2(*own * a.scale_log2 - sum.lse_log2);
		if constexpr (OF_KEYS)
			*own *= dp[0][e / 4][e % 4] - sum.delta;
	}
	if (edge)
		tile_hide_queries<N>(p[0], a, t, at.first_key + lane / 4, i + lane % 4 * 2);
}

template <bool OF_KEYS> RH_KERNEL(ATTENTION_THREADS, 1) attention_256_gradient(struct attention_args a)
{
	typedef struct layout_256<OF_KEYS> layout;
	constexpr int D = layout::D, N = layout::N, rows = layout::rows;
	RH_DYNAMIC_SHARED(rh_bf16, q, 0, 2 * N * D); /* two tiles by turns */
	RH_DYNAMIC_SHARED(rh_bf16, d_o, layout::d_o, 2 * N * D);
	RH_DYNAMIC_SHARED(rh_bf16, keys, layout::keys, rows * D);
	RH_DYNAMIC_SHARED(struct row_sums, sums, layout::sums, 2 * N);
	int thread = (int)threadIdx.x, warp_row = thread / RH_WARP * 16;
	int kv_head = a.part.first_head + (int)blockIdx.y, col = kv_head * D;
	struct attention_tile t;
	if (!attention_find<rows>(a, a.start_k, a.part.first + (int)blockIdx.x, &t))
		return;
	struct part_256 at = {keys, NULL, NULL, NULL, NULL, tile_left_place<D>(), tile_right_place<D>(), warp_row, t.first + warp_row, 0};
	struct query_walk walk = query_walk_of<N>(a, t, kv_head);
	tile_copy<rows, D>(keys, a.k, t.k0 + t.first, col, t.rows);
	if constexpr (OF_KEYS) {
		RH_DYNAMIC_SHARED(rh_bf16, values, layout::values, rows * D);
		tile_copy<rows, D>(values, a.v, t.k0 + t.first, col, t.rows);
		at.values = values;
	}
	if (!query_walk_is_over(walk)) {
		struct row_sums first = query_tile_copy<D, N>(a, t, walk, q, d_o);
		if (thread < N)
			sums[thread] = first;
	}
	rh_copy_async_commit();
	float gradient[1][D / 8][4];
	key_sums_load<D>(gradient[0], OF_KEYS ? a.dk_sum : a.dv_sum, {t.k0 + t.first + warp_row, col, t.rows - warp_row});
	for (int row = 0; !query_walk_is_over(walk); row = N - row) { /* row: the tile's first in shared memory */
		struct row_sums coming = {0, 0};
		at.first_query = walk.i;
		at.left = rh_opaque(at.left), at.right = rh_opaque(at.right);
		query_walk_on<N>(&walk);
		rh_copy_async_wait<0>();
		__syncthreads(); /* this tile is there, and nobody reads the one before */
		if (!query_walk_is_over(walk))
			coming = query_tile_copy<D, N>(a, t, walk, q + (N - row) * D, d_o + (N - row) * D);
		rh_copy_async_commit();
		float p[1][2][4] = {};
		at.q = q + row * D, at.d_o = d_o + row * D, at.sums = sums + row;
		weights_256<OF_KEYS>(p, a, t, at);
		tile_weighted_sum<D, N, 1>(gradient, p, OF_KEYS ? at.q : at.d_o, at.left);
		if (thread < N)
			sums[N - row + thread] = coming; /* loaded while this tile was at work */
	}
	rh_copy_async_wait<0>();
	__syncthreads(); /* keys, of which a warp reads its own alone, make room */
	const float factor = OF_KEYS ? a.scale : 1, factors[2] = {factor, factor};
	key_sums_store<D>(OF_KEYS ? a.dk_sum : a.dv_sum, OF_KEYS ? a.dk : a.dv, {t.k0 + t.first + warp_row, col, t.rows - warp_row},
	                  keys + warp_row * D, gradient[0], factors);
}

template <bool OF_KEYS> static int launch(const struct attention_args *a, CUstream_st *stream)
{
	unsigned tiles = attention_tiles(a->k.rows, ATTENTION_ROWS, a->documents);
	return attention_launches(a, tiles, a->kv_heads, [&](const struct attention_args *part, unsigned across) {
		dim3 keys(across, (unsigned)part->part.heads);
		return RH_LAUNCH((attention_256_gradient<OF_KEYS>), keys, ATTENTION_THREADS, layout_256<OF_KEYS>::bytes, stream, *part);
	});
}

int attention_256_dk_dv(const struct attention_args *a, CUstream_st *stream)
{
	int rc = launch<true>(a, stream);
	return rc < 0 ? rc : launch<false>(a, stream);
}
