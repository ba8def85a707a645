/* Dropout by counter: reads x (and add), writes y: 2 or 3 T C e bytes. A chunk of 8 elements costs 2 or 3 Philox blocks of 10 rounds, 6
 * instructions a round and block: some 38 an element in all, at 4 to 12 bytes. That is well below what an RTX 4090 issues while its memory
 * moves the bytes (1008 GB/s), and just what an H100 does (of bf16 without add). Tile: 8 elements a thread, 32 such by 8 rows a block. */
#include "cuda/chunk.h"
#include "cuda/kernels.h"

struct dropout_args {
	const void *x, *add;
	void *y;
	int64_t x_stride, add_stride, y_stride, rows, cols;
	int aligned;
	uint32_t key_low, key_high, site, micro_batch, step;
	uint32_t least; /* word that keeps its element: rh_philox_unit(word) >= p, of which 24 bits are exact */
	float scale;    /* 1 / (1 - p) */
};

/* Bit w: whether word w of block `index` keeps its element. rh_philox of core/philox.h, which is no device function. */
RH_DEVICE uint32_t kept_bits(const struct dropout_args &a, uint32_t index)
{
	uint32_t c0 = index, c1 = a.site, c2 = a.micro_batch, c3 = a.step, k0 = a.key_low, k1 = a.key_high;
	RH_UNROLL
	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
		c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
		c1 = (uint32_t)p1;
		c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c3 = (uint32_t)p0;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	const uint32_t word[4] = {c0, c1, c2, c3};
	uint32_t bits = 0;
	RH_UNROLL
	for (int w = 0; w < 4; w++)
		bits |= (uint32_t)(word[w] >= a.least) << w;
	return bits;
}

template <typename T> CHUNK_KERNEL dropout_apply(struct dropout_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		int64_t element = row * a.cols + i;
		int shift = (int)(element % 4); /* rows begin within a block where cols is no multiple of 4 */
		uint32_t first = (uint32_t)(element / 4), bits = kept_bits(a, first) | kept_bits(a, first + 1) << 4;
		if (shift)
			bits |= kept_bits(a, first + 2) << 8;
		bits >>= shift;
		struct chunk c = chunk_load((const T *)a.x + row * a.x_stride + i, left, a.aligned), base = {};
		if (a.add)
			base = chunk_load((const T *)a.add + row * a.add_stride + i, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			c.v[k] = base.v[k] + (bits >> k & 1 ? c.v[k] * a.scale : 0);
		chunk_store((T *)a.y + row * a.y_stride + i, c, left, a.aligned);
	}
}

extern "C" int cuda_dropout(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct dropout_args a = {};
	a.x = view[RH_DROPOUT_X].data, a.x_stride = view[RH_DROPOUT_X].stride;
	a.add = view[RH_DROPOUT_ADD].data, a.add_stride = view[RH_DROPOUT_ADD].stride;
	a.y = view[RH_DROPOUT_Y].data, a.y_stride = view[RH_DROPOUT_Y].stride;
	a.rows = view[RH_DROPOUT_X].rows, a.cols = view[RH_DROPOUT_X].cols;
	a.aligned = chunk_aligned(view, 3);
	a.key_low = (uint32_t)op->dropout.seed, a.key_high = (uint32_t)(op->dropout.seed >> 32);
	a.site = op->dropout.site, a.micro_batch = op->dropout.micro_batch, a.step = op->dropout.step;
	a.least = (uint32_t)ceil((double)op->dropout.p * 0x1p24) << 8;
	a.scale = (float)(1 / (1 - (double)op->dropout.p));
	if (!a.rows || !a.cols)
		return 0;
	dim3 grid = chunk_grid(a.rows, chunks_of(a.cols));
	if (view[RH_DROPOUT_X].dtype == RH_BF16)
		return RH_LAUNCH(dropout_apply<rh_bf16>, grid, chunk_block(), 0, stream, a);
	return RH_LAUNCH(dropout_apply<float>, grid, chunk_block(), 0, stream, a);
}
