/* QUANTISE, QUANTISE_ROWS and TRANSPOSE.
 *
 * QUANTISE: the largest magnitude of a tensor, its scale, and the tensor in 8 bits, as it lies and transposed. TRANSPOSE: of what is in
 * 8 bits.
 *
 * The first launch reads x (2 bytes an element), a block every 512th row, or, of columns that an amax tells of, that alone; the second
 * makes the scale of the 512 maxima; a third reads x and writes 1 byte an element, for y, for t, or for both. It needs no atomics and no
 * cleared memory. Bound by memory: 5 bytes an element over DRAM's bandwidth, 170 us for 8192 x 4096 on an RTX 4090; 6 bytes where both are
 * made; 2 fewer with an amax.
 *
 * y alone: chunks of 8 elements a thread. t: tiles of 64 x 64 through shared memory, read along rows and written along columns in 16 bytes;
 * y, where it is made beside t, is written as the tile is read. TRANSPOSE moves such tiles too, 16 bytes read and written a thread: 2 bytes
 * an element over DRAM's bandwidth, 67 us for 8192 x 4096.
 *
 * QUANTISE_ROWS: a block a row, which is read twice, once from L1 or L2: 3 bytes an element and 4 a row, bound by memory. */
#include "cuda/chunk.h"
#include "cuda/kernels.h"

extern "C" {
#include "core/float8.h"
}

enum { THREADS = 256, WARPS = THREADS / RH_WARP, TILE = 64, PITCH = TILE + 4 };

/* The largest magnitude of a whole block, in all threads. */
RH_DEVICE uint32_t block_largest(uint32_t bits)
{
	return rh_block_join<WARPS>(lanes_largest(bits, RH_WARP), [](uint32_t a, uint32_t b) { return b > a ? b : a; });
}

/* What is read for the scale: columns of x, and an amax of the others. */
struct maxima_args {
	const void *x;
	const float *amax;
	int64_t stride, rows, cols, amax_stride, amax_rows, amax_cols;
	int aligned;
	float *part;
};

/* Block b: rows b, b + gridDim.x, ...; and of an amax runs of THREADS numbers likewise. A block a part. */
template <typename T> RH_KERNEL(THREADS, 4) quantise_maxima(struct maxima_args a)
{
	uint32_t most = 0;
	for (int64_t row = blockIdx.x; row < a.rows && a.cols; row += gridDim.x)
		for (int64_t i = (int64_t)threadIdx.x * CHUNK; i < a.cols; i += THREADS * CHUNK)
			most = chunk_largest(most, chunk_load((const T *)a.x + row * a.stride + i, a.cols - i, a.aligned));
	int64_t numbers = a.amax_rows * a.amax_cols, step = (int64_t)gridDim.x * THREADS;
	for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < numbers; i += step)
		most = larger_magnitude(most, a.amax[i / a.amax_cols * a.amax_stride + i % a.amax_cols]);
	most = block_largest(most);
	if (threadIdx.x == 0)
		a.part[blockIdx.x] = rh_bits_float(most);
}

/* The tensor's scale, of all maxima. */
RH_KERNEL(THREADS, 1) quantise_scale(const float *part, int parts, float limit, float *scale)
{
	uint32_t most = 0;
	for (int i = (int)threadIdx.x; i < parts; i += THREADS) {
		uint32_t bits = rh_float_bits(part[i]);
		most = bits > most ? bits : most;
	}
	most = block_largest(most);
	if (threadIdx.x == 0)
		*scale = rh_power_scale(rh_bits_float(most), limit);
}

template <bool WIDE> RH_DEVICE uint8_t to_eight(float value)
{
	return WIDE ? rh_f32_to_e5m2(value) : rh_f32_to_e4m3(value);
}

struct quantise_args {
	const void *x;
	int64_t x_stride, rows, cols;
	const float *scale;
	uint8_t *out; /* y, or t */
	int64_t out_stride, out_cols;
	int aligned, out_aligned; /* rows of x begin on 16 bytes, of y on 8 */
	uint8_t *y;               /* beside t, NULL: t alone */
	int64_t y_stride;
};

