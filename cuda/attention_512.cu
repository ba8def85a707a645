/* Attention for heads of 512 elements (Gemma 4's layers without a window), forward and backward; equations and sums are those of
 * attention.cu and attention_backward.cu.
 *
 * No warp has registers for 16 rows of 512 sums. So four warps share 16 rows. Each has a quarter of the columns, of operands and sums: as
 * many as a warp has of heads of 128. Scores are products over all columns: each warp makes its quarter's part of 16 rows by 16, the parts
 * go through shared memory, and each warp adds up the four, in one order. So the four warps have the same scores, and make the same
 * probabilities of them; no product is made twice.
 *
 * forward  16 warps take 64 queries of one head and walk the keys that they see, 16 at a time; q stays in 32 registers a lane, o in 64.
 *          FLOPs 4 D a pair; reads 4 D bytes a key and 64 queries, mostly from L2 (64 FLOPs a byte: 2.6 TB/s of some 5 on an RTX 4090).
 * dq       8 warps take 32 queries of one head; q and dO in 64 registers, dq in 64. FLOPs 6 D a pair; 4 D bytes a key and 32 queries (48 a
 *          byte: 3.4 TB/s).
 * dk dv    8 warps take 32 keys of one key head and walk the queries that see them, all heads of its group, 16 at a time; k and v in 64
 *          registers, dk and dv in 128. FLOPs 8 D a pair; 4 D bytes a query and 32 keys (64 a byte: 2.6 TB/s).
 *
 * Shared memory: two tiles of both streamed operands by turns, 64 KB, and the parts, 16 KB: one block on an SM of 100 KB. For a tile of 16
 * rows a warp moves 13 KB through shared memory in the forward, 22 in dq, 26 in dk dv, at 128 bytes a cycle and SM: 41, 46 and 41 % of what
 * its mma (32, 48 and 64) take where one takes 32 cycles (sm_89): bound by mma, 165 TFLOP/s on an RTX 4090, less two barriers a tile. Where
 * one takes some 6 (sm_90) shared memory takes twice as long as mma, and bounds. */
#include "cuda/attention_softmax.h"
#include "cuda/attention_walk.h"

enum {
	D = 512,
	QUARTERS = 4,
	C = D / QUARTERS, /* columns of a warp */
	N = 16,           /* streamed rows of a tile */
	TILE = N * D,     /* elements */
	PART = 16 * N     /* scores that a warp makes at a time, in fp32 */
};

/* A block of WARPS warps; in bytes. KINDS: how many products over all columns it makes; with two it has sums of as many rows. */
template <int WARPS, int KINDS> struct layout_512 {
	static constexpr int threads = WARPS * RH_WARP, rows = WARPS / QUARTERS * 16;
	static constexpr int parts = 4 * TILE * (int)sizeof(rh_bf16), sums = parts + WARPS * KINDS * PART * (int)sizeof(float),
	                     bytes = sums + (KINDS > 1 ? rows * (int)sizeof(struct row_sums) : 0);
	static_assert(rows * D * KINDS <= 4 * TILE && WARPS * 16 * C * KINDS <= 4 * TILE, "what passes the tiles' place fits");
	static_assert(KINDS == 1 || rows == 2 * N, "sums of own rows, or of two tiles'");
};

typedef struct layout_512<16, 1> forward_512;
typedef struct layout_512<8, 2> backward_512;

/* Where a warp is in its block, and where its quarter begins in fragments of tiles. */
struct place_512 {
	int warp, quarter, row, left, right;
};

RH_DEVICE struct place_512 place_of_warp()
{
	int warp = rh_opaque((int)threadIdx.x) / RH_WARP, quarter = warp % QUARTERS;
	return {warp, quarter, warp / QUARTERS * 16, tile_left_place<D>() ^ quarter * C, tile_right_place<D>() ^ quarter * C};
}

