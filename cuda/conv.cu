/* The causal convolution of each column with silu (RH_OP_CONV), and its gradient. With T rows of C columns of e bytes and K taps:
 *
 * forward   reads x, writes y: 2 T C e bytes; of each run of rows the 7 before it once more.
 * dx        reads x, dy, writes dx: 3 T C e bytes; of each run 7 rows on both sides once more.
 * dw        reads x, dy: 2 T C e bytes.
 * tail      and d_tail: at most 7 rows, where a document is in several runs.
 *
 * Bound by memory: the roofline is bytes / DRAM bandwidth. Tile: a thread has a column and CONV_ROWS rows, of which it holds the last 8 in
 * registers; fewer taps than 8 are as many with zeros before them. dw: 32 columns a block, 8 threads a column, which share the rows. */
#include "cuda/kernels.h"
#include "cuda/rh_cuda.h"

enum { CONV_THREADS = 256, CONV_ROWS = 64, CONV_TAPS = RH_CONV_MOST, CONV_COLUMNS = RH_WARP, CONV_PARTS = CONV_THREADS / CONV_COLUMNS };

struct conv_args {
	const void *x, *w, *dy, *tail;
	void *y, *dx, *last; /* last: the last rows of the last document */
	const float *d_end;
	float *dw, *d_tail;
	const int32_t *start;
	int64_t x_stride, w_stride, y_stride, dy_stride, dx_stride, tail_stride, last_stride, dw_stride, start_stride, rows, columns;
	int64_t d_end_stride, d_tail_stride;
	int taps, documents;
};

/* Walks down a column: the document of its row, and inputs of the convolution, own row last. */
struct conv_walk {
	int64_t column, start, end; /* the document's rows */
	int document;
	float w[CONV_TAPS], x[CONV_TAPS];
};

RH_DEVICE int64_t conv_start(const struct conv_args &a, int document)
{
	return a.start[document * a.start_stride];
}

/* The input at a row, which may lie before the document: before the first one in the tail, else 0. */
template <typename T> RH_DEVICE float conv_input(const struct conv_args &a, const struct conv_walk &walk, int64_t row)
{
	if (row >= walk.start)
		return rh_to_float(((const T *)a.x)[row * a.x_stride + walk.column]);
	int64_t at = row - walk.start + a.taps - 1;
	return a.tail && walk.document == 0 && at >= 0 ? rh_to_float(((const T *)a.tail)[at * a.tail_stride + walk.column]) : 0;
}

/* Before row `row`, which is some document's. */
template <typename T> RH_DEVICE void conv_begin(const struct conv_args &a, int64_t column, int64_t row, struct conv_walk *out)
{
	int low = 0, high = a.documents; /* the last document that begins at the row or before it */
	while (high - low > 1) {
		int middle = low + (high - low) / 2;
		if (conv_start(a, middle) <= row)
			low = middle;
		else
			high = middle;
	}
	out->column = column;
	out->document = low;
	out->start = conv_start(a, low);
	out->end = conv_start(a, low + 1);
	for (int j = 0; j < CONV_TAPS; j++) {
		int tap = j - (CONV_TAPS - a.taps);
		out->w[j] = tap >= 0 ? rh_to_float(((const T *)a.w)[column * a.w_stride + tap]) : 0;
		out->x[j] = j ? conv_input<T>(a, *out, row - CONV_TAPS + j) : 0; /* as of the row before */
	}
}

/* To the next row: returns the convolution's sum. */
template <typename T> RH_DEVICE float conv_step(const struct conv_args &a, struct conv_walk *walk, int64_t row)
{
	int is_new = 0;
	while (row >= walk->end) { /* the next document that has rows */
		walk->document++;
		walk->start = walk->end;
		walk->end = conv_start(a, walk->document + 1);
		is_new = 1;
	}
	float sum = 0;
	RH_UNROLL
	for (int j = 0; j < CONV_TAPS - 1; j++)
		walk->x[j] = is_new ? 0 : walk->x[j + 1];
	walk->x[CONV_TAPS - 1] = conv_input<T>(a, *walk, row);
	RH_UNROLL
	for (int j = 0; j < CONV_TAPS; j++)
		sum += walk->w[j] * walk->x[j];
	return sum;
}

RH_DEVICE float conv_sigmoid(float x)
{
	return 1 / (1 + expf(-x));
}

/* The first and the end of a block's rows that are documents'. */
RH_DEVICE void conv_rows(const struct conv_args &a, int64_t *first, int64_t *end)
{
	int64_t low = conv_start(a, 0), high = conv_start(a, a.documents);
	*first = (int64_t)blockIdx.y * CONV_ROWS;
	*end = *first + CONV_ROWS < high ? *first + CONV_ROWS : high;
	*first = *first > low ? *first : low;
}

template <typename T> RH_KERNEL(CONV_THREADS, 4) conv_forward(struct conv_args a)
{
	int64_t column = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x, first, end;
	struct conv_walk walk;
	conv_rows(a, &first, &end);
	if (column >= a.columns || first >= end)
		return;
	conv_begin<T>(a, column, first, &walk);
	for (int64_t row = first; row < end; row++) {
		float z = conv_step<T>(a, &walk, row);
		((T *)a.y)[row * a.y_stride + column] = rh_from_float<T>(z * conv_sigmoid(z));
	}
}

