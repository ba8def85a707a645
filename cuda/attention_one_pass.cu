/* Attention's backward in one pass over pairs of queries and keys: 10 D FLOPs a pair, where attention_backward.cu takes 14 D, as p and dp
 * are made once. For D 64, 96 and 128 on SMs of 100 KB (sm_86, sm_89, sm_120), whose mma takes so long (32 cycles on sm_89) that it alone
 * counts.
 *
 * attention_delta  makes delta, and clears the counters of the pass. Reads o and dO once: bound by DRAM.
 * attention_pass   a block takes 64 keys of one key head (16 a warp) and walks the queries that see them, 32 at a time (64 for D 64).
 *                  dk and dv stay in D registers a lane, v in D / 4. k stays in shared memory, as dq needs all of it. ds^T goes through
 *                  shared memory, in the place of the dO that is used up, and each warp makes a quarter of the tile's dq of it: half of
 *                  the queries by half of D. D 128 takes 48.5 KB, so that two blocks share an SM: while one waits, the other's mma run.
 *
 * dq is a sum over blocks of keys. They add to fp32 sums in a.space in ascending order, whatever the order in which they run: a counter
 * for each tile of queries, head and warp says how many have added. The first block stores, the last one rounds to dq. So no bit depends
 * on timing, as it would with free atomics.
 * No deadlock: a block draws its keys from a counter when it begins to run, and waits only for blocks of lower keys of its document. Those
 * were drawn before, so they run already or are over, and they wait for lower ones alone. Where the pass is several launches, those of a
 * head are in ascending order of keys, and draw from one counter.
 * No long wait: all blocks walk from the last queries down. So the blocks of a causal head begin together, and each stays one addition
 * behind the one before it. (From the first queries on, block n would wait for n tiles.) bench/gpu/model.py puts the waits of 8192 tokens
 * below 1 % of the time.
 *
 * L2: of 64 keys 4 D bytes a query for q and dO, and 8 D for the sums: 3.1 GB a millisecond of the 5 or so that an RTX 4090 has. DRAM: the
 * sums, read and written once for all the blocks of keys that run at once.
 *
 * p and ds are rounded to bf16 for the products that take them. Sums: mma's within 16 rows, then tiles, of dq in ascending order of keys,
 * of dk and dv in the walk's. */
#include "cuda/attention_walk.h"

/* In bytes of shared memory: keys; two tiles of q and two of dO, which first hold the values; sums of two tiles' rows. */
template <int D> struct pass_layout {
	static constexpr int rows = ATTENTION_ROWS, N = D > 64 ? 32 : 64, part = D > 96 ? 16 : 32, tile = N * D * 2;
	static constexpr int q = rows * D * 2, d_o = q + 2 * tile, sums = d_o + 2 * tile,
	                     bytes = sums + 2 * N * (int)sizeof(struct row_sums);
	static_assert(rows <= 2 * N && rows * N <= N * D, "values and gradients of scores fit the tiles that they lie in");
};

/* The blocks of keys that see a tile of N queries, which begins at query i: [first, end). */
struct key_blocks {
	int first, end;
};

template <int N> RH_DEVICE struct key_blocks key_blocks_of(const struct attention_args &a, const struct attention_tile &t, int i)
{
	int end = attention_end_key(a, t, i + N - 1);
	if (end < 1)
		return {0, 0};
	return {attention_first_key(a, t, i) / ATTENTION_ROWS, (end - 1) / ATTENTION_ROWS + 1};
}

/* The space: sums shaped as dq, then a ticket for blocks, then a counter for each tile of queries, head and warp. Tiles are numbered as
 * attention_find's are. */
RH_DEVICE int *pass_ticket(const struct attention_args &a)
{
	return (int *)attention_at<float>(a.space, a.q.rows, 0);
}

template <int N> RH_DEVICE int *pass_counter(const struct attention_args &a, const struct attention_tile &t, int i, int head)
{
	int64_t number = t.q0 / N + t.document + i / N;
	return pass_ticket(a) + 1 + (number * a.heads + head) * ATTENTION_WARPS;
}

