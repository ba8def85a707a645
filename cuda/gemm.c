/* GEMM: rows to columns. A matrix by rows is its transpose by columns, so that d = op(a) op(b) by rows is d' = op(b)' op(a)' by columns:
 * the operands change places, and each is transposed for BLAS exactly if it was for the op. The bias, one for each column of d, is one for
 * each row of d'. */
#include "cuda/bias.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

#include <cuda_runtime_api.h>

/* d = c, or zeros: a sum over nothing. */
static int copy_c(const struct launch_context *launch, const struct rh_view *c, const struct rh_view *d)
{
	size_t element = (size_t)rh_dtype_block_bytes(d->dtype), width = (size_t)d->cols * element, pitch = (size_t)d->stride * element;
	cudaError_t fault = cudaSuccess;
	if (!c->data)
		fault = cudaMemset2DAsync(d->data, pitch, 0, width, (size_t)d->rows, launch->stream);
	else if (c->data != d->data)
		fault = cudaMemcpy2DAsync(d->data, pitch, c->data, (size_t)c->stride * element, width, (size_t)d->rows,
		                          cudaMemcpyDeviceToDevice, launch->stream);
	return fault == cudaSuccess ? 0 : rh_fail(-EIO, "an empty product's copy failed: %s", cudaGetErrorString(fault));
}

/* cuBLASLt adds a bias where it is of d's dtype (no bf16 one to an fp32 result), and where it and the rows of d begin on 16 bytes. */
static int can_fuse(const struct rh_view *bias, const struct rh_view *d)
{
	return bias->data && bias->dtype == d->dtype && rh_view_on_16(*bias) && rh_view_on_16(*d);
}

int launch_gemm(const struct launch_context *launch, const struct rh_op *op)
{
	const struct rh_view *view = op->operand, *a = &view[RH_GEMM_A], *b = &view[RH_GEMM_B], *c = &view[RH_GEMM_C];
	const struct rh_view *bias = &view[RH_GEMM_BIAS], *d = &view[RH_GEMM_D];
	int64_t k = op->gemm.trans_a ? a->rows : a->cols;
	if (!d->rows || !d->cols)
		return 0;
	int fused = k && can_fuse(bias, d);
	struct blas_product product = {.m = d->cols,
	                               .n = d->rows,
	                               .k = k,
	                               .trans_a = op->gemm.trans_b,
	                               .trans_b = op->gemm.trans_a,
	                               .alpha = op->gemm.alpha,
	                               .type_a = b->dtype,
	                               .type_b = a->dtype,
	                               .output = d->dtype,
	                               .a = {b->data, b->stride},
	                               .b = {a->data, a->stride},
	                               .c = {c->data, c->stride},
	                               .d = d->data,
	                               .ldd = d->stride,
	                               .bias = fused ? bias->data : NULL};
	cuda_count_launch();
	int rc = k ? blas_multiply(launch->blas, &product, launch->workspace, launch->stream) : copy_c(launch, c, d);
	return !rc && bias->data && !fused ? cuda_add_bias(bias, d, launch->stream) : rc;
}

/* 8-bit rows run along k on both sides: by columns, the first is transposed and the second is not, which is the one way of lying that
 * sm_89 takes. */
int launch_scaled_gemm(const struct launch_context *launch, const struct rh_op *op)
{
	const struct rh_view *view = op->operand, *a = &view[RH_SCALED_GEMM_A], *b = &view[RH_SCALED_GEMM_B], *c = &view[RH_SCALED_GEMM_C];
	const struct rh_view *bias = &view[RH_SCALED_GEMM_BIAS], *d = &view[RH_SCALED_GEMM_D];
	if (op->scaled_gemm.chunk)
		return cuda_half_gemm(op, launch->stream);
	if (!d->rows || !d->cols)
		return 0;
	int fused = can_fuse(bias, d);
	struct blas_product product = {.m = d->cols,
	                               .n = d->rows,
	                               .k = a->cols,
	                               .trans_a = 1,
	                               .alpha = op->scaled_gemm.alpha,
	                               .type_a = b->dtype,
	                               .type_b = a->dtype,
	                               .output = d->dtype,
	                               .a = {b->data, b->stride},
	                               .b = {a->data, a->stride},
	                               .scale_a = view[RH_SCALED_GEMM_SCALE_B].data,
	                               .scale_b = view[RH_SCALED_GEMM_SCALE_A].data,
	                               .c = {c->data, c->stride},
	                               .d = d->data,
	                               .ldd = d->stride,
	                               .bias = fused ? bias->data : NULL};
	cuda_count_launch();
	int rc = blas_multiply(launch->blas, &product, launch->workspace, launch->stream);
	return !rc && bias->data && !fused ? cuda_add_bias(bias, d, launch->stream) : rc;
}
