/* GROUPED_GEMM and GROUPED_GEMM_GRADIENT (device/op.h). Operands are device addresses; 0, or a negative errno when a launch is refused. */
#ifndef RH_CUDA_GROUPED_GEMM_H
#define RH_CUDA_GROUPED_GEMM_H

#include "device/op.h"

struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

int cuda_grouped_gemm(const struct rh_op *op, struct CUstream_st *stream);
int cuda_grouped_gemm_gradient(const struct rh_op *op, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
