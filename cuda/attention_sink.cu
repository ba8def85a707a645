/* The gradient of attention's sinks: a sink is a key whose value is 0, so that its dp is 0 and its gradient the sum over all queries of -p
 * delta with p = exp(sink - lse).
 *
 * Reads lse and delta: 8 Tq heads bytes, 11 FLOPs for 8 bytes: bound by memory, of the two SMs that 64 heads give work to (a hundredth of
 * what the backward around it takes). Tile: 32 heads a block, as of every sum over rows (chunk.h), in a fixed order. */
#include "cuda/attention_tile.h"
#include "cuda/chunk.h"

template <typename T> RH_KERNEL(COLUMN_THREADS, 2) attention_dsink(struct attention_args a)
{
	int64_t begin = *attention_at<int32_t>(a.start_q, 0, 0), end = *attention_at<int32_t>(a.start_q, a.documents, 0);
	column_add(a.dsink, a.heads, a.q.rows, [&](int64_t row, int64_t i, int64_t left) {
		struct chunk c = {};
		if (row < begin || row >= end) /* of no document */
			return c;
		struct chunk lse = chunk_load(attention_at<float>(a.lse, row, i), left, 0);
		struct chunk delta = chunk_load(attention_at<float>(a.delta, row, i), left, 0);
		struct chunk sink = chunk_load((const T *)a.sink + i, left, 0);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			c.v[k] = -expf(sink.v[k] - lse.v[k]) * delta.v[k];
		return c;
	});
}

int attention_sink_backward(const struct attention_args *a, CUstream_st *stream)
{
	if (a->q.dtype == RH_BF16)
		return RH_LAUNCH((attention_dsink<rh_bf16>), column_blocks(a->heads), COLUMN_THREADS, 0, stream, *a);
	return RH_LAUNCH((attention_dsink<float>), column_blocks(a->heads), COLUMN_THREADS, 0, stream, *a);
}
