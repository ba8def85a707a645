/* A product with a function of a gate, with or without an RMSNorm before it (RH_OP_GATE), and its gradient. With T rows of n elements of e
 * bytes:
 *
 * forward   reads x, z, writes y: 3 T n e bytes. With a norm a row is read twice, the second time from L1.
 * dx        reads x, z, dy, writes dx, dz (y): 5 to 6 T n e bytes. Where a row has one gate, z and dz count for nothing.
 * dw        reads x, z, dy: 3 T n e bytes.
 *
 * Bound by memory: the roofline is bytes / DRAM bandwidth. Tiles are those of norm.cu. */
#include "cuda/kernels.h"
#include "cuda/norm_vector.h"

struct gate_args {
	const void *x, *z, *w, *dy;
	void *y, *dx, *dz;
	float *rstd, *dw;
	int64_t x_stride, z_stride, y_stride, rstd_stride, dy_stride, dx_stride, dz_stride, rows, n;
	float epsilon;
	int f, is_one, aligned; /* is_one: a row has one gate; aligned: every row begins on 16 bytes, but for such gates */
};

/* f(z), and in *slope f'(z). */
RH_DEVICE float gated(int f, float z, float *slope)
{
	float s = 1 / (1 + expf(-z)), rise = s * (1 - s);
	*slope = f == RH_GATE_SIGMOID ? rise : s + z * rise;
	return f == RH_GATE_SIGMOID ? s : z * s;
}

template <typename T> RH_DEVICE struct chunk weight_at(const struct gate_args &a, int64_t i)
{
	struct chunk ones;
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++)
		ones.v[k] = 1;
	return a.w ? chunk_load((const T *)a.w + i, a.n - i, a.aligned) : ones;
}

/* Gates of a row's elements from i on. */
template <typename T> RH_DEVICE struct chunk gates_at(const struct gate_args &a, int64_t row, int64_t i)
{
	const T *z = (const T *)a.z + row * a.z_stride;
	struct chunk same;
	if (!a.is_one)
		return chunk_load(z + i, a.n - i, a.aligned);
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++)
		same.v[k] = rh_to_float(z[0]);
	return same;
}

template <typename T, int PER_VECTOR> RH_KERNEL(NORM_THREADS, 4) gate_forward(struct gate_args a)
{
	constexpr int64_t step = PER_VECTOR * RH_WARP * CHUNK;
	struct place<PER_VECTOR> p = find_place<PER_VECTOR>(a.rows, 1);
	const T *x = (const T *)a.x + p.row * a.x_stride;
	float squares = 0, rstd = 1, slope;
	for (int64_t i = p.first; i < a.n && !p.absent && a.w; i += step) {
		struct chunk c = chunk_load(x + i, a.n - i, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			squares += c.v[k] * c.v[k];
	}
	squares = vector_sum<PER_VECTOR>(squares);
	if (a.w)
		rstd = 1 / sqrtf(squares / (float)a.n + a.epsilon);
	if (p.absent)
		return;
	if (p.first == 0 && a.w)
		a.rstd[p.row * a.rstd_stride] = rstd;
	for (int64_t i = p.first; i < a.n; i += step) {
		int64_t left = a.n - i;
		struct chunk c = chunk_load(x + i, left, a.aligned), gate = gates_at<T>(a, p.row, i), w = weight_at<T>(a, i);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			c.v[k] = c.v[k] * rstd * w.v[k] * gated(a.f, gate.v[k], &slope);
		chunk_store((T *)a.y + p.row * a.y_stride + i, c, left, a.aligned);
	}
}

/* With xhat = x rstd and s = dy w f(z): dx = rstd (s - xhat mean(s xhat)), dz = dy xhat w f'(z). dx may be dy: a chunk is written by the
 * thread that reads it, and after every read of the sum. */
template <typename T, int PER_VECTOR> RH_KERNEL(NORM_THREADS, 3) gate_backward_dx(struct gate_args a)
{
	constexpr int64_t step = PER_VECTOR * RH_WARP * CHUNK;
	struct place<PER_VECTOR> p = find_place<PER_VECTOR>(a.rows, 1);
	const T *x = (const T *)a.x + p.row * a.x_stride, *dy = (const T *)a.dy + p.row * a.dy_stride;
	float rstd = a.w ? a.rstd[p.row * a.rstd_stride] : 1, sum = 0, of_row = 0, slope;
	for (int64_t i = p.first; i < a.n && !p.absent && a.w; i += step) {
		int64_t left = a.n - i;
		struct chunk c = chunk_load(x + i, left, a.aligned), gate = gates_at<T>(a, p.row, i);
		struct chunk d = chunk_load(dy + i, left, a.aligned), w = weight_at<T>(a, i);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			sum += d.v[k] * w.v[k] * gated(a.f, gate.v[k], &slope) * c.v[k];
	}
	float mean = vector_sum<PER_VECTOR>(sum) * rstd / (float)a.n;
	for (int64_t i = p.first; i < a.n && !p.absent; i += step) {
		int64_t left = a.n - i;
		struct chunk c = chunk_load(x + i, left, a.aligned), gate = gates_at<T>(a, p.row, i);
		struct chunk d = chunk_load(dy + i, left, a.aligned), w = weight_at<T>(a, i);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++) {
			float xhat = c.v[k] * rstd, f = gated(a.f, gate.v[k], &slope), dk = d.v[k] * w.v[k];
			d.v[k] = rstd * (dk * f - xhat * mean);
			gate.v[k] = dk * xhat * slope;
			of_row += gate.v[k];
			c.v[k] = xhat * w.v[k] * f;
		}
		chunk_store((T *)a.dx + p.row * a.dx_stride + i, d, left, a.aligned);
		if (!a.is_one)
			chunk_store((T *)a.dz + p.row * a.dz_stride + i, gate, left, a.aligned);
		if (a.y)
			chunk_store((T *)a.y + p.row * a.y_stride + i, c, left, a.aligned);
	}
	if (!a.is_one)
		return;
	of_row = vector_sum<PER_VECTOR, 1>(of_row); /* past a row's end x is 0 */
	if (p.first == 0 && !p.absent)
		((T *)a.dz)[p.row * a.dz_stride] = rh_from_float<T>(of_row);
}

