/* The tile of all products by mma.sync (grouped_gemm.cu: experts, sums in fp32; half_gemm.cu: one product, sums of chunks in fp16). For .cu
 * files only.
 *
 * M x N a block of 8 warps, 2 by 4, each M/2 x N/4 by mma.m16n8k16 (64 sums a lane for 128 by 128), 32 or 64 deep. Stages of a and b in
 * shared memory are filled by cp.async, all but one ahead; the first stages of the next tile are in flight while this one's sums are
 * stored. The 16-byte vectors of a row are permuted so that the eight rows that ldmatrix reads together lie in different banks, for
 * operands whose rows run along k and across it alike. No transposed copy is ever made: operands that lie across k are turned by ldmatrix.
 *
 * Sums: mma's within 16 of k, then in ascending order; a tile's sum is one block's. Rows and depths that do not exist are zeros. */
#ifndef RH_CUDA_PRODUCT_TILE_H
#define RH_CUDA_PRODUCT_TILE_H

#include "cuda/grouped_tile.h"

enum { PRODUCT_THREADS = 256, PRODUCT_VECTOR = 8, WARPS_M = 2, WARPS_N = 4 };

/* A block's tile, M x N and DEPTH deep; its shared memory: stages of a tile of a, and of b; blocks of an SM. NEAR: bytes around what is
 * copied that come to L2 with it, 0: none. */
template <int M, int N, int DEPTH, int STAGES, int BLOCKS, int NEAR> struct product_shape {
	static constexpr int m = M, n = N, depth = DEPTH, stages = STAGES, blocks = BLOCKS, near = NEAR;
	static constexpr int a = M * DEPTH, b = N * DEPTH, bytes = STAGES * (a + b) * 2;
	static constexpr int down = M / WARPS_M / 16, across = N / WARPS_N / 8; /* mma's of a warp */
};

/* An operand from a tile on, of which `mn` rows of d (columns, of b) exist. In memory its rows run along k where it is K_MAJOR, else across
 * it. */
struct product_operand {
	const rh_bf16 *data;
	int stride, mn;
};

/* Element of a tile where the vector of (mn, k) begins: rows of DEPTH along k, one or two of which span the banks, or of MN across it. */
template <int MN, int DEPTH, bool K_MAJOR> RH_DEVICE int swizzle(int mn, int k)
{
	if constexpr (K_MAJOR)
		return mn * DEPTH + (k / PRODUCT_VECTOR ^ (DEPTH > 32 ? mn & 7 : mn >> 1 & 3)) * PRODUCT_VECTOR;
	return k * MN + (mn / PRODUCT_VECTOR ^ (k & 7)) * PRODUCT_VECTOR;
}

/* Depths [k, k + DEPTH) of an operand, of `depth` in all, to a tile; beyond its end zeros. Asynchronous: the caller closes the group. */
template <int MN, int DEPTH, int NEAR, bool K_MAJOR>
RH_DEVICE void operand_copy(rh_bf16 *tile, const struct product_operand &operand, int depth, int k)
{
	constexpr int vectors = (K_MAJOR ? DEPTH : MN) / PRODUCT_VECTOR,
	              step = PRODUCT_THREADS / vectors; /* of a row; rows copied at once, a multiple of 8 */
	int row = (int)threadIdx.x / vectors, col = (int)threadIdx.x % vectors * PRODUCT_VECTOR;
	rh_bf16 *to = tile + swizzle<MN, DEPTH, K_MAJOR>(K_MAJOR ? row : col, K_MAJOR ? col : row);
	int left = K_MAJOR ? depth - k - col : operand.mn - col; /* elements from here to the row's end */
	left = left < 0 ? 0 : left < PRODUCT_VECTOR ? left : (int)PRODUCT_VECTOR;
	int rows = K_MAJOR ? operand.mn : depth - k;
	const rh_bf16 *from = operand.data + (K_MAJOR ? k : (int64_t)k * operand.stride) + col;
	RH_UNROLL
	for (int i = 0; i < MN * DEPTH / PRODUCT_VECTOR / PRODUCT_THREADS; i++, row += step) {
		int there = row < rows ? left : 0;
		rh_copy_async_near<NEAR>(to + i * step * vectors * PRODUCT_VECTOR,
		                         there ? from + (int64_t)row * operand.stride : operand.data, there * 2);
	}
}

