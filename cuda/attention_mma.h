/* Tiles of bf16 in shared memory, and their products by mma.m16n8k16. A tile is (rows, D), D a multiple of 32; the 16-byte chunks of a row
 * are permuted so that the eight rows that ldmatrix reads together lie in different banks, without padding. Fragments hold what rh_mma_bf16
 * (rh_cuda.h) says: of d, lane l has rows l/4 and l/4 + 8, columns 2*(l%4) and the next of each block of eight. */
#ifndef RH_CUDA_ATTENTION_MMA_H
#define RH_CUDA_ATTENTION_MMA_H

#include "cuda/attention_tile.h"

enum { ATTENTION_THREADS = 128, ATTENTION_WARPS = ATTENTION_THREADS / RH_WARP, ATTENTION_ROWS = 16 * ATTENTION_WARPS };

/* Element of the tile where a chunk begins. Rows of 64 elements are 8 chunks, one of each bank group; rows of 96 are 12, so that
 * rows two apart collide. D is 64, 96 or 128. */
template <int D> RH_DEVICE int tile_at(int row, int chunk)
{
	if constexpr (D % 64 == 0)
		return (row * D + (row & 7) * 8) ^ chunk * 8; /* row * D has no bit of a chunk's */
	return row * D + (chunk ^ (row >> 1 & 3)) * 8;
}

/* Rows [row, row + rows) of a head that begins at column `col`, and zeros after them; rows >= 1. Asynchronous: the caller closes the group.
 */
template <int ROWS, int D> RH_DEVICE void tile_copy(rh_bf16 *tile, const struct rh_view &from, int64_t row, int64_t col, int rows)
{
	const rh_bf16 *base = attention_at<rh_bf16>(from, row, col);
	RH_UNROLL
	for (int i = 0; i < ROWS * D / 8 / ATTENTION_THREADS; i++) {
		int at = i * ATTENTION_THREADS + (int)threadIdx.x, r = at / (D / 8), chunk = at % (D / 8);
		int there = r < rows;
		rh_copy_async(tile + tile_at<D>(r, chunk), base + (there ? r : 0) * from.stride + chunk * 8, there ? 16 : 0);
	}
}

/* Rows [row, row+16), columns [16 depth, 16 depth + 16) as the left operand. */
template <int D> RH_DEVICE void tile_left(uint32_t (&a)[4], const rh_bf16 *tile, int row, int depth)
{
	int lane = (int)threadIdx.x % RH_WARP;
	rh_ldmatrix_x4(a, tile + tile_at<D>(row + lane % 16, depth * 2 + lane / 16));
}

RH_DEVICE void mma_two(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4], const uint32_t (&b)[4])
{
	const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
	rh_mma_bf16(d0, a, b0);
	rh_mma_bf16(d1, a, b1);
}

/* s (16, N) += a (16,16) times columns [16 depth, 16 depth + 16) of the tile (N, D), transposed. */
template <int D, int N> RH_DEVICE void tile_scores(float (&s)[N / 8][4], const uint32_t (&a)[4], const rh_bf16 *tile, int depth)
{
	int lane = (int)threadIdx.x % RH_WARP;
	RH_UNROLL
	for (int n = 0; n < N / 16; n++) {
		uint32_t b[4];
		rh_ldmatrix_x4(b, tile + tile_at<D>(n * 16 + lane / 16 * 8 + lane % 8, depth * 2 + lane / 8 % 2));
		mma_two(s[2 * n], s[2 * n + 1], a, b);
	}
}

/* d (16, D) += p (16, N), rounded to bf16, times the tile (N, D). */
template <int D, int N> RH_DEVICE void tile_weighted_sum(float (&d)[D / 8][4], const float (&p)[N / 8][4], const rh_bf16 *tile)
{
	int lane = (int)threadIdx.x % RH_WARP;
	RH_UNROLL
	for (int k = 0; k < N / 16; k++) {
		const uint32_t a[4] = {rh_pack2<rh_bf16>(p[2 * k][0], p[2 * k][1]), rh_pack2<rh_bf16>(p[2 * k][2], p[2 * k][3]),
		                       rh_pack2<rh_bf16>(p[2 * k + 1][0], p[2 * k + 1][1]),
		                       rh_pack2<rh_bf16>(p[2 * k + 1][2], p[2 * k + 1][3])};
		RH_UNROLL
		for (int n = 0; n < D / 16; n++) {
			uint32_t b[4];
			rh_ldmatrix_x4_trans(b, tile + tile_at<D>(k * 16 + lane % 16, n * 2 + lane / 16));
			mma_two(d[2 * n], d[2 * n + 1], a, b);
		}
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