/* dw += sum over rows of dy xhat f(z). */
template <typename T> RH_KERNEL(COLUMN_THREADS, 2) gate_backward_dw(struct gate_args a)
{
	column_add(a.dw, a.n, a.rows, [&](int64_t row, int64_t i, int64_t left) {
		struct chunk c = chunk_load((const T *)a.x + row * a.x_stride + i, left, a.aligned);
		struct chunk gate = gates_at<T>(a, row, i);
		struct chunk d = chunk_load((const T *)a.dy + row * a.dy_stride + i, left, a.aligned);
		float rstd = a.rstd[row * a.rstd_stride], slope;
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			c.v[k] *= rstd * d.v[k] * gated(a.f, gate.v[k], &slope);
		return c;
	});
}

template <typename T> static int forward(const struct gate_args *a, CUstream_st *stream)
{
	if (a->n <= NORM_WARP_LENGTH)
		return RH_LAUNCH((gate_forward<T, 1>), norm_blocks(a->rows, 1), NORM_THREADS, 0, stream, *a);
	return RH_LAUNCH((gate_forward<T, NORM_WARPS>), norm_blocks(a->rows, NORM_WARPS), NORM_THREADS, 0, stream, *a);
}

/* dw first: dx may overwrite dy. */
template <typename T> static int backward(const struct gate_args *a, CUstream_st *stream)
{
	int rc = 0;
	if (a->dw && a->w)
		rc = RH_LAUNCH((gate_backward_dw<T>), column_blocks(a->n), COLUMN_THREADS, 0, stream, *a);
	if (rc < 0)
		return rc;
	if (a->n <= NORM_WARP_LENGTH)
		return RH_LAUNCH((gate_backward_dx<T, 1>), norm_blocks(a->rows, 1), NORM_THREADS, 0, stream, *a);
	return RH_LAUNCH((gate_backward_dx<T, NORM_WARPS>), norm_blocks(a->rows, NORM_WARPS), NORM_THREADS, 0, stream, *a);
}

extern "C" int cuda_gate(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct rh_view x = view[RH_GATE_X], z = view[RH_GATE_Z], y = view[RH_GATE_Y], rstd = view[RH_GATE_RSTD];
	struct gate_args a = {};
	a.x = x.data, a.x_stride = x.stride;
	a.z = z.data, a.z_stride = z.stride;
	a.w = view[RH_GATE_W].data;
	a.y = y.data, a.y_stride = y.stride;
	a.rstd = (float *)rstd.data, a.rstd_stride = rstd.stride;
	a.rows = x.rows, a.n = x.cols;
	a.epsilon = op->gate.epsilon;
	a.f = op->gate.f;
	a.is_one = z.cols == 1;
	const struct rh_view views[] = {x, a.is_one ? x : z, view[RH_GATE_W], y};
	a.aligned = chunk_aligned(views, 4);
	if (!a.rows)
		return 0;
	return x.dtype == RH_BF16 ? forward<rh_bf16>(&a, stream) : forward<float>(&a, stream);
}

extern "C" int cuda_gate_backward(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct rh_view x = view[RH_GATE_BACKWARD_X], z = view[RH_GATE_BACKWARD_Z], dy = view[RH_GATE_BACKWARD_DY];
	struct rh_view dx = view[RH_GATE_BACKWARD_DX], dz = view[RH_GATE_BACKWARD_DZ], y = view[RH_GATE_BACKWARD_Y];
	struct gate_args a = {};
	a.x = x.data, a.x_stride = x.stride;
	a.z = z.data, a.z_stride = z.stride;
	a.w = view[RH_GATE_BACKWARD_W].data;
	a.rstd = (float *)view[RH_GATE_BACKWARD_RSTD].data, a.rstd_stride = view[RH_GATE_BACKWARD_RSTD].stride;
	a.dy = dy.data, a.dy_stride = dy.stride;
	a.dx = dx.data, a.dx_stride = dx.stride;
	a.dz = dz.data, a.dz_stride = dz.stride;
	a.y = y.data, a.y_stride = y.stride;
	a.dw = (float *)view[RH_GATE_BACKWARD_DW].data;
	a.rows = x.rows, a.n = x.cols;
	a.f = op->gate.f;
	a.is_one = z.cols == 1;
	const struct rh_view views[] = {x, a.is_one ? x : z, view[RH_GATE_BACKWARD_W], dy, dx, a.is_one ? x : dz, y};
	a.aligned = chunk_aligned(views, 7);
	if (!a.rows)
		return 0;
	return x.dtype == RH_BF16 ? backward<rh_bf16>(&a, stream) : backward<float>(&a, stream);
}
