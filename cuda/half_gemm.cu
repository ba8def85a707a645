/* Products of bf16 operands whose sums are made in fp16 over chunks of k and added up in fp32 (product_tile.h has the tile). For consumer
 * cards, whose tensor cores sum in fp16 at twice the rate of fp32: 330 TFLOP/s on an RTX 4090. Data-centre cards have one rate for both.
 *
 * cuBLASLt's COMPUTE_16F would take fp16 operands, a copy of each, and a pass over the fp32 result for each chunk of k. Here fragments are
 * turned from bf16 to fp16, times their tensor's scale, on their way from shared memory to mma; a chunk's sums lie in registers, half as
 * many as the fp32 sums beside them. So both operands are read once as they are, and no memory is wanted.
 *
 * (m,k) by (k,n): 2 m n k FLOPs; from L2 2 k m n (1/128 + 1/256) bytes: 85 FLOPs a byte, 3.9 TB/s at the card's peak, three quarters of
 * what its L2 gives. Issue slots of a warp over 32 of k, beside 64 mma of 16 cycles: 320 to turn fragments, 256 to
 * fold chunks of 32, fewer of longer ones: they fit beside the tensor cores. One block an SM: fp32 and fp16 sums take 192 registers. */
#include "cuda/kernels.h"
#include "cuda/product_tile.h"

typedef struct product_shape<128, 256, 32, 3, HALF_BLOCKS, 0> half_shape;

template <bool A_K_MAJOR, bool B_K_MAJOR> static int launch(const struct grouped_args *a, CUstream_st *stream)
{
	int64_t tiles = rh_ceil_div(a->d.rows, half_shape::m) * rh_ceil_div(a->d.cols, half_shape::n),
	        blocks = (int64_t)HALF_BLOCKS * rh_processors();
	return RH_LAUNCH((product_mma<half_shape, A_K_MAJOR, B_K_MAJOR, true>), (unsigned)(tiles < blocks ? tiles : blocks),
	                 PRODUCT_THREADS, half_shape::bytes, stream, *a);
}

extern "C" int cuda_half_gemm(const struct rh_op *op, CUstream_st *stream)
{
	struct grouped_args a = {};
	a.a = op->operand[RH_SCALED_GEMM_A];
	a.b = op->operand[RH_SCALED_GEMM_B];
	a.add = op->operand[RH_SCALED_GEMM_C];
	a.bias = op->operand[RH_SCALED_GEMM_BIAS];
	a.d = op->operand[RH_SCALED_GEMM_D];
	a.experts = 1;
	a.gradient = op->scaled_gemm.trans_a;
	a.trans_b = op->scaled_gemm.trans_b;
	a.alpha = op->scaled_gemm.alpha;
	a.scale_a = (const float *)op->operand[RH_SCALED_GEMM_SCALE_A].data;
	a.scale_b = (const float *)op->operand[RH_SCALED_GEMM_SCALE_B].data;
	a.chunk = (int)op->scaled_gemm.chunk;
	if (!a.d.rows || !a.d.cols)
		return 0;
	if (a.gradient)
		return launch<false, false>(&a, stream);
	return a.trans_b ? launch<true, true>(&a, stream) : launch<true, false>(&a, stream);
}
