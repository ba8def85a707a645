/* Gradients of all adapters of a joint at once, sums over T rows: da_m (r,in) += du_m^T drop_m(x), db_m (out,r) += scale_m dy_m^T low_m.
 *
 * Reads the wide operand once from DRAM (once more from L2 for each further module that sees it, or 64 of a rank), 2 T N bytes; 2 T N r
 * FLOPs a module: bound by memory as lora_low.cu is. Tile: 64 columns of one module by 16 or 64 of its rank a block, 16 columns a warp,
 * rows 64 at a time in ascending order: a sum is one block's. Three stages of 10 or 16 KB. 4096 columns are 64 blocks: half of an RTX
 * 4090's SMs, with 24 KB in flight each, 3 MB/us in all. The sums are added at the end; all old values are loaded before the first
 * store. */
#include "cuda/lora_tile.h"

template <int M> struct gradient_layout {
	static constexpr int wide = LORA_TILE * LORA_TILE, low = LORA_TILE * M, stage = wide + low, bytes = LORA_STAGES * stage * 2;
};

/* Rows [t, t + 64) of both operands, if there are any; closes the group in any case. */
template <int M> RH_DEVICE void gradient_copy(rh_bf16 *stage, const struct lora_args &a, int m, int rank, int col, int64_t t)
{
	int64_t rows = a.wide.rows - t;
	if (rows > 0) {
		lora_copy<LORA_TILE, LORA_TILE>(stage, a.wide, t, a.first[m] + col, rows, a.width[m] - col);
		lora_copy<LORA_TILE, M>(stage + gradient_layout<M>::wide, a.low[m], t, rank, rows, a.low[m].cols - rank);
	}
	rh_copy_async_commit();
}

/* Mask words of 64 rows by the warp's 16 columns: lane l has rows 2l, low, and 2l + 1, high. */
RH_DEVICE uint32_t column_mask(const struct dropout_key &key, int64_t row, int64_t col, int64_t cols)
{
	int lane = (int)threadIdx.x % RH_WARP;
	int64_t element = (row + 2 * lane) * cols + col;
	return kept_run(key, element, 16) | kept_run(key, element + cols, 16) << 16;
}

/* A right operand's fragments, 16 deep from `depth` on, of two times eight columns. */
RH_DEVICE void column_drop(uint32_t (&b)[4], uint32_t mask, int depth, float scale)
{
	int lane = (int)threadIdx.x % RH_WARP;
	RH_UNROLL
	for (int i = 0; i < 4; i++) {
		uint32_t bits = rh_shuffle(mask, depth / 2 + i % 2 * 4 + lane % 4) >> (i / 2 * 8 + lane / 4);
		b[i] = lora_drop(b[i], bits, bits >> 16, scale);
	}
}

/* Where a sum of (rank, column) goes: da (r,in), or db (out,r). */
template <bool OF_B> RH_DEVICE float *gradient_at(const struct rh_view &to, int64_t rank, int64_t col)
{
	return (float *)to.data + (OF_B ? col * to.stride + rank : rank * to.stride + col);
}

template <int M, bool OF_B>
RH_DEVICE void gradient_add(const struct rh_view &to, int rank, int col, int ranks, int cols, float scale, float (&sum)[M / 16][2][4])
{
	int lane = (int)threadIdx.x % RH_WARP;
	float before[M / 16][2][4];
	RH_UNROLL
	for (int pass = 0; pass < 2; pass++) {
		RH_UNROLL
		for (int i = 0; i < M / 16 * 8; i++) {
			int r = rank + i / 8 * 16 + i % 4 / 2 * 8 + lane / 4, c = col + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2;
			if (r >= ranks || c >= cols)
				continue;
			float *at = gradient_at<OF_B>(to, r, c);
			if (pass == 0)
				before[i / 8][i / 4 % 2][i % 4] = *at;
			else
				*at = before[i / 8][i / 4 % 2][i % 4] + scale * sum[i / 8][i / 4 % 2][i % 4];
		}
	}
}

template <int M, bool OF_B> RH_KERNEL(LORA_THREADS, M > 16 ? 2 : 3) lora_gradient_tile(struct lora_args a)
{
	typedef struct gradient_layout<M> layout;
	RH_DYNAMIC_SHARED(rh_bf16, stages, 0, layout::bytes / 2);
	int piece = (int)blockIdx.x, m = lora_module(a, &piece), across = (a.width[m] + LORA_TILE - 1) / LORA_TILE;
	int rank = piece / across * M, col = piece % across * LORA_TILE, warp_col = (int)threadIdx.x / RH_WARP * 16;
	float sum[M / 16][2][4] = {};
	RH_UNROLL
	for (int i = 0; i < LORA_STAGES - 1; i++)
		gradient_copy<M>(stages + i * layout::stage, a, m, rank, col, i * LORA_TILE);
	int stage = 0;
	for (int64_t t = 0; t < a.wide.rows; t += LORA_TILE) {
		uint32_t mask = !OF_B && a.drops ? column_mask(a.key[m], a.first_row + t, col + warp_col, a.width[m]) : 0;
		rh_copy_async_wait<LORA_STAGES - 2>();
		__syncthreads(); /* this stage is there, and nobody reads the one before */
		gradient_copy<M>(stages + (stage ? stage - 1 : LORA_STAGES - 1) * layout::stage, a, m, rank, col,
		                 t + (LORA_STAGES - 1) * LORA_TILE);
		const rh_bf16 *wide = stages + stage * layout::stage, *low = wide + layout::wide;
		RH_UNROLL
		for (int k = 0; k < LORA_TILE; k += 16) {
			uint32_t right[4];
			lora_right_turned<LORA_TILE>(right, wide, warp_col, k);
			if (!OF_B && a.drops)
				column_drop(right, mask, k, a.key[m].scale);
			RH_UNROLL
			for (int i = 0; i < M / 16; i++) {
				uint32_t left[4];
				lora_left_turned<M>(left, low, i * 16, k);
				lora_mma_two(sum[i][0], sum[i][1], left, right);
			}
		}
		stage = stage + 1 < LORA_STAGES ? stage + 1 : 0;
	}
	gradient_add<M, OF_B>(a.matrix[m], rank, col + warp_col, (int)a.low[m].cols, a.width[m], OF_B ? a.scale[m] : 1, sum);
}

template <int M> static int launch(struct lora_args a, bool of_b, CUstream_st *stream)
{
	a.pieces[0] = 0;
	for (int m = 0; m < a.modules; m++)
		a.pieces[m + 1] = a.pieces[m] + (int)(rh_ceil_div(a.low[m].cols, M) * rh_ceil_div(a.width[m], LORA_TILE));
	unsigned blocks = (unsigned)a.pieces[a.modules];
	if (of_b)
		return RH_LAUNCH((lora_gradient_tile<M, true>), blocks, LORA_THREADS, gradient_layout<M>::bytes, stream, a);
	return RH_LAUNCH((lora_gradient_tile<M, false>), blocks, LORA_THREADS, gradient_layout<M>::bytes, stream, a);
}

int lora_gradient(const struct lora_args *a, bool of_b, CUstream_st *stream)
{
	int64_t most = 0;
	for (int m = 0; m < a->modules; m++)
		most = a->low[m].cols > most ? a->low[m].cols : most;
	return most <= 16 ? launch<16>(*a, of_b, stream) : launch<64>(*a, of_b, stream);
}
