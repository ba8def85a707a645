/* Attention, backward. With p = exp(scale q k^T - lse), dp = dO v^T, delta = rowsum(dO o), ds = p (dp - delta):
 * dv = p^T dO, dq = scale ds k, dk = scale ds^T q. Three kernels, no atomics: who owns a row of a gradient adds up all of it, in order.
 *
 * delta  reads dO and o: 4 Tq heads D bytes, 2 FLOPs an element; bound by memory. Four lanes a row of a head, 16 bytes a lane and load.
 * dq     a block takes 64 queries of one head (16 a warp; q and dO stay in D/2 registers a lane) and walks the keys that they see, 32 at a
 *        time (64 for D 64), two tiles in shared memory, the next one on its way: 24 KB for D 96, else 32.
 *        FLOPs 6 D a pair; reads 4 D bytes a key and 64 queries, mostly from L2.
 * dk dv  a block takes 64 keys of one key head (16 a warp) and walks the queries that see them, head after head of its group, 32 (64) at a
 *        time. Scores are computed transposed, so that p^T and ds^T are left operands as they come. k and v stay in shared memory, q
 *        and dO pass through it, two tiles on turn: 48 to 49 KB, with D 128 65 KB; there one tile, 49 KB, on SMs of which two such
 *        blocks would ask too much (100 KB: sm_86, sm_89, sm_120).
 *        FLOPs 8 D a pair; reads 4 D bytes a query and 64 keys, mostly from L2. Scores are in registers for 16 queries at
 *        once (D 128), else 32.
 *
 * Together 14 D FLOPs a pair where 10 D are needed (p and dp twice): the price of a fixed order of sums without O(T^2) memory, or
 * O(T) fp32 copies of dq for each tile of keys. The roofline is mma's, as of the forward (attention.cu).
 *
 * p and ds are rounded to bf16 for the products that take them. Sums: mma's within 16 rows, then ascending tiles, heads outermost. */
#include "cuda/attention_mma.h"

enum { DELTA_LANES = 4 };

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

/* delta (Tq,heads) of rows in documents, D a multiple of 8, rows on 16 bytes. */
static RH_KERNEL(ATTENTION_THREADS, 8) attention_delta(struct attention_args a)
{
	int64_t item = ((int64_t)blockIdx.x * ATTENTION_THREADS + threadIdx.x) / DELTA_LANES, row = item / a.heads;
	int head = (int)(item % a.heads), lane = (int)threadIdx.x % DELTA_LANES;
	int there = row >= *attention_at<int32_t>(a.start_q, 0, 0) && row < *attention_at<int32_t>(a.start_q, a.documents, 0);
	float sum = 0;
	for (int c = lane * 8; there && c < a.dim; c += DELTA_LANES * 8) {
		rh_vec<rh_bf16> o = rh_load16(attention_at<rh_bf16>(a.o, row, (int64_t)head * a.dim + c));
		rh_vec<rh_bf16> d_o = rh_load16(attention_at<rh_bf16>(a.d_o, row, (int64_t)head * a.dim + c));
		RH_UNROLL
		for (int e = 0; e < 8; e++)
			sum += rh_to_float(o.v[e]) * rh_to_float(d_o.v[e]);
	}
	sum += rh_shuffle_xor(sum, 1);
	sum += rh_shuffle_xor(sum, 2);
	if (there && lane == 0)
		*attention_at<float>(a.delta, row, head) = sum;
}

/* Rows streamed a tile. More would not fit the registers. */
template <int D> RH_HOST_DEVICE constexpr int streamed()
{
	return D > 64 ? 32 : 64;
}

