/* Dropout by counter: reads x (and add), writes y: 2 or 3 T C e bytes. A chunk of 8 elements costs 2 or 3 Philox blocks of 10 rounds, 6
 * instructions a round and block: some 38 an element in all, at 4 to 12 bytes. That is well below what an RTX 4090 issues while its memory
 * moves the bytes (1008 GB/s), and just what an H100 does (of bf16 without add). Tile: 8 elements a thread, 32 such by 8 rows a block. */
#include "cuda/chunk.h"
#include "cuda/kernels.h"
#include "cuda/philox.h"

struct dropout_args {
	const void *x, *add;
	void *y;
	int64_t x_stride, add_stride, y_stride, first_row, rows, cols;
	int aligned;
	struct dropout_key key;
	float noise;
};

template <typename T> CHUNK_KERNEL dropout_apply(struct dropout_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		int64_t element = (a.first_row + row) * a.cols + i;
		int shift = (int)(element % 4); /* rows begin within a block where cols is no multiple of 4 */
		uint32_t first = (uint32_t)(element / 4), bits = kept_bits(a.key, first) | kept_bits(a.key, first + 1) << 4;
		if (shift)
			bits |= kept_bits(a.key, first + 2) << 8;
		bits >>= shift;
		struct chunk c = chunk_load((const T *)a.x + row * a.x_stride + i, left, a.aligned), base = {};
		if (a.add)
			base = chunk_load((const T *)a.add + row * a.add_stride + i, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			c.v[k] = base.v[k] + (bits >> k & 1 ? c.v[k] * a.key.scale : 0);
		chunk_store((T *)a.y + row * a.y_stride + i, c, left, a.aligned);
	}
}

/* Noise of `element`, in (-1, 1). */
RH_DEVICE float noise_of(const struct dropout_key &key, int64_t element)
{
	struct philox_words of = philox_words_of(key, (uint32_t)(element / 4));
	int w = (int)(element % 4);
	uint32_t word = w == 0 ? of.word[0] : w == 1 ? of.word[1] : w == 2 ? of.word[2] : of.word[3];
	return 2 * ((float)(word >> 8) * 0x1p-24f) - 1;
}

/* Four times the blocks that it needs: it runs on a micro-batch's embedding alone. */
template <typename T> CHUNK_KERNEL dropout_noise(struct dropout_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		int64_t element = (a.first_row + row) * a.cols + i;
		struct chunk c = chunk_load((const T *)a.x + row * a.x_stride + i, left, a.aligned), base = {};
		if (a.add)
			base = chunk_load((const T *)a.add + row * a.add_stride + i, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			c.v[k] = base.v[k] + (c.v[k] + a.noise * noise_of(a.key, element + k));
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
	a.first_row = op->dropout.first_row;
	a.key = dropout_key_of(op->dropout.seed, op->dropout.site, op->dropout.micro_batch, op->dropout.step, op->dropout.p);
	if (!a.rows || !a.cols)
		return 0;
	a.noise = op->dropout.noise;
	dim3 grid = chunk_grid(a.rows, chunks_of(a.cols));
	if (a.noise > 0 && view[RH_DROPOUT_X].dtype == RH_BF16)
		return RH_LAUNCH(dropout_noise<rh_bf16>, grid, chunk_block(), 0, stream, a);
	if (a.noise > 0)
		return RH_LAUNCH(dropout_noise<float>, grid, chunk_block(), 0, stream, a);
	if (view[RH_DROPOUT_X].dtype == RH_BF16)
		return RH_LAUNCH(dropout_apply<rh_bf16>, grid, chunk_block(), 0, stream, a);
	return RH_LAUNCH(dropout_apply<float>, grid, chunk_block(), 0, stream, a);
}
