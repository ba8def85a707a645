/* An op to its kernels. */
#ifndef RH_CUDA_LAUNCH_H
#define RH_CUDA_LAUNCH_H

#include "cuda/blas.h"
#include "device/op.h"

/* What a device launches its ops with. */
struct launch {
	struct blas *blas;
	void *workspace;            /* of products and of norms' gradients, this stream's */
	struct CUstream_st *stream; /* borrowed */
};

/* Enqueues the op; operands are device addresses. 0 or negative errno with the line made. */
int launch_op(const struct launch *launch, const struct rh_op *op) RH_MUST;

void cuda_count_launch(void); /* of a kernel, or of a product of cuBLASLt's */

int launch_gemm(const struct launch *launch, const struct rh_op *op) RH_MUST;        /* gemm.c */
int launch_scaled_gemm(const struct launch *launch, const struct rh_op *op) RH_MUST; /* gemm.c */
int launch_head(const struct launch *launch, const struct rh_op *op) RH_MUST;        /* head.c */

#endif
