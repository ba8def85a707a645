/* PREFERENCE: what rows weigh in losses over whole answers, in up to three launches.
 *
 * sums    a warp a document, sums in fp64: lanes take every 32nd row, then join in one order. Reads 8 bytes a row.
 * weights a block a document; one thread knows what its rows weigh, from a few numbers of each document. Writes 4 bytes a row.
 * scale   reads and writes n H elements of dh: a chunk of 8 a thread, 32 such by 8 rows a block. Bound by memory: the roofline is
 *         bytes / DRAM bandwidth. The other two take microseconds. */
#include "cuda/chunk.h"
#include "cuda/kernels.h"

enum { THREADS = 256 };

struct preference_args {
	struct rh_judged batch;
	struct rh_preference is;
	const float *loss;
	float *sum, *mix;
};

static RH_KERNEL(RH_WARP, 16) preference_sums(struct preference_args a)
{
	int64_t d = blockIdx.x, end = rh_judged_end(&a.batch, d);
	for (int all = 0; all < 2; all++) {
		double sum = 0;
		for (int64_t i = rh_judged_first(&a.batch, d, all) + (int)threadIdx.x; i < end; i += RH_WARP)
			sum += (double)a.loss[i];
		RH_UNROLL
		for (int mask = RH_WARP / 2; mask; mask /= 2)
			sum += rh_shuffle_xor(sum, mask);
		if (threadIdx.x == 0)
			a.sum[2 * d + all] = (float)sum;
	}
}

static RH_KERNEL(THREADS, 2) preference_weights(struct preference_args a)
{
	RH_SHARED(float, weight, 2);
	int64_t d = blockIdx.x, answer = rh_judged_first(&a.batch, d, 0), end = rh_judged_end(&a.batch, d);
	if (threadIdx.x == 0) {
		struct rh_weights own =
		        rh_judged_weights(&a.batch, &a.is, d, rh_judged_divergence(&a.batch), rh_judged_nll_slope(&a.batch, &a.is));
		weight[0] = own.prompt;
		weight[1] = own.answer;
	}
	__syncthreads();
	for (int64_t i = rh_judged_first(&a.batch, d, 1) + (int)threadIdx.x; i < end; i += THREADS)
		a.mix[i] = weight[i >= answer];
}

struct scale_args {
	void *dh;
	const float *mix;
	int64_t rows, cols, stride;
	int aligned;
};

template <typename T> CHUNK_KERNEL preference_scale(struct scale_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		T *at = (T *)a.dh + row * a.stride + i;
		struct chunk c = chunk_load(at, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			c.v[k] *= a.mix[row];
		chunk_store(at, c, left, a.aligned);
	}
}

template <typename T> static int scale(struct rh_view dh, const float *mix, CUstream_st *stream)
{
	struct scale_args args = {dh.data, mix, dh.rows, dh.cols, dh.stride, chunk_aligned(&dh, 1)};
	return RH_LAUNCH(preference_scale<T>, chunk_grid(dh.rows, chunks_of(dh.cols)), chunk_block(), 0, stream, args);
}

extern "C" int cuda_preference(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct rh_view span = view[RH_PREFERENCE_OP_SPAN], dh = view[RH_PREFERENCE_OP_DH];
	struct preference_args args = {};
	args.is = op->preference;
	args.loss = (const float *)view[RH_PREFERENCE_OP_LOSS].data;
	args.sum = (float *)view[RH_PREFERENCE_OP_SUM].data;
	args.mix = (float *)view[RH_PREFERENCE_OP_MIX].data;
	args.batch.span = (const int32_t *)span.data;
	args.batch.reference = (const float *)view[RH_PREFERENCE_OP_REFERENCE].data;
	args.batch.sum = args.sum;
	args.batch.documents = span.rows;
	args.batch.rows = view[RH_PREFERENCE_OP_LOSS].rows;
	int rc = RH_LAUNCH(preference_sums, dim3((unsigned)span.rows), RH_WARP, 0, stream, args);
	if (!rc)
		rc = RH_LAUNCH(preference_weights, dim3((unsigned)span.rows), THREADS, 0, stream, args);
	if (rc || !dh.data)
		return rc;
	return dh.dtype == RH_BF16 ? scale<rh_bf16>(dh, args.mix, stream) : scale<float>(dh, args.mix, stream);
}