/* Upwards: what is read lies above what is written. */
template <typename T> RH_KERNEL(CONV_THREADS, 4) conv_tail(struct conv_args a)
{
	struct conv_walk walk = {};
	walk.column = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x;
	walk.document = a.documents - 1;
	walk.start = conv_start(a, walk.document);
	walk.end = conv_start(a, a.documents);
	for (int r = 0; r < a.taps - 1 && walk.column < a.columns; r++)
		((T *)a.last)[r * a.last_stride + walk.column] = rh_from_float<T>(conv_input<T>(a, walk, walk.end - (a.taps - 1) + r));
}

/* The gradient of the sum at a row. */
template <typename T> RH_DEVICE float conv_gradient(const struct conv_args &a, struct conv_walk *walk, int64_t row)
{
	float z = conv_step<T>(a, walk, row), s = conv_sigmoid(z);
	return rh_to_float(((const T *)a.dy)[row * a.dy_stride + walk->column]) * (s + z * s * (1 - s));
}

/* The same behind the documents' rows, where the last one goes on in another run. */
RH_DEVICE float conv_gradient_behind(const struct conv_args &a, const struct conv_walk &walk, int64_t place)
{
	if (!a.d_end || walk.document + 1 < a.documents || place >= a.taps - 1)
		return 0;
	return a.d_end[place * a.d_end_stride + walk.column];
}

/* A sum's gradient counts at its row and at the 7 before it in the document; the row 7 back is then complete. */
template <typename T> RH_KERNEL(CONV_THREADS, 3) conv_backward_dx(struct conv_args a)
{
	int64_t column = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x, first, end, high = conv_start(a, a.documents);
	struct conv_walk walk;
	float sum[CONV_TAPS] = {}; /* of the row 7 back first */
	conv_rows(a, &first, &end);
	if (column >= a.columns || first >= end)
		return;
	conv_begin<T>(a, column, first, &walk);
	for (int64_t row = first; row < end + CONV_TAPS - 1; row++) {
		float dz = row < high ? conv_gradient<T>(a, &walk, row) : conv_gradient_behind(a, walk, row - high);
		RH_UNROLL
		for (int j = 0; j < CONV_TAPS - 1; j++)
			sum[j] = sum[j + 1];
		sum[CONV_TAPS - 1] = 0;
		RH_UNROLL
		for (int j = 0; j < CONV_TAPS; j++) /* tap j reads the row CONV_TAPS - 1 - j back */
			sum[j] += row - (CONV_TAPS - 1) + j >= walk.start ? walk.w[j] * dz : 0;
		if (row - (CONV_TAPS - 1) >= first)
			((T *)a.dx)[(row - (CONV_TAPS - 1)) * a.dx_stride + column] = rh_from_float<T>(sum[0]);
	}
}

/* The gradients of the sums at the first rows of the first document. Downwards: what is read lies below what is written. */
template <typename T> RH_KERNEL(CONV_THREADS, 4) conv_backward_d_tail(struct conv_args a)
{
	int64_t column = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x, start = conv_start(a, 0), count = conv_start(a, 1) - start;
	struct conv_walk walk = {};
	float own[CONV_TAPS] = {};
	if (column >= a.columns)
		return;
	walk.column = column;
	if (count > 0)
		conv_begin<T>(a, column, start, &walk);
	RH_UNROLL
	for (int j = 0; j < CONV_TAPS - 1; j++)
		own[j] = j < count && j < a.taps - 1 ? conv_gradient<T>(a, &walk, start + j) : 0;
	RH_UNROLL
	for (int j = CONV_TAPS - 2; j >= 0; j--)
		if (j < a.taps - 1)
			a.d_tail[j * a.d_tail_stride + column] = j < count ? own[j] : conv_gradient_behind(a, walk, j - count);
}

template <typename T> RH_KERNEL(CONV_THREADS, 2) conv_backward_dw(struct conv_args a)
{
	RH_SHARED_2D(float, part, CONV_PARTS, CONV_COLUMNS);
	int lane = (int)threadIdx.x % CONV_COLUMNS, which = (int)threadIdx.x / CONV_COLUMNS;
	int64_t column = (int64_t)blockIdx.x * CONV_COLUMNS + lane, low = conv_start(a, 0), high = conv_start(a, a.documents);
	int64_t each = rh_ceil_div(high - low, CONV_PARTS), first = low + which * each, end = first + each < high ? first + each : high;
	float sum[CONV_TAPS] = {};
	if (column < a.columns && first < end) {
		struct conv_walk walk;
		conv_begin<T>(a, column, first, &walk);
		for (int64_t row = first; row < end; row++) {
			float dz = conv_gradient<T>(a, &walk, row);
			RH_UNROLL
			for (int j = 0; j < CONV_TAPS; j++)
				sum[j] += dz * walk.x[j];
		}
	}
	for (int tap = 0; tap < a.taps; tap++) {
		float own = 0;
		RH_UNROLL
		for (int j = 0; j < CONV_TAPS; j++)
			own = j == tap + CONV_TAPS - a.taps ? sum[j] : own;
		__syncthreads();
		part[which][lane] = own;
		__syncthreads();
		float total = 0;
		for (int i = 0; i < CONV_PARTS; i++)
			total += part[i][lane];
		if (which == 0 && column < a.columns)
			a.dw[column * a.dw_stride + tap] += total;
	}
}

