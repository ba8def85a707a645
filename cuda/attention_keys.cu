/* Attention's backward for large SMs whose mma is fast (sm_80 for heads of 128 elements, sm_90 for those of 256 too): dk and dv of a block
 * of keys by 8 warps, after dq (attention_backward.cu).
 *
 * Tile: a block takes KEYS keys of one key head (128, or 64 of 256 elements) and walks the queries that see them, all heads of its group,
 * 64 at a time, two tiles by turns. Of the scores, computed transposed, a warp makes KEYS / WK keys by 8 WK queries; p and ds go through
 * shared memory; of dk and dv a warp then makes KEYS / GK keys by D GK / 8 columns. So a fragment from shared memory serves two to four
 * mma, where a warp that keeps its own rows' p in registers (attention_dk_dv, attention_256.cu) has two. Shared memory: 161 KB, 209 for
 * 256 elements; 255 registers a lane; one block an SM. FLOPs 8 D a pair.
 *
 * Measured on an H200, 16384 tokens, 32 heads of 8: the whole backward of 128 elements 3.0 ms for documents of 2048 tokens and 20.9 for
 * one (3.2 and 21.7 with attention_dk_dv), of 256 (16 heads of 4) 3.7 and 27.1 (5.7 and 36.6 with attention_256.cu). With dq in the same
 * pass, its sums in memory, it was 23.8 and 36.1.
 *
 * Sums: mma's within 16 queries, then in the walk's order. Blocks and tiles are longer than those of smaller SMs, so dk and dv are other
 * bits there. */
#include "cuda/attention_walk.h"

template <int D_, int KEYS_, int WK, int GK> struct keys_layout {
	static constexpr int D = D_, KEYS = KEYS_, N = 64, WARPS = 8, THREADS = WARPS * RH_WARP;
	static constexpr int s_across = WARPS / WK, s_keys = KEYS / WK, s_queries = N / s_across, s_tiles = s_keys / 16;
	static constexpr int g_across = WARPS / GK, g_keys = KEYS / GK, g_cols = D / g_across, g_tiles = g_keys / 16;
	static constexpr int own = KEYS * D * 2, tile = N * D * 2, weights = KEYS * N * 2; /* bytes */
	static constexpr int values = own, q = 2 * own, d_o = q + 2 * tile, p = d_o + 2 * tile, ds = p + weights, sums = ds + weights,
	                     bytes = sums + 2 * N * (int)sizeof(struct row_sums);
	static_assert(D % 64 == 0 && g_cols % 32 == 0 && THREADS >= N, "the permutation folds");
	static_assert(WARPS * 16 * g_cols * 2 <= 4 * tile, "gradients fit the tiles that they leave through");
};

/* d (16 TILES, COLS) += left (16 TILES rows of N, from `row`) times the tile's (N, D) columns, of which `place` names the first. */
template <int D, int N, int TILES, int COLS>
RH_DEVICE void weighted_columns(float (&d)[TILES][COLS / 8][4], const rh_bf16 *left, int left_place, int row, const rh_bf16 *tile,
                                int place)
{
	RH_UNROLL
	for (int k = 0; k < N / 16; k++) {
		uint32_t own[TILES][4];
		RH_UNROLL
		for (int m = 0; m < TILES; m++)
			tile_left<N>(own[m], left, left_place, row + m * 16, k);
		tile_product<D, COLS, TILES>(d, own, tile, place, k);
	}
}

/* Where a warp's share of the scores lies, and what its fragments begin with. */
struct scores_part {
	const rh_bf16 *keys, *values, *q, *d_o;
	const struct row_sums *sums;
	int left, right, key, query, first_query; /* first_query: of the tile, in the document */
};

/* Its p and ds, to their tiles. */
template <typename L>
RH_DEVICE void scores_make(rh_bf16 *p_tile, rh_bf16 *ds_tile, const struct attention_args &a, const struct attention_tile &t,
                           const struct scores_part &at)
{
	constexpr int D = L::D, N = L::N;
	int lane = (int)threadIdx.x % RH_WARP;
	float p[L::s_tiles][L::s_queries / 8][4] = {}, ds[L::s_tiles][L::s_queries / 8][4] = {};
	RH_UNROLL
	for (int k = 0; k < D / 16; k++) {
		uint32_t own[L::s_tiles][4];
		RH_UNROLL
		for (int m = 0; m < L::s_tiles; m++)
			tile_left<D>(own[m], at.keys, at.left, at.key + m * 16, k);
		tile_scores<D, L::s_queries, L::s_tiles>(p, own, at.q + at.query * D, at.right, k);
		RH_UNROLL
		for (int m = 0; m < L::s_tiles; m++)
			tile_left<D>(own[m], at.values, at.left, at.key + m * 16, k);
		tile_scores<D, L::s_queries, L::s_tiles>(ds, own, at.d_o + at.query * D, at.right, k);
	}
	query_weights<L::s_queries, L::s_tiles>(p, ds, a, t, at.sums + at.query, at.first_query + at.query, t.first + at.key);
	RH_UNROLL
	for (int m = 0; m < L::s_tiles; m++) {
		RH_UNROLL
		for (int n = 0; n < L::s_queries / 8; n++) {
			RH_UNROLL
			for (int half = 0; half < 2; half++) {
				int place = tile_at<N>(at.key + m * 16 + lane / 4 + half * 8, at.query / 8 + n) + lane % 4 * 2;
				*(uint32_t *)(p_tile + place) = rh_pack2<rh_bf16>(p[m][n][2 * half], p[m][n][2 * half + 1]);
				*(uint32_t *)(ds_tile + place) = rh_pack2<rh_bf16>(ds[m][n][2 * half], ds[m][n][2 * half + 1]);
			}
		}
	}
}