template <int D> RH_KERNEL(ATTENTION_THREADS, 2) attention_dq(struct attention_args a)
{
	constexpr int N = streamed<D>();
	RH_DYNAMIC_SHARED(rh_bf16, keys, 0, 2 * N * D);                             /* two tiles on turn; q first */
	RH_DYNAMIC_SHARED(rh_bf16, values, 2 * N * D * sizeof(rh_bf16), 2 * N * D); /* dO first */
	struct attention_block at;
	if (!attention_block_find<ATTENTION_ROWS, 16>(a, D, &at))
		return;
	const struct attention_tile &t = at.tile;
	int own = t.first + at.warp_row + at.lane / 4, last = t.first + t.rows - 1;
	tile_copy<ATTENTION_ROWS, D>(keys, a.q, t.q0 + t.first, at.col, t.rows);
	tile_copy<ATTENTION_ROWS, D>(values, a.d_o, t.q0 + t.first, at.col, t.rows);
	rh_copy_async_commit();
	struct row_sums sums[2];
	RH_UNROLL
	for (int half = 0; half < 2; half++)
		sums[half] = row_sums_at(a, t.q0 + own + half * 8, at.head, own + half * 8 <= last);
	rh_copy_async_wait<0>();
	__syncthreads();
	uint32_t q[D / 16][4], d_o[D / 16][4];
	RH_UNROLL
	for (int k = 0; k < D / 16; k++) {
		tile_left<D>(q[k], keys, at.warp_row, k);
		tile_left<D>(d_o[k], values, at.warp_row, k);
	}
	__syncthreads(); /* q and dO make room */
	if (at.first_key < at.end_key) {
		tile_copy<N, D>(keys, a.k, t.k0 + at.first_key, at.kv_col, t.lk - at.first_key);
		tile_copy<N, D>(values, a.v, t.k0 + at.first_key, at.kv_col, t.lk - at.first_key);
	}
	rh_copy_async_commit();
	float dq[D / 8][4] = {};
	int stage = 0;
	for (int j = at.first_key; j < at.end_key; j += N) {
		rh_copy_async_wait<0>();
		__syncthreads(); /* these tiles are there, and nobody reads those before them */
		if (j + N < at.end_key) {
			tile_copy<N, D>(keys + (stage ^ 1) * N * D, a.k, t.k0 + j + N, at.kv_col, t.lk - j - N);
			tile_copy<N, D>(values + (stage ^ 1) * N * D, a.v, t.k0 + j + N, at.kv_col, t.lk - j - N);
		}
		rh_copy_async_commit();
		float s[N / 8][4] = {}, dp[N / 8][4] = {};
		RH_UNROLL
		for (int k = 0; k < D / 16; k++) {
			tile_scores<D, N>(s, q[k], keys + stage * N * D, k);
			tile_scores<D, N>(dp, d_o[k], values + stage * N * D, k);
		}
		int edge = j + N > attention_end_key(t, t.first) || j < attention_first_key(a, t, last);
		RH_UNROLL
		for (int n = 0; n < N / 8; n++) {
			RH_UNROLL
			for (int e = 0; e < 4; e++) {
				float p = exp2f(s[n][e] * a.scale_log2 - sums[e / 2].lse_log2);
				float ds = p * (dp[n][e] - sums[e / 2].delta);
				dp[n][e] = edge && !attention_sees(a, t, own + e / 2 * 8, j + n * 8 + at.lane % 4 * 2 + e % 2) ? 0 : ds;
			}
		}
		tile_weighted_sum<D, N>(dq, dp, keys + stage * N * D);
		stage ^= 1;
	}
	__syncthreads(); /* keys make room */
	const float factor[2] = {a.scale, a.scale};
	tile_store<D>(a.dq, t.q0 + t.first + at.warp_row, at.col, t.rows - at.warp_row, keys + at.warp_row * D, dq, factor);
}

/* Shared memory of attention_dk_dv, in bytes: own k and v, then q, dO and their sums, `stages` tiles each. `part`: queries whose scores are
 * in registers together. */
template <int D, int STAGES> struct dk_dv_layout {
	static constexpr int N = streamed<D>(), stages = STAGES, part = D > 96 ? 16 : 32;
	static constexpr int values = ATTENTION_ROWS * D * 2, queries = 2 * values, d_o = queries + stages * N * D * 2;
	static constexpr int sums = d_o + stages * N * D * 2, bytes = sums + stages * N * (int)sizeof(struct row_sums);
};

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

