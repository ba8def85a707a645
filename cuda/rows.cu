/* Moves of whole rows, and sums over them. All are bound by memory: the roofline is bytes / DRAM bandwidth. With rows of c elements of e
 * bytes:
 *
 * fill, cast         T c bytes of what is written, and of what is read.
 * add                3 T c e bytes, 2 T c e of one addend.
 * column_sum         reads T c e bytes; 1 FLOP an element. 32 columns a block (chunk.h): with c = 4096, 128 blocks, or as
 *                    many an expert.
 * gather, embedding  2 n c e bytes.
 * scatter            writes T c e and reads n c e bytes: a row of y finds its row of x by bisection, and is written once.
 * embedding_backward reads T c e, reads and writes 4 c for each distinct id. A block of 8 tokens looks through all T ids once; the first
 *                    token of an id adds all of its rows in order (no atomics), found 256 tokens at a time where there are more. Ids come
 *                    from L2, T^2 / 2 bytes: at T = 16384 a fifth of what the rows take.
 *
 * Tile: a chunk of 8 elements a thread, 32 such by 8 rows a block, where there is one row (a layer's gradient sums) 256 such;
 * embedding_backward 512 chunks of 8 rows, one row after another. */
#include "cuda/chunk.h"
#include "cuda/kernels.h"

struct rows_args {
	const void *x;
	void *y;
	const int32_t *index;
	int64_t x_stride, y_stride, index_stride, rows, cols, indices;
	float scale; /* of what is gathered, or added to an embedding */
	int aligned;
};

template <typename T> CHUNK_KERNEL rows_fill(struct rows_args a)
{
	int64_t i = chunk_of_row() * CHUNK;
	struct chunk zeros = {};
	for (int64_t row = chunk_first_row(); row < a.rows && i < a.cols; row += chunk_row_step())
		chunk_store((T *)a.y + row * a.y_stride + i, zeros, a.cols - i, a.aligned);
}

template <typename X, typename Y> CHUNK_KERNEL rows_cast(struct rows_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		struct chunk c = chunk_load((const X *)a.x + row * a.x_stride + i, left, a.aligned);
		chunk_store((Y *)a.y + row * a.y_stride + i, c, left, a.aligned);
	}
}

struct add_args {
	const void *a, *b, *scale; /* b and scale NULL: absent */
	void *y;
	int64_t a_stride, b_stride, y_stride, rows, cols;
	int aligned;
};

/* a or b may be y: a thread reads its chunk before it writes it. */
template <typename T> CHUNK_KERNEL rows_add(struct add_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	float times = a.scale ? rh_to_float(*(const T *)a.scale) : 1;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		struct chunk sum = chunk_load((const T *)a.a + row * a.a_stride + i, left, a.aligned);
		struct chunk b = {};
		if (a.b)
			b = chunk_load((const T *)a.b + row * a.b_stride + i, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			sum.v[k] = (sum.v[k] + b.v[k]) * times;
		chunk_store((T *)a.y + row * a.y_stride + i, sum, left, a.aligned);
	}
}

template <typename T> RH_KERNEL(COLUMN_THREADS, 2) rows_column_sum(struct rows_args a)
{
	column_add((float *)a.y, a.cols, a.rows, [&](int64_t row, int64_t i, int64_t left) {
		return chunk_load((const T *)a.x + row * a.x_stride + i, left, a.aligned);
	});
}

/* The rows of expert blockIdx.y. */
template <typename T> RH_KERNEL(COLUMN_THREADS, 2) rows_grouped_column_sum(struct rows_args a)
{
	int64_t expert = blockIdx.y, first = a.index[expert * a.index_stride], end = a.index[(expert + 1) * a.index_stride];
	column_add((float *)a.y + expert * a.y_stride, a.cols, end - first, [&](int64_t row, int64_t i, int64_t left) {
		return chunk_load((const T *)a.x + (first + row) * a.x_stride + i, left, a.aligned);
	});
}

template <typename T> CHUNK_KERNEL rows_gather(struct rows_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		int64_t from = a.index[row * a.index_stride];
		struct chunk c = chunk_load((const T *)a.x + from * a.x_stride + i, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			c.v[k] *= a.scale;
		chunk_store((T *)a.y + row * a.y_stride + i, c, left, a.aligned);
	}
}

template <typename T> CHUNK_KERNEL rows_scatter(struct rows_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		int64_t low = 0, high = a.indices; /* the first index that is not below `row` */
		while (low < high) {
			int64_t middle = (low + high) / 2;
			if (a.index[middle * a.index_stride] < row)
				low = middle + 1;
			else
				high = middle;
		}
		struct chunk c = {};
		if (low < a.indices && a.index[low * a.index_stride] == row)
			c = chunk_load((const T *)a.x + low * a.x_stride + i, left, a.aligned);
		chunk_store((T *)a.y + row * a.y_stride + i, c, left, a.aligned);
	}
}

