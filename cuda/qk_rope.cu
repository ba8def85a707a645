/* Norms of query and key heads and their rotation, forward and backward. With T rows of G heads of D elements, e bytes each:
 *
 * forward   reads x, writes y: 2 T G D e bytes, and the table from L2; 8 FLOPs an element.
 * backward  reads x, dy, writes dx: 3 T G D e bytes, 14 FLOPs an element; for the weights' gradients each block leaves its part, D floats,
 *           in memory, and a second kernel adds them up in order.
 *
 * Bound by memory: the roofline is bytes / DRAM bandwidth. Tile: LANES lanes a head, the least of 1, 4, 8 and 16 that is D / 16 or more,
 * each with 8 elements of the first half and the 8 that are turned with them: what is normalised is turned in registers. Blocks of 256
 * threads. The order of sums is a function of the shapes. */
#include "cuda/chunk.h"
#include "cuda/kernels.h"

enum { QK_THREADS = 256, QK_BLOCKS = 256 };

struct qk_args {
	const void *x, *w[2]; /* w: of queries, of keys */
	void *y;              /* dx */
	const void *dy;
	float *rstd, *dw[2], *part; /* part: (2, QK_BLOCKS, D), or NULL */
	float *amax;                /* of dx, or NULL */
	const float *table;
	int64_t amax_stride, x_stride, y_stride, dy_stride, rstd_stride, table_stride, rows;
	int heads[2], half, aligned;
	float epsilon, offset;
};

/* A lane's share of a head. */
struct qk_pair {
	struct chunk low, high;
};

template <typename T> RH_DEVICE struct qk_pair qk_load(const T *head, const struct qk_args &a, int i)
{
	return {chunk_load(head + i, a.half - i, a.aligned), chunk_load(head + a.half + i, a.half - i, a.aligned)};
}

template <typename T> RH_DEVICE void qk_store(T *head, const struct qk_args &a, int i, const struct qk_pair &pair)
{
	chunk_store(head + i, pair.low, a.half - i, a.aligned);
	chunk_store(head + a.half + i, pair.high, a.half - i, a.aligned);
}

/* The weights that a head's elements are multiplied with. */
template <typename T> RH_DEVICE struct qk_pair qk_weight(const struct qk_args &a, int key, int i)
{
	struct qk_pair w = qk_load((const T *)a.w[key], a, i);
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++)
		w.low.v[k] += a.offset, w.high.v[k] += a.offset;
	return w;
}

template <typename T> RH_DEVICE float qk_round(float x)
{
	return rh_to_float(rh_from_float<T>(x));
}

/* Over the lanes of a head. All 32 lanes come here. */
template <int LANES> RH_DEVICE float qk_sum(float x)
{
	RH_UNROLL
	for (int mask = LANES / 2; mask; mask /= 2)
		x += rh_shuffle_xor(x, mask);
	return x;
}

template <typename T, int LANES> RH_KERNEL(QK_THREADS, 3) qk_rope_forward(struct qk_args a)
{
	int all = a.heads[0] + a.heads[1], i = (int)threadIdx.x % LANES * CHUNK;
	int64_t vector = (int64_t)blockIdx.x * (QK_THREADS / LANES) + threadIdx.x / LANES, row = vector / all;
	int head = (int)(vector % all), there = row < a.rows;
	struct qk_pair x = {}, w = {}, table = {};
	if (there) {
		x = qk_load((const T *)a.x + row * a.x_stride + (int64_t)head * 2 * a.half, a, i);
		w = qk_weight<T>(a, head >= a.heads[0], i);
		table = qk_load(a.table + row * a.table_stride, a, i);
	}
	float squares = 0;
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++)
		squares += x.low.v[k] * x.low.v[k] + x.high.v[k] * x.high.v[k];
	float rstd = 1 / sqrtf(qk_sum<LANES>(squares) / (float)(2 * a.half) + a.epsilon);
	if (!there)
		return;
	if (i == 0)
		a.rstd[row * a.rstd_stride + head] = rstd;
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++) {
		float u = qk_round<T>(x.low.v[k] * rstd * w.low.v[k]), v = qk_round<T>(x.high.v[k] * rstd * w.high.v[k]);
		x.low.v[k] = u * table.low.v[k] - v * table.high.v[k];
		x.high.v[k] = v * table.low.v[k] + u * table.high.v[k];
	}
	qk_store((T *)a.y + row * a.y_stride + (int64_t)head * 2 * a.half, a, i, x);
}

