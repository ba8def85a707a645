/* Attention, backward. With p = exp(scale q k^T - lse), dp = dO v^T, delta = rowsum(dO o), ds = p (dp - delta): dv = p^T dO, dq = scale ds
 * k, dk = scale ds^T q. Two kernels, no atomics: who owns a row of a gradient adds up all of it, in order.
 *
 * dq     makes delta of its rows first, of dO and o. A block takes 64 M queries of one head (16 M a warp) and walks the keys that they
 *        see, 32 at a time (64 for D 32 and 64, with M 1), two tiles in shared memory, the next one on its way: for M 1 16 KB for D 32, 24
 *        for D 96, else 32. q and dO stay in D M / 2 registers a lane or, where those are more than 64, in shared memory: 96 KB for D 128.
 *        M is 2 on SMs with room for it, 1 elsewhere, as of the forward. FLOPs 6 D a pair; reads 4 D bytes a key and 64 M queries, mostly
 *        from L2. For D 128 80 fragments from shared memory for 192 mma.
 * dk dv  a block takes 64 M keys of one key head (16 M a warp) and walks the queries that see them, 32 at a time (64 for D 32 and 64), all
 *        heads of its group. Scores are computed transposed, so that p^T and ds^T are left operands as they come. k and v stay in D M / 2
 *        registers a lane, q and dO pass through shared memory, two tiles by turns: 17 KB for D 32, 25 for D 96, else 33. M is 2 for D 64
 *        on SMs whose mma is so fast that fragments must serve four of them, as of the forward; else 1.
 *        FLOPs 8 D a pair; reads 4 D bytes a query and 64 M keys, mostly from L2. Scores are in registers for 16 queries at once, for
 *        D below 128 and M 1 for 32. A fragment from shared memory serves two mma, for M 2 four.
 *
 * Together 14 D FLOPs a pair where attention_one_pass.cu takes 10 D, as p and dp are made twice. These kernels are for SMs whose mma is
 * fast (sm_80, sm_90), where fragments from shared memory bound both ways; on an H200 the pass took twice as long, by its sums in L2. dk dv
 * with M 2 for D 128 is not to be had, as its sums alone would take 256 registers: there attention_keys.cu makes them where it fits.
 *
 * D 256: dq walks 16 keys at a time with q and dO in shared memory, 96 KB; dk and dv are attention_keys.cu's, or have a kernel each
 * (attention_256.cu).
 *
 * p and ds are rounded to bf16 for the products that take them. Sums: mma's within 16 rows, then tiles, of dq in ascending order, of dk
 * and dv in the walk's (attention_walk.h). */
#include "cuda/attention_walk.h"

/* In elements of an array: two tiles of N streamed rows, and the own rows of M 2 behind them, those of M 1 before in their place. */
template <int D, int M> struct dq_layout {
	static constexpr bool in_registers = D * M <= 128,
	                      apart = M > 1 || !in_registers; /* own rows in registers; in a place of their own */
	static constexpr int rows = ATTENTION_ROWS * M, N = D > 128 ? 16 : D > 64 || M > 1 ? 32 : 64, tile = N * D;
	static constexpr int own = apart ? rows * D : 0, count = 2 * tile + own, bytes = 2 * count * 2;
};

