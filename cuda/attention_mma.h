/* Tiles of bf16 in shared memory, and their products by mma.m16n8k16. A tile is (rows, D), D a multiple of 32; the 16-byte chunks of a row
 * are permuted so that the eight rows that ldmatrix reads together lie in different banks, without padding. Fragments hold what rh_mma_bf16
 * (rh_cuda.h) says: of d, lane l has rows l/4 and l/4 + 8, columns 2*(l%4) and the next of each block of eight. */
#ifndef RH_CUDA_ATTENTION_MMA_H
#define RH_CUDA_ATTENTION_MMA_H

#include "cuda/attention_tile.h"

enum { ATTENTION_THREADS = 128, ATTENTION_WARPS = ATTENTION_THREADS / RH_WARP, ATTENTION_ROWS = 16 * ATTENTION_WARPS };

/* Element of the tile where a chunk begins. Rows of 64 elements are 8 chunks, one of each bank group; rows of 32 are 4 and rows of 96
 * are 12, so that rows two apart collide. D is 32, 64, 96, 128, 256 or 512. */
template <int D> RH_DEVICE int tile_at(int row, int chunk)
{
	if constexpr (D % 64 == 0)
		return (row * D + (row & 7) * 8) ^ chunk * 8; /* row * D has no bit of a chunk's */
	return row * D + (chunk ^ (row >> 1 & 3)) * 8;
}

/* A lane's address of its fragment row, from the tile's start. tile_left_place: for a left operand, or a right one stored transposed;
 * tile_right_place: for a right one as stored. tile_on advances such an address by `rows` rows (a multiple of 16) and 16 * `depth` columns.
 * The swizzle's xor commutes with both, so an address costs one instruction a column step and none a row step. */
template <int D> RH_DEVICE int tile_left_place()
{
	int lane = (int)threadIdx.x % RH_WARP;
	return tile_at<D>(lane % 16, lane / 16);
}

template <int D> RH_DEVICE int tile_right_place()
{
	int lane = (int)threadIdx.x % RH_WARP;
	return tile_at<D>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

template <int D> RH_DEVICE int tile_on(int place, int rows, int depth)
{
	if constexpr (D % 64 == 0)
		return (place ^ depth * 16) + rows * D;
	return (place ^ depth % 2 * 16) + depth / 2 * 32 + rows * D; /* four chunks change places among themselves */
}

/* Rows [row, row + rows) of a head that begins at column `col`, and zeros after them; rows >= 1. Asynchronous: the caller closes the group.
 */
template <int ROWS, int D, int THREADS = ATTENTION_THREADS>
RH_DEVICE void tile_copy(rh_bf16 *tile, const struct rh_view &from, int64_t row, int64_t col, int rows)
{
	constexpr int chunks = D / 8, step = THREADS / chunks, copies = ROWS * chunks / THREADS;
	const rh_bf16 *base = attention_at<rh_bf16>(from, row, col);
	if constexpr (D % 64 != 0 || step % 8 != 0) {
		RH_UNROLL
		for (int i = 0; i < copies; i++) {
			int at = i * THREADS + (int)threadIdx.x, r = at / chunks, chunk = at % chunks, there = r < rows;
			rh_copy_async(tile + tile_at<D>(r, chunk), base + (there ? r : 0) * from.stride + chunk * 8, there ? 16 : 0);
		}
		return;
	}
	int r = (int)threadIdx.x / chunks, chunk = (int)threadIdx.x % chunks;
	rh_bf16 *to = tile + tile_at<D>(r, chunk); /* `step` rows on, a multiple of 8, the permutation is the same */
	const rh_bf16 *at = base + r * from.stride + chunk * 8;
	RH_UNROLL
	for (int i = 0; i < copies; i++, at += step * from.stride) {
		int there = r + i * step < rows;
		rh_copy_async(to + i * step * D, there ? at : base, there ? 16 : 0);
	}
}

/* Rows [row, row+16), columns [16 depth, 16 depth + 16) as the left operand; `place` as of tile_left_place. */
template <int D> RH_DEVICE void tile_left(uint32_t (&a)[4], const rh_bf16 *tile, int place, int row, int depth)
{
	rh_ldmatrix_x4(a, tile + tile_on<D>(place, row, depth));
}

/* Whether the SM's mma is fast, and it has shared memory for `blocks` blocks of `bytes`. The system takes 1 KB of each. */
static inline int attention_fits(int bytes, int blocks)
{
	return rh_mma_is_fast() && rh_shared_bytes() >= blocks * (bytes + 1024);
}

/* Whether warps take two tiles of 16 rows, in blocks of `bytes`. */
static inline int attention_takes_two_tiles(int bytes)
{
	return attention_fits(bytes, 2);
}

RH_DEVICE void mma_two(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4], const uint32_t (&b)[4])
{
	const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
	rh_mma_bf16(d0, a, b0);
	rh_mma_bf16(d1, a, b1);
}