enum { EMBED_THREADS = 256, EMBED_WARPS = EMBED_THREADS / RH_WARP, EMBED_TOKENS = 8, EMBED_BATCH = 8, EMBED_CHUNKS = 2 };

/* Which threads' predicates hold, for all of the block: word w holds warp w's. Callers keep a barrier between two uses. */
RH_DEVICE void find(int predicate, uint32_t *found)
{
	uint32_t bits = rh_ballot(predicate);
	if (threadIdx.x % RH_WARP == 0)
		found[threadIdx.x / RH_WARP] = bits;
	__syncthreads();
}

/* The bitwise or of what all threads of the block pass. It ends with a barrier, so that `words` may be used again at once. */
RH_DEVICE uint32_t join(uint32_t bits, uint32_t *words)
{
	uint32_t all = 0;
	for (int mask = RH_WARP / 2; mask; mask /= 2)
		bits |= rh_shuffle_xor(bits, mask);
	if (threadIdx.x % RH_WARP == 0)
		words[threadIdx.x / RH_WARP] = bits;
	__syncthreads();
	for (int w = 0; w < EMBED_WARPS; w++)
		all |= words[w];
	__syncthreads();
	return all;
}

/* Of the block's tokens, number k at first + k * apart: bit k, whether a token before it has its id; bit EMBED_TOKENS + k, whether one
 * behind it has. A thread compares each id it reads with all of them, and has EMBED_BATCH reads under way. */
RH_DEVICE uint32_t embedding_repeats(const struct rows_args &a, int first, int apart, const int32_t (&id)[EMBED_TOKENS], uint32_t *words)
{
	constexpr uint32_t all = (1u << EMBED_TOKENS) - 1;
	int rows = (int)a.rows;
	uint32_t bits = 0;
	for (int base = (int)threadIdx.x; base < rows; base += EMBED_THREADS * EMBED_BATCH) {
		int32_t other[EMBED_BATCH];
		RH_UNROLL
		for (int j = 0; j < EMBED_BATCH; j++) {
			int token = base + j * EMBED_THREADS;
			other[j] = token < rows ? a.index[token * a.index_stride] : -1;
		}
		RH_UNROLL
		for (int j = 0; j < EMBED_BATCH; j++) {
			int beyond = base + j * EMBED_THREADS - first,
			    last = beyond < 0 ? -1 : beyond / apart; /* of the block's up to it */
			uint32_t same = 0, later = all << (last + 1) & all;
			RH_UNROLL
			for (int k = 0; k < EMBED_TOKENS; k++)
				same |= (uint32_t)(other[j] == id[k]) << k;
			if (last >= 0 && last * apart == beyond) /* itself */
				same &= ~(1u << last);
			bits |= (same & later) | (same & ~later) << EMBED_TOKENS;
		}
	}
	return join(bits, words);
}

/* Adds the rows of `token` and of later tokens of its id, in order, to the id's row from chunk `own` on. */
template <typename T> RH_DEVICE void embedding_add(const struct rows_args &a, int64_t token, int32_t id, int64_t end, uint32_t *found)
{
	int64_t width = (int64_t)EMBED_THREADS * CHUNK, own = (int64_t)blockIdx.y * EMBED_CHUNKS * width + threadIdx.x * CHUNK;
	float *y = (float *)a.y + (int64_t)id * a.y_stride + own;
	struct chunk sum[EMBED_CHUNKS];
	RH_UNROLL
	for (int c = 0; c < EMBED_CHUNKS; c++)
		sum[c] = chunk_load(y + c * width, a.cols - own - c * width, a.aligned);
	for (int64_t base = token; base < end; base += EMBED_THREADS) {
		int64_t other = base + threadIdx.x;
		int alone = end == token + 1;
		if (!alone)
			find(other < end && a.index[other * a.index_stride] == id, found);
		for (int w = 0; w < (alone ? 1 : (int)EMBED_WARPS); w++) {
			for (uint32_t bits = alone ? 1 : found[w]; bits; bits &= bits - 1) {
				const T *x = (const T *)a.x + (base + w * RH_WARP + rh_lowest_bit(bits)) * a.x_stride + own;
				RH_UNROLL
				for (int c = 0; c < EMBED_CHUNKS; c++) {
					struct chunk one = chunk_load(x + c * width, a.cols - own - c * width, a.aligned);
					RH_UNROLL
					for (int k = 0; k < CHUNK; k++)
						sum[c].v[k] += a.scale * one.v[k];
				}
			}
		}
		if (!alone)
			__syncthreads();
	}
	RH_UNROLL
	for (int c = 0; c < EMBED_CHUNKS; c++)
		chunk_store(y + c * width, sum[c], a.cols - own - c * width, a.aligned);
}