struct alignas(8) eight_bytes {
	uint8_t v[CHUNK];
};

/* A chunk of row's columns from i on; `left` columns are there. */
RH_DEVICE void put_chunk(uint8_t *out, const struct eight_bytes *from, int64_t left, int aligned)
{
	if (aligned && left >= CHUNK) {
		*(struct eight_bytes *)out = *from;
		return;
	}
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++)
		if (k < left)
			out[k] = from->v[k];
}

template <typename T, bool WIDE> RH_KERNEL(THREADS, 4) quantise_rows(struct quantise_args a)
{
	float inverse = 1 / *a.scale; /* a power of two: exact */
	for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x)
		for (int64_t i = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * CHUNK; i < a.cols;
		     i += (int64_t)gridDim.y * THREADS * CHUNK) {
			struct chunk c = chunk_load((const T *)a.x + row * a.x_stride + i, a.cols - i, a.aligned);
			struct eight_bytes to;
			RH_UNROLL
			for (int k = 0; k < CHUNK; k++)
				to.v[k] = to_eight<WIDE>(c.v[k] * inverse);
			put_chunk(a.out + row * a.out_stride + i, &to, a.cols - i, a.out_aligned);
		}
}

struct alignas(16) sixteen_bytes {
	uint32_t word[4];
};

/* A tile a block: blockIdx.x counts 64 columns of t, which are rows of x, blockIdx.y 64 rows of t. */
template <typename T, bool WIDE> RH_KERNEL(THREADS, 4) quantise_columns(struct quantise_args a)
{
	RH_SHARED(uint8_t, tile, TILE * PITCH); /* column of x, row of x */
	float inverse = 1 / *a.scale;
	int64_t first_row = (int64_t)blockIdx.x * TILE, first_col = (int64_t)blockIdx.y * TILE;
	int col = (int)threadIdx.x % (TILE / CHUNK) * CHUNK;
	RH_UNROLL
	for (int pass = 0; pass < TILE * TILE / CHUNK / THREADS; pass++) {
		int row = (int)threadIdx.x / (TILE / CHUNK) + pass * (THREADS * CHUNK / TILE);
		int64_t left = first_row + row < a.rows ? a.cols - first_col - col : 0;
		const T *from = left > 0 ? (const T *)a.x + (first_row + row) * a.x_stride + first_col + col : (const T *)a.x;
		struct chunk c = chunk_load(from, left, a.aligned);
		struct eight_bytes to;
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			tile[(col + k) * PITCH + row] = to.v[k] = first_row + row < a.rows ? to_eight<WIDE>(c.v[k] * inverse) : 0;
		if (a.y)
			put_chunk(a.y + (first_row + row) * a.y_stride + first_col + col, &to, left, a.out_aligned);
	}
	__syncthreads();
	int own_col = (int)threadIdx.x / (TILE / RH_QUANTISE_RUN), run = (int)threadIdx.x % (TILE / RH_QUANTISE_RUN) * RH_QUANTISE_RUN;
	if (first_col + own_col >= a.cols || first_row + run >= a.out_cols)
		return;
	struct sixteen_bytes out;
	RH_UNROLL
	for (int i = 0; i < 4; i++)
		out.word[i] = *(const uint32_t *)(tile + own_col * PITCH + run + i * 4);
	*(struct sixteen_bytes *)(a.out + (first_col + own_col) * a.out_stride + first_row + run) = out;
}

struct transpose_args {
	const uint8_t *x;
	uint8_t *y;
	int64_t x_stride, y_stride, rows, cols; /* of x */
};