template <int D> RH_KERNEL(ATTENTION_THREADS, 4) attention_delta(struct attention_args a)
{
	constexpr int N = pass_layout<D>::N, rows = ATTENTION_ROWS;
	int thread = (int)threadIdx.x, head = (int)blockIdx.y;
	struct attention_tile t;
	if (blockIdx.x == 0 && head == 0 && thread == 0)
		*pass_ticket(a) = 0;
	if (!attention_find<rows>(a, a.start_q, (int)blockIdx.x, &t))
		return;
	if (thread < rows / N * ATTENTION_WARPS && thread / ATTENTION_WARPS * N < t.rows)
		pass_counter<N>(a, t, t.first + thread / ATTENTION_WARPS * N, head)[thread % ATTENTION_WARPS] = 0;
	for (int r = thread / 4; r < rows; r += ATTENTION_THREADS / 4) {
		int64_t row = t.q0 + t.first + r;
		(void)own_row_sums<D>(a, row, head, r < t.rows);
		struct key_blocks seen = key_blocks_of<N>(a, t, (t.first + r) / N * N);
		if (seen.first < seen.end || r >= t.rows)
			continue;
		RH_UNROLL
		for (int c = thread % 4 * 8; c < D; c += 32) /* no block of keys comes to these queries */
			rh_store16(attention_at<rh_bf16>(a.dq, row, head * D + c), rh_vec<rh_bf16>{});
	}
}

/* A warp's place: where its keys and the current queries lie, and the lane's share of its gradients. */
template <int D> struct pass {
	uint32_t values[D / 16][1][4];
	float dk[1][D / 8][4], dv[1][D / 8][4];
	rh_bf16 *keys, *q, *d_o; /* q and d_o: of the tile at hand */
	const struct row_sums *sums;
	int left, right, warp_row, first_key, i, head;
};

/* dk and dv of the tile's queries; what dq needs of it, the lane's gradients of scores in bf16, goes to ds. */
template <int D>
RH_DEVICE void pass_add_keys(struct pass<D> *own, uint32_t (&ds)[pass_layout<D>::N / 8][2], const struct attention_args &a,
                             const struct attention_tile &t)
{
	constexpr int part = pass_layout<D>::part;
	RH_UNROLL
	for (int from = 0; from < pass_layout<D>::N; from += part) {
		float p[1][part / 8][4] = {}, dp[1][part / 8][4] = {};
		RH_UNROLL
		for (int k = 0; k < D / 16; k++) {
			uint32_t keys[1][4];
			tile_left<D>(keys[0], own->keys, own->left, own->warp_row, k);
			tile_scores<D, part, 1>(p, keys, own->q + from * D, own->right, k);
			tile_scores<D, part, 1>(dp, own->values[k], own->d_o + from * D, own->right, k);
		}
		query_weights<part, 1>(p, dp, a, t, own->sums + from, own->i + from, own->first_key);
		RH_UNROLL
		for (int e = 0; e < part / 4; e++)
			ds[from / 8 + e / 2][e % 2] = rh_pack2<rh_bf16>(dp[0][e / 2][e % 2 * 2], dp[0][e / 2][e % 2 * 2 + 1]);
		tile_weighted_sum<D, part, 1>(own->dv, p, own->d_o + from * D, own->left);
		tile_weighted_sum<D, part, 1>(own->dk, dp, own->q + from * D, own->left);
	}
}

/* A warp's quarter of a tile's dq: (rows, cols) from query `row` of the tile and column `col` of the head on. */
template <int D> struct pass_quarter {
	static constexpr int rows = pass_layout<D>::N / 2, cols = D / 2;
	float d[rows / 16][cols / 8][4];
	int row, col;
};

/* Adds what these keys give to dq of the tile, ds^T in shared memory (64 keys, N), once all lower blocks have. A lane's four sums of a row
 * and 16 columns are one vector in the space: there columns are permuted within each 16. */