template <typename L> RH_KERNEL(L::THREADS, 1) attention_keys(struct attention_args a)
{
	constexpr int D = L::D, N = L::N, KEYS = L::KEYS;
	RH_DYNAMIC_SHARED(rh_bf16, keys, 0, KEYS * D);
	RH_DYNAMIC_SHARED(rh_bf16, values, L::values, KEYS * D);
	RH_DYNAMIC_SHARED(rh_bf16, q, L::q, 2 * N * D);
	RH_DYNAMIC_SHARED(rh_bf16, d_o, L::d_o, 2 * N * D);
	RH_DYNAMIC_SHARED(rh_bf16, p_tile, L::p, KEYS * N);
	RH_DYNAMIC_SHARED(rh_bf16, ds_tile, L::ds, KEYS * N);
	RH_DYNAMIC_SHARED(struct row_sums, sums, L::sums, 2 * N);
	int thread = (int)threadIdx.x, warp = thread / RH_WARP;
	int kv_head = a.part.first_head + (int)blockIdx.x % a.part.heads, col = kv_head * D;
	struct attention_tile t;
	if (!attention_find<KEYS>(a, a.start_k, a.part.first + (int)blockIdx.x / a.part.heads, &t))
		return;
	struct query_walk walk = query_walk_of<N>(a, t, kv_head);
	tile_copy<KEYS, D, L::THREADS>(keys, a.k, t.k0 + t.first, col, t.rows);
	tile_copy<KEYS, D, L::THREADS>(values, a.v, t.k0 + t.first, col, t.rows);
	if (!query_walk_is_over(walk)) {
		struct row_sums first = query_tile_copy<D, N, L::THREADS>(a, t, walk, q, d_o);
		if (thread < N)
			sums[thread] = first;
	}
	rh_copy_async_commit();
	int s_key = warp % (L::WARPS / L::s_across) * L::s_keys, s_query = warp / (L::WARPS / L::s_across) * L::s_queries;
	int g_key = warp / L::g_across * L::g_keys, g_col = warp % L::g_across * L::g_cols;
	int left = tile_left_place<D>(), right = tile_right_place<D>(), weights_left = tile_left_place<N>();
	float dk[L::g_tiles][L::g_cols / 8][4], dv[L::g_tiles][L::g_cols / 8][4];
	RH_UNROLL
	for (int m = 0; m < L::g_tiles; m++) {
		int row = g_key + m * 16;
		key_sums_load<L::g_cols>(dk[m], a.dk_sum, {t.k0 + t.first + row, col + g_col, t.rows - row});
		key_sums_load<L::g_cols>(dv[m], a.dv_sum, {t.k0 + t.first + row, col + g_col, t.rows - row});
	}
	for (int at = 0; !query_walk_is_over(walk); at = N - at) { /* at: the tile's first row in shared memory */
		struct row_sums coming = {0, 0};
		int i = walk.i;
		const rh_bf16 *own_q = q + at * D, *own_d_o = d_o + at * D;
		left = rh_opaque(left), right = rh_opaque(right), weights_left = rh_opaque(weights_left);
		query_walk_on<N>(&walk);
		rh_copy_async_wait<0>();
		__syncthreads(); /* this tile is there, and nobody reads the one before, or its weights */
		if (!query_walk_is_over(walk))
			coming = query_tile_copy<D, N, L::THREADS>(a, t, walk, q + (N - at) * D, d_o + (N - at) * D);
		rh_copy_async_commit();
		scores_make<L>(p_tile, ds_tile, a, t, {keys, values, own_q, own_d_o, sums + at, left, right, s_key, s_query, i});
		if (thread < N)
			sums[N - at + thread] = coming;
		__syncthreads(); /* p and ds are whole */
		weighted_columns<D, N, L::g_tiles, L::g_cols>(dv, p_tile, weights_left, g_key, own_d_o, left ^ g_col);
		weighted_columns<D, N, L::g_tiles, L::g_cols>(dk, ds_tile, weights_left, g_key, own_q, left ^ g_col);
	}
	rh_copy_async_wait<0>();
	__syncthreads(); /* q and dO make room */
	const float one[2] = {1, 1}, factor[2] = {a.scale, a.scale};
	rh_bf16 *store = q + warp * 16 * L::g_cols;
	RH_UNROLL
	for (int m = 0; m < L::g_tiles; m++) {
		int row = g_key + m * 16;
		key_sums_store<L::g_cols>(a.dk_sum, a.dk, {t.k0 + t.first + row, col + g_col, t.rows - row}, store, dk[m], factor);
		rh_warp_sync();
		key_sums_store<L::g_cols>(a.dv_sum, a.dv, {t.k0 + t.first + row, col + g_col, t.rows - row}, store, dv[m], one);
		rh_warp_sync();
	}
}

typedef struct keys_layout<128, 128, 4, 4> keys_128;
typedef struct keys_layout<256, 64, 4, 2> keys_256;

template <typename L> static int launch(const struct attention_args *a, CUstream_st *stream)
{
	unsigned tiles = attention_tiles(a->k.rows, L::KEYS, a->documents);
	return attention_launches(a, tiles, a->kv_heads, [&](const struct attention_args *part, unsigned across) {
		return RH_LAUNCH(attention_keys<L>, across * (unsigned)part->part.heads, L::THREADS, L::bytes, stream, *part);
	});
}

int attention_has_keys(int dim)
{
	return rh_mma_is_fast() && (dim == 128 || dim == 256) &&
	       attention_fits(dim == 128 ? (int)keys_128::bytes : (int)keys_256::bytes, 1);
}

int attention_keys_dk_dv(const struct attention_args *a, CUstream_st *stream)
{
	return a->dim == 128 ? launch<keys_128>(a, stream) : launch<keys_256>(a, stream);
}
