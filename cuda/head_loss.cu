/* Softmax, cross-entropy and its gradient: a block takes a row of logits (r,V), in two passes over it. The first keeps, in each thread, the
 * largest logit, where it first is, and the sum of exponentials below it; the second replaces the logits by the gradient.
 *
 * Memory: V * (4 + 4 + 4) bytes a row in fp32, V * (4 + 4 + 2) with a bf16 gradient, V * 4 for the loss alone; the chunk of rows was just
 * written by a product and fits the second-level cache in part. Judged by memory bandwidth; 2 exponentials an element.
 *
 * A bf16 gradient lies in the first half of its row. Elements [i, i+n) of it take the bytes of logits [i/2, (i+n)/2): each tile of a row is
 * in registers before any of its gradient is stored, which a barrier between the two makes sure of. */
#include "cuda/head_loss.h"

#include "cuda/rh_cuda.h"

enum { THREADS = 512, WARPS = THREADS / RH_WARP, TILE = 4 * THREADS };

/* Over part of a row: the largest value and its first place, and the sum of exp(value - largest). */
struct part {
	float largest, sum;
	int64_t first; /* V: no element so far */
};

/* exp(x - largest), where both may be -infinity: before a thread's first element. */
RH_DEVICE float below(float x, float largest)
{
	return x == -INFINITY ? 0 : expf(x - largest);
}

RH_DEVICE struct part join(const struct part &a, const struct part &b)
{
	struct part out;
	int b_leads = b.largest > a.largest || (b.largest == a.largest && b.first < a.first);
	out.largest = b_leads ? b.largest : a.largest;
	out.first = b_leads ? b.first : a.first;
	out.sum = a.sum * below(a.largest, out.largest) + b.sum * below(b.largest, out.largest);
	return out;
}

RH_DEVICE struct part join_lanes(struct part own)
{
	RH_UNROLL
	for (int mask = 1; mask < RH_WARP; mask *= 2) {
		struct part other;
		other.largest = rh_shuffle_xor(own.largest, mask);
		other.sum = rh_shuffle_xor(own.sum, mask);
		other.first = rh_shuffle_xor(own.first, mask);
		/* the lower lane's part comes first in both, so that all lanes get the same bits */
		own = threadIdx.x & (unsigned)mask ? join(other, own) : join(own, other);
	}
	return own;
}

/* Of the whole row, in every thread. */
RH_DEVICE struct part reduce_row(const float *logit, int64_t cols)
{
	RH_SHARED(struct part, warps, WARPS);
	struct part own = {-INFINITY, 0, cols};
	for (int64_t i = threadIdx.x; i < cols; i += THREADS) {
		float x = logit[i];
		if (x > own.largest || own.first == cols) {
			own.sum = own.sum * below(own.largest, x) + 1;
			own.largest = x;
			own.first = i;
		} else {
			own.sum += below(x, own.largest);
		}
	}
	own = join_lanes(own);
	if (threadIdx.x % RH_WARP == 0)
		warps[threadIdx.x / RH_WARP] = own;
	__syncthreads();
	own = warps[0];
	for (int i = 1; i < WARPS; i++)
		own = join(own, warps[i]);
	return own;
}

template <typename G> RH_KERNEL(THREADS, 2) head_rows_kernel(struct head_rows r)
{
	int64_t row = blockIdx.x, cols = r.logits.cols, target = ((const int32_t *)r.target.data)[row * r.target.stride];
	float *logit = (float *)r.logits.data + row * r.logits.stride;
	struct part whole = reduce_row(logit, cols);
	float wanted = logit[target];
	__syncthreads(); /* every thread has read it before it is overwritten */
	if (threadIdx.x == 0) {
		((float *)r.loss.data)[row * r.loss.stride] = logf(whole.sum) + whole.largest - wanted;
		((int32_t *)r.hit.data)[row * r.hit.stride] = whole.first == target;
	}
	if (r.gradient == HEAD_LOSS_ONLY)
		return;
	G *gradient = reinterpret_cast<G *>(logit);
	float inverse = 1 / whole.sum;
	for (int64_t tile = 0; tile < cols; tile += TILE) {
		float x[TILE / THREADS];
		RH_UNROLL
		for (int j = 0; j < TILE / THREADS; j++) {
			int64_t i = tile + j * THREADS + threadIdx.x;
			x[j] = i < cols ? logit[i] : 0;
		}
		if (sizeof(G) < sizeof(float))
			__syncthreads();
		RH_UNROLL
		for (int j = 0; j < TILE / THREADS; j++) {
			int64_t i = tile + j * THREADS + threadIdx.x;
			if (i < cols)
				gradient[i] =
				        rh_from_float<G>(r.scale * (below(x[j], whole.largest) * inverse - (i == target ? 1.0f : 0.0f)));
		}
	}
}

template <typename G> static int launch(const struct head_rows *rows, CUstream_st *stream)
{
	return RH_LAUNCH(head_rows_kernel<G>, dim3((unsigned)rows->logits.rows), THREADS, 0, stream, *rows);
}

extern "C" int cuda_head_rows(const struct head_rows *rows, CUstream_st *stream)
{
	return rows->gradient == HEAD_GRADIENT_BF16 ? launch<rh_bf16>(rows, stream) : launch<float>(rows, stream);
}
