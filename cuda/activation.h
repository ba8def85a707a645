/* GLU, ACTIVATION and their backwards (device/op.h). Operands are device addresses; 0, or a negative errno when a launch is refused. */
#ifndef RH_CUDA_ACTIVATION_H
#define RH_CUDA_ACTIVATION_H

#include "device/op.h"

struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

int cuda_glu(const struct rh_op *op, struct CUstream_st *stream);
int cuda_glu_backward(const struct rh_op *op, struct CUstream_st *stream);
int cuda_activation(const struct rh_op *op, struct CUstream_st *stream);
int cuda_activation_backward(const struct rh_op *op, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
