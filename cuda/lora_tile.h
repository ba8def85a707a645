/* What the kernels of adapters share: arguments, tiles in shared memory, fragments of mma.m16n8k16, and dropout within them. For .cu files
 * only.
 *
 * One launch serves all adapters of a joint. Blocks of 4 warps; a tile of a wide operand is 64 rows of 64 elements. All operands are bf16
 * whose rows begin on 16 bytes and whose lengths are multiples of 8; gradients are fp32. */
#ifndef RH_CUDA_LORA_TILE_H
#define RH_CUDA_LORA_TILE_H

#include "cuda/philox.h"

enum { LORA_THREADS = 128, LORA_WARPS = LORA_THREADS / RH_WARP, LORA_TILE = 64, LORA_STAGES = 3 };

/* Modules that are there, in order. */
struct lora_args {
	struct rh_view wide, low[RH_LORA_MODULES], matrix[RH_LORA_MODULES];
	int first[RH_LORA_MODULES], width[RH_LORA_MODULES]; /* columns of wide: a module's own, or all */
	float scale[RH_LORA_MODULES];
	struct dropout_key key[RH_LORA_MODULES];
	int modules, drops;
	int64_t first_row;               /* of dropout's elements */
	int pieces[RH_LORA_MODULES + 1]; /* of work, a module's first */
};

/* Which module a piece of work belongs to; *piece becomes its number within it. */
RH_DEVICE int lora_module(const struct lora_args &a, int *piece)
{
	int m = 0;
	while (m + 1 < a.modules && *piece >= a.pieces[m + 1])
		m++;
	*piece -= a.pieces[m];
	return m;
}

/* Element of a tile of rows of COLS where a chunk of 8 begins: the eight rows that ldmatrix reads together lie in different banks. */
template <int COLS> RH_DEVICE int lora_at(int row, int chunk)
{
	static_assert(COLS == 64 || COLS == 16, "8 or 2 chunks a row");
	return row * COLS + (COLS == 64 ? chunk ^ (row & 7) : chunk ^ (row >> 2 & 1)) * 8;
}

/* ROWS rows of COLS of a matrix from (row, col) on, of which `rows` and `cols` (a multiple of 8) exist, zeros beyond. Asynchronous: the
 * caller closes the group. */
template <int ROWS, int COLS>
RH_DEVICE void lora_copy(rh_bf16 *tile, const struct rh_view &from, int64_t row, int64_t col, int64_t rows, int64_t cols)
{
	constexpr int chunks = COLS / 8, copies = ROWS * chunks;
	const rh_bf16 *base = (const rh_bf16 *)from.data;
	RH_UNROLL
	for (int i = 0; i < copies; i += LORA_THREADS) {
		int at = i + (int)threadIdx.x, r = at / chunks, chunk = at % chunks;
		if (copies % LORA_THREADS && at >= copies)
			break;
		int there = r < rows && chunk * 8 < cols;
		rh_copy_async(tile + lora_at<COLS>(r, chunk), there ? base + (row + r) * from.stride + col + chunk * 8 : base,
		              there ? 16 : 0);
	}
}

/* A left operand's 16 by 16 from (row, depth) on, of a tile whose rows are its rows. */
template <int COLS> RH_DEVICE void lora_left(uint32_t (&a)[4], const rh_bf16 *tile, int row, int depth)
{
	int lane = (int)threadIdx.x % RH_WARP;
	rh_ldmatrix_x4(a, tile + lora_at<COLS>(row + lane % 16, depth / 8 + lane / 16));
}

/* The same of a tile whose rows are depths. */
template <int COLS> RH_DEVICE void lora_left_turned(uint32_t (&a)[4], const rh_bf16 *tile, int row, int depth)
{
	int lane = (int)threadIdx.x % RH_WARP;
	rh_ldmatrix_x4_trans(a, tile + lora_at<COLS>(depth + lane / 16 * 8 + lane % 8, row / 8 + lane / 8 % 2));
}

/* A right operand's 16 columns from `col` on, 16 deep, as two of eight columns: of a tile whose rows are columns; of one whose rows are
 * depths. */
template <int COLS> RH_DEVICE void lora_right(uint32_t (&b)[4], const rh_bf16 *tile, int col, int depth)
{
	int lane = (int)threadIdx.x % RH_WARP;
	rh_ldmatrix_x4(b, tile + lora_at<COLS>(col + lane / 16 * 8 + lane % 8, depth / 8 + lane / 8 % 2));
}

template <int COLS> RH_DEVICE void lora_right_turned(uint32_t (&b)[4], const rh_bf16 *tile, int col, int depth)
{
	int lane = (int)threadIdx.x % RH_WARP;
	rh_ldmatrix_x4_trans(b, tile + lora_at<COLS>(depth + lane % 16, col / 8 + lane / 16));
}

RH_DEVICE void lora_mma_two(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4], const uint32_t (&b)[4])
{
	const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
	rh_mma_bf16(d0, a, b0);
	rh_mma_bf16(d1, a, b1);
}

/* Two elements of a fragment: times `scale` and rounded where their bit is set, else 0. */
RH_DEVICE uint32_t lora_drop(uint32_t pair, uint32_t low, uint32_t high, float scale)
{
	return rh_pack2<rh_bf16>(low & 1 ? rh_bits_float(pair << 16) * scale : 0, high & 1 ? rh_bits_float(pair & 0xffff0000u) * scale : 0);
}

/* Mask words of a warp's 16 rows by 64 columns from (row, col) on, of a matrix of `cols` columns: lane l has half l % 2 of row l / 2. */
RH_DEVICE uint32_t lora_row_mask(const struct dropout_key &key, int64_t row, int64_t col, int64_t cols)
{
	int lane = (int)threadIdx.x % RH_WARP;
	return kept_run(key, (row + lane / 2) * cols + col + lane % 2 * 32, 32);
}

/* Of these, the word of fragment row l / 4 (+ 8) that has column `col`; bit 0 is the lane's first of the eight columns from there on. */
RH_DEVICE uint32_t lora_row_bits(uint32_t word, int half, int col)
{
	int lane = (int)threadIdx.x % RH_WARP;
	return rh_shuffle(word, (lane / 4 + half * 8) * 2 + col / 32) >> (col % 32 + lane % 4 * 2);
}

/* Launchers: 0, or a negative errno. */
int lora_low(const struct lora_args *a, bool turned, struct CUstream_st *stream);
int lora_part(const struct lora_args *a, struct CUstream_st *stream);
int lora_input_gradient(const struct lora_args *a, struct CUstream_st *stream);
int lora_gradient(const struct lora_args *a, bool of_b, struct CUstream_st *stream);

#endif
