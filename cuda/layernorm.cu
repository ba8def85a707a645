/* LayerNorm, forward and backward. With T rows of n elements of e bytes:
 *
 * forward   reads x, writes y: 2 T n e bytes, 7 FLOPs an element. A row is read three times, twice from L1 (at most 32 KB).
 * dx        reads x, dy (add), writes dx (y): 3 to 5 T n e bytes, 13 FLOPs an element.
 * dw        reads x, dy: 2 T n e bytes, 4 FLOPs an element; db reads dy once more, as a sum over columns (rows.cu).
 *
 * Bound by memory, like RMSNorm (norm.cu): the roofline is bytes / DRAM bandwidth. Tiles are those of norm.cu. Sums are fp32, squares about
 * the mean, in an order that is a function of the shapes alone. */
#include "cuda/kernels.h"
#include "cuda/norm_vector.h"

struct layernorm_args {
	const void *x, *w, *b, *dy, *add;
	void *y, *dx;
	float *stats, *dw;
	int64_t x_stride, y_stride, dy_stride, add_stride, dx_stride, stats_stride, rows, n;
	float epsilon;
	int aligned; /* every row begins on 16 bytes */
};

/* x - mean of the chunk at column i of a row; zeros beyond the row. */
template <typename T> RH_DEVICE struct chunk centred(const T *x, int64_t i, const struct layernorm_args &a, float mean)
{
	struct chunk c = chunk_load(x + i, a.n - i, a.aligned);
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++)
		c.v[k] = i + k < a.n ? c.v[k] - mean : 0;
	return c;
}

/* xhat becomes xhat w + b. */
template <typename T> RH_DEVICE void scale(struct chunk *xhat, int64_t i, const struct layernorm_args &a)
{
	struct chunk w = chunk_load((const T *)a.w + i, a.n - i, a.aligned), b = {};
	if (a.b)
		b = chunk_load((const T *)a.b + i, a.n - i, a.aligned);
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++)
		xhat->v[k] = xhat->v[k] * w.v[k] + b.v[k];
}

