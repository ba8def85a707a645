/* SwiGLU, forward and backward. With T rows of I gates and I ups of e bytes:
 *
 * swiglu           reads 2 T I e bytes, writes T I e; about 20 FLOPs an element of the result.
 * swiglu_backward  reads 3 T I e, writes 2 T I e, and T I e more where the forward's output is wanted once more; about 30 FLOPs.
 *
 * At 3 to 7 FLOPs a byte both are bound by memory: the roofline is bytes / DRAM bandwidth.
 * Tile: 8 gates with their 8 ups a thread, 32 such by 8 rows a block. */
#include "cuda/activation.h"
#include "cuda/chunk.h"

struct swiglu_args {
	const void *gu, *da;
	void *a, *dgu;
	int64_t gu_stride, da_stride, a_stride, dgu_stride, rows, cols;
	int aligned;
};

RH_DEVICE float sigmoid_of(float gate)
{
	return 1 / (1 + expf(-gate));
}

template <typename T> CHUNK_KERNEL swiglu_forward(struct swiglu_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		const T *gate = (const T *)a.gu + row * a.gu_stride + i;
		struct chunk g = chunk_load(gate, left, a.aligned), u = chunk_load(gate + a.cols, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			g.v[k] = g.v[k] * sigmoid_of(g.v[k]) * u.v[k];
		chunk_store((T *)a.a + row * a.a_stride + i, g, left, a.aligned);
	}
}

/* dgu may be gu, a may be da: a thread has read what it overwrites. */
template <typename T> CHUNK_KERNEL swiglu_gradient(struct swiglu_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		const T *gate = (const T *)a.gu + row * a.gu_stride + i;
		T *dgate = (T *)a.dgu + row * a.dgu_stride + i;
		struct chunk g = chunk_load(gate, left, a.aligned), u = chunk_load(gate + a.cols, left, a.aligned);
		struct chunk d = chunk_load((const T *)a.da + row * a.da_stride + i, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++) {
			float gk = g.v[k], uk = u.v[k], dk = d.v[k], sigmoid = sigmoid_of(gk);
			g.v[k] = dk * uk * sigmoid * (1 + gk * (1 - sigmoid));
			u.v[k] = dk * gk * sigmoid;
			d.v[k] = gk * sigmoid * uk;
		}
		chunk_store(dgate, g, left, a.aligned);
		chunk_store(dgate + a.cols, u, left, a.aligned);
		if (a.a)
			chunk_store((T *)a.a + row * a.a_stride + i, d, left, a.aligned);
	}
}

/* Ups begin `cols` elements behind gates: on 16 bytes only if that many are whole vectors. */
static int halves_aligned(const struct rh_view *view, int views, int64_t cols)
{
	return chunk_aligned(view, views) && cols * (view[0].dtype == RH_BF16 ? 2 : 4) % 16 == 0;
}

extern "C" int cuda_swiglu(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct swiglu_args a = {};
	a.gu = view[RH_SWIGLU_GU].data, a.gu_stride = view[RH_SWIGLU_GU].stride;
	a.a = view[RH_SWIGLU_A].data, a.a_stride = view[RH_SWIGLU_A].stride;
	a.rows = view[RH_SWIGLU_A].rows, a.cols = view[RH_SWIGLU_A].cols;
	a.aligned = halves_aligned(view, 2, a.cols);
	if (!a.rows || !a.cols)
		return 0;
	dim3 grid = chunk_grid(a.rows, chunks_of(a.cols));
	if (view[RH_SWIGLU_GU].dtype == RH_BF16)
		return RH_LAUNCH(swiglu_forward<rh_bf16>, grid, chunk_block(), 0, stream, a);
	return RH_LAUNCH(swiglu_forward<float>, grid, chunk_block(), 0, stream, a);
}

extern "C" int cuda_swiglu_backward(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct swiglu_args a = {};
	a.gu = view[RH_SWIGLU_BACKWARD_GU].data, a.gu_stride = view[RH_SWIGLU_BACKWARD_GU].stride;
	a.da = view[RH_SWIGLU_BACKWARD_DA].data, a.da_stride = view[RH_SWIGLU_BACKWARD_DA].stride;
	a.dgu = view[RH_SWIGLU_BACKWARD_DGU].data, a.dgu_stride = view[RH_SWIGLU_BACKWARD_DGU].stride;
	a.a = view[RH_SWIGLU_BACKWARD_A].data, a.a_stride = view[RH_SWIGLU_BACKWARD_A].stride;
	a.rows = view[RH_SWIGLU_BACKWARD_DA].rows, a.cols = view[RH_SWIGLU_BACKWARD_DA].cols;
	a.aligned = halves_aligned(view, 4, a.cols);
	if (!a.rows || !a.cols)
		return 0;
	dim3 grid = chunk_grid(a.rows, chunks_of(a.cols));
	if (view[RH_SWIGLU_BACKWARD_GU].dtype == RH_BF16)
		return RH_LAUNCH(swiglu_gradient<rh_bf16>, grid, chunk_block(), 0, stream, a);
	return RH_LAUNCH(swiglu_gradient<float>, grid, chunk_block(), 0, stream, a);
}
