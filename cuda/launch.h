/* An op to its kernels. */
#ifndef RH_CUDA_LAUNCH_H
#define RH_CUDA_LAUNCH_H

#include "cuda/blas.h"
#include "device/op.h"

/* Where an op is launched. */
struct launch_context {
	struct blas *blas;
	void *workspace; /* the device's one, of BLAS_WORKSPACE_BYTES: products, and norms' partial sums; so COMPUTE's ops alone use it */
	struct CUstream_st *stream; /* borrowed */
};

/* Enqueues the op; operands are device addresses. 0 or negative errno with the line made. */
int launch_op(const struct launch_context *launch, const struct rh_op *op) RH_MUST;

void cuda_count_launch(void); /* of a kernel, or of a product of cuBLASLt's */
int cuda_launched(const char *kernel) RH_MUST; /* as rh_cuda.h has it, for .cu files */

int launch_gemm(const struct launch_context *launch, const struct rh_op *op) RH_MUST;        /* gemm.c */
int launch_scaled_gemm(const struct launch_context *launch, const struct rh_op *op) RH_MUST; /* gemm.c */
int launch_head(const struct launch_context *launch, const struct rh_op *op) RH_MUST;        /* head.c */

#endif
