/* From wide to narrow, of all adapters of a joint at once: low_m = drop_m(x) a_m^T, and du_m = scale_m dy_m b_m. T rows of K columns
 * become r_m of them, bf16 with fp32 sums in ascending order.
 *
 * Reads the wide operand once from DRAM (of several modules of one x the others read it from L2: blocks of the same rows are
 * neighbours), 2 T K bytes; 2 T K r FLOPs a module: bound by memory up to a rank of some 160 on an RTX 4090 (1008 GB/s, 165 TFLOP/s).
 * Dropout adds 15 instructions an element and module, of which a 4090 issues as many as x's bytes take (43 us of 67 for one module of
 * 8192 by 4096). Tile: 64 rows of one module's 16 or 64 columns a block, 16 rows a warp, 64 deep; three stages of 10 or 16 KB. */
#include "cuda/lora_tile.h"

template <int N> struct low_layout {
	static constexpr int wide = LORA_TILE * LORA_TILE, matrix = LORA_TILE * N, stage = wide + matrix, bytes = LORA_STAGES * stage * 2;
};

/* Depths [k, k + 64) of both operands, if there are any; closes the group in any case. */
template <int N, bool TURNED> RH_DEVICE void low_copy(rh_bf16 *stage, const struct lora_args &a, int m, int64_t row, int64_t col, int k)
{
	int deep = a.width[m] - k;
	if (deep > 0) {
		const struct rh_view &matrix = a.matrix[m];
		lora_copy<LORA_TILE, LORA_TILE>(stage, a.wide, row, a.first[m] + k, a.wide.rows - row, deep);
		if constexpr (TURNED)
			lora_copy<LORA_TILE, N>(stage + low_layout<N>::wide, matrix, k, col, deep, matrix.cols - col);
		else
			lora_copy<N, LORA_TILE>(stage + low_layout<N>::wide, matrix, col, k, matrix.rows - col, deep);
	}
	rh_copy_async_commit();
}

/* sum (16, N) += the warp's rows of a stage times the module's columns. */
template <int N, bool TURNED>
RH_DEVICE void low_multiply(float (&sum)[N / 8][4], const rh_bf16 *stage, const struct lora_args &a, uint32_t mask, float scale)
{
	int warp_row = (int)threadIdx.x / RH_WARP * 16;
	RH_UNROLL
	for (int k = 0; k < LORA_TILE; k += 16) {
		uint32_t x[4];
		lora_left<LORA_TILE>(x, stage, warp_row, k);
		if (a.drops) {
			RH_UNROLL
			for (int i = 0; i < 4; i++) {
				uint32_t bits = lora_row_bits(mask, i % 2, k + i / 2 * 8);
				x[i] = lora_drop(x[i], bits, bits >> 1, scale);
			}
		}
		RH_UNROLL
		for (int n = 0; n < N / 16; n++) {
			uint32_t w[4];
			if constexpr (TURNED)
				lora_right_turned<N>(w, stage + low_layout<N>::wide, n * 16, k);
			else
				lora_right<LORA_TILE>(w, stage + low_layout<N>::wide, n * 16, k);
			lora_mma_two(sum[2 * n], sum[2 * n + 1], x, w);
		}
	}
}

/* TURNED: the matrix is (K,r), else (r,K). */
template <int N, bool TURNED> RH_KERNEL(LORA_THREADS, 3) lora_low_rows(struct lora_args a)
{
	typedef struct low_layout<N> layout;
	RH_DYNAMIC_SHARED(rh_bf16, stages, 0, layout::bytes / 2);
	int piece = (int)blockIdx.x % a.pieces[a.modules], m = lora_module(a, &piece), lane = (int)threadIdx.x % RH_WARP;
	int warp_row = (int)threadIdx.x / RH_WARP * 16, deep = a.width[m], col = piece * N;
	int64_t row = (int64_t)(blockIdx.x / a.pieces[a.modules]) * LORA_TILE;
	float sum[N / 8][4] = {};
	RH_UNROLL
	for (int i = 0; i < LORA_STAGES - 1; i++)
		low_copy<N, TURNED>(stages + i * layout::stage, a, m, row, col, i * LORA_TILE);
	int stage = 0;
	for (int k = 0; k < deep; k += LORA_TILE) {
		uint32_t mask =
		        a.drops ? lora_row_mask(a.key[m], a.first_row + row + warp_row, k, deep) : 0; /* while the stage is in flight */
		rh_copy_async_wait<LORA_STAGES - 2>();
		__syncthreads(); /* this stage is there, and nobody reads the one before */
		low_copy<N, TURNED>(stages + (stage ? stage - 1 : LORA_STAGES - 1) * layout::stage, a, m, row, col,
		                    k + (LORA_STAGES - 1) * LORA_TILE);
		low_multiply<N, TURNED>(sum, stages + stage * layout::stage, a, mask, a.key[m].scale);
		stage = stage + 1 < LORA_STAGES ? stage + 1 : 0;
	}
	const struct rh_view &to = a.low[m];
	RH_UNROLL
	for (int n = 0; n < N / 8; n++) {
		RH_UNROLL
		for (int half = 0; half < 2; half++) {
			int64_t r = row + warp_row + lane / 4 + half * 8, c = col + n * 8 + lane % 4 * 2;
			if (r < to.rows && c < to.cols)
				*(uint32_t *)((rh_bf16 *)to.data + r * to.stride + c) =
				        rh_pack2<rh_bf16>(a.scale[m] * sum[n][2 * half], a.scale[m] * sum[n][2 * half + 1]);
		}
	}
}

template <int N, bool TURNED> static int launch(struct lora_args a, CUstream_st *stream)
{
	a.pieces[0] = 0;
	for (int m = 0; m < a.modules; m++)
		a.pieces[m + 1] = a.pieces[m] + (int)rh_ceil_div(a.low[m].cols, N);
	int64_t blocks = rh_ceil_div(a.wide.rows, LORA_TILE) * a.pieces[a.modules];
	return RH_LAUNCH((lora_low_rows<N, TURNED>), (unsigned)blocks, LORA_THREADS, low_layout<N>::bytes, stream, a);
}

int lora_low(const struct lora_args *a, bool turned, CUstream_st *stream)
{
	int64_t most = 0;
	for (int m = 0; m < a->modules; m++)
		most = a->low[m].cols > most ? a->low[m].cols : most;
	if (most <= 16)
		return turned ? launch<16, true>(*a, stream) : launch<16, false>(*a, stream);
	return turned ? launch<64, true>(*a, stream) : launch<64, false>(*a, stream);
}