/* One head: dx, and its terms of dw. With xhat = x rstd and s = dy w: dx = rstd (s - xhat mean(s xhat)), of dy turned back and rounded. */
template <typename T, int LANES>
RH_DEVICE void qk_head_backward(const struct qk_args &a, int64_t row, int head, int there, const struct qk_pair &w, struct qk_pair *dw)
{
	int i = (int)threadIdx.x % LANES * CHUNK;
	struct qk_pair x = {}, dy = {}, table = {};
	float rstd = 0, sum = 0;
	if (there) {
		x = qk_load((const T *)a.x + row * a.x_stride + (int64_t)head * 2 * a.half, a, i);
		dy = qk_load((const T *)a.dy + row * a.dy_stride + (int64_t)head * 2 * a.half, a, i);
		table = qk_load(a.table + row * a.table_stride, a, i);
		rstd = a.rstd[row * a.rstd_stride + head];
	}
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++) {
		float u = dy.low.v[k], v = dy.high.v[k];
		dy.low.v[k] = qk_round<T>(u * table.low.v[k] + v * table.high.v[k]);
		dy.high.v[k] = qk_round<T>(v * table.low.v[k] - u * table.high.v[k]);
		sum += dy.low.v[k] * w.low.v[k] * x.low.v[k] + dy.high.v[k] * w.high.v[k] * x.high.v[k];
	}
	float mean = qk_sum<LANES>(sum) * rstd / (float)(2 * a.half);
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++) { /* zeros where no head is */
		float low = x.low.v[k] * rstd, high = x.high.v[k] * rstd;
		dw->low.v[k] += dy.low.v[k] * low;
		dw->high.v[k] += dy.high.v[k] * high;
		x.low.v[k] = rstd * (dy.low.v[k] * w.low.v[k] - low * mean);
		x.high.v[k] = rstd * (dy.high.v[k] * w.high.v[k] - high * mean);
	}
	if (there)
		qk_store((T *)a.y + row * a.y_stride + (int64_t)head * 2 * a.half, a, i, x);
	if (!a.amax)
		return;
	uint32_t most = lanes_largest(chunk_largest(chunk_largest(0, x.low), x.high), LANES);
	if (there && i == 0)
		a.amax[row * a.amax_stride + head] = stored_magnitude<T>(most);
}

/* Blocks with blockIdx.y 0 take query heads, those with 1 key heads. */
template <typename T, int LANES> RH_KERNEL(QK_THREADS, 2) qk_rope_backward(struct qk_args a)
{
	constexpr int at_once = QK_THREADS / LANES, width = 2 * LANES * CHUNK;
	RH_SHARED_2D(float, sums, at_once, width);
	int key = (int)blockIdx.y, heads = a.heads[key], own = (int)threadIdx.x / LANES, i = (int)threadIdx.x % LANES * CHUNK;
	struct qk_pair w = qk_weight<T>(a, key, i), dw = {};
	int64_t vectors = a.rows * heads, step = (int64_t)gridDim.x * at_once;
	for (int64_t first = (int64_t)blockIdx.x * at_once; first < vectors; first += step) {
		int64_t vector = first + own;
		qk_head_backward<T, LANES>(a, vector / heads, (int)(vector % heads) + key * a.heads[0], vector < vectors, w, &dw);
	}
	if (!a.part)
		return;
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++) {
		sums[own][i + k] = dw.low.v[k];
		sums[own][width / 2 + i + k] = dw.high.v[k];
	}
	__syncthreads();
	for (int c = (int)threadIdx.x; c < 2 * a.half; c += QK_THREADS) {
		float total = 0;
		for (int v = 0; v < at_once; v++)
			total += sums[v][c < a.half ? c : width / 2 + c - a.half];
		a.part[((int64_t)key * QK_BLOCKS + blockIdx.x) * 2 * a.half + c] = total;
	}
}

/* dw += the parts of `blocks` blocks. */
static RH_KERNEL(COLUMN_THREADS, 2) qk_add_parts(struct qk_args a, int blocks)
{
	int key = (int)blockIdx.y, dim = 2 * a.half;
	const float *part = a.part + (int64_t)key * QK_BLOCKS * dim;
	if (a.dw[key])
		column_add(a.dw[key], dim, blocks, [&](int64_t block, int64_t i, int64_t left) {
			return chunk_load(part + block * dim + i, left, a.half % CHUNK == 0);
		});
}

