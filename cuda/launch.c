#include "cuda/launch.h"

#include "cuda/activation.h"
#include "cuda/attention.h"
#include "cuda/dequantise.h"
#include "cuda/dropout.h"
#include "cuda/grouped_gemm.h"
#include "cuda/norm.h"
#include "cuda/permute.h"
#include "cuda/rope.h"
#include "cuda/router.h"
#include "cuda/rows.h"

typedef int kernel_entry(const struct rh_op *op, struct CUstream_st *stream);

static kernel_entry *const entries[RH_OP_KINDS] = {
        [RH_OP_FILL] = cuda_fill,
        [RH_OP_CAST] = cuda_cast,
        [RH_OP_COLUMN_SUM] = cuda_column_sum,
        [RH_OP_RMSNORM] = cuda_rmsnorm,
        [RH_OP_RMSNORM_BACKWARD] = cuda_rmsnorm_backward,
        [RH_OP_ROPE_TABLE] = cuda_rope_table,
        [RH_OP_ROPE] = cuda_rope,
        [RH_OP_ATTENTION] = cuda_attention,
        [RH_OP_ATTENTION_BACKWARD] = cuda_attention_backward,
        [RH_OP_GLU] = cuda_glu,
        [RH_OP_GLU_BACKWARD] = cuda_glu_backward,
        [RH_OP_EMBEDDING] = cuda_embedding,
        [RH_OP_EMBEDDING_BACKWARD] = cuda_embedding_backward,
        [RH_OP_GATHER_ROWS] = cuda_gather_rows,
        [RH_OP_SCATTER_ROWS] = cuda_scatter_rows,
        [RH_OP_DROPOUT] = cuda_dropout,
        [RH_OP_ADD] = cuda_add,
        [RH_OP_DEQUANTISE] = cuda_dequantise,
        [RH_OP_ACTIVATION] = cuda_activation,
        [RH_OP_ACTIVATION_BACKWARD] = cuda_activation_backward,
        [RH_OP_LAYERNORM] = cuda_layernorm,
        [RH_OP_LAYERNORM_BACKWARD] = cuda_layernorm_backward,
        [RH_OP_ROUTER] = cuda_router,
        [RH_OP_ROUTER_BACKWARD] = cuda_router_backward,
        [RH_OP_PERMUTE] = cuda_permute,
        [RH_OP_UNPERMUTE] = cuda_unpermute,
        [RH_OP_UNPERMUTE_BACKWARD] = cuda_unpermute_backward,
        [RH_OP_GROUPED_GEMM] = cuda_grouped_gemm,
        [RH_OP_GROUPED_GEMM_GRADIENT] = cuda_grouped_gemm_gradient,
        [RH_OP_GROUPED_COLUMN_SUM] = cuda_grouped_column_sum,
};

int launch_op(const struct launch *launch, const struct rh_op *op)
{
	if (op->kind == RH_OP_GEMM)
		return launch_gemm(launch, op);
	if (op->kind == RH_OP_HEAD_LOSS)
		return launch_head(launch, op);
	return entries[op->kind](op, launch->stream);
}