/* Where a lane of a warp reads the 16 by 16 fragment from `mn` on: of the left operand, and of two right ones of eight columns. */
template <int MN, int DEPTH, bool K_MAJOR> RH_DEVICE int left_place(int mn)
{
	int own = (int)threadIdx.x % RH_WARP;
	return K_MAJOR ? swizzle<MN, DEPTH, K_MAJOR>(mn + own % 16, own / 16 * 8)
	               : swizzle<MN, DEPTH, K_MAJOR>(mn + own / 8 % 2 * 8, own / 16 * 8 + own % 8);
}

template <int MN, int DEPTH, bool K_MAJOR> RH_DEVICE int right_place(int mn)
{
	int own = (int)threadIdx.x % RH_WARP;
	return K_MAJOR ? swizzle<MN, DEPTH, K_MAJOR>(mn + own / 16 * 8 + own % 8, own / 8 % 2 * 8)
	               : swizzle<MN, DEPTH, K_MAJOR>(mn + own / 16 * 8, own % 16);
}

/* The same, `mn` and `k` further on: multiples of 16 that no vector number carries over, so that the permutation's exclusive or passes
 * them by. */
template <int MN, int DEPTH, bool K_MAJOR> RH_DEVICE int swizzle_on(int place, int mn, int k)
{
	return K_MAJOR ? (place ^ k) + mn * DEPTH : (place ^ mn) + k * MN;
}

template <bool K_MAJOR> RH_DEVICE void fragment_load(uint32_t (&r)[4], const rh_bf16 *at)
{
	if constexpr (K_MAJOR)
		rh_ldmatrix_x4(r, at);
	else
		rh_ldmatrix_x4_trans(r, at);
}