template <int D>
RH_DEVICE void pass_add_queries(const struct pass<D> *own, const rh_bf16 *ds, const struct attention_args &a,
                                const struct attention_tile &t)
{
	constexpr int N = pass_layout<D>::N;
	int lane = (int)threadIdx.x % RH_WARP, warp = (int)threadIdx.x / RH_WARP;
	struct key_blocks blocks = key_blocks_of<N>(a, t, own->i);
	int before = t.first / ATTENTION_ROWS - blocks.first, is_last = t.first / ATTENTION_ROWS + 1 == blocks.end;
	int *counter = pass_counter<N>(a, t, own->i, own->head) + warp;
	struct pass_quarter<D> quarter = {
	};
	constexpr int rows = pass_quarter<D>::rows, cols = pass_quarter<D>::cols, across = cols / 16, vectors = rows / 8 * across;
	quarter.row = warp / 2 * rows, quarter.col = warp % 2 * cols;
	if (before) {
		rh_await(counter, before);
		RH_UNROLL
		for (int v = 0; v < vectors; v++) {
			float(&d)[cols / 8][4] = quarter.d[v / across / 2];
			int half = v / across % 2, n = v % across, row = own->i + quarter.row + v / across * 8 + lane / 4;
			if (row >= t.lq)
				continue;
			int64_t col = (int64_t)own->head * D + quarter.col + n * 16 + lane % 4 * 4;
			float sum[4];
			rh_load16_fresh(sum, attention_at<float>(a.space, t.q0 + row, col));
			RH_UNROLL
			for (int e = 0; e < 4; e++)
				d[2 * n + e / 2][2 * half + e % 2] = sum[e];
		}
	}
	constexpr int folds = D % 64 == 0; /* the quarter's column passes the permutation of chunks by */
	int ds_place = tile_right_place<N>() ^ quarter.row, keys_place = folds ? own->left ^ quarter.col : own->left;
	RH_UNROLL
	for (int k = 0; k < ATTENTION_ROWS / 16; k++) {
		uint32_t left[rows / 16][4];
		RH_UNROLL
		for (int m = 0; m < rows / 16; m++) /* transposed as it is read */
			rh_ldmatrix_x4_trans(left[m], ds + tile_on<N>(ds_place, k * 16, m));
		RH_UNROLL
		for (int n = 0; n < cols / 16; n++) {
			uint32_t b[4];
			rh_ldmatrix_x4_trans(b, own->keys + tile_on<D>(keys_place, k * 16, (folds ? 0 : quarter.col / 16) + n));
			RH_UNROLL
			for (int m = 0; m < rows / 16; m++)
				mma_two(quarter.d[m][2 * n], quarter.d[m][2 * n + 1], left[m], b);
		}
	}
	RH_UNROLL
	for (int v = 0; v < vectors; v++) {
		const float(&d)[cols / 8][4] = quarter.d[v / across / 2];
		int half = v / across % 2, n = v % across, row = own->i + quarter.row + v / across * 8 + lane / 4;
		if (row >= t.lq)
			continue;
		int64_t col = (int64_t)own->head * D + quarter.col + n * 16;
		if (!is_last) {
			rh_vec<float> sum;
			RH_UNROLL
			for (int e = 0; e < 4; e++)
				sum.v[e] = d[2 * n + e / 2][2 * half + e % 2];
			rh_store16(attention_at<float>(a.space, t.q0 + row, col + lane % 4 * 4), sum);
			continue;
		}
		RH_UNROLL
		for (int e = 0; e < 2; e++)
			*(uint32_t *)attention_at<rh_bf16>(a.dq, t.q0 + row, col + e * 8 + lane % 4 * 2) =
			        rh_pack2<rh_bf16>(d[2 * n + e][2 * half] * a.scale, d[2 * n + e][2 * half + 1] * a.scale);
	}
	if (!is_last)
		rh_release(counter, before + 1);
}

