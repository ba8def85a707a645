/* The tile of all products by mma.sync (grouped_gemm.cu: experts, sums in fp32; half_gemm.cu: one product, sums of chunks in fp16). For .cu
 * files only.
 *
 * M x 128 a block of 8 warps, 2 by 4, each M/2 x 32 by mma.m16n8k16 (64 sums a lane for M 128), 32 deep. Shared memory: 3 stages of 16 KB
 * (M 64: 4 of 12) in 48 KB, filled by cp.async two (three) stages ahead; the first stages of the next tile are in flight while this
 * one's sums are stored. The 16-byte vectors of a row are permuted so that the eight rows that ldmatrix reads together lie in different
 * banks, for operands whose rows run along k and across it alike. No transposed copy is ever made: operands that lie across k are turned by
 * ldmatrix.
 *
 * Sums: mma's within 16 of k, then in ascending order; a tile's sum is one block's. Rows and depths that do not exist are zeros. */
#ifndef RH_CUDA_PRODUCT_TILE_H
#define RH_CUDA_PRODUCT_TILE_H

#include "cuda/grouped_tile.h"

enum { THREADS = 256, BLOCK_N = 128, BLOCK_K = 32, VECTOR = 8, WARP_N = 32, WARPS_N = BLOCK_N / WARP_N };

/* Shared memory of a block: stages of a tile of a, and of b. */
template <int BLOCK_M> struct product_stages {
	static constexpr int stages = BLOCK_M > 64 ? 3 : 4, a = BLOCK_M * BLOCK_K, b = BLOCK_N * BLOCK_K, bytes = stages * (a + b) * 2;
};

/* An operand from a tile on, of which `mn` rows of d (columns, of b) exist. In memory its rows run along k where it is K_MAJOR, else across
 * it. */
struct product_operand {
	const rh_bf16 *data;
	int stride, mn;
};

/* Element of a tile where the vector of (mn, k) begins: rows of 32 along k, two of which span the banks, or of MN across it. */
template <int MN, bool K_MAJOR> RH_DEVICE int swizzle(int mn, int k)
{
	if constexpr (K_MAJOR)
		return mn * BLOCK_K + (k / VECTOR ^ (mn >> 1 & 3)) * VECTOR;
	return k * MN + (mn / VECTOR ^ (k & 7)) * VECTOR;
}

/* Depths [k, k + 32) of an operand, of `depth` in all, to a tile; beyond its end zeros. Asynchronous: the caller closes the group. */
template <int MN, bool K_MAJOR> RH_DEVICE void operand_copy(rh_bf16 *tile, const struct product_operand &operand, int depth, int k)
{
	constexpr int vectors = (K_MAJOR ? BLOCK_K : MN) / VECTOR,
	              step = THREADS / vectors; /* of a row; rows copied at once, a multiple of 8 */
	int row = (int)threadIdx.x / vectors, col = (int)threadIdx.x % vectors * VECTOR;
	rh_bf16 *to = tile + swizzle<MN, K_MAJOR>(K_MAJOR ? row : col, K_MAJOR ? col : row);
	int left = K_MAJOR ? depth - k - col : operand.mn - col; /* elements from here to the row's end */
	left = left < 0 ? 0 : left < VECTOR ? left : (int)VECTOR;
	int rows = K_MAJOR ? operand.mn : depth - k;
	const rh_bf16 *from = operand.data + (K_MAJOR ? k : (int64_t)k * operand.stride) + col;
	RH_UNROLL
	for (int i = 0; i < MN * BLOCK_K / VECTOR / THREADS; i++, row += step) {
		int there = row < rows ? left : 0;
		rh_copy_async(to + i * step * vectors * VECTOR, there ? from + (int64_t)row * operand.stride : operand.data, there * 2);
	}
}

/* Where a lane of a warp reads the 16 by 16 fragment from `mn` on: of the left operand, and of two right ones of eight columns. */
template <int MN, bool K_MAJOR> RH_DEVICE int left_place(int mn)
{
	int own = (int)threadIdx.x % RH_WARP;
	return K_MAJOR ? swizzle<MN, K_MAJOR>(mn + own % 16, own / 16 * 8)
	               : swizzle<MN, K_MAJOR>(mn + own / 8 % 2 * 8, own / 16 * 8 + own % 8);
}

