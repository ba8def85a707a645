/* Grouped products in bf16 with fp32 sums: a matrix product an expert, one launch for all of them (grouped_tile.h has the walk,
 * product_tile.h the tile).
 *
 * For an expert of r rows, d (r,n), k deep: 2 r n k FLOPs; from DRAM 2 (r k + k n + r n) bytes, from L2 2 k (r n/128 + n r/R) with R the
 * rows of a tile. At r = 128 that is 128 FLOPs a byte of weights: an RTX 4090 (165 TFLOP/s, 1008 GB/s) needs 164 of them to be bound by
 * mma.sync when the weights come from DRAM, so the roofline of few rows is bytes / DRAM bandwidth, of many it is mma's. The gradient: d
 * (m,n) += over r rows: 8 m n bytes of sums beside 2 r m n FLOPs, so it is bound by memory up to some 650 rows an expert.
 *
 * R is 64 where experts have few rows (the last tile of each is half empty on average: at 128 rows 128-row tiles would run at two thirds),
 * else 128; two blocks an SM. On SMs of 160 KB and more (sm_80, sm_90) mma takes 6 to 8 cycles, and of a tile of 64 rows the fragments and
 * copies of each take 11 cycles of the SM's shared memory and 8 issue slots, of one of 128 rows 8 and 5: "few" are fewer there. Where an SM
 * has 192 KB (sm_90) steps are 64 deep: whole lines of memory, half the barriers.
 *
 * Measured on an H200 (4.25 TB/s), 128 experts of 128 rows, 2048 x 1536: forward 413 us, input gradient 418; with 32-deep steps 446 and
 * 459. The gradient 1107 us, with its tile's sums fetched to L2 ahead and read in batches; read one at a time 2444. */
#include "cuda/kernels.h"
#include "cuda/product_tile.h"

enum { FEW_ROWS = 192, FEW_ROWS_OF_FAST_MMA = 80 };

typedef struct product_shape<64, 128, 32, 4, GROUPED_BLOCKS, 0> few_rows; /* this and the next in 48 KB: on every GPU */
typedef struct product_shape<128, 128, 32, 3, GROUPED_BLOCKS, 256> many_rows;
typedef struct product_shape<128, 128, 64, 3, GROUPED_BLOCKS, 128> deep_rows; /* two blocks take 192 KB of an SM: on data-centre GPUs */

template <typename S, bool A_K_MAJOR, bool B_K_MAJOR> static int launch(const struct grouped_args *a, CUstream_st *stream)
{
	return RH_LAUNCH((product_mma<S, A_K_MAJOR, B_K_MAJOR, false>), grouped_grid(a, S::m, S::n), PRODUCT_THREADS, S::bytes, stream, *a);
}

template <bool B_K_MAJOR> static int launch_rows(const struct grouped_args *a, CUstream_st *stream)
{
	if (a->a.rows / a->experts < (rh_mma_is_fast() ? FEW_ROWS_OF_FAST_MMA : FEW_ROWS))
		return launch<few_rows, true, B_K_MAJOR>(a, stream);
	return rh_shared_bytes() >= GROUPED_BLOCKS * deep_rows::bytes ? launch<deep_rows, true, B_K_MAJOR>(a, stream)
	                                                              : launch<many_rows, true, B_K_MAJOR>(a, stream);
}

/* bf16 whose rows begin on 16 bytes, those of d and add too. */
static int can_mma(const struct grouped_args *a)
{
	const struct rh_view views[] = {a->a, a->b, a->add, a->d};
	int can = a->a.dtype == RH_BF16 && a->a.stride <= INT32_MAX && a->b.stride <= INT32_MAX;
	for (const struct rh_view &view : views)
		can = can && (!view.data || rh_rows_aligned(view.data, view.stride, (int)rh_dtype_bytes(view.dtype, 1)));
	return can;
}

static void read_start(struct grouped_args *a, const struct rh_view *start)
{
	a->start = (const int32_t *)start->data;
	a->start_stride = start->stride;
	a->experts = (int)(start->rows - 1);
}

extern "C" int cuda_grouped_gemm(const struct rh_op *op, CUstream_st *stream)
{
	struct grouped_args a = {};
	a.a = op->operand[RH_GROUPED_GEMM_A];
	a.b = op->operand[RH_GROUPED_GEMM_B];
	a.add = op->operand[RH_GROUPED_GEMM_C];
	a.bias = op->operand[RH_GROUPED_GEMM_BIAS];
	a.d = op->operand[RH_GROUPED_GEMM_D];
	a.trans_b = op->grouped_gemm.trans_b;
	a.alpha = op->grouped_gemm.alpha;
	read_start(&a, &op->operand[RH_GROUPED_GEMM_START]);
	if (!a.d.rows || !a.d.cols)
		return 0;
	if (!can_mma(&a))
		return grouped_plain(&a, stream);
	return a.trans_b ? launch_rows<true>(&a, stream) : launch_rows<false>(&a, stream);
}

extern "C" int cuda_grouped_gemm_gradient(const struct rh_op *op, CUstream_st *stream)
{
	struct grouped_args a = {};
	a.a = op->operand[RH_GROUPED_GEMM_GRADIENT_A];
	a.b = op->operand[RH_GROUPED_GEMM_GRADIENT_B];
	a.d = a.add = op->operand[RH_GROUPED_GEMM_GRADIENT_D];
	a.alpha = op->grouped_gemm.alpha;
	a.gradient = 1;
	read_start(&a, &op->operand[RH_GROUPED_GEMM_GRADIENT_START]);
	if (!a.a.rows || !a.d.rows || !a.d.cols)
		return 0;
	return can_mma(&a) ? launch<many_rows, false, false>(&a, stream) : grouped_plain(&a, stream);
}