/* The warp's rows of a tile, its quarter of the columns. */
RH_DEVICE void own_load(uint32_t (&own)[C / 16][1][4], const rh_bf16 *tile, const struct place_512 &at)
{
	RH_UNROLL
	for (int k = 0; k < C / 16; k++)
		tile_left<D>(own[k][0], tile, at.left, at.row, k);
}

/* The quarter's part of scores of own rows and a tile's. */
RH_DEVICE void part_make(float (&s)[1][N / 8][4], const uint32_t (&own)[C / 16][1][4], const rh_bf16 *tile, int right)
{
	RH_UNROLL
	for (int k = 0; k < C / 16; k++)
		tile_scores<D, N, 1>(s, own[k], tile, right, k);
}

/* Of product `kind`. A barrier follows. */
template <int WARPS> RH_DEVICE void part_give(float *parts, int kind, const float (&s)[1][N / 8][4])
{
	float *own = parts + (kind * WARPS + (int)threadIdx.x / RH_WARP) * PART + (int)threadIdx.x % RH_WARP * 4;
	RH_UNROLL
	for (int n = 0; n < N / 8; n++)
		rh_store16(own + n * RH_WARP * 4, rh_vec<float>{{s[0][n][0], s[0][n][1], s[0][n][2], s[0][n][3]}});
}

template <int WARPS> RH_DEVICE void parts_add(float (&s)[1][N / 8][4], const float *parts, int kind)
{
	int first = (int)threadIdx.x / RH_WARP / QUARTERS * QUARTERS;
	const float *part = parts + (kind * WARPS + first) * PART + (int)threadIdx.x % RH_WARP * 4;
	RH_UNROLL
	for (int n = 0; n < N / 8; n++) {
		RH_UNROLL
		for (int quarter = 0; quarter < QUARTERS; quarter++) {
			rh_vec<float> of = rh_load16(part + quarter * PART + n * RH_WARP * 4);
			RH_UNROLL
			for (int e = 0; e < 4; e++)
				s[0][n][e] = quarter ? s[0][n][e] + of.v[e] : of.v[e];
		}
	}
}

/* A tile of keys and of values, on their way. */
template <int THREADS>
RH_DEVICE void keys_copy(rh_bf16 *keys, rh_bf16 *values, const struct attention_args &a, const struct attention_block &at, int j)
{
	const struct attention_tile &t = at.tile;
	tile_copy<N, D, THREADS>(keys, a.k, t.k0 + j, at.kv_col, t.lk - j);
	tile_copy<N, D, THREADS>(values, a.v, t.k0 + j, at.kv_col, t.lk - j);
}

/* Of the warp's rows, what they do not see of N keys from j on. */
RH_DEVICE void hide_keys(float (&s)[N / 8][4], const struct attention_args &a, const struct attention_tile &t, int j, float value)
{
	int lane = (int)threadIdx.x % RH_WARP;
	tile_hide_keys<N>(s, a, t, t.first + place_of_warp().row + lane / 4, j + lane % 4 * 2, value);
}

