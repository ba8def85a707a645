/* Softmax, cross-entropy and its gradient: a block takes a row of logits (r,V), in two passes over it. The first keeps, in each thread, the
 * largest logit, where it first is, and the sum of exponentials below it; the second replaces the logits by the gradient.
 *
 * Memory: V * (4 + 4 + 4) bytes a row in fp32, V * (4 + 4 + 2) with a bf16 gradient, V * 4 for the loss alone; the chunk of rows was just
 * written by a product and fits the second-level cache in part. Judged by memory bandwidth; 2 exponentials an element. Rows that begin on
 * 16 bytes go 8 elements a thread and load. Exponentials are one instruction (rh_exp2) of the difference times 1 / ln 2.
 *
 * A bf16 gradient lies in the first half of its row. Elements [i, i+n) of it take the bytes of logits [i/2, (i+n)/2): each tile of a row is
 * in registers before any of its gradient is stored, which a barrier between the two makes sure of. */
#include "cuda/head_loss.h"

#include "cuda/chunk.h"

enum { THREADS = 512, WARPS = THREADS / RH_WARP, TILE = CHUNK * THREADS };

/* Over part of a row: the largest value and its first place, and the sum of exp(value - largest). */
struct part {
	float largest, sum;
	int64_t first; /* V: no element so far */
};

/* exp(x - largest), where both may be -infinity: before a thread's first element. */
RH_DEVICE float below(float x, float largest)
{
	return x == -INFINITY ? 0 : rh_exp2((x - largest) * 1.442695040888963f);
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

RH_DEVICE float capped(float logit, float cap)
{
	return cap > 0 ? cap * tanhf(logit / cap) : logit;
}

/* Logits from i on, -infinity beyond the row's end. */
RH_DEVICE struct chunk logits_load(const float *logit, int64_t i, int64_t cols, float cap, int aligned)
{
	struct chunk c = chunk_load(logit + i, cols - i, aligned);
	if (cap > 0) {
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			c.v[k] = capped(c.v[k], cap);
	}
	if (i + CHUNK > cols) {
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			c.v[k] = i + k < cols ? c.v[k] : -INFINITY;
	}
	return c;
}

/* Joins 8 elements, which begin at i and come after all before. */
RH_DEVICE void part_add(struct part *own, const struct chunk &c, int64_t i, int64_t cols)
{
	float largest = c.v[0];
	RH_UNROLL
	for (int k = 1; k < CHUNK; k++)
		largest = fmaxf(largest, c.v[k]);
	if (largest > own->largest || own->first == cols) {
		own->sum *= below(own->largest, largest);
		own->largest = largest;
		int place = 0;
		RH_UNROLL
		for (int k = CHUNK - 1; k > 0; k--)
			place = c.v[k] == largest ? k : place;
		own->first = i + (c.v[0] == largest ? 0 : place);
	}
	float base = own->largest == -INFINITY ? 0 : own->largest;
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++)
		own->sum += rh_exp2((c.v[k] - base) * 1.442695040888963f);
}

/* The whole row's part, in every thread. */
RH_DEVICE struct part reduce_row(const float *logit, int64_t cols, float cap, int aligned)
{
	struct part own = {-INFINITY, 0, cols};
	for (int64_t i = (int64_t)threadIdx.x * CHUNK; i < cols; i += TILE)
		part_add(&own, logits_load(logit, i, cols, cap, aligned), i, cols);
	return rh_block_join<WARPS>(join_lanes(own), [](const struct part &a, const struct part &b) { return join(a, b); });
}

template <typename G> RH_KERNEL(THREADS, 2) head_rows_kernel(struct head_rows r)
{
	int64_t row = blockIdx.x, cols = r.logits.cols, target = ((const int32_t *)r.target.data)[row * r.target.stride];
	float *logit = (float *)r.logits.data + row * r.logits.stride;
	int aligned = rh_rows_aligned(logit, 0, (int)sizeof(float));
	struct part whole = reduce_row(logit, cols, r.cap, aligned);
	float wanted = capped(logit[target], r.cap), weight = r.mix.data ? ((const float *)r.mix.data)[row * r.mix.stride] : 1,
	      scale = r.scale * weight;
	__syncthreads(); /* every thread has read it before it is overwritten */
	if (threadIdx.x == 0) {
		((float *)r.loss.data)[row * r.loss.stride] = weight * (logf(whole.sum) + whole.largest - wanted);
		((int32_t *)r.hit.data)[row * r.hit.stride] = whole.first == target;
	}
	if (r.gradient == HEAD_LOSS_ONLY)
		return;
	G *gradient = reinterpret_cast<G *>(logit);
	float times = scale / whole.sum;
	for (int64_t tile = 0; tile < cols; tile += TILE) {
		int64_t i = tile + (int64_t)threadIdx.x * CHUNK;
		struct chunk c = {};
		if (i < cols)
			c = logits_load(logit, i, cols, r.cap, aligned);
		if (sizeof(G) < sizeof(float))
			__syncthreads();
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++) {
			float share = r.cap > 0 ? c.v[k] / r.cap : 0;
			c.v[k] = times * below(c.v[k], whole.largest) - (i + k == target ? scale : 0.0f);
			c.v[k] *= 1 - share * share;
		}
		if (i < cols)
			chunk_store(gradient + i, c, cols - i, aligned);
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