template <int MN, bool K_MAJOR> RH_DEVICE int right_place(int mn)
{
	int own = (int)threadIdx.x % RH_WARP;
	return K_MAJOR ? swizzle<MN, K_MAJOR>(mn + own / 16 * 8 + own % 8, own / 8 % 2 * 8)
	               : swizzle<MN, K_MAJOR>(mn + own / 16 * 8, own % 16);
}

/* The same, `mn` and `k` further on: multiples of 16 that no vector number carries over, so that the permutation's exclusive or passes
 * them by. */
template <int MN, bool K_MAJOR> RH_DEVICE int swizzle_on(int place, int mn, int k)
{
	return K_MAJOR ? (place ^ k) + mn * BLOCK_K : (place ^ mn) + k * MN;
}

template <bool K_MAJOR> RH_DEVICE void fragment_load(uint32_t (&r)[4], const rh_bf16 *at)
{
	if constexpr (K_MAJOR)
		rh_ldmatrix_x4(r, at);
	else
		rh_ldmatrix_x4_trans(r, at);
}

/* sum (BLOCK_M / 2, 32) += the warp's rows of a stage of a times its columns of b; left and right are their places. */
template <int BLOCK_M, bool A_K_MAJOR, bool B_K_MAJOR>
RH_DEVICE void stage_multiply(float (&sum)[BLOCK_M / 32][4][4], const rh_bf16 *a, const rh_bf16 *b, int left, int right)
{
	RH_UNROLL
	for (int k = 0; k < BLOCK_K; k += 16) {
		uint32_t of_b[2][4];
		RH_UNROLL
		for (int n = 0; n < 2; n++)
			fragment_load<B_K_MAJOR>(of_b[n], b + swizzle_on<BLOCK_N, B_K_MAJOR>(right, n * 16, k));
		RH_UNROLL
		for (int i = 0; i < BLOCK_M / 32; i++) {
			uint32_t of_a[4];
			fragment_load<A_K_MAJOR>(of_a, a + swizzle_on<BLOCK_M, A_K_MAJOR>(left, i * 16, k));
			RH_UNROLL
			for (int n = 0; n < 4; n++) {
				const uint32_t eight[2] = {of_b[n / 2][n % 2 * 2], of_b[n / 2][n % 2 * 2 + 1]};
				rh_mma_bf16(sum[i][n], of_a, eight);
			}
		}
	}
}

/* bf16 to fp16, times a power of two. */
RH_DEVICE void fragment_to_f16(uint32_t (&r)[4], float times)
{
	RH_UNROLL
	for (int i = 0; i < 4; i++)
		r[i] = rh_pack_f16(times * rh_bits_float(r[i] << 16), times * rh_bits_float(r[i] & 0xffff0000u));
}

/* stage_multiply into fp16, both operands scaled. */
template <int BLOCK_M, bool A_K_MAJOR, bool B_K_MAJOR>
RH_DEVICE void stage_multiply_f16(uint32_t (&part)[BLOCK_M / 32][4][2], const rh_bf16 *a, const rh_bf16 *b, int left, int right,
                                  float times_a, float times_b)
{
	RH_UNROLL
	for (int k = 0; k < BLOCK_K; k += 16) {
		uint32_t of_b[2][4];
		RH_UNROLL
		for (int n = 0; n < 2; n++) {
			fragment_load<B_K_MAJOR>(of_b[n], b + swizzle_on<BLOCK_N, B_K_MAJOR>(right, n * 16, k));
			fragment_to_f16(of_b[n], times_b);
		}
		RH_UNROLL
		for (int i = 0; i < BLOCK_M / 32; i++) {
			uint32_t of_a[4];
			fragment_load<A_K_MAJOR>(of_a, a + swizzle_on<BLOCK_M, A_K_MAJOR>(left, i * 16, k));
			fragment_to_f16(of_a, times_a);
			RH_UNROLL
			for (int n = 0; n < 4; n++) {
				const uint32_t eight[2] = {of_b[n / 2][n % 2 * 2], of_b[n / 2][n % 2 * 2 + 1]};
				rh_mma_f16_sums(part[i][n], of_a, eight);
			}
		}
	}
}