RH_KERNEL(forward_512::threads, 1) attention_512_forward(struct attention_args a)
{
	typedef forward_512 layout;
	constexpr int WARPS = layout::threads / RH_WARP;
	RH_DYNAMIC_SHARED(rh_bf16, keys, 0, 4 * TILE); /* queries first, and the output last */
	RH_DYNAMIC_SHARED(float, parts, layout::parts, WARPS *PART);
	rh_bf16 *values = keys + 2 * TILE;
	struct attention_block at;
	if (!attention_block_find<layout::rows, 16>(a, D, &at))
		return;
	const struct attention_tile &t = at.tile;
	struct place_512 place = place_of_warp();
	tile_copy<layout::rows, D, layout::threads>(keys, a.q, t.q0 + t.first, at.col, t.rows);
	rh_copy_async_commit();
	rh_copy_async_wait<0>();
	__syncthreads();
	uint32_t q[C / 16][1][4];
	own_load(q, keys, place);
	__syncthreads(); /* queries make room */
	if (at.first_key < at.end_key)
		keys_copy<layout::threads>(keys, values, a, at, at.first_key);
	rh_copy_async_commit();
	float o[1][C / 8][4] = {};
	struct softmax row = softmax_begin(a, at.head);
	int stage = 0;
	for (int j = at.first_key; j < at.end_key; j += N) {
		place.left = rh_opaque(place.left), place.right = rh_opaque(place.right);
		rh_copy_async_wait<0>();
		__syncthreads(); /* these tiles are there, and nobody reads those before them, or their parts */
		if (j + N < at.end_key)
			keys_copy<layout::threads>(keys + (TILE - stage), values + (TILE - stage), a, at, j + N);
		rh_copy_async_commit();
		float s[1][N / 8][4] = {}, shrink[2];
		part_make(s, q, keys + stage, place.right);
		part_give<WARPS>(parts, 0, s);
		__syncthreads();
		parts_add<WARPS>(s, parts, 0);
		if (j + N > attention_end_key(a, t, t.first) || j < attention_first_key(a, t, t.first + layout::rows - 1))
			hide_keys(s[0], a, t, j, -INFINITY);
		softmax_step<N>(&row, s[0], a.scale_log2, shrink);
		if (rh_ballot(shrink[0] != 1 || shrink[1] != 1)) { /* seldom, once some keys are seen */
			RH_UNROLL
			for (int e = 0; e < C / 2; e++)
				o[0][e / 4][e % 4] *= shrink[e % 4 / 2];
		}
		tile_weighted_sum<D, N, 1, C>(o, s, values + stage, place.left);
		stage = TILE - stage;
	}
	rh_copy_async_wait<0>();
	__syncthreads(); /* keys and values make room */
	float factor[2], lse[2];
	softmax_finish(&row, factor, lse);
	(void)attention_block_find<layout::rows, 16>(a, D, &at); /* once more: no register held it meanwhile */
	place = place_of_warp();
	int own = place.row + at.lane / 4;
	RH_UNROLL
	for (int half = 0; half < 2; half++)
		if (place.quarter == 0 && at.lane % 4 == 0 && own + half * 8 < t.rows)
			*attention_at<float>(a.lse, t.q0 + t.first + own + half * 8, at.head) = lse[half];
	tile_store<C>(a.o, t.q0 + t.first + place.row, at.col + place.quarter * C, t.rows - place.row, keys + place.warp * 16 * C, o[0],
	              factor);
}