/* A tile a block: blockIdx.x counts 64 rows of x, blockIdx.y 64 columns. */
RH_KERNEL(THREADS, 4) transpose(struct transpose_args a)
{
	RH_SHARED(uint8_t, tile, TILE * PITCH); /* column of x, row of x */
	int line = (int)threadIdx.x / (TILE / RH_QUANTISE_RUN), run = (int)threadIdx.x % (TILE / RH_QUANTISE_RUN) * RH_QUANTISE_RUN;
	int64_t first_row = (int64_t)blockIdx.x * TILE, first_col = (int64_t)blockIdx.y * TILE;
	if (first_row + line < a.rows && first_col + run < a.cols) {
		struct sixteen_bytes in = *(const struct sixteen_bytes *)(a.x + (first_row + line) * a.x_stride + first_col + run);
		RH_UNROLL
		for (int k = 0; k < RH_QUANTISE_RUN; k++)
			tile[(run + k) * PITCH + line] = (uint8_t)(in.word[k / 4] >> k % 4 * 8);
	}
	__syncthreads();
	if (first_col + line >= a.cols || first_row + run >= a.rows)
		return;
	struct sixteen_bytes out;
	RH_UNROLL
	for (int i = 0; i < 4; i++)
		out.word[i] = *(const uint32_t *)(tile + line * PITCH + run + i * 4);
	*(struct sixteen_bytes *)(a.y + (first_col + line) * a.y_stride + first_row + run) = out;
}

struct quantise_rows_args {
	struct rh_view x, scale, y;
	int aligned, out_aligned; /* rows of x begin on 16 bytes, of y on 8 */
};

template <typename T> RH_KERNEL(THREADS, 4) quantise_each_row(struct quantise_rows_args a)
{
	for (int64_t row = blockIdx.x; row < a.x.rows; row += gridDim.x) {
		const T *x = (const T *)a.x.data + row * a.x.stride;
		uint8_t *y = (uint8_t *)a.y.data + row * a.y.stride;
		uint32_t most = 0;
		for (int64_t i = (int64_t)threadIdx.x * CHUNK; i < a.x.cols; i += THREADS * CHUNK)
			most = chunk_largest(most, chunk_load(x + i, a.x.cols - i, a.aligned));
		float scale = rh_power_scale(rh_bits_float(block_largest(most)), RH_E4M3_LARGEST), inverse = 1 / scale;
		if (threadIdx.x == 0)
			*((float *)a.scale.data + row * a.scale.stride) = scale;
		for (int64_t i = (int64_t)threadIdx.x * CHUNK; i < a.x.cols; i += THREADS * CHUNK) {
			struct chunk c = chunk_load(x + i, a.x.cols - i, a.aligned);
			struct eight_bytes to;
			RH_UNROLL
			for (int k = 0; k < CHUNK; k++)
				to.v[k] = to_eight<false>(c.v[k] * inverse);
			if (a.out_aligned && a.x.cols - i >= CHUNK) {
				*(struct eight_bytes *)(y + i) = to;
				continue;
			}
			RH_UNROLL
			for (int k = 0; k < CHUNK; k++)
				if (i + k < a.x.cols)
					y[i + k] = to.v[k];
		}
		__syncthreads(); /* the next row's maxima go through the same shared memory */
	}
}

enum { GRID_ROWS = 1 << 20, GRID_COLS = 65535 };

template <typename T, bool WIDE> static int launch_rows(const struct quantise_args *a, CUstream_st *stream)
{
	int64_t across = rh_ceil_div(a->cols, THREADS * CHUNK);
	dim3 grid((unsigned)(a->rows < GRID_ROWS ? a->rows : (int64_t)GRID_ROWS),
	          (unsigned)(across < GRID_COLS ? across : (int64_t)GRID_COLS));
	return RH_LAUNCH((quantise_rows<T, WIDE>), grid, THREADS, 0, stream, *a);
}

template <typename T, bool WIDE> static int launch_columns(const struct quantise_args *a, CUstream_st *stream)
{
	dim3 grid((unsigned)rh_ceil_div(a->out_cols, TILE), (unsigned)rh_ceil_div(a->cols, TILE));
	return RH_LAUNCH((quantise_columns<T, WIDE>), grid, THREADS, 0, stream, *a);
}

template <typename T> static int launch_maxima(const struct rh_op *op, unsigned blocks, CUstream_st *stream)
{
	const struct rh_view *x = &op->operand[RH_QUANTISE_X], *amax = &op->operand[RH_QUANTISE_AMAX];
	struct rh_view unknown = rh_view_cols(*x, op->quantise.known, x->cols - op->quantise.known);
	struct maxima_args a = {};
	a.x = unknown.data, a.stride = unknown.stride, a.rows = unknown.rows, a.cols = unknown.cols;
	a.aligned = chunk_aligned(&unknown, 1);
	a.part = (float *)op->operand[RH_QUANTISE_PART].data;
	if (amax->data)
		a.amax = (const float *)amax->data, a.amax_stride = amax->stride, a.amax_rows = amax->rows, a.amax_cols = amax->cols;
	return RH_LAUNCH(quantise_maxima<T>, blocks, THREADS, 0, stream, a);
}

