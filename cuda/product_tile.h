/* The tile of all products by mma.sync (grouped_gemm.cu: experts, sums in fp32; half_gemm.cu: one product, sums of chunks in fp16). For .cu
 * files only.
 *
 * R x 128 a block of 8 warps, 2 by 4, each R/2 x 32 by mma.m16n8k16 (64 sums a lane for R 128), 32 deep. Shared memory: 3 stages of 16 KB
 * (R 64: 4 of 12) in 48 KB, filled by cp.async two (three) stages ahead; the first stages of the next tile are on their way while this
 * one's sums are stored. The 16-byte chunks of a row are permuted so that the eight rows that ldmatrix reads together lie in different
 * banks, for operands whose rows run along k and across it alike. No transposed copy is ever made: operands that lie across k are turned by
 * ldmatrix.
 *
 * Sums: mma's within 16 of k, then in ascending order; a tile's sum is one block's. Rows and depths that do not exist are zeros. */
#ifndef RH_CUDA_PRODUCT_TILE_H
#define RH_CUDA_PRODUCT_TILE_H

#include "cuda/grouped_tile.h"

enum { THREADS = 256, COLS = 128, DEPTH = 32, CHUNK_LENGTH = 8, WARP_COLS = 32, WARPS_ACROSS = COLS / WARP_COLS };

/* Shared memory of a block: stages of a tile of a, and of b. */
template <int ROWS> struct grouped_layout {
	static constexpr int stages = ROWS > 64 ? 3 : 4, a = ROWS * DEPTH, b = COLS * DEPTH, bytes = stages * (a + b) * 2;
};

/* An operand from a tile on: `lanes` rows of d (columns, of b) exist. Rows in memory run along k when it is deep, else
 * across. */
struct grouped_side {
	const rh_bf16 *data;
	int stride, lanes;
};

/* Element of a tile of LANES where the chunk of (lane, k) begins: rows of 32 along k, two of which span the banks, or of LANES across it.
 */
template <int LANES, bool DEEP> RH_DEVICE int place_of(int lane, int k)
{
	if constexpr (DEEP)
		return lane * DEPTH + (k / CHUNK_LENGTH ^ (lane >> 1 & 3)) * CHUNK_LENGTH;
	return k * LANES + (lane / CHUNK_LENGTH ^ (k & 7)) * CHUNK_LENGTH;
}

/* Depths [k, k + 32) of a side, of `depth` in all, to a tile, zeros where there is nothing. Asynchronous: the caller closes the group. */
template <int LANES, bool DEEP> RH_DEVICE void side_copy(rh_bf16 *tile, const struct grouped_side &side, int depth, int k)
{
	constexpr int chunks = (DEEP ? DEPTH : LANES) / CHUNK_LENGTH,
	              step = THREADS / chunks; /* of a row; rows copied at once, a multiple of 8 */
	int row = (int)threadIdx.x / chunks, col = (int)threadIdx.x % chunks * CHUNK_LENGTH;
	rh_bf16 *to = tile + place_of<LANES, DEEP>(DEEP ? row : col, DEEP ? col : row);
	int left = DEEP ? depth - k - col : side.lanes - col; /* elements from here to the row's end */
	left = left < 0 ? 0 : left < CHUNK_LENGTH ? left : (int)CHUNK_LENGTH;
	int rows = DEEP ? side.lanes : depth - k;
	const rh_bf16 *from = side.data + (DEEP ? k : (int64_t)k * side.stride) + col;
	RH_UNROLL
	for (int i = 0; i < LANES * DEPTH / CHUNK_LENGTH / THREADS; i++, row += step) {
		int there = row < rows ? left : 0;
		rh_copy_async(to + i * step * chunks * CHUNK_LENGTH, there ? from + (int64_t)row * side.stride : side.data, there * 2);
	}
}

/* Where a lane of a warp reads the 16 by 16 fragment whose first lane is `lane`: of the left operand, and of two right ones of eight lanes.
 */
template <int LANES, bool DEEP> RH_DEVICE int left_place(int lane)
{
	int own = (int)threadIdx.x % RH_WARP;
	return DEEP ? place_of<LANES, DEEP>(lane + own % 16, own / 16 * 8)
	            : place_of<LANES, DEEP>(lane + own / 8 % 2 * 8, own / 16 * 8 + own % 8);
}