/* y (V,c) F32 += x (T,c): a block does EMBED_TOKENS tokens' ids and EMBED_CHUNKS times 256 chunks of their rows. Of tokens of one id the
 * first one's block adds all, in order, 256 tokens looked at at a time; ids that come once are spared that. A block's tokens lie far apart:
 * the first ones of all frequent ids lie together, and one block would have all of the work. */
template <typename T> RH_KERNEL(EMBED_THREADS, 4) embedding_gradient(struct rows_args a)
{
	RH_SHARED(uint32_t, found, EMBED_WARPS);
	int first = (int)blockIdx.x, apart = (int)gridDim.x, rows = (int)a.rows;
	int32_t id[EMBED_TOKENS];
	RH_UNROLL
	for (int k = 0; k < EMBED_TOKENS; k++)
		id[k] = first + k * apart < rows ? a.index[(first + k * apart) * a.index_stride] : -1;
	uint32_t repeats = embedding_repeats(a, first, apart, id, found);
	RH_UNROLL
	for (int k = 0; k < EMBED_TOKENS; k++) {
		int token = first + k * apart;
		if (token < rows && !(repeats >> k & 1))
			embedding_add<T>(a, token, id[k], repeats >> (EMBED_TOKENS + k) & 1 ? rows : token + 1, found);
	}
}

static struct rows_args rows_of(const struct rh_view *x, const struct rh_view *index, const struct rh_view *y)
{
	struct rows_args a = {};
	struct rh_view views[2] = {};
	if (x)
		views[0] = *x, a.x = x->data, a.x_stride = x->stride;
	if (index)
		a.index = (const int32_t *)index->data, a.index_stride = index->stride, a.indices = index->rows;
	views[1] = *y, a.y = y->data, a.y_stride = y->stride, a.rows = y->rows, a.cols = y->cols;
	a.aligned = chunk_aligned(views, 2);
	return a;
}

/* The elementwise kernels' blocks. */
static dim3 rows_block(int64_t rows)
{
	return rows == 1 ? dim3(CHUNK_BLOCK_WIDTH * CHUNK_BLOCK_ROWS, 1, 1) : chunk_block();
}

static dim3 rows_grid(int64_t rows, int64_t cols)
{
	int64_t chunks = chunks_of(cols);
	return rows == 1 ? dim3((unsigned)rh_ceil_div(chunks, CHUNK_BLOCK_WIDTH * CHUNK_BLOCK_ROWS), 1, 1) : chunk_grid(rows, chunks);
}

extern "C" int cuda_fill(const struct rh_op *op, CUstream_st *stream)
{
	struct rows_args a = rows_of(NULL, NULL, &op->operand[RH_FILL_Y]);
	if (!a.rows || !a.cols)
		return 0;
	dim3 grid = rows_grid(a.rows, a.cols), block = rows_block(a.rows);
	if (op->operand[RH_FILL_Y].dtype == RH_BF16)
		return RH_LAUNCH(rows_fill<rh_bf16>, grid, block, 0, stream, a);
	return RH_LAUNCH(rows_fill<float>, grid, block, 0, stream, a);
}

extern "C" int cuda_cast(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct rows_args a = rows_of(&view[RH_CAST_X], NULL, &view[RH_CAST_Y]);
	if (!a.rows || !a.cols)
		return 0;
	dim3 grid = rows_grid(a.rows, a.cols), block = rows_block(a.rows);
	int from = view[RH_CAST_X].dtype == RH_BF16, to = view[RH_CAST_Y].dtype == RH_BF16;
	if (from && to)
		return RH_LAUNCH((rows_cast<rh_bf16, rh_bf16>), grid, block, 0, stream, a);
	if (from)
		return RH_LAUNCH((rows_cast<rh_bf16, float>), grid, block, 0, stream, a);
	if (to)
		return RH_LAUNCH((rows_cast<float, rh_bf16>), grid, block, 0, stream, a);
	return RH_LAUNCH((rows_cast<float, float>), grid, block, 0, stream, a);
}

extern "C" int cuda_add(const struct rh_op *op, CUstream_st *stream)
{
	struct rh_view x = op->operand[RH_ADD_A], z = op->operand[RH_ADD_B], y = op->operand[RH_ADD_Y];
	struct add_args a = {x.data, z.data, op->operand[RH_ADD_SCALE].data, y.data, x.stride, z.stride, y.stride,
	                     y.rows, y.cols, chunk_aligned(op->operand, 3)};
	if (!a.rows || !a.cols)
		return 0;
	dim3 grid = rows_grid(a.rows, a.cols), block = rows_block(a.rows);
	if (y.dtype == RH_BF16)
		return RH_LAUNCH(rows_add<rh_bf16>, grid, block, 0, stream, a);
	return RH_LAUNCH(rows_add<float>, grid, block, 0, stream, a);
}