/* `rstd` and what is like x stand at other places of the two ops. */
static struct qk_args args_of(const struct rh_op *op, int rstd, int table)
{
	const struct rh_view *view = op->operand;
	struct qk_args a = {};
	a.x = view[RH_QK_ROPE_X].data, a.x_stride = view[RH_QK_ROPE_X].stride;
	a.w[0] = view[RH_QK_ROPE_Q_W].data, a.w[1] = view[RH_QK_ROPE_K_W].data;
	a.rstd = (float *)view[rstd].data, a.rstd_stride = view[rstd].stride;
	a.table = (const float *)view[table].data, a.table_stride = view[table].stride;
	a.rows = view[RH_QK_ROPE_X].rows;
	a.heads[0] = (int)op->qk_rope.heads, a.heads[1] = (int)op->qk_rope.kv_heads;
	a.half = (int)view[table].cols / 2;
	a.epsilon = op->qk_rope.epsilon;
	a.offset = op->qk_rope.offset;
	const struct rh_view views[] = {view[RH_QK_ROPE_X], view[RH_QK_ROPE_Q_W], view[RH_QK_ROPE_K_W], view[table]};
	a.aligned = chunk_aligned(views, 4) && a.half % CHUNK == 0;
	return a;
}

template <typename T, int LANES> static int forward(const struct qk_args *a, CUstream_st *stream)
{
	int64_t vectors = a->rows * (a->heads[0] + a->heads[1]);
	return RH_LAUNCH((qk_rope_forward<T, LANES>), (unsigned)rh_ceil_div(vectors, QK_THREADS / LANES), QK_THREADS, 0, stream, *a);
}

template <typename T, int LANES> static int backward(const struct qk_args *a, CUstream_st *stream)
{
	int most = a->heads[0] > a->heads[1] ? a->heads[0] : a->heads[1];
	int64_t blocks = rh_ceil_div(a->rows * most, QK_THREADS / LANES);
	blocks = blocks < QK_BLOCKS ? blocks : (int64_t)QK_BLOCKS;
	int rc = RH_LAUNCH((qk_rope_backward<T, LANES>), dim3((unsigned)blocks, 2), QK_THREADS, 0, stream, *a);
	if (rc < 0 || !a->part)
		return rc;
	return RH_LAUNCH(qk_add_parts, dim3(column_blocks(2 * a->half), 2), COLUMN_THREADS, 0, stream, *a, (int)blocks);
}

template <typename T> static int by_lanes(const struct qk_args *a, int is_backward, CUstream_st *stream)
{
	int64_t chunks = chunks_of(a->half);
#define LANES(count)                                                                                                                       \
	if (chunks <= count)                                                                                                               \
		return is_backward ? backward<T, count>(a, stream) : forward<T, count>(a, stream);
	LANES(1)
	LANES(4)
	LANES(8)
	LANES(16)
#undef LANES
	return rh_fail(-EINVAL, "cuda: heads of %d elements are not rotated", 2 * a->half);
}

extern "C" int cuda_qk_rope(const struct rh_op *op, CUstream_st *stream)
{
	struct qk_args a = args_of(op, RH_QK_ROPE_RSTD, RH_QK_ROPE_TABLE);
	const struct rh_view y = op->operand[RH_QK_ROPE_Y];
	a.y = y.data, a.y_stride = y.stride;
	a.aligned = a.aligned && chunk_aligned(&y, 1);
	if (!a.rows)
		return 0;
	return y.dtype == RH_BF16 ? by_lanes<rh_bf16>(&a, 0, stream) : by_lanes<float>(&a, 0, stream);
}

extern "C" int cuda_qk_rope_backward(const struct rh_op *op, void *workspace, CUstream_st *stream)
{
	struct qk_args a = args_of(op, RH_QK_ROPE_BACKWARD_RSTD, RH_QK_ROPE_BACKWARD_TABLE);
	const struct rh_view own[] = {op->operand[RH_QK_ROPE_BACKWARD_DY], op->operand[RH_QK_ROPE_BACKWARD_DX]};
	a.dy = own[0].data, a.dy_stride = own[0].stride;
	a.y = own[1].data, a.y_stride = own[1].stride;
	a.dw[0] = (float *)op->operand[RH_QK_ROPE_BACKWARD_DQ_W].data;
	a.dw[1] = (float *)op->operand[RH_QK_ROPE_BACKWARD_DK_W].data;
	a.part = a.dw[0] || a.dw[1] ? (float *)workspace : NULL;
	a.amax = (float *)op->operand[RH_QK_ROPE_BACKWARD_AMAX].data;
	a.amax_stride = op->operand[RH_QK_ROPE_BACKWARD_AMAX].stride;
	a.aligned = a.aligned && chunk_aligned(own, 2);
	if (!a.rows)
		return 0;
	return own[0].dtype == RH_BF16 ? by_lanes<rh_bf16>(&a, 1, stream) : by_lanes<float>(&a, 1, stream);
}