template <int LANES, bool DEEP> RH_DEVICE int right_place(int lane)
{
	int own = (int)threadIdx.x % RH_WARP;
	return DEEP ? place_of<LANES, DEEP>(lane + own / 16 * 8 + own % 8, own / 8 % 2 * 8)
	            : place_of<LANES, DEEP>(lane + own / 16 * 8, own % 16);
}

/* The same, `lanes` and `k` further on: multiples of 16 that no chunk number carries over, so that the permutation's exclusive or passes
 * them by. */
template <int LANES, bool DEEP> RH_DEVICE int place_on(int place, int lanes, int k)
{
	return DEEP ? (place ^ k) + lanes * DEPTH : (place ^ lanes) + k * LANES;
}

template <bool DEEP> RH_DEVICE void fragment_load(uint32_t (&r)[4], const rh_bf16 *at)
{
	if constexpr (DEEP)
		rh_ldmatrix_x4(r, at);
	else
		rh_ldmatrix_x4_trans(r, at);
}

/* sum (ROWS / 2, 32) += the warp's lanes of a stage of a times those of b; left and right are their places. */
template <int ROWS, bool A_DEEP, bool B_DEEP>
RH_DEVICE void stage_multiply(float (&sum)[ROWS / 32][4][4], const rh_bf16 *a, const rh_bf16 *b, int left, int right)
{
	RH_UNROLL
	for (int k = 0; k < DEPTH; k += 16) {
		uint32_t of_b[2][4];
		RH_UNROLL
		for (int n = 0; n < 2; n++)
			fragment_load<B_DEEP>(of_b[n], b + place_on<COLS, B_DEEP>(right, n * 16, k));
		RH_UNROLL
		for (int i = 0; i < ROWS / 32; i++) {
			uint32_t of_a[4];
			fragment_load<A_DEEP>(of_a, a + place_on<ROWS, A_DEEP>(left, i * 16, k));
			RH_UNROLL
			for (int n = 0; n < 4; n++) {
				const uint32_t eight[2] = {of_b[n / 2][n % 2 * 2], of_b[n / 2][n % 2 * 2 + 1]};
				rh_mma_bf16(sum[i][n], of_a, eight);
			}
		}
	}
}

/* bf16 to fp16, times a power of two. */
RH_DEVICE void fragment_halve(uint32_t (&r)[4], float times)
{
	RH_UNROLL
	for (int i = 0; i < 4; i++)
		r[i] = rh_pack_f16(times * rh_bits_float(r[i] << 16), times * rh_bits_float(r[i] & 0xffff0000u));
}

/* stage_multiply into fp16, both sides scaled. */
template <int ROWS, bool A_DEEP, bool B_DEEP>
RH_DEVICE void stage_multiply_f16(uint32_t (&part)[ROWS / 32][4][2], const rh_bf16 *a, const rh_bf16 *b, int left, int right, float times_a,
                                  float times_b)
{
	RH_UNROLL
	for (int k = 0; k < DEPTH; k += 16) {
		uint32_t of_b[2][4];
		RH_UNROLL
		for (int n = 0; n < 2; n++) {
			fragment_load<B_DEEP>(of_b[n], b + place_on<COLS, B_DEEP>(right, n * 16, k));
			fragment_halve(of_b[n], times_b);
		}
		RH_UNROLL
		for (int i = 0; i < ROWS / 32; i++) {
			uint32_t of_a[4];
			fragment_load<A_DEEP>(of_a, a + place_on<ROWS, A_DEEP>(left, i * 16, k));
			fragment_halve(of_a, times_a);
			RH_UNROLL
			for (int n = 0; n < 4; n++) {
				const uint32_t eight[2] = {of_b[n / 2][n % 2 * 2], of_b[n / 2][n % 2 * 2 + 1]};
				rh_mma_f16_sums(part[i][n], of_a, eight);
			}
		}
	}
}