template <int D, int M> RH_KERNEL(ATTENTION_THREADS, 2) attention_dq(struct attention_args a)
{
	typedef struct dq_layout<D, M> layout;
	constexpr int N = layout::N, in_registers = layout::in_registers;
	RH_DYNAMIC_SHARED(rh_bf16, keys, 0, layout::count);
	RH_DYNAMIC_SHARED(rh_bf16, values, layout::count * sizeof(rh_bf16), layout::count);
	struct attention_block at;
	if (!attention_block_find<layout::rows, 16 * M>(a, D, &at))
		return;
	const struct attention_tile &t = at.tile;
	rh_bf16 *own_q = keys + (layout::apart ? 2 * layout::tile : 0), *own_d_o = values + (layout::apart ? 2 * layout::tile : 0);
	int own = t.first + at.warp_row + at.lane / 4, last = t.first + t.rows - 1, left = tile_left_place<D>(),
	    right = tile_right_place<D>();
	tile_copy<layout::rows, D>(own_q, a.q, t.q0 + t.first, at.col, t.rows);
	tile_copy<layout::rows, D>(own_d_o, a.d_o, t.q0 + t.first, at.col, t.rows);
	rh_copy_async_commit();
	struct row_sums sums[M][2];
	RH_UNROLL
	for (int i = 0; i < 2 * M; i++)
		sums[i / 2][i % 2] = own_row_sums<D>(a, t.q0 + own + i * 8, at.head, own + i * 8 <= last);
	rh_copy_async_wait<0>();
	__syncthreads();
	uint32_t q[in_registers ? D / 16 : 1][M][4], d_o[in_registers ? D / 16 : 1][M][4];
	RH_UNROLL
	for (int i = 0; in_registers && i < D / 16 * M; i++) {
		tile_left<D>(q[i / M][i % M], own_q, left, at.warp_row + i % M * 16, i / M);
		tile_left<D>(d_o[i / M][i % M], own_d_o, left, at.warp_row + i % M * 16, i / M);
	}
	if (!layout::apart)
		__syncthreads(); /* q and dO make room */
	if (at.first_key < at.end_key) {
		tile_copy<N, D>(keys, a.k, t.k0 + at.first_key, at.kv_col, t.lk - at.first_key);
		tile_copy<N, D>(values, a.v, t.k0 + at.first_key, at.kv_col, t.lk - at.first_key);
	}
	rh_copy_async_commit();
	float dq[M][D / 8][4] = {};
	int stage = 0;
	for (int j = at.first_key; j < at.end_key; j += N) {
		left = rh_opaque(left), right = rh_opaque(right);
		rh_copy_async_wait<0>();
		__syncthreads(); /* these tiles are there, and nobody reads those before them */
		if (j + N < at.end_key) {
			tile_copy<N, D>(keys + (layout::tile - stage), a.k, t.k0 + j + N, at.kv_col, t.lk - j - N);
			tile_copy<N, D>(values + (layout::tile - stage), a.v, t.k0 + j + N, at.kv_col, t.lk - j - N);
		}
		rh_copy_async_commit();
		float s[M][N / 8][4] = {}, dp[M][N / 8][4] = {};
		RH_UNROLL
		for (int k = 0; k < D / 16; k++) {
			RH_UNROLL
			for (int m = 0; !in_registers && m < M; m++) {
				tile_left<D>(q[0][m], own_q, left, at.warp_row + m * 16, k);
				tile_left<D>(d_o[0][m], own_d_o, left, at.warp_row + m * 16, k);
			}
			tile_scores<D, N, M>(s, q[in_registers ? k : 0], keys + stage, right, k);
			tile_scores<D, N, M>(dp, d_o[in_registers ? k : 0], values + stage, right, k);
		}
		int edge = j + N > attention_end_key(a, t, t.first) || j < attention_first_key(a, t, last);
		RH_UNROLL
		for (int m = 0; m < M; m++) {
			RH_UNROLL
			for (int i = 0; i < N / 2; i++) {
				const struct row_sums &row = sums[m][i % 4 / 2];
				dp[m][i / 4][i % 4] =
				        rh_exp2(s[m][i / 4][i % 4] * a.scale_log2 - row.lse_log2) * (dp[m][i / 4][i % 4] - row.delta);
			}
			if (edge)
				tile_hide_keys<N>(dp[m], a, t, own + m * 16, j + at.lane % 4 * 2, 0);
		}
		tile_weighted_sum<D, N, M>(dq, dp, keys + stage, left);
		stage = layout::tile - stage;
	}
	if (!layout::apart)
		__syncthreads(); /* keys make room; of its own q a warp reads its rows alone */
	const float factor[2] = {a.scale, a.scale};
	RH_UNROLL
	for (int m = 0; m < M; m++)
		tile_store<D>(a.dq, t.q0 + t.first + at.warp_row + m * 16, at.col, t.rows - at.warp_row - m * 16,
		              own_q + (at.warp_row + m * 16) * D, dq[m], factor);
}

/* Of attention_dk_dv: N queries streamed a tile, scores of `part` of them in registers together. In shared memory two tiles of q, of dO and
 * of their sums; own k and v before, in the place of the first two. */