extern "C" int cuda_column_sum(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct rows_args a = rows_of(&view[RH_COLUMN_SUM_X], NULL, &view[RH_COLUMN_SUM_Y]);
	a.rows = view[RH_COLUMN_SUM_X].rows;
	if (!a.rows || !a.cols)
		return 0;
	if (view[RH_COLUMN_SUM_X].dtype == RH_BF16)
		return RH_LAUNCH(rows_column_sum<rh_bf16>, column_blocks(a.cols), COLUMN_THREADS, 0, stream, a);
	return RH_LAUNCH(rows_column_sum<float>, column_blocks(a.cols), COLUMN_THREADS, 0, stream, a);
}

extern "C" int cuda_grouped_column_sum(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *x = &op->operand[RH_GROUPED_COLUMN_SUM_X], *start = &op->operand[RH_GROUPED_COLUMN_SUM_START];
	struct rows_args a = rows_of(x, start, &op->operand[RH_GROUPED_COLUMN_SUM_Y]);
	if (!x->rows || !a.cols)
		return 0;
	dim3 grid(column_blocks(a.cols), (unsigned)(start->rows - 1), 1);
	if (x->dtype == RH_BF16)
		return RH_LAUNCH(rows_grouped_column_sum<rh_bf16>, grid, COLUMN_THREADS, 0, stream, a);
	return RH_LAUNCH(rows_grouped_column_sum<float>, grid, COLUMN_THREADS, 0, stream, a);
}

static float scale_of(const struct rh_op *op)
{
	return op->embedding.scale == 0 ? 1 : op->embedding.scale;
}

static int take_rows(const struct rh_view *x, const struct rh_view *index, const struct rh_view *y, float scale, CUstream_st *stream)
{
	struct rows_args a = rows_of(x, index, y);
	a.scale = scale;
	if (!a.rows || !a.cols)
		return 0;
	dim3 grid = rows_grid(a.rows, a.cols), block = rows_block(a.rows);
	if (x->dtype == RH_BF16)
		return RH_LAUNCH(rows_gather<rh_bf16>, grid, block, 0, stream, a);
	return RH_LAUNCH(rows_gather<float>, grid, block, 0, stream, a);
}

extern "C" int cuda_embedding(const struct rh_op *op, CUstream_st *stream)
{
	return take_rows(&op->operand[RH_EMBEDDING_TABLE], &op->operand[RH_EMBEDDING_IDS], &op->operand[RH_EMBEDDING_Y], scale_of(op),
	                 stream);
}

extern "C" int cuda_gather_rows(const struct rh_op *op, CUstream_st *stream)
{
	return take_rows(&op->operand[RH_GATHER_ROWS_X], &op->operand[RH_GATHER_ROWS_INDEX], &op->operand[RH_GATHER_ROWS_Y], 1, stream);
}

extern "C" int cuda_scatter_rows(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct rows_args a = rows_of(&view[RH_SCATTER_ROWS_X], &view[RH_SCATTER_ROWS_INDEX], &view[RH_SCATTER_ROWS_Y]);
	if (!a.rows || !a.cols)
		return 0;
	dim3 grid = rows_grid(a.rows, a.cols), block = rows_block(a.rows);
	if (view[RH_SCATTER_ROWS_Y].dtype == RH_BF16)
		return RH_LAUNCH(rows_scatter<rh_bf16>, grid, block, 0, stream, a);
	return RH_LAUNCH(rows_scatter<float>, grid, block, 0, stream, a);
}

extern "C" int cuda_embedding_backward(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct rh_view dy = view[RH_EMBEDDING_BACKWARD_DY];
	struct rows_args a = rows_of(&dy, &view[RH_EMBEDDING_BACKWARD_IDS], &view[RH_EMBEDDING_BACKWARD_DTABLE]);
	a.rows = dy.rows;
	a.scale = scale_of(op);
	if (!a.rows || !a.cols)
		return 0;
	dim3 grid((unsigned)rh_ceil_div(a.rows, EMBED_TOKENS), (unsigned)rh_ceil_div(chunks_of(a.cols), EMBED_THREADS * EMBED_CHUNKS), 1);
	if (dy.dtype == RH_BF16)
		return RH_LAUNCH(embedding_gradient<rh_bf16>, grid, EMBED_THREADS, 0, stream, a);
	return RH_LAUNCH(embedding_gradient<float>, grid, EMBED_THREADS, 0, stream, a);
}