/* A chunk's sums go to fp32. */
template <int ROWS> RH_DEVICE void chunk_fold(float (&sum)[ROWS / 32][4][4], uint32_t (&part)[ROWS / 32][4][2])
{
	RH_UNROLL
	for (int i = 0; i < ROWS / 32; i++) {
		RH_UNROLL
		for (int n = 0; n < 4; n++) {
			RH_UNROLL
			for (int half = 0; half < 2; half++) {
				float two[2];
				rh_unpack_f16(part[i][n][half], two);
				sum[i][n][2 * half] += two[0];
				sum[i][n][2 * half + 1] += two[1];
				part[i][n][half] = 0;
			}
		}
	}
}

struct grouped_sides {
	struct grouped_side a, b;
	int depth;
};

/* Products of the experts lie along k in a (rows of tokens); a gradient's depth is the expert's rows. */
template <bool A_DEEP, bool B_DEEP> RH_DEVICE struct grouped_sides sides_of(const struct grouped_args &a, const struct grouped_tile &t)
{
	const rh_bf16 *a_data = (const rh_bf16 *)a.a.data, *b_data = (const rh_bf16 *)a.b.data;
	int a_stride = (int)a.a.stride, b_stride = (int)a.b.stride, cols = (int)a.d.cols - t.col, depth = (int)a.a.cols;
	if constexpr (!A_DEEP)
		return {{a_data + t.first * a.a.stride + t.row, a_stride, depth - t.row},
		        {b_data + t.first * a.b.stride + t.col, b_stride, cols},
		        t.rows};
	struct grouped_side left = {a_data + (t.first + t.row) * a.a.stride, a_stride, t.rows - t.row};
	if constexpr (B_DEEP)
		return {left, {b_data + (t.expert * a.d.cols + t.col) * a.b.stride, b_stride, cols}, depth};
	return {left, {b_data + t.expert * a.a.cols * a.b.stride + t.col, b_stride, cols}, depth};
}

/* Stage `stage` gets depths from k on, if there are any; closes the group in any case. */
template <int ROWS, bool A_DEEP, bool B_DEEP> RH_DEVICE void stage_copy(rh_bf16 *stages, int stage, const struct grouped_sides &from, int k)
{
	typedef struct grouped_layout<ROWS> layout;
	if (k < from.depth) {
		rh_bf16 *tile = stages + stage * (layout::a + layout::b);
		side_copy<ROWS, A_DEEP>(tile, from.a, from.depth, k);
		side_copy<COLS, B_DEEP>(tile + layout::a, from.b, from.depth, k);
	}
	rh_copy_async_commit();
}

/* Two neighbouring columns, the first of them even. */
struct alignas(8) float_pair {
	float v[2];
};

RH_DEVICE struct float_pair pair_get(const struct rh_view &view, int64_t at)
{
	struct float_pair pair;
	if (view.dtype != RH_BF16)
		return *(const struct float_pair *)((const float *)view.data + at);
	uint32_t both = *(const uint32_t *)((const rh_bf16 *)view.data + at);
	pair.v[0] = rh_bits_float(both << 16);
	pair.v[1] = rh_bits_float(both & 0xffff0000u);
	return pair;
}

RH_DEVICE void pair_put(const struct rh_view &view, int64_t at, const struct float_pair &pair)
{
	if (view.dtype == RH_BF16)
		*(uint32_t *)((rh_bf16 *)view.data + at) = rh_pack2<rh_bf16>(pair.v[0], pair.v[1]);
	else
		*(struct float_pair *)((float *)view.data + at) = pair;
}

/* Columns [col, col + 2) of a row, as many as exist. */
RH_DEVICE void pair_finish(const struct grouped_args &a, const struct grouped_tile &t, int row, int col, float first, float second)
{
	if (col + 1 >= a.d.cols) {
		if (col < a.d.cols)
			grouped_put(a, t, row, col, first);
		return;
	}
	int64_t to = grouped_row_of(a, t, row);
	struct float_pair pair = {{a.alpha * first, a.alpha * second}};
	if (a.add.data) {
		struct float_pair add = pair_get(a.add, to * a.add.stride + col);
		pair.v[0] += add.v[0], pair.v[1] += add.v[1];
	}
	if (a.bias.data) {
		pair.v[0] += grouped_get(a.bias, t.expert, col);
		pair.v[1] += grouped_get(a.bias, t.expert, col + 1);
	}
	pair_put(a.d, to * a.d.stride + col, pair);
}