template <int D, int M> struct dk_dv_layout {
	static constexpr int rows = ATTENTION_ROWS * M, N = D > 64 ? 32 : 64, part = D > 96 || M > 1 ? 16 : 32;
	static constexpr int d_o = 2 * N * D * 2, sums = 2 * d_o, bytes = sums + 2 * N * (int)sizeof(struct row_sums);
	static_assert(rows <= 2 * N, "own rows fit");
};

/* Streamed queries in shared memory, the first of them query `first` of the document, and a lane's places in their tiles. */
struct query_part {
	const rh_bf16 *q, *d_o;
	const struct row_sums *sums;
	int left, right, first;
};

/* A warp's keys and values, the first one's place in the document, and the lane's share of their gradients. */
template <int D, int M> struct key_rows {
	uint32_t keys[D / 16][M][4], values[D / 16][M][4];
	int first;
	float dk[M][D / 8][4], dv[M][D / 8][4];
};

/* Adds what N queries give. */
template <int D, int N, int M>
RH_DEVICE void key_rows_add(struct key_rows<D, M> *own, const struct attention_args &a, const struct attention_tile &t,
                            const struct query_part &queries)
{
	float p[M][N / 8][4] = {}, ds[M][N / 8][4] = {};
	RH_UNROLL
	for (int k = 0; k < D / 16; k++) {
		tile_scores<D, N, M>(p, own->keys[k], queries.q, queries.right, k);
		tile_scores<D, N, M>(ds, own->values[k], queries.d_o, queries.right, k);
	}
	query_weights<N, M>(p, ds, a, t, queries.sums, queries.first, own->first);
	tile_weighted_sum<D, N, M>(own->dv, p, queries.d_o, queries.left);
	tile_weighted_sum<D, N, M>(own->dk, ds, queries.q, queries.left);
}

template <int D, int M> RH_KERNEL(ATTENTION_THREADS, 2) attention_dk_dv(struct attention_args a)
{
	typedef struct dk_dv_layout<D, M> layout;
	constexpr int N = layout::N;
	RH_DYNAMIC_SHARED(rh_bf16, q, 0, 2 * N * D);             /* two tiles by turns; keys first */
	RH_DYNAMIC_SHARED(rh_bf16, d_o, layout::d_o, 2 * N * D); /* values first */
	RH_DYNAMIC_SHARED(struct row_sums, sums, layout::sums, 2 * N);
	int thread = (int)threadIdx.x, warp_row = thread / RH_WARP * 16 * M;
	int kv_head = a.part.first_head + (int)blockIdx.y, col = kv_head * D;
	int left = tile_left_place<D>(), right = tile_right_place<D>();
	struct attention_tile t;
	if (!attention_find<layout::rows>(a, a.start_k, a.part.first + (int)blockIdx.x, &t))
		return;
	struct query_walk walk = query_walk_of<N>(a, t, kv_head);
	tile_copy<layout::rows, D>(q, a.k, t.k0 + t.first, col, t.rows);
	tile_copy<layout::rows, D>(d_o, a.v, t.k0 + t.first, col, t.rows);
	rh_copy_async_commit();
	rh_copy_async_wait<0>();
	__syncthreads();
	struct key_rows<D, M> own;
	own.first = t.first + warp_row;
	RH_UNROLL
	for (int i = 0; i < D / 16 * M; i++) {
		tile_left<D>(own.keys[i / M][i % M], q, left, warp_row + i % M * 16, i / M);
		tile_left<D>(own.values[i / M][i % M], d_o, left, warp_row + i % M * 16, i / M);
	}
	RH_UNROLL
	for (int m = 0; m < M; m++) {
		int row = warp_row + m * 16;
		key_sums_load<D>(own.dk[m], a.dk_sum, {t.k0 + t.first + row, col, t.rows - row});
		key_sums_load<D>(own.dv[m], a.dv_sum, {t.k0 + t.first + row, col, t.rows - row});
	}
	__syncthreads(); /* keys and values make room */
	if (!query_walk_is_over(walk)) {
		struct row_sums first = query_tile_copy<D, N>(a, t, walk, q, d_o);
		if (thread < N)
			sums[thread] = first;
	}
	rh_copy_async_commit();
	for (int at = 0; !query_walk_is_over(walk); at = N - at) { /* at: the tile's first row in shared memory */
		int i = walk.i;
		struct row_sums coming = {0, 0};
		left = rh_opaque(left), right = rh_opaque(right);
		query_walk_on<N>(&walk);
		rh_copy_async_wait<0>();
		__syncthreads(); /* this tile is there, and nobody reads the one before */
		if (!query_walk_is_over(walk))
			coming = query_tile_copy<D, N>(a, t, walk, q + (N - at) * D, d_o + (N - at) * D);
		rh_copy_async_commit();
		RH_UNROLL
		for (int part = at; part < at + N; part += layout::part)
			key_rows_add<D, layout::part, M>(&own, a, t,
			                                 {q + part * D, d_o + part * D, sums + part, left, right, i + part - at});
		if (thread < N)
			sums[N - at + thread] = coming; /* loaded while this tile was at work */
	}
	__syncthreads(); /* q and dO make room */
	const float one[2] = {1, 1}, factor[2] = {a.scale, a.scale};
	RH_UNROLL
	for (int m = 0; m < M; m++) {
		int row = warp_row + m * 16;
		key_sums_store<D>(a.dk_sum, a.dk, {t.k0 + t.first + row, col, t.rows - row}, q + row * D, own.dk[m], factor);
		key_sums_store<D>(a.dv_sum, a.dv, {t.k0 + t.first + row, col, t.rows - row}, d_o + row * D, own.dv[m], one);
	}
}

