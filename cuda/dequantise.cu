/* Dequantisation of every type that op.h names; what a block is worth is core/blocks.h's to say. n values of b bits become e bytes each:
 *
 * Bytes: reads n b / 8 (b from 2.6 for Q2_K to 8.5 for Q8_0), and 1 to 4 bytes of scale a run where scales lie apart; writes n e. With 4.5
 * bits and bf16 that is 2.6 bytes a value, three quarters of them written.
 * FLOPs: 2 or 3 a value, and some ten integer operations: below 2 FLOPs a byte, bound by memory. The roofline is bytes / DRAM bandwidth
 * (390 billion values a second on an RTX 4090 in bf16: an 8B model's in 21 ms).
 * Tile: 2048 values a block, which are whole blocks of every type; their bytes (at most 2176) pass through shared memory, so that blocks of
 * 18 or 210 bytes too are read 16 at a time; 8 values a thread, stored by one instruction (two in fp32). Rows that lie one behind the other
 * are one long row: their tiles all begin on 16 bytes. */
#include "cuda/chunk.h"
#include "cuda/kernels.h"

extern "C" {
#include "core/blocks.h"
#include "core/float8.h"
}

enum { THREADS = 256, VALUES = THREADS * CHUNK, STAGED_BYTES = VALUES / 32 * 34 };

struct dequantise_args {
	const uint8_t *x;
	const void *scale;
	const float *nested, *map;
	const int *index; /* NULL: all rows of x */
	void *y;
	int64_t cols, tiles; /* of a row */
	int64_t index_stride, row_bytes, y_stride, scale_stride, runs, run, tall;
	enum rh_dtype dtype;
	int block_log2, block_bytes; /* values and bytes of a block; two values a byte are blocks of two */
	enum rh_dtype scales;
	int aligned; /* rows of y begin on 16 bytes */
	float unit;
};

/* All threads of the block come here; the bytes are there after the next barrier. */
RH_DEVICE void stage(uint8_t *to, const uint8_t *from, int bytes)
{
	int whole = reinterpret_cast<uintptr_t>(from) % 16 == 0 ? bytes / 16 * 16 : 0;
	for (int i = (int)threadIdx.x * 16; i < whole; i += THREADS * 16)
		rh_store16(to + i, rh_load16(from + i));
	for (int i = whole + (int)threadIdx.x; i < bytes; i += THREADS)
		to[i] = from[i];
}

RH_DEVICE float scale_of(const struct dequantise_args &a, int64_t row, int64_t run)
{
	int64_t of = a.tall == 1 ? row : row / a.tall, at = of * a.scale_stride + run;
	if (a.scales == RH_F32)
		return ((const float *)a.scale)[at];
	uint8_t q = ((const uint8_t *)a.scale)[at];
	if (a.scales == RH_E4M3)
		return rh_block_quotient(rh_block_product(rh_e4m3_to_f32(q), a.nested[0]), a.nested[1]);
	if (a.dtype == RH_FP4)
		return rh_e8m0_value(q);
	return rh_block_sum(rh_block_product(a.map[q], a.nested[(of * a.runs + run) / RH_NESTED_RUN]), a.map[RH_NESTED_MAP - 1]);
}

/* What the byte or half byte q stands for before it is scaled. */
RH_DEVICE float unscaled(enum rh_dtype dtype, int q)
{
	switch (dtype) {
	case RH_I8:
		return (float)(int8_t)q;
	case RH_E4M3:
		return rh_e4m3_to_f32((uint8_t)q);
	case RH_NF4:
		return rh_nf4_value(q);
	case RH_BNB_FP4:
		return rh_bnb_fp4_value(q);
	default: /* RH_FP4 */
		return rh_fp4_value(q);
	}
}

