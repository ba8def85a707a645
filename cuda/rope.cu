/* Rotary position embedding. With T rows, H heads of D elements of e bytes:
 *
 * rope_table  writes 4 T D bytes; about 100 FLOPs an angle with its sine and cosine: bound by arithmetic, and small (once a micro-batch).
 * rope        reads and writes what is rotated of x and reads the table, R columns: 2 T H R e + 4 T R bytes, 3 FLOPs an element. Bound by
 * memory: the roofline is bytes / DRAM bandwidth. The table's row is read once for two heads, from L1 or L2. An amax
 * is made of what is stored: 4 T H bytes more.
 *
 * Tile: a thread turns 8 pairs of two heads, elements i..i+7 of their two halves; 32 such by 8 rows a block. Of pairs that lie side by side
 * 4 of one head, 8 elements. */
#include "cuda/chunk.h"
#include "cuda/kernels.h"

enum { ROPE_HEADS = 2 }; /* of a thread */

struct rope_args {
	void *x;
	const float *table;
	float *amax; /* or NULL */
	int64_t x_stride, table_stride, amax_stride, rows;
	int heads, dim, half, apart, chunks; /* half: of what is rotated of a head, and chunks of it; apart: the elements of a pair */
	int first;                           /* of what is rotated */
	int aligned;
	float sign; /* of the sine */
};

template <typename T> RH_KERNEL(CHUNK_BLOCK_WIDTH *CHUNK_BLOCK_ROWS, 3) rope_rotate(struct rope_args a)
{
	int item = (int)chunk_of_row(), head = item / a.chunks * ROPE_HEADS, i = item % a.chunks * CHUNK, left = a.half - i;
	int heads = a.heads - head < ROPE_HEADS ? a.heads - head : (int)ROPE_HEADS;
	if (heads <= 0 && !a.amax) /* else the warp stays whole */
		return;
	for (int64_t row = chunk_first_row(); row < a.rows; row += chunk_row_step()) {
		T *x = (T *)a.x + row * a.x_stride + (int64_t)head * a.dim + a.first + i;
		const float *table = a.table + row * a.table_stride + i;
		struct chunk low[ROPE_HEADS], high[ROPE_HEADS];
		RH_UNROLL
		for (int h = 0; h < ROPE_HEADS; h++) { /* all loads before any store; a head too many is read as the last one */
			const T *from = x + (int64_t)(h < heads ? h : heads - 1) * a.dim;
			low[h] = high[h] = {};
			if (heads <= 0)
				continue;
			low[h] = chunk_load(from, left, a.aligned), high[h] = chunk_load(from + a.apart, left, a.aligned);
		}
		struct chunk c = chunk_load(table, left, a.aligned), s = chunk_load(table + a.half, left, a.aligned);
		RH_UNROLL
		for (int h = 0; h < ROPE_HEADS; h++) {
			RH_UNROLL
			for (int k = 0; k < CHUNK; k++) {
				float u = low[h].v[k], v = high[h].v[k], sine = a.sign * s.v[k];
				low[h].v[k] = u * c.v[k] - v * sine;
				high[h].v[k] = v * c.v[k] + u * sine;
			}
			if (h < heads) {
				chunk_store(x + (int64_t)h * a.dim, low[h], left, a.aligned);
				chunk_store(x + (int64_t)h * a.dim + a.apart, high[h], left, a.aligned);
			}
			if (!a.amax)
				continue;
			uint32_t most = lanes_largest(chunk_largest(chunk_largest(0, low[h]), high[h]), a.chunks);
			if (h < heads && i == 0)
				a.amax[row * a.amax_stride + head + h] = stored_magnitude<T>(most);
		}
	}
}

/* The same where pairs lie side by side. A thread turns one chunk; what is rotated of a head has `chunks` of them. */
template <typename T> RH_KERNEL(CHUNK_BLOCK_WIDTH *CHUNK_BLOCK_ROWS, 3) rope_rotate_adjacent(struct rope_args a)
{
	int item = (int)chunk_of_row(), head = item / a.chunks, i = item % a.chunks * CHUNK, left = 2 * a.half - i;
	if (head >= a.heads)
		return;
	for (int64_t row = chunk_first_row(); row < a.rows; row += chunk_row_step()) {
		T *x = (T *)a.x + row * a.x_stride + (int64_t)head * a.dim + a.first + i;
		const float *table = a.table + row * a.table_stride + i / 2;
		struct chunk c = chunk_load(x, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k += 2) {
			if (k >= left)
				continue;
			float u = c.v[k], v = c.v[k + 1], cosine = table[k / 2], sine = a.sign * table[a.half + k / 2];
			c.v[k] = u * cosine - v * sine;
			c.v[k + 1] = v * cosine + u * sine;
		}
		chunk_store(x, c, left, a.aligned);
	}
}

