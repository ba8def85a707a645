/* FILL, CAST, ADD, COLUMN_SUM, EMBEDDING, EMBEDDING_BACKWARD, GATHER_ROWS and SCATTER_ROWS (device/op.h). Operands are device addresses; 0,
 * or a negative errno when a launch is refused. */
#ifndef RH_CUDA_ROWS_H
#define RH_CUDA_ROWS_H

#include "device/op.h"

struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

int cuda_fill(const struct rh_op *op, struct CUstream_st *stream);
int cuda_cast(const struct rh_op *op, struct CUstream_st *stream);
int cuda_add(const struct rh_op *op, struct CUstream_st *stream);
int cuda_column_sum(const struct rh_op *op, struct CUstream_st *stream);
int cuda_grouped_column_sum(const struct rh_op *op, struct CUstream_st *stream);
int cuda_embedding(const struct rh_op *op, struct CUstream_st *stream);
int cuda_embedding_backward(const struct rh_op *op, struct CUstream_st *stream);
int cuda_gather_rows(const struct rh_op *op, struct CUstream_st *stream);
int cuda_scatter_rows(const struct rh_op *op, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