/* Eight values of which the bytes begin at `from`, all of one scale. */
RH_DEVICE struct chunk scaled_values(const struct dequantise_args &a, const uint8_t *from, float scale)
{
	struct chunk c;
	int is_byte = a.dtype == RH_I8 || a.dtype == RH_E4M3, high_first = a.dtype != RH_FP4;
	RH_UNROLL
	for (int i = 0; i < CHUNK; i++) {
		int q = is_byte ? from[i] : from[i / 2] >> ((i % 2 == 0) == high_first ? 4 : 0) & 15;
		c.v[i] = rh_block_product(unscaled(a.dtype, q), scale);
		if (a.dtype == RH_I8)
			c.v[i] = rh_block_product(c.v[i], a.unit);
	}
	return c;
}

template <typename T> RH_KERNEL(THREADS, 4) dequantise(struct dequantise_args a)
{
	RH_SHARED(uint8_t, staged, STAGED_BYTES);
	int64_t to = blockIdx.x / a.tiles, row = a.index ? a.index[to * a.index_stride] : to, first = blockIdx.x % a.tiles * VALUES;
	int count = a.cols - first < VALUES ? (int)(a.cols - first) : VALUES, own = (int)threadIdx.x * CHUNK;
	stage(staged, a.x + row * a.row_bytes + (first >> a.block_log2) * a.block_bytes, (count >> a.block_log2) * a.block_bytes);
	__syncthreads();
	if (own >= count)
		return;
	struct chunk c;
	const uint8_t *block = staged + (own >> a.block_log2) * a.block_bytes;
	if (a.scale)
		c = scaled_values(a, block, scale_of(a, row, (first + own) / a.run));
	else
		rh_block_values(a.dtype, block, own & ((1 << a.block_log2) - 1), CHUNK, c.v);
	chunk_store((T *)a.y + to * a.y_stride + first + own, c, count - own, a.aligned);
}

static int log2_of(int64_t block)
{
	int log2 = 0;
	while ((int64_t)1 << log2 < block)
		log2++;
	return log2;
}

extern "C" int cuda_dequantise(const struct rh_op *op, CUstream_st *stream)
{
	struct rh_view x = op->operand[RH_DEQUANTISE_X], y = op->operand[RH_DEQUANTISE_Y], scale = op->operand[RH_DEQUANTISE_SCALE];
	struct dequantise_args a = {};
	struct rh_view index = op->operand[RH_DEQUANTISE_INDEX];
	int64_t rows = y.rows;
	a.x = (const uint8_t *)x.data;
	a.y = y.data, a.y_stride = y.stride;
	a.scale = scale.data, a.scale_stride = scale.stride, a.runs = scale.cols;
	a.nested = (const float *)op->operand[RH_DEQUANTISE_NESTED].data, a.map = (const float *)op->operand[RH_DEQUANTISE_MAP].data;
	a.run = op->dequantise.run, a.tall = op->dequantise.tall, a.unit = op->dequantise.unit;
	a.index = (const int *)index.data, a.index_stride = index.stride;
	a.dtype = x.dtype;
	a.block_log2 = log2_of(rh_dtype_block(x.dtype)), a.block_bytes = (int)rh_dtype_block_bytes(x.dtype);
	a.scales = scale.dtype;
	a.cols = x.cols;
	a.row_bytes = rh_dtype_bytes(x.dtype, x.stride);
	a.aligned = chunk_aligned(&y, 1);
	int flat_scales = !scale.data || (scale.stride == scale.cols && a.tall == 1 && x.cols % a.run == 0);
	if (!index.data && x.stride == x.cols && y.stride == y.cols && flat_scales) {
		a.cols *= rows;
		rows = 1;
	}
	a.tiles = rh_ceil_div(a.cols, VALUES);
	if (!rows || !a.cols)
		return 0;
	if (y.dtype == RH_BF16)
		return RH_LAUNCH(dequantise<rh_bf16>, (unsigned)(rows * a.tiles), THREADS, 0, stream, a);
	return RH_LAUNCH(dequantise<float>, (unsigned)(rows * a.tiles), THREADS, 0, stream, a);
}