/* A chunk's sums go to fp32. */
template <int BLOCK_M> RH_DEVICE void chunk_fold(float (&sum)[BLOCK_M / 32][4][4], uint32_t (&part)[BLOCK_M / 32][4][2])
{
	RH_UNROLL
	for (int i = 0; i < BLOCK_M / 32; i++) {
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

struct product_operands {
	struct product_operand a, b;
	int depth;
};

/* Products of the experts lie along k in a (rows of tokens); a gradient's depth is the expert's rows. */
template <bool A_K_MAJOR, bool B_K_MAJOR>
RH_DEVICE struct product_operands operands_of(const struct grouped_args &a, const struct grouped_tile &t)
{
	const rh_bf16 *a_data = (const rh_bf16 *)a.a.data, *b_data = (const rh_bf16 *)a.b.data;
	int a_stride = (int)a.a.stride, b_stride = (int)a.b.stride, cols = (int)a.d.cols - t.col, depth = (int)a.a.cols;
	if constexpr (!A_K_MAJOR)
		return {{a_data + t.first * a.a.stride + t.row, a_stride, depth - t.row},
		        {b_data + t.first * a.b.stride + t.col, b_stride, cols},
		        t.rows};
	struct product_operand left = {a_data + (t.first + t.row) * a.a.stride, a_stride, t.rows - t.row};
	if constexpr (B_K_MAJOR)
		return {left, {b_data + (t.expert * a.d.cols + t.col) * a.b.stride, b_stride, cols}, depth};
	return {left, {b_data + t.expert * a.a.cols * a.b.stride + t.col, b_stride, cols}, depth};
}

/* Stage `stage` gets depths from k on, if there are any; closes the group in any case. */
template <int BLOCK_M, bool A_K_MAJOR, bool B_K_MAJOR>
RH_DEVICE void stage_copy(rh_bf16 *stages, int stage, const struct product_operands &from, int k)
{
	typedef struct product_stages<BLOCK_M> layout;
	if (k < from.depth) {
		rh_bf16 *tile = stages + stage * (layout::a + layout::b);
		operand_copy<BLOCK_M, A_K_MAJOR>(tile, from.a, from.depth, k);
		operand_copy<BLOCK_N, B_K_MAJOR>(tile + layout::a, from.b, from.depth, k);
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

/* Two sums of columns [col, col + 2), as many as exist, become what d is to hold: alpha * sum + add + bias. */
RH_DEVICE void pair_finish(const struct grouped_args &a, const struct grouped_tile &t, int row, int col, float &first, float &second)
{
	int64_t to = grouped_row_of(a, t, row);
	int both = col + 1 < a.d.cols;
	first *= a.alpha, second *= a.alpha;
	if (col >= a.d.cols)
		return;
	if (a.add.data) {
		struct float_pair add = {{0, 0}};
		if (both)
			add = pair_get(a.add, to * a.add.stride + col);
		else
			add.v[0] = grouped_get(a.add, to, col);
		first += add.v[0], second += add.v[1];
	}
	if (a.bias.data) {
		first += grouped_get(a.bias, t.expert, col);
		second += both ? grouped_get(a.bias, t.expert, col + 1) : 0;
	}
}

RH_DEVICE void pair_store(const struct grouped_args &a, const struct grouped_tile &t, int row, int col, float first, float second)
{
	int64_t at = grouped_row_of(a, t, row) * a.d.stride + col;
	if (col + 1 < a.d.cols)
		pair_put(a.d, at, {{first, second}});
	else if (col < a.d.cols && a.d.dtype == RH_BF16)
		((rh_bf16 *)a.d.data)[at] = rh_to_bf16(first);
	else if (col < a.d.cols)
		((float *)a.d.data)[at] = first;
}

/* visit(row, col, first, second) of each two sums of a lane that lie in the expert's product. */
template <int BLOCK_M, typename Visit>
RH_DEVICE void tile_each(const struct grouped_args &a, const struct grouped_tile &t, float (&sum)[BLOCK_M / 32][4][4], int warp_row,
                         int warp_col, Visit visit)
{
	int lane = (int)threadIdx.x % RH_WARP, rows = grouped_rows(a, t.rows);
	RH_UNROLL
	for (int i = 0; i < BLOCK_M / 32; i++) {
		RH_UNROLL
		for (int half = 0; half < 2; half++) {
			int row = t.row + warp_row + i * 16 + half * 8 + lane / 4;
			RH_UNROLL
			for (int n = 0; n < 4; n++)
				if (row < rows)
					visit(row, t.col + warp_col + n * 8 + lane % 4 * 2, sum[i][n][2 * half], sum[i][n][2 * half + 1]);
		}
	}
}

/* All of add is loaded before anything is stored: add may be d, and a load behind a store would wait for memory once a row. */
template <int BLOCK_M, bool F16_SUMS>
RH_DEVICE void tile_epilogue(const struct grouped_args &a, const struct grouped_tile &t, float (&sum)[BLOCK_M / 32][4][4], int warp_row,
                             int warp_col)
{
	float times = F16_SUMS ? *a.scale_a * *a.scale_b : 1;
	tile_each<BLOCK_M>(a, t, sum, warp_row, warp_col, [&](int row, int col, float &first, float &second) {
		first *= times, second *= times;
		pair_finish(a, t, row, col, first, second);
	});
	tile_each<BLOCK_M>(a, t, sum, warp_row, warp_col,
	                   [&](int row, int col, float &first, float &second) { pair_store(a, t, row, col, first, second); });
}

/* F16_SUMS: one product whose sums are made in fp16 over chunks of k, which are summed in fp32; else experts', in fp32. */
template <int BLOCK_M, bool A_K_MAJOR, bool B_K_MAJOR, bool F16_SUMS>
RH_KERNEL(THREADS, F16_SUMS ? HALF_BLOCKS : GROUPED_BLOCKS)
product_mma(struct grouped_args a)
{
	typedef struct product_stages<BLOCK_M> layout;
	constexpr int ahead = layout::stages - 1;
	static_assert(RH_CHUNK_UNIT % BLOCK_K == 0, "a chunk's sums are folded between two depths");
	RH_DYNAMIC_SHARED(rh_bf16, stages, 0, layout::bytes / 2);
	int warp = (int)threadIdx.x / RH_WARP, warp_row = warp / WARPS_N * (BLOCK_M / 2), warp_col = warp % WARPS_N * WARP_N;
	int left = left_place<BLOCK_M, A_K_MAJOR>(warp_row), right = right_place<BLOCK_N, B_K_MAJOR>(warp_col);
	float times_a = F16_SUMS ? 1 / *a.scale_a : 1, times_b = F16_SUMS ? 1 / *a.scale_b : 1;
	struct grouped_walk walk = {(int)blockIdx.x, 0, 0};
	struct grouped_tile t;
	struct product_operands from;
	int there = grouped_next<BLOCK_M, BLOCK_N, F16_SUMS>(a, &walk, &t);
	if (there) {
		from = operands_of<A_K_MAJOR, B_K_MAJOR>(a, t);
		RH_UNROLL
		for (int i = 0; i < ahead; i++)
			stage_copy<BLOCK_M, A_K_MAJOR, B_K_MAJOR>(stages, i, from, i * BLOCK_K);
	}
	while (there) {
		float sum[BLOCK_M / 32][4][4] = {};
		uint32_t part[BLOCK_M / 32][4][2] = {}; /* of F16_SUMS alone */
		int stage = 0, to_fold = a.chunk;
		for (int k = 0; k < from.depth; k += BLOCK_K) {
			rh_copy_async_wait<ahead - 1>();
			__syncthreads(); /* this stage is there, and nobody reads the one before */
			stage_copy<BLOCK_M, A_K_MAJOR, B_K_MAJOR>(stages, stage ? stage - 1 : ahead, from, k + ahead * BLOCK_K);
			const rh_bf16 *tile = stages + stage * (layout::a + layout::b);
			if constexpr (F16_SUMS) {
				stage_multiply_f16<BLOCK_M, A_K_MAJOR, B_K_MAJOR>(part, tile, tile + layout::a, left, right, times_a,
				                                                  times_b);
				to_fold -= BLOCK_K;
				if (!to_fold) {
					chunk_fold<BLOCK_M>(sum, part);
					to_fold = a.chunk;
				}
			} else {
				stage_multiply<BLOCK_M, A_K_MAJOR, B_K_MAJOR>(sum, tile, tile + layout::a, left, right);
			}
			stage = stage < ahead ? stage + 1 : 0;
		}
		if constexpr (F16_SUMS)
			chunk_fold<BLOCK_M>(sum, part);
		__syncthreads(); /* nobody reads a stage any more: the next tile may come */
		struct grouped_tile done = t;
		there = grouped_next<BLOCK_M, BLOCK_N, F16_SUMS>(a, &walk, &t);
		if (there) {
			from = operands_of<A_K_MAJOR, B_K_MAJOR>(a, t);
			RH_UNROLL
			for (int i = 0; i < ahead; i++)
				stage_copy<BLOCK_M, A_K_MAJOR, B_K_MAJOR>(stages, i, from, i * BLOCK_K);
		}
		tile_epilogue<BLOCK_M, F16_SUMS>(a, done, sum, warp_row, warp_col);
	}
}

#endif