RH_KERNEL(backward_512::threads, 1) attention_512_dq(struct attention_args a)
{
	typedef backward_512 layout;
	constexpr int WARPS = layout::threads / RH_WARP, rows = layout::rows;
	RH_DYNAMIC_SHARED(rh_bf16, keys, 0, 4 * TILE); /* q and dO first, and dq last */
	RH_DYNAMIC_SHARED(float, parts, layout::parts, 2 * WARPS * PART);
	RH_DYNAMIC_SHARED(struct row_sums, sums, layout::sums, rows);
	rh_bf16 *values = keys + 2 * TILE;
	struct attention_block at;
	if (!attention_block_find<rows, 16>(a, D, &at))
		return;
	const struct attention_tile &t = at.tile;
	struct place_512 place = place_of_warp();
	int own = place.row + at.lane / 4;
	tile_copy<rows, D, layout::threads>(keys, a.q, t.q0 + t.first, at.col, t.rows);
	tile_copy<rows, D, layout::threads>(values, a.d_o, t.q0 + t.first, at.col, t.rows);
	rh_copy_async_commit();
	for (int half = 0; place.quarter == 0 && half < 2; half++) {
		struct row_sums of = own_row_sums<D>(a, t.q0 + t.first + own + half * 8, at.head, own + half * 8 < t.rows);
		if (at.lane % 4 == 0)
			sums[own + half * 8] = of;
	}
	rh_copy_async_wait<0>();
	__syncthreads();
	uint32_t q[C / 16][1][4], d_o[C / 16][1][4];
	own_load(q, keys, place);
	own_load(d_o, values, place);
	struct row_sums row[2] = {sums[own], sums[own + 8]};
	__syncthreads(); /* q and dO make room */
	if (at.first_key < at.end_key)
		keys_copy<layout::threads>(keys, values, a, at, at.first_key);
	rh_copy_async_commit();
	float dq[1][C / 8][4] = {};
	int stage = 0;
	for (int j = at.first_key; j < at.end_key; j += N) {
		place.left = rh_opaque(place.left), place.right = rh_opaque(place.right);
		rh_copy_async_wait<0>();
		__syncthreads(); /* these tiles are there, and nobody reads those before them, or their parts */
		if (j + N < at.end_key)
			keys_copy<layout::threads>(keys + (TILE - stage), values + (TILE - stage), a, at, j + N);
		rh_copy_async_commit();
		float s[1][N / 8][4] = {}, dp[1][N / 8][4] = {};
		part_make(s, q, keys + stage, place.right);
		part_make(dp, d_o, values + stage, place.right);
		part_give<WARPS>(parts, 0, s);
		part_give<WARPS>(parts, 1, dp);
		__syncthreads();
		parts_add<WARPS>(s, parts, 0);
		parts_add<WARPS>(dp, parts, 1);
		RH_UNROLL
		for (int i = 0; i < N / 2; i++)
			dp[0][i / 4][i % 4] = rh_exp2(s[0][i / 4][i % 4] * a.scale_log2 - row[i % 4 / 2].lse_log2) *
			                      (dp[0][i / 4][i % 4] - row[i % 4 / 2].delta);
		if (j + N > attention_end_key(a, t, t.first) || j < attention_first_key(a, t, t.first + rows - 1))
			hide_keys(dp[0], a, t, j, 0);
		tile_weighted_sum<D, N, 1, C>(dq, dp, keys + stage, place.left);
		stage = TILE - stage;
	}
	rh_copy_async_wait<0>();
	__syncthreads(); /* keys make room */
	const float factor[2] = {a.scale, a.scale};
	tile_store<C>(a.dq, t.q0 + t.first + place.row, at.col + place.quarter * C, t.rows - place.row, keys + place.warp * 16 * C, dq[0],
	              factor);
}