/* A tile of queries in shared memory. */
struct query_tile {
	rh_bf16 *q, *d_o; /* (N, D) */
	struct row_sums *sums;
};

/* Row `row` of what lies at `base`. */
template <int D> RH_DEVICE struct query_tile query_tile_at(const struct query_tile &base, int row)
{
	return {base.q + row * D, base.d_o + row * D, base.sums + row};
}

/* The tile that the walk is at, on its way. */
template <int D>
RH_DEVICE void query_tile_copy(const struct attention_args &a, const struct attention_tile &t, const struct query_walk &walk,
                               const struct query_tile &to)
{
	constexpr int N = streamed<D>();
	int own = (int)threadIdx.x, there = t.lq - walk.i;
	tile_copy<N, D>(to.q, a.q, t.q0 + walk.i, (int64_t)walk.head * D, there);
	tile_copy<N, D>(to.d_o, a.d_o, t.q0 + walk.i, (int64_t)walk.head * D, there);
	if (own < N)
		to.sums[own] = row_sums_at(a, t.q0 + walk.i + own, walk.head, own < there);
}

/* Of a warp: its keys and values (16, D) in shared memory, row of the first one in the document, and the lane's share of their gradients.
 */
template <int D> struct key_rows {
	rh_bf16 *keys, *values;
	int first;
	float dk[D / 8][4], dv[D / 8][4];
};

/* Adds what N queries give, the first of them query i of the document. */
template <int D, int N>
RH_DEVICE void key_rows_add(struct key_rows<D> *own, const struct attention_args &a, const struct attention_tile &t,
                            const struct query_tile &queries, int i)
{
	int lane = (int)threadIdx.x % RH_WARP;
	float p[N / 8][4] = {}, ds[N / 8][4] = {};
	RH_UNROLL
	for (int k = 0; k < D / 16; k++) {
		uint32_t left[4];
		tile_left<D>(left, own->keys, 0, k);
		tile_scores<D, N>(p, left, queries.q, k);
		tile_left<D>(left, own->values, 0, k);
		tile_scores<D, N>(ds, left, queries.d_o, k);
	}
	/* whether the first query misses the warp's last key, or the last one its first */
	int edge = attention_end_key(t, i) < own->first + 16 || attention_first_key(a, t, i + N - 1) > own->first;
	RH_UNROLL
	for (int n = 0; n < N / 8; n++) {
		RH_UNROLL
		for (int e = 0; e < 4; e++) {
			int at = n * 8 + lane % 4 * 2 + e % 2;
			int hidden = edge && !attention_sees(a, t, i + at, own->first + lane / 4 + e / 2 * 8);
			p[n][e] = hidden ? 0 : exp2f(p[n][e] * a.scale_log2 - queries.sums[at].lse_log2);
			ds[n][e] = hidden ? 0 : p[n][e] * (ds[n][e] - queries.sums[at].delta);
		}
	}
	tile_weighted_sum<D, N>(own->dv, p, queries.d_o);
	tile_weighted_sum<D, N>(own->dk, ds, queries.q);
}