template <typename T> static int launch(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *x = &op->operand[RH_QUANTISE_X], *y = &op->operand[RH_QUANTISE_Y], *t = &op->operand[RH_QUANTISE_T];
	struct quantise_args a = {};
	float *part = (float *)op->operand[RH_QUANTISE_PART].data, *scale = (float *)op->operand[RH_QUANTISE_SCALE].data;
	a.x = x->data, a.x_stride = x->stride, a.rows = x->rows, a.cols = x->cols;
	a.scale = scale;
	a.aligned = chunk_aligned(x, 1);
	int rc = 0, parts = a.rows < RH_QUANTISE_PARTS ? (int)a.rows : (int)RH_QUANTISE_PARTS;
	if (parts)
		rc = launch_maxima<T>(op, (unsigned)parts, stream);
	if (!rc)
		rc = RH_LAUNCH(quantise_scale, 1, THREADS, 0, stream, (const float *)part, parts, op->quantise.limit, scale);
	if (!a.rows || !a.cols)
		return rc;
	int together = y->data && t->data && y->dtype == t->dtype;
	a.out_aligned = ((uintptr_t)y->data | (uintptr_t)y->stride) % 8 == 0;
	if (!rc && y->data && !together) {
		a.out = (uint8_t *)y->data, a.out_stride = y->stride, a.out_cols = y->cols;
		rc = y->dtype == RH_E5M2 ? launch_rows<T, true>(&a, stream) : launch_rows<T, false>(&a, stream);
	}
	if (!rc && t->data) {
		a.out = (uint8_t *)t->data, a.out_stride = t->stride, a.out_cols = t->cols;
		a.y = together ? (uint8_t *)y->data : NULL, a.y_stride = y->stride;
		rc = t->dtype == RH_E5M2 ? launch_columns<T, true>(&a, stream) : launch_columns<T, false>(&a, stream);
	}
	return rc;
}

extern "C" int cuda_quantise(const struct rh_op *op, CUstream_st *stream)
{
	return op->operand[RH_QUANTISE_X].dtype == RH_BF16 ? launch<rh_bf16>(op, stream) : launch<float>(op, stream);
}

extern "C" int cuda_transpose(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *x = &op->operand[RH_TRANSPOSE_X], *y = &op->operand[RH_TRANSPOSE_Y];
	struct transpose_args a = {(const uint8_t *)x->data, (uint8_t *)y->data, x->stride, y->stride, x->rows, x->cols};
	if (!x->rows || !x->cols)
		return 0;
	dim3 grid((unsigned)rh_ceil_div(x->rows, TILE), (unsigned)rh_ceil_div(x->cols, TILE));
	return RH_LAUNCH(transpose, grid, THREADS, 0, stream, a);
}

extern "C" int cuda_quantise_rows(const struct rh_op *op, CUstream_st *stream)
{
	struct quantise_rows_args a = {op->operand[RH_QUANTISE_ROWS_X], op->operand[RH_QUANTISE_ROWS_SCALE],
	                               op->operand[RH_QUANTISE_ROWS_Y], 0, 0};
	a.aligned = chunk_aligned(&a.x, 1);
	a.out_aligned = ((uintptr_t)a.y.data | (uintptr_t)a.y.stride) % 8 == 0;
	if (!a.x.rows)
		return 0;
	unsigned blocks = (unsigned)(a.x.rows < GRID_ROWS ? a.x.rows : (int64_t)GRID_ROWS);
	if (a.x.dtype == RH_BF16)
		return RH_LAUNCH(quantise_each_row<rh_bf16>, blocks, THREADS, 0, stream, a);
	return RH_LAUNCH(quantise_each_row<float>, blocks, THREADS, 0, stream, a);
}