template <typename T, int PER_VECTOR> RH_KERNEL(NORM_THREADS, 4) layernorm_forward(struct layernorm_args a)
{
	constexpr int64_t step = PER_VECTOR * RH_WARP * CHUNK;
	struct place<PER_VECTOR> p = find_place<PER_VECTOR>(a.rows, 1);
	const T *x = (const T *)a.x + p.row * a.x_stride;
	float sum = 0, squares = 0;
	/* absent vectors read the last one, which another warp may be overwriting: what they sum is not used */
	for (int64_t i = p.first; i < a.n && !p.absent; i += step) {
		struct chunk c = chunk_load(x + i, a.n - i, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			sum += c.v[k];
	}
	float mean = vector_sum<PER_VECTOR, 0>(sum) / (float)a.n;
	for (int64_t i = p.first; i < a.n && !p.absent; i += step) {
		struct chunk c = centred(x, i, a, mean);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			squares += c.v[k] * c.v[k];
	}
	float rstd = 1 / sqrtf(vector_sum<PER_VECTOR, 1>(squares) / (float)a.n + a.epsilon);
	if (p.absent)
		return;
	if (p.first == 0) {
		a.stats[p.row * a.stats_stride] = mean;
		a.stats[p.row * a.stats_stride + 1] = rstd;
	}
	for (int64_t i = p.first; i < a.n; i += step) {
		struct chunk c = centred(x, i, a, mean);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			c.v[k] *= rstd;
		scale<T>(&c, i, a);
		chunk_store((T *)a.y + p.row * a.y_stride + i, c, a.n - i, a.aligned);
	}
}

/* With xhat = (x - mean) rstd and s = dy w: dx = add + rstd (s - mean(s) - xhat mean(s xhat)). dx may be dy or add: a chunk is written by
 * the thread that reads it, and after every read of the sums. */
template <typename T, int PER_VECTOR> RH_KERNEL(NORM_THREADS, 4) layernorm_backward_dx(struct layernorm_args a)
{
	constexpr int64_t step = PER_VECTOR * RH_WARP * CHUNK;
	struct place<PER_VECTOR> p = find_place<PER_VECTOR>(a.rows, 1);
	const T *x = (const T *)a.x + p.row * a.x_stride, *dy = (const T *)a.dy + p.row * a.dy_stride, *w = (const T *)a.w;
	float mean = a.stats[p.row * a.stats_stride], rstd = a.stats[p.row * a.stats_stride + 1], sum = 0, sum_xhat = 0;
	for (int64_t i = p.first; i < a.n && !p.absent; i += step) {
		struct chunk c = centred(x, i, a, mean), s = chunk_load(dy + i, a.n - i, a.aligned);
		struct chunk weight = chunk_load(w + i, a.n - i, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++) {
			sum += s.v[k] * weight.v[k];
			sum_xhat += s.v[k] * weight.v[k] * c.v[k];
		}
	}
	float mean_s = vector_sum<PER_VECTOR, 0>(sum) / (float)a.n;
	float mean_xhat = vector_sum<PER_VECTOR, 1>(sum_xhat) * rstd / (float)a.n;
	if (p.absent)
		return;
	const T *add = a.add ? (const T *)a.add + p.row * a.add_stride : NULL;
	for (int64_t i = p.first; i < a.n; i += step) {
		int64_t left = a.n - i;
		struct chunk c = centred(x, i, a, mean), s = chunk_load(dy + i, left, a.aligned);
		struct chunk weight = chunk_load(w + i, left, a.aligned), base = {};
		if (add)
			base = chunk_load(add + i, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++) {
			c.v[k] *= rstd;
			s.v[k] = base.v[k] + rstd * (s.v[k] * weight.v[k] - mean_s - c.v[k] * mean_xhat);
		}
		chunk_store((T *)a.dx + p.row * a.dx_stride + i, s, left, a.aligned);
		if (!a.y)
			continue;
		scale<T>(&c, i, a);
		chunk_store((T *)a.y + p.row * a.y_stride + i, c, left, a.aligned);
	}
}

/* dw += sum over rows of dy xhat. */
template <typename T> RH_KERNEL(COLUMN_THREADS, 2) layernorm_backward_dw(struct layernorm_args a)
{
	column_add(a.dw, a.n, a.rows, [&](int64_t row, int64_t i, int64_t left) {
		struct chunk c = chunk_load((const T *)a.x + row * a.x_stride + i, left, a.aligned);
		struct chunk d = chunk_load((const T *)a.dy + row * a.dy_stride + i, left, a.aligned);
		float mean = a.stats[row * a.stats_stride], rstd = a.stats[row * a.stats_stride + 1];
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			c.v[k] = d.v[k] * ((c.v[k] - mean) * rstd);
		return c;
	});
}

template <typename T> static int forward(const struct layernorm_args *a, CUstream_st *stream)
{
	if (a->n <= NORM_WARP_LENGTH)
		return RH_LAUNCH((layernorm_forward<T, 1>), norm_blocks(a->rows, 1), NORM_THREADS, 0, stream, *a);
	return RH_LAUNCH((layernorm_forward<T, NORM_WARPS>), norm_blocks(a->rows, NORM_WARPS), NORM_THREADS, 0, stream, *a);
}

template <typename T> static int backward(const struct layernorm_args *a, CUstream_st *stream)
{
	int rc = 0;
	if (a->dw)
		rc = RH_LAUNCH((layernorm_backward_dw<T>), column_blocks(a->n), COLUMN_THREADS, 0, stream, *a);
	if (rc < 0)
		return rc;
	if (a->n <= NORM_WARP_LENGTH)
		return RH_LAUNCH((layernorm_backward_dx<T, 1>), norm_blocks(a->rows, 1), NORM_THREADS, 0, stream, *a);
	return RH_LAUNCH((layernorm_backward_dx<T, NORM_WARPS>), norm_blocks(a->rows, NORM_WARPS), NORM_THREADS, 0, stream, *a);
}

extern "C" int cuda_layernorm(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct rh_view x = view[RH_LAYERNORM_X], y = view[RH_LAYERNORM_Y], stats = view[RH_LAYERNORM_STATS];
	struct layernorm_args a = {};
	a.x = x.data, a.x_stride = x.stride;
	a.w = view[RH_LAYERNORM_W].data, a.b = view[RH_LAYERNORM_B].data;
	a.y = y.data, a.y_stride = y.stride;
	a.stats = (float *)stats.data, a.stats_stride = stats.stride;
	a.rows = x.rows, a.n = x.cols;
	a.epsilon = op->layernorm.epsilon;
	a.aligned = chunk_aligned(view, RH_LAYERNORM_STATS);
	if (!a.rows)
		return 0;
	return x.dtype == RH_BF16 ? forward<rh_bf16>(&a, stream) : forward<float>(&a, stream);
}

/* dw and db first: dx may overwrite dy. */
extern "C" int cuda_layernorm_backward(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct rh_view x = view[RH_LAYERNORM_BACKWARD_X], dy = view[RH_LAYERNORM_BACKWARD_DY], add = view[RH_LAYERNORM_BACKWARD_ADD];
	struct rh_view dx = view[RH_LAYERNORM_BACKWARD_DX], y = view[RH_LAYERNORM_BACKWARD_Y], db = view[RH_LAYERNORM_BACKWARD_DB];
	struct layernorm_args a = {};
	a.x = x.data, a.x_stride = x.stride;
	a.w = view[RH_LAYERNORM_BACKWARD_W].data, a.b = view[RH_LAYERNORM_BACKWARD_B].data;
	a.dy = dy.data, a.dy_stride = dy.stride;
	a.add = add.data, a.add_stride = add.stride;
	a.dx = dx.data, a.dx_stride = dx.stride;
	a.y = y.data, a.y_stride = y.stride;
	a.stats = (float *)view[RH_LAYERNORM_BACKWARD_STATS].data, a.stats_stride = view[RH_LAYERNORM_BACKWARD_STATS].stride;
	a.dw = (float *)view[RH_LAYERNORM_BACKWARD_DW].data;
	a.rows = x.rows, a.n = x.cols;
	const struct rh_view views[] = {x, view[RH_LAYERNORM_BACKWARD_W], view[RH_LAYERNORM_BACKWARD_B], dy, add, dx, y};
	a.aligned = chunk_aligned(views, 7);
	if (!a.rows)
		return 0;
	if (db.data) {
		struct rh_op sum = {};
		sum.kind = RH_OP_COLUMN_SUM;
		sum.operand[RH_COLUMN_SUM_X] = dy;
		sum.operand[RH_COLUMN_SUM_Y] = db;
		int rc = cuda_column_sum(&sum, stream);
		if (rc < 0)
			return rc;
	}
	return x.dtype == RH_BF16 ? backward<rh_bf16>(&a, stream) : backward<float>(&a, stream);
}
