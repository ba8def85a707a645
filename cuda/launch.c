/* An op to its entry: by name where it needs the workspace or has parts, else by the table. */
#include "cuda/launch.h"

#include "cuda/device.h"
#include "cuda/kernels.h"

#include <assert.h>
#include <cuda_runtime_api.h>
#include <stdatomic.h>

#define ROW(kind, name) [RH_OP_##kind] = cuda_##name,
#define NONE(kind, name)
static cuda_kernel *const kernels[RH_OP_KINDS] = {[RH_OP_GROUPED_GEMM] = cuda_grouped_gemm,
                                                  [RH_OP_GROUPED_GEMM_GRADIENT] = cuda_grouped_gemm_gradient,
                                                  [RH_OP_QUANTISE] = cuda_quantise,
                                                  [RH_OP_TRANSPOSE] = cuda_transpose,
                                                  RH_OPS(ROW, NONE)};

static _Atomic int64_t launches;

void cuda_count_launch(void)
{
	atomic_fetch_add_explicit(&launches, 1, memory_order_relaxed); /* a number for reports: it orders nothing */
}

int cuda_launched(const char *kernel)
{
	cudaError_t error = cudaPeekAtLastError();
	cuda_count_launch();
	return error == cudaSuccess ? 0 : rh_fail(-EIO, "kernel %s cannot be launched: %s", kernel, cudaGetErrorString(error));
}

int64_t rh_cuda_launches(void)
{
	return atomic_load_explicit(&launches, memory_order_relaxed);
}

static int launch_part(void *launch, const struct rh_op *part)
{
	return launch_op(launch, part);
}

int launch_op(const struct launch_context *launch, const struct rh_op *op)
{
	if (op->kind == RH_OP_ADD_RMSNORM)
		return cuda_add_rmsnorm(op, launch->stream);
	if (op->kind == RH_OP_QK_ROPE)
		return cuda_qk_rope(op, launch->stream);
	if (op->kind == RH_OP_QK_ROPE_BACKWARD)
		return cuda_qk_rope_backward(op, launch->workspace, launch->stream);
	if (rh_op_is_fused(op->kind)) { /* adapters */
		int done = cuda_lora(op, launch->stream);
		return done ? done < 0 ? done : 0 : rh_op_parts(op, launch_part, (void *)(uintptr_t)launch);
	}
	if (op->kind == RH_OP_GEMM)
		return launch_gemm(launch, op);
	if (op->kind == RH_OP_SCALED_GEMM)
		return launch_scaled_gemm(launch, op);
	if (op->kind == RH_OP_HEAD_LOSS)
		return launch_head(launch, op);
	if (op->kind == RH_OP_RMSNORM_BACKWARD) {
		static_assert((int)RH_RMSNORM_PART_BYTES <= (int)BLAS_WORKSPACE_BYTES, "blocks' parts lie in the products' workspace");
		return cuda_rmsnorm_backward_within(op, launch->workspace, launch->stream);
	}
	RH_ASSERT(kernels[op->kind]); /* an op of each device's own (RH_OPS) has its line above, or in the table */
	return kernels[op->kind](op, launch->stream);
}