static struct conv_args args_of(const struct rh_op *op)
{
	const struct rh_view *view = op->operand;
	struct conv_args a = {};
	a.x = view[RH_CONV_X].data, a.x_stride = view[RH_CONV_X].stride;
	a.w = view[RH_CONV_W].data, a.w_stride = view[RH_CONV_W].stride;
	a.start = (const int32_t *)view[RH_CONV_START].data, a.start_stride = view[RH_CONV_START].stride;
	a.rows = view[RH_CONV_X].rows, a.columns = view[RH_CONV_X].cols;
	a.taps = (int)view[RH_CONV_W].cols;
	a.documents = (int)op->conv.documents;
	return a;
}

static dim3 grid_of(const struct conv_args *a)
{
	return dim3((unsigned)rh_ceil_div(a->columns, CONV_THREADS), (unsigned)rh_ceil_div(a->rows, CONV_ROWS), 1);
}

extern "C" int cuda_conv(const struct rh_op *op, CUstream_st *stream)
{
	struct conv_args a = args_of(op);
	struct rh_view y = op->operand[RH_CONV_Y], tail = op->operand[RH_CONV_TAIL], last = op->operand[RH_CONV_END];
	a.y = y.data, a.y_stride = y.stride;
	a.tail = tail.data, a.tail_stride = tail.stride;
	a.last = last.data, a.last_stride = last.stride;
	int rc = 0, is_bf16 = y.dtype == RH_BF16;
	if (a.rows)
		rc = is_bf16 ? RH_LAUNCH(conv_forward<rh_bf16>, grid_of(&a), CONV_THREADS, 0, stream, a)
		             : RH_LAUNCH(conv_forward<float>, grid_of(&a), CONV_THREADS, 0, stream, a);
	if (rc < 0 || !a.last || a.taps < 2)
		return rc;
	unsigned blocks = (unsigned)rh_ceil_div(a.columns, CONV_THREADS);
	return is_bf16 ? RH_LAUNCH(conv_tail<rh_bf16>, blocks, CONV_THREADS, 0, stream, a)
	               : RH_LAUNCH(conv_tail<float>, blocks, CONV_THREADS, 0, stream, a);
}

extern "C" int cuda_conv_backward(const struct rh_op *op, CUstream_st *stream)
{
	struct conv_args a = args_of(op);
	struct rh_view dy = op->operand[RH_CONV_BACKWARD_DY], dx = op->operand[RH_CONV_BACKWARD_DX], dw = op->operand[RH_CONV_BACKWARD_DW];
	struct rh_view tail = op->operand[RH_CONV_BACKWARD_TAIL], d_end = op->operand[RH_CONV_BACKWARD_D_END],
	               d_tail = op->operand[RH_CONV_BACKWARD_D_TAIL];
	a.tail = tail.data, a.tail_stride = tail.stride;
	a.d_end = (const float *)d_end.data, a.d_end_stride = d_end.stride;
	a.d_tail = (float *)d_tail.data, a.d_tail_stride = d_tail.stride;
	a.dy = dy.data, a.dy_stride = dy.stride;
	a.dx = dx.data, a.dx_stride = dx.stride;
	a.dw = (float *)dw.data, a.dw_stride = dw.stride;
	int rc = 0, is_bf16 = dy.dtype == RH_BF16;
	if (a.dw && a.rows) {
		unsigned blocks = (unsigned)rh_ceil_div(a.columns, CONV_COLUMNS);
		rc = is_bf16 ? RH_LAUNCH(conv_backward_dw<rh_bf16>, blocks, CONV_THREADS, 0, stream, a)
		             : RH_LAUNCH(conv_backward_dw<float>, blocks, CONV_THREADS, 0, stream, a);
	}
	if (rc >= 0 && a.rows)
		rc = is_bf16 ? RH_LAUNCH(conv_backward_dx<rh_bf16>, grid_of(&a), CONV_THREADS, 0, stream, a)
		             : RH_LAUNCH(conv_backward_dx<float>, grid_of(&a), CONV_THREADS, 0, stream, a);
	if (rc < 0 || !a.d_tail || a.taps < 2)
		return rc;
	unsigned blocks = (unsigned)rh_ceil_div(a.columns, CONV_THREADS);
	return is_bf16 ? RH_LAUNCH(conv_backward_d_tail<rh_bf16>, blocks, CONV_THREADS, 0, stream, a)
	               : RH_LAUNCH(conv_backward_d_tail<float>, blocks, CONV_THREADS, 0, stream, a);
}