RH_KERNEL(backward_512::threads, 1) attention_512_dk_dv(struct attention_args a)
{
	typedef backward_512 layout;
	constexpr int WARPS = layout::threads / RH_WARP, rows = layout::rows;
	RH_DYNAMIC_SHARED(rh_bf16, q, 0, 4 * TILE); /* keys and values first, and dk and dv last */
	RH_DYNAMIC_SHARED(float, parts, layout::parts, 2 * WARPS * PART);
	RH_DYNAMIC_SHARED(struct row_sums, sums, layout::sums, 2 * N);
	rh_bf16 *d_o = q + 2 * TILE;
	int thread = (int)threadIdx.x, kv_head = a.part.first_head + (int)blockIdx.y, col = kv_head * D;
	struct attention_tile t;
	if (!attention_find<rows>(a, a.start_k, a.part.first + (int)blockIdx.x, &t))
		return;
	struct place_512 place = place_of_warp();
	struct query_walk walk = query_walk_of<N>(a, t, kv_head);
	tile_copy<rows, D, layout::threads>(q, a.k, t.k0 + t.first, col, t.rows);
	tile_copy<rows, D, layout::threads>(d_o, a.v, t.k0 + t.first, col, t.rows);
	rh_copy_async_commit();
	rh_copy_async_wait<0>();
	__syncthreads();
	uint32_t keys[C / 16][1][4], values[C / 16][1][4];
	own_load(keys, q, place);
	own_load(values, d_o, place);
	float dk[1][C / 8][4], dv[1][C / 8][4];
	struct key_place from = {t.k0 + t.first + place.row, col + place.quarter * C, t.rows - place.row};
	key_sums_load<C>(dk[0], a.dk_sum, from);
	key_sums_load<C>(dv[0], a.dv_sum, from);
	__syncthreads(); /* keys and values make room */
	if (!query_walk_is_over(walk)) {
		struct row_sums first = query_tile_copy<D, N, layout::threads>(a, t, walk, q, d_o);
		if (thread < N)
			sums[thread] = first;
	}
	rh_copy_async_commit();
	for (int at = 0; !query_walk_is_over(walk); at = N - at) { /* at: the tile's first row in shared memory */
		struct row_sums coming = {0, 0};
		int i = walk.i;
		place.left = rh_opaque(place.left), place.right = rh_opaque(place.right);
		query_walk_on<N>(&walk);
		rh_copy_async_wait<0>();
		__syncthreads(); /* this tile is there, and nobody reads the one before, or its parts */
		if (!query_walk_is_over(walk))
			coming = query_tile_copy<D, N, layout::threads>(a, t, walk, q + (N - at) * D, d_o + (N - at) * D);
		rh_copy_async_commit();
		float p[1][N / 8][4] = {}, ds[1][N / 8][4] = {};
		part_make(p, keys, q + at * D, place.right);
		part_make(ds, values, d_o + at * D, place.right);
		part_give<WARPS>(parts, 0, p);
		part_give<WARPS>(parts, 1, ds);
		__syncthreads();
		parts_add<WARPS>(p, parts, 0);
		parts_add<WARPS>(ds, parts, 1);
		query_weights<N, 1>(p, ds, a, t, sums + at, i, t.first + place.row);
		tile_weighted_sum<D, N, 1, C>(dv, p, d_o + at * D, place.left);
		tile_weighted_sum<D, N, 1, C>(dk, ds, q + at * D, place.left);
		if (thread < N)
			sums[N - at + thread] = coming; /* loaded while this tile was at work */
	}
	rh_copy_async_wait<0>();
	__syncthreads();                                                              /* q and dO make room */
	(void)attention_find<rows>(a, a.start_k, a.part.first + (int)blockIdx.x, &t); /* once more: no register held it meanwhile */
	place = place_of_warp();
	struct key_place to = {t.k0 + t.first + place.row, (int64_t)kv_head * D + place.quarter * C, t.rows - place.row};
	const float one[2] = {1, 1}, factor[2] = {a.scale, a.scale};
	key_sums_store<C>(a.dk_sum, a.dk, to, q + place.warp * 16 * C, dk[0], factor);
	key_sums_store<C>(a.dv_sum, a.dv, to, d_o + place.warp * 16 * C, dv[0], one);
}

int attention_forward_512(const struct attention_args *a, CUstream_st *stream)
{
	unsigned tiles = attention_tiles(a->q.rows, forward_512::rows, a->documents);
	return attention_launches(a, tiles, a->heads, [&](const struct attention_args *part, unsigned across) {
		dim3 grid(across, (unsigned)part->part.heads);
		return RH_LAUNCH(attention_512_forward, grid, forward_512::threads, forward_512::bytes, stream, *part);
	});
}

int attention_backward_512(const struct attention_args *a, CUstream_st *stream)
{
	unsigned queries = attention_tiles(a->q.rows, backward_512::rows, a->documents),
	         keys = attention_tiles(a->k.rows, backward_512::rows, a->documents);
	int rc = attention_launches(a, queries, a->heads, [&](const struct attention_args *part, unsigned across) {
		dim3 grid(across, (unsigned)part->part.heads);
		return RH_LAUNCH(attention_512_dq, grid, backward_512::threads, backward_512::bytes, stream, *part);
	});
	if (rc < 0)
		return rc;
	return attention_launches(a, keys, a->kv_heads, [&](const struct attention_args *part, unsigned across) {
		dim3 grid(across, (unsigned)part->part.heads);
		return RH_LAUNCH(attention_512_dk_dv, grid, backward_512::threads, backward_512::bytes, stream, *part);
	});
}
