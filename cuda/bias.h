/* The bias of a product, where cuBLASLt cannot add it. */
#ifndef RH_CUDA_BIAS_H
#define RH_CUDA_BIAS_H

#include "core/view.h"

struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

/* d (m,n) += bias (1,n), each F32 or BF16. m, n >= 1. */
int cuda_add_bias(const struct rh_view *bias, const struct rh_view *d, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