template <int D, int M> static int dq(const struct attention_args *a, CUstream_st *stream)
{
	typedef struct dq_layout<D, M> layout;
	unsigned tiles = attention_tiles(a->q.rows, layout::rows, a->documents);
	return attention_launches(a, tiles, a->heads, [&](const struct attention_args *part, unsigned across) {
		dim3 queries(across, (unsigned)part->part.heads);
		return RH_LAUNCH((attention_dq<D, M>), queries, ATTENTION_THREADS, layout::bytes, stream, *part);
	});
}

template <int D, int M> static int dk_dv(const struct attention_args *a, CUstream_st *stream)
{
	typedef struct dk_dv_layout<D, M> layout;
	unsigned tiles = attention_tiles(a->k.rows, layout::rows, a->documents);
	return attention_launches(a, tiles, a->kv_heads, [&](const struct attention_args *part, unsigned across) {
		dim3 keys(across, (unsigned)part->part.heads);
		return RH_LAUNCH((attention_dk_dv<D, M>), keys, ATTENTION_THREADS, layout::bytes, stream, *part);
	});
}

template <int D> static int backward(const struct attention_args *a, CUstream_st *stream)
{
	int rc = attention_takes_two_tiles(dq_layout<D, 2>::bytes) ? dq<D, 2>(a, stream) : dq<D, 1>(a, stream);
	if constexpr (D == 64) {
		if (rc >= 0 && attention_takes_two_tiles(dk_dv_layout<D, 2>::bytes))
			return dk_dv<D, 2>(a, stream);
	}
	if (rc >= 0 && attention_has_keys(a->dim))
		return attention_keys_dk_dv(a, stream);
	return rc < 0 ? rc : dk_dv<D, 1>(a, stream);
}

int attention_mma_backward(const struct attention_args *a, CUstream_st *stream)
{
	if (a->dim == 512)
		return attention_backward_512(a, stream);
	if (a->dim == 256) {
		int rc = dq<256, 1>(a, stream);
		if (rc < 0)
			return rc;
		return attention_has_keys(256) ? attention_keys_dk_dv(a, stream) : attention_256_dk_dv(a, stream);
	}
	if (a->space.data && rh_attention_uses_space(a->dim) && !rh_mma_is_fast())
		return attention_one_pass(a, stream);
	switch (a->dim) {
	case 32:
		return backward<32>(a, stream);
	case 64:
		return backward<64>(a, stream);
	case 96:
		return backward<96>(a, stream);
	default:
		return backward<128>(a, stream);
	}
}
