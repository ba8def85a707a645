/* A bias added to a finished product: only where cuBLASLt cannot, which is rare. A thread takes one column of a block of rows. Reads and
 * writes d once: 8 bytes an element in fp32, judged by memory bandwidth. */
#include "cuda/bias.h"

#include "cuda/rh_cuda.h"

enum { THREADS = 128, ROWS = 16 };

template <typename B, typename D> RH_KERNEL(THREADS, 1) add_bias(const B *bias, D *d, int64_t stride, int64_t rows, int64_t cols)
{
	int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	for (int64_t row = (int64_t)blockIdx.y * ROWS; col < cols && row < rows; row += (int64_t)gridDim.y * ROWS)
		for (int64_t r = row; r < row + ROWS && r < rows; r++)
			d[r * stride + col] = rh_from_float<D>(rh_to_float(d[r * stride + col]) + rh_to_float(bias[col]));
}

template <typename B, typename D> static int launch(const struct rh_view *bias, const struct rh_view *d, CUstream_st *stream)
{
	int64_t down = rh_ceil_div(d->rows, ROWS);
	dim3 grid((unsigned)rh_ceil_div(d->cols, THREADS), (unsigned)(down < 65535 ? down : 65535));
	return RH_LAUNCH((add_bias<B, D>), grid, THREADS, 0, stream, (const B *)bias->data, (D *)d->data, d->stride, d->rows, d->cols);
}

extern "C" int cuda_add_bias(const struct rh_view *bias, const struct rh_view *d, CUstream_st *stream)
{
	if (bias->dtype == RH_F32)
		return launch<float, float>(bias, d, stream); /* op.h: products of F32 are F32 */
	return d->dtype == RH_F32 ? launch<rh_bf16, float>(bias, d, stream) : launch<rh_bf16, rh_bf16>(bias, d, stream);
}