struct rope_table_args {
	const int32_t *position;
	float *table;
	int64_t position_stride, table_stride, rows;
	int half;
	float scale, growth, step;
	float inv_freq[RH_ROPE_MAX_HALF];
};

/* One angle a thread; the product is fp32, as op.h has it. */
CHUNK_KERNEL rope_angles(struct rope_table_args a)
{
	int i = (int)chunk_of_row();
	if (i >= a.half)
		return;
	for (int64_t row = chunk_first_row(); row < a.rows; row += chunk_row_step()) {
		float angle = (float)a.position[row * a.position_stride] * a.inv_freq[i];
		float scale = a.scale;
		if (a.growth != 0)
			scale *= 1 + a.growth * logf(1 + floorf((float)a.position[row * a.position_stride] / a.step));
		a.table[row * a.table_stride + i] = cosf(angle) * scale;
		a.table[row * a.table_stride + a.half + i] = sinf(angle) * scale;
	}
}

extern "C" int cuda_rope_table(const struct rh_op *op, CUstream_st *stream)
{
	struct rh_view position = op->operand[RH_ROPE_TABLE_POSITION], table = op->operand[RH_ROPE_TABLE_TABLE];
	struct rope_table_args a = {};
	a.position = (const int32_t *)position.data, a.position_stride = position.stride;
	a.table = (float *)table.data, a.table_stride = table.stride;
	a.rows = table.rows;
	a.half = (int)(table.cols / 2);
	a.scale = op->rope_table.scale, a.growth = op->rope_table.growth, a.step = op->rope_table.step;
	for (int i = 0; i < a.half; i++)
		a.inv_freq[i] = op->rope_table.inv_freq[i];
	if (!a.rows || !a.half)
		return 0;
	return RH_LAUNCH(rope_angles, chunk_grid(a.rows, a.half), chunk_block(), 0, stream, a);
}

extern "C" int cuda_rope(const struct rh_op *op, CUstream_st *stream)
{
	struct rh_view x = op->operand[RH_ROPE_X], table = op->operand[RH_ROPE_TABLE_IN];
	struct rope_args a = {};
	a.x = x.data, a.x_stride = x.stride;
	a.table = (const float *)table.data, a.table_stride = table.stride;
	a.amax = (float *)op->operand[RH_ROPE_AMAX].data, a.amax_stride = op->operand[RH_ROPE_AMAX].stride;
	a.rows = x.rows;
	a.heads = (int)op->rope.heads;
	a.dim = (int)(x.cols / op->rope.heads);
	a.half = (int)(table.cols / 2);
	a.apart = op->rope.apart ? (int)op->rope.apart : a.half;
	a.first = (int)op->rope.first;
	a.chunks = (int)chunks_of(op->rope.adjacent ? table.cols : a.half);
	a.sign = op->rope.inverse ? -1.0f : 1.0f;
	const struct rh_view views[] = {x, table};
	int on_chunks = a.dim % CHUNK == 0 && a.first % CHUNK == 0;
	if (!a.rows || !a.heads || !a.half)
		return 0;
	if (op->rope.adjacent) {
		a.aligned = chunk_aligned(views, 1) && on_chunks;
		dim3 grid = chunk_grid(a.rows, (int64_t)a.heads * a.chunks);
		if (x.dtype == RH_BF16)
			return RH_LAUNCH(rope_rotate_adjacent<rh_bf16>, grid, chunk_block(), 0, stream, a);
		return RH_LAUNCH(rope_rotate_adjacent<float>, grid, chunk_block(), 0, stream, a);
	}
	a.aligned = chunk_aligned(views, 2) && on_chunks && a.half % CHUNK == 0 && a.apart % CHUNK == 0;
	dim3 grid = chunk_grid(a.rows, rh_ceil_div(a.heads, ROPE_HEADS) * a.chunks);
	if (x.dtype == RH_BF16)
		return RH_LAUNCH(rope_rotate<rh_bf16>, grid, chunk_block(), 0, stream, a);
	return RH_LAUNCH(rope_rotate<float>, grid, chunk_block(), 0, stream, a);
}