template <int ROWS, bool HALF>
RH_DEVICE void tile_finish(const struct grouped_args &a, const struct grouped_tile &t, const float (&sum)[ROWS / 32][4][4], int warp_row,
                           int warp_col)
{
	float times = HALF ? *a.scale_a * *a.scale_b : 1;
	int lane = (int)threadIdx.x % RH_WARP, rows = grouped_rows(a, t.rows);
	RH_UNROLL
	for (int i = 0; i < ROWS / 32; i++) {
		RH_UNROLL
		for (int half = 0; half < 2; half++) {
			int row = t.row + warp_row + i * 16 + half * 8 + lane / 4;
			RH_UNROLL
			for (int n = 0; n < 4; n++)
				if (row < rows)
					pair_finish(a, t, row, t.col + warp_col + n * 8 + lane % 4 * 2, times * sum[i][n][2 * half],
					            times * sum[i][n][2 * half + 1]);
		}
	}
}

/* HALF: one product whose sums are made in fp16 over chunks of k, which are summed in fp32; else experts', in fp32. */
template <int ROWS, bool A_DEEP, bool B_DEEP, bool HALF>
RH_KERNEL(THREADS, HALF ? HALF_BLOCKS : GROUPED_BLOCKS)
product_mma(struct grouped_args a)
{
	typedef struct grouped_layout<ROWS> layout;
	constexpr int ahead = layout::stages - 1;
	static_assert(RH_CHUNK_UNIT % DEPTH == 0, "a chunk's sums are folded between two depths");
	RH_DYNAMIC_SHARED(rh_bf16, stages, 0, layout::bytes / 2);
	int warp = (int)threadIdx.x / RH_WARP, warp_row = warp / WARPS_ACROSS * (ROWS / 2), warp_col = warp % WARPS_ACROSS * WARP_COLS;
	int left = left_place<ROWS, A_DEEP>(warp_row), right = right_place<COLS, B_DEEP>(warp_col);
	float times_a = HALF ? 1 / *a.scale_a : 1, times_b = HALF ? 1 / *a.scale_b : 1;
	struct grouped_walk walk = {(int)blockIdx.x, 0, 0};
	struct grouped_tile t;
	struct grouped_sides from;
	int there = grouped_next<ROWS, COLS, HALF>(a, &walk, &t);
	if (there) {
		from = sides_of<A_DEEP, B_DEEP>(a, t);
		RH_UNROLL
		for (int i = 0; i < ahead; i++)
			stage_copy<ROWS, A_DEEP, B_DEEP>(stages, i, from, i * DEPTH);
	}
	while (there) {
		float sum[ROWS / 32][4][4] = {};
		uint32_t part[ROWS / 32][4][2] = {}; /* of HALF alone */
		int stage = 0, to_fold = a.chunk;
		for (int k = 0; k < from.depth; k += DEPTH) {
			rh_copy_async_wait<ahead - 1>();
			__syncthreads(); /* this stage is there, and nobody reads the one before */
			stage_copy<ROWS, A_DEEP, B_DEEP>(stages, stage ? stage - 1 : ahead, from, k + ahead * DEPTH);
			const rh_bf16 *tile = stages + stage * (layout::a + layout::b);
			if constexpr (HALF) {
				stage_multiply_f16<ROWS, A_DEEP, B_DEEP>(part, tile, tile + layout::a, left, right, times_a, times_b);
				to_fold -= DEPTH;
				if (!to_fold) {
					chunk_fold<ROWS>(sum, part);
					to_fold = a.chunk;
				}
			} else {
				stage_multiply<ROWS, A_DEEP, B_DEEP>(sum, tile, tile + layout::a, left, right);
			}
			stage = stage < ahead ? stage + 1 : 0;
		}
		if constexpr (HALF)
			chunk_fold<ROWS>(sum, part);
		__syncthreads(); /* nobody reads a stage any more: the next tile may come */
		struct grouped_tile done = t;
		there = grouped_next<ROWS, COLS, HALF>(a, &walk, &t);
		if (there) {
			from = sides_of<A_DEEP, B_DEEP>(a, t);
			RH_UNROLL
			for (int i = 0; i < ahead; i++)
				stage_copy<ROWS, A_DEEP, B_DEEP>(stages, i, from, i * DEPTH);
		}
		tile_finish<ROWS, HALF>(a, done, sum, warp_row, warp_col);
	}
}

#endif
