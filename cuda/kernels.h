/* The kernels of each op (device/op.h) but the products that go through cuBLASLt. Operands are device addresses; 0, or a negative errno
 * when a launch is refused. */
#ifndef RH_CUDA_KERNELS_H
#define RH_CUDA_KERNELS_H

#include "device/op.h"

struct CUstream_st;

/* fp32 parts of dw, a block each: 256 blocks of up to 8192 columns; 512 blocks of up to 1024 take less. */
enum { RH_RMSNORM_PART_BYTES = 256 * 8192 * 4 };

#ifdef __cplusplus
extern "C" {
#endif

typedef int cuda_kernel(const struct rh_op *op, struct CUstream_st *stream);

#define CUDA_KERNEL(kind, name) cuda_kernel cuda_##name;
#define CUDA_NONE(kind, name)
RH_OPS(CUDA_KERNEL, CUDA_NONE)
#undef CUDA_KERNEL
#undef CUDA_NONE
cuda_kernel cuda_grouped_gemm, cuda_grouped_gemm_gradient, cuda_quantise, cuda_transpose;
/* The same with room for sums of blocks, RH_RMSNORM_PART_BYTES of device memory on a border of 16 that no other work uses meanwhile; NULL:
 * none, and x and dy are read twice where dw is wanted. */
int cuda_rmsnorm_backward_within(const struct rh_op *op, void *workspace, struct CUstream_st *stream);
cuda_kernel cuda_half_gemm; /* SCALED_GEMM with sums of chunks in fp16 */

/* Fused ops. Of QK_ROPE_BACKWARD the workspace, RH_RMSNORM_PART_BYTES as above, holds blocks' parts of the weights' gradients. */
cuda_kernel cuda_add_rmsnorm, cuda_qk_rope;
int cuda_qk_rope_backward(const struct rh_op *op, void *workspace, struct CUstream_st *stream);
/* All six kinds of LORA. 1: launched; 0: these kernels do not take the shapes (they need bf16, lengths and rows of 16 bytes, no c), and
 * the op's parts are launched instead. */
cuda_kernel cuda_lora;

#ifdef __cplusplus
}
#endif

#endif
