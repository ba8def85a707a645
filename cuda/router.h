/* ROUTER and its gradient (device/op.h). Operands are device addresses; 0, or a negative errno when a launch is refused. */
#ifndef RH_CUDA_ROUTER_H
#define RH_CUDA_ROUTER_H

#include "device/op.h"

struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

int cuda_router(const struct rh_op *op, struct CUstream_st *stream);
int cuda_router_backward(const struct rh_op *op, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