template <int D, int STAGES> RH_KERNEL(ATTENTION_THREADS, 2) attention_dk_dv(struct attention_args a)
{
	typedef struct dk_dv_layout<D, STAGES> layout;
	constexpr int N = layout::N, stages = layout::stages;
	RH_DYNAMIC_SHARED(rh_bf16, keys, 0, ATTENTION_ROWS * D);
	RH_DYNAMIC_SHARED(rh_bf16, values, layout::values, ATTENTION_ROWS * D);
	RH_DYNAMIC_SHARED(rh_bf16, queries, layout::queries, stages * N * D);
	RH_DYNAMIC_SHARED(rh_bf16, d_o, layout::d_o, stages * N * D);
	RH_DYNAMIC_SHARED(struct row_sums, sums, layout::sums, stages * N);
	int warp_row = (int)threadIdx.x / RH_WARP * 16;
	int64_t col = (int64_t)blockIdx.y * D;
	struct attention_tile t;
	if (!attention_find<ATTENTION_ROWS>(a, a.start_k, (int)blockIdx.x, &t))
		return;
	struct query_walk walk = query_walk_of(a, t);
	const struct query_tile tiles = {queries, d_o, sums};
	tile_copy<ATTENTION_ROWS, D>(keys, a.k, t.k0 + t.first, col, t.rows);
	tile_copy<ATTENTION_ROWS, D>(values, a.v, t.k0 + t.first, col, t.rows);
	if (stages == 2 && walk.head < walk.end_head)
		query_tile_copy<D>(a, t, walk, tiles);
	rh_copy_async_commit();
	struct key_rows<D> own = {
		keys + warp_row *D, values + warp_row *D, t.first + warp_row, {},
		{
		}
	};
	for (int at = 0; walk.head < walk.end_head;) { /* at: the tile's first row in shared memory */
		int i = walk.i, next = stages == 2 ? N - at : 0;
		if (stages == 1) {
			__syncthreads(); /* nobody reads the tile before */
			query_tile_copy<D>(a, t, walk, tiles);
			rh_copy_async_commit();
		}
		query_walk_on<N>(&walk);
		rh_copy_async_wait<0>();
		__syncthreads(); /* this tile is there, and nobody reads the one before */
		if (stages == 2 && walk.head < walk.end_head)
			query_tile_copy<D>(a, t, walk, query_tile_at<D>(tiles, next));
		rh_copy_async_commit();
		RH_UNROLL
		for (int part = 0; part < N; part += layout::part)
			key_rows_add<D, layout::part>(&own, a, t, query_tile_at<D>(tiles, at + part), i + part);
		at = next;
	}
	rh_copy_async_wait<0>();
	__syncthreads(); /* for the copies of k and v where no query came */
	const float one[2] = {1, 1}, factor[2] = {a.scale, a.scale};
	/* a warp reads its own rows of k and v only */
	tile_store<D>(a.dk, t.k0 + own.first, col, t.rows - warp_row, own.keys, own.dk, factor);
	tile_store<D>(a.dv, t.k0 + own.first, col, t.rows - warp_row, own.values, own.dv, one);
}

template <int D, int STAGES> static int launch_dk_dv(const struct attention_args *a, CUstream_st *stream)
{
	dim3 keys(attention_tiles(a->k.rows, ATTENTION_ROWS, a->documents), (unsigned)a->kv_heads);
	return RH_LAUNCH((attention_dk_dv<D, STAGES>), keys, ATTENTION_THREADS, (dk_dv_layout<D, STAGES>::bytes), stream, *a);
}

/* Two tiles on turn give the same sums as one: the order is the walk's. */
template <int D> static int dk_dv(const struct attention_args *a, CUstream_st *stream)
{
	if constexpr (D > 96) {
		if (rh_shared_bytes() < 2 * (dk_dv_layout<D, 2>::bytes + 1024)) /* 1 KB of each block is the system's */
			return launch_dk_dv<D, 1>(a, stream);
	}
	return launch_dk_dv<D, 2>(a, stream);
}

template <int D> static int backward(const struct attention_args *a, CUstream_st *stream)
{
	constexpr int dq_bytes = 4 * streamed<D>() * D * (int)sizeof(rh_bf16);
	dim3 queries(attention_tiles(a->q.rows, ATTENTION_ROWS, a->documents), (unsigned)a->heads);
	int rc = RH_LAUNCH((attention_dq<D>), queries, ATTENTION_THREADS, dq_bytes, stream, *a);
	return rc < 0 ? rc : dk_dv<D>(a, stream);
}

int attention_mma_backward(const struct attention_args *a, CUstream_st *stream)
{
	int64_t threads = a->q.rows * a->heads * DELTA_LANES;
	int rc = 0;
	if (threads)
		rc = RH_LAUNCH(attention_delta, (unsigned)rh_ceil_div(threads, ATTENTION_THREADS), ATTENTION_THREADS, 0, stream, *a);
	if (rc < 0)
		return rc;
	return a->dim == 64 ? backward<64>(a, stream) : a->dim == 96 ? backward<96>(a, stream) : backward<128>(a, stream);
}
