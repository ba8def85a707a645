/* From narrow to wide, of all adapters of a joint at once: the parts of y, scale_m low_m b_m^T side by side, and dx, the sum over
 * modules of what comes back through drop_m from du_m a_m.
 *
 * Writes the wide result once, 2 T N bytes, beside 2 T r a module read; 2 T N r FLOPs a module: bound by memory up to a rank of some 160
 * on an RTX 4090. dx is rounded once, of all modules. Tile: 64 rows by 64 columns a block, 16 rows a warp, depths 64 at a time: 16 KB.
 * Results leave through shared memory as 16-byte stores. */
#include "cuda/lora_tile.h"

enum { TILE_ELEMENTS = LORA_TILE * LORA_TILE };

/* sum (16, 64) of the warp = its rows of low times 64 columns from `col` on. TURNED: the matrix is (r, columns), else (columns, r). */
template <bool TURNED>
RH_DEVICE void wide_multiply(float (&sum)[LORA_TILE / 8][4], rh_bf16 *low_tile, rh_bf16 *matrix_tile, const struct rh_view &low,
                             const struct rh_view &matrix, int64_t row, int64_t col)
{
	int warp_row = (int)threadIdx.x / RH_WARP * 16;
	RH_UNROLL
	for (int i = 0; i < LORA_TILE / 2; i++)
		sum[i / 4][i % 4] = 0;
	for (int k = 0; k < (int)low.cols; k += LORA_TILE) {
		int deep = (int)low.cols - k;
		__syncthreads(); /* nobody reads the tiles before these */
		lora_copy<LORA_TILE, LORA_TILE>(low_tile, low, row, k, low.rows - row, deep);
		if constexpr (TURNED)
			lora_copy<LORA_TILE, LORA_TILE>(matrix_tile, matrix, k, col, deep, matrix.cols - col);
		else
			lora_copy<LORA_TILE, LORA_TILE>(matrix_tile, matrix, col, k, matrix.rows - col, deep);
		rh_copy_async_commit();
		rh_copy_async_wait<0>();
		__syncthreads();
		for (int d = 0; d < LORA_TILE && d < deep; d += 16) {
			uint32_t left[4];
			lora_left<LORA_TILE>(left, low_tile, warp_row, d);
			RH_UNROLL
			for (int n = 0; n < LORA_TILE / 16; n++) {
				uint32_t right[4];
				if constexpr (TURNED)
					lora_right_turned<LORA_TILE>(right, matrix_tile, n * 16, d);
				else
					lora_right<LORA_TILE>(right, matrix_tile, n * 16, d);
				lora_mma_two(sum[2 * n], sum[2 * n + 1], left, right);
			}
		}
	}
}

/* The block's rows from `row` on, columns [col, end) of `to`; each warp stores what it has put into its own rows of the tile. */
RH_DEVICE void wide_store(rh_bf16 *tile, const struct rh_view &to, int64_t row, int64_t col, int64_t end,
                          const float (&sum)[LORA_TILE / 8][4])
{
	int lane = (int)threadIdx.x % RH_WARP, warp_row = (int)threadIdx.x / RH_WARP * 16;
	__syncthreads(); /* nobody reads the tile any more */
	RH_UNROLL
	for (int n = 0; n < LORA_TILE / 8; n++) {
		RH_UNROLL
		for (int half = 0; half < 2; half++)
			*(uint32_t *)(tile + lora_at<LORA_TILE>(warp_row + lane / 4 + half * 8, n) + lane % 4 * 2) =
			        rh_pack2<rh_bf16>(sum[n][2 * half], sum[n][2 * half + 1]);
	}
	rh_warp_sync();
	RH_UNROLL
	for (int i = 0; i < LORA_TILE / 16; i++) {
		int at = i * RH_WARP + lane, r = warp_row + at / 8, chunk = at % 8;
		if (row + r < to.rows && col + chunk * 8 < end)
			rh_store16((rh_bf16 *)to.data + (row + r) * to.stride + col + chunk * 8,
			           rh_load16(tile + lora_at<LORA_TILE>(r, chunk)));
	}
}