/* s (16 M, N) += a (16 M,16) times columns [16 depth, 16 depth + 16) of the tile (N, D), transposed; `place` as of tile_right_place. */
template <int D, int N, int M>
RH_DEVICE void tile_scores(float (&s)[M][N / 8][4], const uint32_t (&a)[M][4], const rh_bf16 *tile, int place, int depth)
{
	RH_UNROLL
	for (int n = 0; n < N / 16; n++) {
		uint32_t b[4];
		rh_ldmatrix_x4(b, tile + tile_on<D>(place, n * 16, depth));
		RH_UNROLL
		for (int m = 0; m < M; m++)
			mma_two(s[m][2 * n], s[m][2 * n + 1], a[m], b);
	}
}

/* d (16 M, COLS) += a (16 M,16) times rows [16 depth, 16 depth + 16) of the tile (N, D), of its COLS columns from `place` on; as of
 * tile_left_place. */
template <int D, int COLS, int M>
RH_DEVICE void tile_product(float (&d)[M][COLS / 8][4], const uint32_t (&a)[M][4], const rh_bf16 *tile, int place, int depth)
{
	RH_UNROLL
	for (int n = 0; n < COLS / 16; n++) {
		uint32_t b[4];
		rh_ldmatrix_x4_trans(b, tile + tile_on<D>(place, depth * 16, n));
		RH_UNROLL
		for (int m = 0; m < M; m++)
			mma_two(d[m][2 * n], d[m][2 * n + 1], a[m], b);
	}
}

/* d (16 M, COLS) += p (16 M, N), rounded to bf16, times COLS columns of the tile (N, D), from `place` on; as of tile_left_place. */
template <int D, int N, int M, int COLS = D>
RH_DEVICE void tile_weighted_sum(float (&d)[M][COLS / 8][4], const float (&p)[M][N / 8][4], const rh_bf16 *tile, int place)
{
	RH_UNROLL
	for (int k = 0; k < N / 16; k++) {
		uint32_t a[M][4];
		RH_UNROLL
		for (int m = 0; m < M; m++) {
			RH_UNROLL
			for (int i = 0; i < 4; i++)
				a[m][i] = rh_pack2<rh_bf16>(p[m][2 * k + i / 2][i % 2 * 2], p[m][2 * k + i / 2][i % 2 * 2 + 1]);
		}
		tile_product<D, COLS, M>(d, a, tile, place, k);
	}
}

/* Of row `half` of the lane's two, the columns that are not in [first, end) become `value`; both count from the lane's first column. */
template <int N> RH_DEVICE void tile_hide(float (&s)[N / 8][4], int half, int first, int end, float value)
{
	RH_UNROLL
	for (int n = 0; n < N / 8; n++) {
		RH_UNROLL
		for (int e = 0; e < 2; e++)
			if (n * 8 + e < first || n * 8 + e >= end)
				s[n][2 * half + e] = value;
	}
}

/* The lane's rows are queries i and i + 8, its first column key j: what they do not see. */
template <int N>
RH_DEVICE void tile_hide_keys(float (&s)[N / 8][4], const struct attention_args &a, const struct attention_tile &t, int i, int j,
                              float value)
{
	RH_UNROLL
	for (int half = 0; half < 2; half++)
		tile_hide<N>(s, half, attention_first_key(a, t, i + half * 8) - j, attention_end_key(a, t, i + half * 8) - j, value);
}

/* The lane's rows are keys j and j + 8, its first column query i: which of the queries do not see them. Keys behind the document's last are
 * seen by none. */
template <int N>
RH_DEVICE void tile_hide_queries(float (&s)[N / 8][4], const struct attention_args &a, const struct attention_tile &t, int j, int i)
{
	RH_UNROLL
	for (int half = 0; half < 2; half++) {
		int key = j + half * 8, first = key < t.lk ? key - (t.lk - t.lq) - a.ahead - i : N;
		tile_hide<N>(s, half, first, a.window ? first + a.ahead + a.window : N, 0);
	}
}

/* The warp's 16 rows of d, each half (rows l/4, rows l/4 + 8) times its factor, to rows [row, row + rows) of `to` at column `col`. They go
 * through `tile` (16, D), which no other warp uses by now, to leave as 16-byte stores; rows may be 0 or less. */
template <int D>
RH_DEVICE void tile_store(const struct rh_view &to, int64_t row, int64_t col, int rows, rh_bf16 *tile, const float (&d)[D / 8][4],
                          const float (&factor)[2])
{
	int lane = (int)threadIdx.x % RH_WARP;
	RH_UNROLL
	for (int n = 0; n < D / 8; n++) {
		RH_UNROLL
		for (int half = 0; half < 2; half++)
			*(uint32_t *)(tile + tile_at<D>(lane / 4 + half * 8, n) + lane % 4 * 2) =
			        rh_pack2<rh_bf16>(d[n][2 * half] * factor[half], d[n][2 * half + 1] * factor[half]);
	}
	rh_warp_sync();
	RH_UNROLL
	for (int i = 0; i < D / 16; i++) {
		int at = i * RH_WARP + lane, r = at / (D / 8), chunk = at % (D / 8);
		if (r < rows)
			rh_store16(attention_at<rh_bf16>(to, row + r, col + chunk * 8), rh_load16(tile + tile_at<D>(r, chunk)));
	}
}

#endif