/* sum += the warp's rows of a stage of a times its columns of b; left and right are their places. */
template <typename S, bool A_K_MAJOR, bool B_K_MAJOR>
RH_DEVICE void stage_multiply(float (&sum)[S::down][S::across][4], const rh_bf16 *a, const rh_bf16 *b, int left, int right)
{
	RH_UNROLL
	for (int k = 0; k < S::depth; k += 16) {
		uint32_t of_b[S::across / 2][4];
		RH_UNROLL
		for (int n = 0; n < S::across / 2; n++)
			fragment_load<B_K_MAJOR>(of_b[n], b + swizzle_on<S::n, S::depth, B_K_MAJOR>(right, n * 16, k));
		RH_UNROLL
		for (int i = 0; i < S::down; i++) {
			uint32_t of_a[4];
			fragment_load<A_K_MAJOR>(of_a, a + swizzle_on<S::m, S::depth, A_K_MAJOR>(left, i * 16, k));
			RH_UNROLL
			for (int n = 0; n < S::across; n++) {
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
template <typename S, bool A_K_MAJOR, bool B_K_MAJOR>
RH_DEVICE void stage_multiply_f16(uint32_t (&part)[S::down][S::across][2], const rh_bf16 *a, const rh_bf16 *b, int left, int right,
                                  float times_a, float times_b)
{
	RH_ROLLED /* or registers would not do for the sums of 64 by 64 */
	        for (int k = 0; k < S::depth; k += 16)
	{
		uint32_t of_b[S::across / 2][4];
		RH_UNROLL
		for (int n = 0; n < S::across / 2; n++) {
			fragment_load<B_K_MAJOR>(of_b[n], b + swizzle_on<S::n, S::depth, B_K_MAJOR>(right, n * 16, k));
			fragment_to_f16(of_b[n], times_b);
		}
		RH_UNROLL
		for (int i = 0; i < S::down; i++) {
			uint32_t of_a[4];
			fragment_load<A_K_MAJOR>(of_a, a + swizzle_on<S::m, S::depth, A_K_MAJOR>(left, i * 16, k));
			fragment_to_f16(of_a, times_a);
			RH_UNROLL
			for (int n = 0; n < S::across; n++) {
				const uint32_t eight[2] = {of_b[n / 2][n % 2 * 2], of_b[n / 2][n % 2 * 2 + 1]};
				rh_mma_f16_sums(part[i][n], of_a, eight);
			}
		}
	}
}

/* A chunk's sums go to fp32. */
template <typename S> RH_DEVICE void chunk_fold(float (&sum)[S::down][S::across][4], uint32_t (&part)[S::down][S::across][2])
{
	RH_UNROLL
	for (int i = 0; i < S::down; i++) {
		RH_UNROLL
		for (int n = 0; n < S::across; n++) {
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
template <typename S, bool A_K_MAJOR, bool B_K_MAJOR>
RH_DEVICE void stage_copy(rh_bf16 *stages, int stage, const struct product_operands &from, int k)
{
	if (k < from.depth) {
		rh_bf16 *tile = stages + stage * (S::a + S::b);
		operand_copy<S::m, S::depth, S::near, A_K_MAJOR>(tile, from.a, from.depth, k);
		operand_copy<S::n, S::depth, S::near, B_K_MAJOR>(tile + S::a, from.b, from.depth, k);
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
template <typename S, typename Visit>
RH_DEVICE void tile_each(const struct grouped_args &a, const struct grouped_tile &t, float (&sum)[S::down][S::across][4], int warp_row,
                         int warp_col, Visit visit)
{
	int lane = (int)threadIdx.x % RH_WARP, rows = grouped_rows(a, t.rows);
	RH_UNROLL
	for (int i = 0; i < S::down; i++) {
		RH_UNROLL
		for (int half = 0; half < 2; half++) {
			int row = t.row + warp_row + i * 16 + half * 8 + lane / 4;
			RH_UNROLL
			for (int n = 0; n < S::across; n++)
				if (row < rows)
					visit(row, t.col + warp_col + n * 8 + lane % 4 * 2, sum[i][n][2 * half], sum[i][n][2 * half + 1]);
		}
	}
}

/* The fp32 sums at the places of a row of a warp's mma's; of a row that does not exist, the last one's. */
template <typename S>
RH_DEVICE void sums_get(struct float_pair (&old)[S::across], const struct grouped_args &a, const struct grouped_tile &t, int rows, int row,
                        int col)
{
	const float *from = (const float *)a.add.data + grouped_row_of(a, t, row < rows ? row : rows - 1) * a.add.stride + col;
	RH_UNROLL
	for (int n = 0; n < S::across; n++)
		old[n] = *(const struct float_pair *)(from + n * 8);
}

/* Sums of whole columns are added to fp32 ones. A row is loaded before the one before it is stored, without branches between loads: one
 * load at a time would wait for memory each time. */
template <typename S>
RH_DEVICE void sums_add(const struct grouped_args &a, const struct grouped_tile &t, float (&sum)[S::down][S::across][4], int warp_row,
                        int warp_col)
{
	int lane = (int)threadIdx.x % RH_WARP, rows = grouped_rows(a, t.rows);
	int first = t.row + warp_row + lane / 4, col = t.col + warp_col + lane % 4 * 2;
	struct float_pair old[2][S::across];
	sums_get<S>(old[0], a, t, rows, first, col);
	RH_UNROLL
	for (int i = 0; i < 2 * S::down; i++) {
		int row = first + i * 8, half = i % 2;
		if (i + 1 < 2 * S::down)
			sums_get<S>(old[(i + 1) % 2], a, t, rows, row + 8, col);
		float *to = (float *)a.d.data + grouped_row_of(a, t, row) * a.d.stride + col;
		if (row >= rows)
			continue;
		RH_UNROLL
		for (int n = 0; n < S::across; n++) {
			float(&of)[4] = sum[i / 2][n];
			*(struct float_pair *)(to + n * 8) = {
			        {a.alpha * of[2 * half] + old[half][n].v[0], a.alpha * of[2 * half + 1] + old[half][n].v[1]}};
		}
	}
}

/* Whether sums_add serves: fp32 sums of whole tiles of columns. */
template <typename S> RH_DEVICE int sums_plain(const struct grouped_args &a, const struct grouped_tile &t)
{
	return a.add.data && a.add.dtype != RH_BF16 && a.d.dtype != RH_BF16 && !a.bias.data && t.col + S::n <= a.d.cols;
}

/* What sums_add will read comes to L2. */
template <typename S> RH_DEVICE void sums_near(const struct grouped_args &a, const struct grouped_tile &t)
{
	constexpr int sectors = S::n / 8; /* of 32 bytes */
	int rows = grouped_rows(a, t.rows);
	RH_UNROLL
	for (int i = 0; i < S::m * sectors / PRODUCT_THREADS; i++) {
		int at = i * PRODUCT_THREADS + (int)threadIdx.x, row = t.row + at / sectors;
		if (row < rows)
			rh_prefetch((const float *)a.add.data + grouped_row_of(a, t, row) * a.add.stride + t.col + at % sectors * 8);
	}
}

/* All of add is loaded before anything is stored: add may be d, and a load behind a store would wait for memory once a row. */
template <typename S, bool GRADIENT, bool F16_SUMS>
RH_DEVICE void tile_epilogue(const struct grouped_args &a, const struct grouped_tile &t, float (&sum)[S::down][S::across][4], int warp_row,
                             int warp_col)
{
	if constexpr (GRADIENT) {
		if (sums_plain<S>(a, t)) {
			sums_add<S>(a, t, sum, warp_row, warp_col);
			return;
		}
	}
	float times = F16_SUMS ? *a.scale_a * *a.scale_b : 1;
	tile_each<S>(a, t, sum, warp_row, warp_col, [&](int row, int col, float &first, float &second) {
		first *= times, second *= times;
		pair_finish(a, t, row, col, first, second);
	});
	tile_each<S>(a, t, sum, warp_row, warp_col,
	             [&](int row, int col, float &first, float &second) { pair_store(a, t, row, col, first, second); });
}

/* F16_SUMS: one product whose sums are made in fp16 over chunks of k, which are summed in fp32; else experts', in fp32. */
template <typename S, bool A_K_MAJOR, bool B_K_MAJOR, bool F16_SUMS>
RH_KERNEL(PRODUCT_THREADS, S::blocks)
product_mma(struct grouped_args a)
{
	constexpr int ahead = S::stages - 1;
	constexpr bool is_gradient = !A_K_MAJOR && !F16_SUMS;
	static_assert(!F16_SUMS || RH_CHUNK_UNIT % S::depth == 0, "a chunk's sums are folded between two depths");
	RH_DYNAMIC_SHARED(rh_bf16, stages, 0, S::bytes / 2);
	int warp = (int)threadIdx.x / RH_WARP, warp_row = warp / WARPS_N * (S::m / WARPS_M), warp_col = warp % WARPS_N * (S::n / WARPS_N);
	int left = left_place<S::m, S::depth, A_K_MAJOR>(warp_row), right = right_place<S::n, S::depth, B_K_MAJOR>(warp_col);
	float times_a = F16_SUMS ? 1 / *a.scale_a : 1, times_b = F16_SUMS ? 1 / *a.scale_b : 1;
	struct grouped_walk walk = {(int)blockIdx.x, 0, 0};
	struct grouped_tile t;
	struct product_operands from;
	int there = grouped_next<S::m, S::n, F16_SUMS>(a, &walk, &t);
	if (there) {
		from = operands_of<A_K_MAJOR, B_K_MAJOR>(a, t);
		RH_UNROLL
		for (int i = 0; i < ahead; i++)
			stage_copy<S, A_K_MAJOR, B_K_MAJOR>(stages, i, from, i * S::depth);
	}
	while (there) {
		float sum[S::down][S::across][4] = {};
		uint32_t part[S::down][S::across][2] = {}; /* of F16_SUMS alone */
		int stage = 0, to_fold = a.chunk;
		if constexpr (is_gradient) {
			if (sums_plain<S>(a, t))
				sums_near<S>(a, t);
		}
		for (int k = 0; k < from.depth; k += S::depth) {
			rh_copy_async_wait<ahead - 1>();
			__syncthreads(); /* this stage is there, and nobody reads the one before */
			stage_copy<S, A_K_MAJOR, B_K_MAJOR>(stages, stage ? stage - 1 : ahead, from, k + ahead * S::depth);
			const rh_bf16 *tile = stages + stage * (S::a + S::b);
			if constexpr (F16_SUMS) {
				stage_multiply_f16<S, A_K_MAJOR, B_K_MAJOR>(part, tile, tile + S::a, left, right, times_a, times_b);
				to_fold -= S::depth;
				if (!to_fold) {
					chunk_fold<S>(sum, part);
					to_fold = a.chunk;
				}
			} else {
				stage_multiply<S, A_K_MAJOR, B_K_MAJOR>(sum, tile, tile + S::a, left, right);
			}
			stage = stage < ahead ? stage + 1 : 0;
		}
		if constexpr (F16_SUMS)
			chunk_fold<S>(sum, part);
		__syncthreads(); /* nobody reads a stage any more: the next tile may come */
		struct grouped_tile done = t;
		there = grouped_next<S::m, S::n, F16_SUMS>(a, &walk, &t);
		if (there) {
			from = operands_of<A_K_MAJOR, B_K_MAJOR>(a, t);
			RH_UNROLL
			for (int i = 0; i < ahead; i++)
				stage_copy<S, A_K_MAJOR, B_K_MAJOR>(stages, i, from, i * S::depth);
		}
		tile_epilogue<S, is_gradient, F16_SUMS>(a, done, sum, warp_row, warp_col);
	}
}

#endif