/* A piece is 64 columns of a module; one without a matrix becomes zeros. */
static RH_KERNEL(LORA_THREADS, 4) lora_part_tile(struct lora_args a)
{
	RH_DYNAMIC_SHARED(rh_bf16, low_tile, 0, TILE_ELEMENTS);
	RH_DYNAMIC_SHARED(rh_bf16, matrix_tile, TILE_ELEMENTS * 2, TILE_ELEMENTS);
	int piece = (int)blockIdx.x % a.pieces[a.modules], m = lora_module(a, &piece);
	int64_t row = (int64_t)(blockIdx.x / a.pieces[a.modules]) * LORA_TILE, col = (int64_t)piece * LORA_TILE;
	float sum[LORA_TILE / 8][4] = {};
	if (a.matrix[m].data)
		wide_multiply<false>(sum, low_tile, matrix_tile, a.low[m], a.matrix[m], row, col);
	RH_UNROLL
	for (int i = 0; i < LORA_TILE / 2; i++)
		sum[i / 4][i % 4] *= a.scale[m];
	wide_store(low_tile, a.wide, row, a.first[m] + col, a.first[m] + a.width[m], sum);
}

static RH_KERNEL(LORA_THREADS, 3) lora_input_gradient_tile(struct lora_args a)
{
	RH_DYNAMIC_SHARED(rh_bf16, low_tile, 0, TILE_ELEMENTS);
	RH_DYNAMIC_SHARED(rh_bf16, matrix_tile, TILE_ELEMENTS * 2, TILE_ELEMENTS);
	int across = (int)rh_ceil_div(a.wide.cols, LORA_TILE), warp_row = (int)threadIdx.x / RH_WARP * 16;
	int64_t row = (int64_t)(blockIdx.x / across) * LORA_TILE, col = (int64_t)(blockIdx.x % across) * LORA_TILE;
	float total[LORA_TILE / 8][4] = {};
	for (int m = 0; m < a.modules; m++) {
		float sum[LORA_TILE / 8][4];
		uint32_t mask = a.drops ? lora_row_mask(a.key[m], a.first_row + row + warp_row, col, a.wide.cols) : 0;
		wide_multiply<true>(sum, low_tile, matrix_tile, a.low[m], a.matrix[m], row, col);
		RH_UNROLL
		for (int n = 0; n < LORA_TILE / 8; n++) {
			RH_UNROLL
			for (int half = 0; half < 2; half++) {
				uint32_t bits = a.drops ? lora_row_bits(mask, half, n * 8) : 3;
				total[n][2 * half] += bits & 1 ? sum[n][2 * half] * a.key[m].scale : 0;
				total[n][2 * half + 1] += bits & 2 ? sum[n][2 * half + 1] * a.key[m].scale : 0;
			}
		}
	}
	wide_store(low_tile, a.wide, row, col, a.wide.cols, total);
}

int lora_part(const struct lora_args *args, CUstream_st *stream)
{
	struct lora_args a = *args;
	a.pieces[0] = 0;
	for (int m = 0; m < a.modules; m++)
		a.pieces[m + 1] = a.pieces[m] + (int)rh_ceil_div(a.width[m], LORA_TILE);
	int64_t blocks = rh_ceil_div(a.wide.rows, LORA_TILE) * a.pieces[a.modules];
	return RH_LAUNCH(lora_part_tile, (unsigned)blocks, LORA_THREADS, 2 * TILE_ELEMENTS * 2, stream, a);
}

int lora_input_gradient(const struct lora_args *a, CUstream_st *stream)
{
	int64_t blocks = rh_ceil_div(a->wide.rows, LORA_TILE) * rh_ceil_div(a->wide.cols, LORA_TILE);
	return RH_LAUNCH(lora_input_gradient_tile, (unsigned)blocks, LORA_THREADS, 2 * TILE_ELEMENTS * 2, stream, *a);
}