template <int D> RH_KERNEL(ATTENTION_THREADS, 2) attention_pass(struct attention_args a)
{
	typedef struct pass_layout<D> layout;
	constexpr int N = layout::N, rows = layout::rows;
	RH_DYNAMIC_SHARED(rh_bf16, keys, 0, rows * D);
	RH_DYNAMIC_SHARED(rh_bf16, q, layout::q, 2 * N * D);
	RH_DYNAMIC_SHARED(rh_bf16, d_o, layout::d_o, 2 * N * D); /* values first; of a tile that is used up, ds^T */
	RH_DYNAMIC_SHARED(struct row_sums, sums, layout::sums, 2 * N);
	RH_SHARED(int, drawn, 1);
	int thread = (int)threadIdx.x, lane = thread % RH_WARP;
	if (thread == 0)
		*drawn = rh_fetch_add(pass_ticket(a)) - a.part.blocks_before;
	__syncthreads();
	int kv_head = a.part.first_head + *drawn % a.part.heads, col = kv_head * D;
	struct attention_tile t;
	if (!attention_find<rows>(a, a.start_k, a.part.first + *drawn / a.part.heads, &t))
		return;
	struct query_walk walk = query_walk_of<N>(a, t, kv_head);
	tile_copy<rows, D>(keys, a.k, t.k0 + t.first, col, t.rows);
	tile_copy<rows, D>(d_o, a.v, t.k0 + t.first, col, t.rows);
	rh_copy_async_commit();
	rh_copy_async_wait<0>();
	__syncthreads();
	struct pass<D> own;
	own.keys = keys, own.left = tile_left_place<D>(), own.right = tile_right_place<D>();
	own.warp_row = thread / RH_WARP * 16, own.first_key = t.first + own.warp_row;
	RH_UNROLL
	for (int k = 0; k < D / 16; k++)
		tile_left<D>(own.values[k][0], d_o, own.left, own.warp_row, k);
	key_sums_load<D>(own.dk[0], a.dk_sum, {t.k0 + own.first_key, col, t.rows - own.warp_row});
	key_sums_load<D>(own.dv[0], a.dv_sum, {t.k0 + own.first_key, col, t.rows - own.warp_row});
	__syncthreads(); /* values make room */
	if (!query_walk_is_over(walk)) {
		struct row_sums first = query_tile_copy<D, N>(a, t, walk, q, d_o);
		if (thread < N)
			sums[thread] = first;
	}
	rh_copy_async_commit();
	for (int at = 0; !query_walk_is_over(walk); at = N - at) { /* at: the tile's first row in shared memory */
		struct row_sums coming = {0, 0};
		uint32_t ds[N / 8][2];
		own.q = q + at * D, own.d_o = d_o + at * D, own.sums = sums + at, own.i = walk.i, own.head = walk.head;
		own.left = rh_opaque(own.left), own.right = rh_opaque(own.right);
		query_walk_on<N>(&walk);
		rh_copy_async_wait<0>();
		__syncthreads(); /* this tile is there, and nobody reads the one before, or its ds */
		if (!query_walk_is_over(walk))
			coming = query_tile_copy<D, N>(a, t, walk, q + (N - at) * D, d_o + (N - at) * D);
		rh_copy_async_commit();
		pass_add_keys<D>(&own, ds, a, t);
		if (thread < N)
			sums[N - at + thread] = coming; /* loaded while this tile was at work */
		__syncthreads();                        /* nobody reads this tile's dO any more */
		RH_UNROLL
		for (int n = 0; n < N / 8; n++) {
			RH_UNROLL
			for (int half = 0; half < 2; half++)
				*(uint32_t *)(own.d_o + tile_at<N>(own.warp_row + lane / 4 + half * 8, n) + lane % 4 * 2) = ds[n][half];
		}
		__syncthreads(); /* ds is whole */
		pass_add_queries<D>(&own, own.d_o, a, t);
	}
	__syncthreads(); /* q and dO make room */
	const float one[2] = {1, 1}, factor[2] = {a.scale, a.scale};
	int row = own.warp_row;
	key_sums_store<D>(a.dk_sum, a.dk, {t.k0 + t.first + row, col, t.rows - row}, q + row * D, own.dk[0], factor);
	key_sums_store<D>(a.dv_sum, a.dv, {t.k0 + t.first + row, col, t.rows - row}, d_o + row * D, own.dv[0], one);
}

template <int D> static int one_pass(const struct attention_args *a, CUstream_st *stream)
{
	dim3 queries(attention_tiles(a->q.rows, ATTENTION_ROWS, a->documents), (unsigned)a->heads);
	unsigned tiles = attention_tiles(a->k.rows, ATTENTION_ROWS, a->documents);
	int rc = RH_LAUNCH(attention_delta<D>, queries, ATTENTION_THREADS, 0, stream, *a);
	if (rc < 0)
		return rc;
	return attention_launches(a, tiles, a->kv_heads, [&](const struct attention_args *part, unsigned across) {
		unsigned keys = across * (unsigned)part->part.heads;
		return RH_LAUNCH(attention_pass<D>, keys, ATTENTION_THREADS, pass_layout<D>::bytes, stream, *part);
	});
}

int attention_one_pass(const struct attention_args *a, CUstream_st *stream)
{
	return a->dim == 64 ? one_pass<64>(a, stream) : a->dim == 96 ? one_pass<96>(a, stream) : one_pass<128>(a, stream);
}
