/* DoRA. With W (out,in) of e bytes, rank r and T tokens:
 *
 * norm      reads W once and A for each row, 2 out in (r + 1) FLOPs in fp32. A of a layer lies in L2 (r = 16, in = 4096: 128 KB in bf16),
 *           whose out in r e bytes are the roof: 0.5 GB for out = in = 4096, some 0.1 ms on an H100. A block a row.
 * scale     reads x (c), writes y: 2 or 3 T out e bytes, elementwise.
 * gradient  reads dy and u: 2 T out e bytes. 32 columns a block (chunk.h), a launch for each module. */
#include "cuda/chunk.h"
#include "cuda/kernels.h"

enum { DORA_WARPS = 8, DORA_THREADS = DORA_WARPS * RH_WARP };

struct dora_norm_args {
	const void *w, *a, *b, *m; /* of one module; a NULL: it has none */
	float *g;
	int64_t w_stride, a_stride, b_stride, g_stride, cols, r;
	float scale;
};

template <typename T> RH_KERNEL(DORA_THREADS, 4) dora_norm(struct dora_norm_args args)
{
	int64_t row = blockIdx.x;
	const T *w = (const T *)args.w + row * args.w_stride, *b = (const T *)args.b + row * args.b_stride;
	float *g = args.g + row * args.g_stride, squares = 0;
	for (int64_t i = threadIdx.x; args.a && i < args.cols; i += DORA_THREADS) {
		float sum = 0;
		for (int64_t k = 0; k < args.r; k++)
			sum += rh_to_float(b[k]) * rh_to_float(((const T *)args.a)[k * args.a_stride + i]);
		sum = rh_to_float(w[i]) + args.scale * sum;
		squares += sum * sum;
	}
	squares = rh_block_join<DORA_WARPS>(rh_warp_sum(squares), [](float x, float y) { return x + y; });
	if (threadIdx.x)
		return;
	float norm = sqrtf(squares);
	g[0] = args.a ? rh_to_float(((const T *)args.m)[row]) / norm : 1;
	g[1] = args.a ? 1 / norm : 0;
}

struct dora_scale_args {
	const void *x, *bias, *c;
	const float *g;
	void *y;
	int64_t x_stride, g_stride, c_stride, y_stride, rows, cols;
	int aligned;
};

template <typename T> CHUNK_KERNEL dora_scale(struct dora_scale_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	if (left <= 0)
		return;
	struct chunk scale = {}, shift = {};
	if (a.bias)
		shift = chunk_load((const T *)a.bias + i, left, 0);
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++)
		scale.v[k] = k < left ? a.g[(i + k) * a.g_stride] : 0;
	for (int64_t row = chunk_first_row(); row < a.rows; row += chunk_row_step()) {
		struct chunk x = chunk_load((const T *)a.x + row * a.x_stride + i, left, a.aligned), c = {};
		if (a.c)
			c = chunk_load((const T *)a.c + row * a.c_stride + i, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			x.v[k] = x.v[k] * scale.v[k] + shift.v[k] + c.v[k];
		chunk_store((T *)a.y + row * a.y_stride + i, x, left, a.aligned);
	}
}

struct dora_gradient_args {
	const void *dy, *u; /* one module's columns */
	const float *g;
	float *dm;
	int64_t dy_stride, u_stride, g_stride, rows, cols;
	int aligned;
};

template <typename T> RH_KERNEL(COLUMN_THREADS, 2) dora_gradient(struct dora_gradient_args a)
{
	column_add(a.dm, a.cols, a.rows, [&](int64_t row, int64_t i, int64_t left) {
		struct chunk dy = chunk_load((const T *)a.dy + row * a.dy_stride + i, left, a.aligned);
		struct chunk u = chunk_load((const T *)a.u + row * a.u_stride + i, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			dy.v[k] = k < left ? dy.v[k] * u.v[k] * a.g[(i + k) * a.g_stride + 1] : 0;
		return dy;
	});
}

static int norm_of_module(const struct rh_op *op, int module, int64_t first, CUstream_st *stream)
{
	struct rh_view w = rh_view_rows(op->operand[RH_DORA_NORM_W], first, op->lora.out[module]);
	struct rh_view a = op->operand[RH_DORA_NORM_AS + module], b = op->operand[RH_DORA_NORM_BS + module];
	struct rh_view g = rh_view_rows(op->operand[RH_DORA_NORM_G], first, op->lora.out[module]);
	struct dora_norm_args args = {w.data,   a.data,   b.data,   op->operand[RH_DORA_NORM_MS + module].data,
	                              (float *)g.data, w.stride, a.stride, b.stride, g.stride, w.cols, a.rows, op->lora.scale[module]};
	if (w.dtype == RH_BF16)
		return RH_LAUNCH(dora_norm<rh_bf16>, dim3((unsigned)w.rows, 1, 1), DORA_THREADS, 0, stream, args);
	return RH_LAUNCH(dora_norm<float>, dim3((unsigned)w.rows, 1, 1), DORA_THREADS, 0, stream, args);
}

extern "C" int cuda_dora_norm(const struct rh_op *op, CUstream_st *stream)
{
	int rc = 0;
	int64_t first = 0;
	for (int m = 0; !rc && m < RH_LORA_MODULES; m++) {
		if (op->lora.out[m])
			rc = norm_of_module(op, m, first, stream);
		first += op->lora.out[m];
	}
	return rc;
}

extern "C" int cuda_dora_scale(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct rh_view x = view[RH_DORA_SCALE_X], c = view[RH_DORA_SCALE_C], y = view[RH_DORA_SCALE_Y], g = view[RH_DORA_SCALE_G];
	const struct rh_view rows[] = {x, c, y};
	struct dora_scale_args a = {x.data,   view[RH_DORA_SCALE_BIAS].data, c.data,   (const float *)g.data, y.data,
	                            x.stride, g.stride,                      c.stride, y.stride,              x.rows,
	                            x.cols,   chunk_aligned(rows, 3)};
	if (!a.rows || !a.cols)
		return 0;
	dim3 grid = chunk_grid(a.rows, chunks_of(a.cols));
	if (x.dtype == RH_BF16)
		return RH_LAUNCH(dora_scale<rh_bf16>, grid, chunk_block(), 0, stream, a);
	return RH_LAUNCH(dora_scale<float>, grid, chunk_block(), 0, stream, a);
}

static int gradient_of_module(const struct rh_op *op, int module, int64_t first, CUstream_st *stream)
{
	int64_t count = op->lora.out[module];
	const struct rh_view columns[] = {rh_view_cols(op->operand[RH_DORA_GRADIENT_DY], first, count),
	                                  rh_view_cols(op->operand[RH_DORA_GRADIENT_U], first, count)};
	struct rh_view g = rh_view_rows(op->operand[RH_DORA_GRADIENT_G], first, count);
	struct dora_gradient_args a = {columns[0].data,   columns[1].data,
	                               (const float *)g.data, (float *)op->operand[RH_DORA_GRADIENT_DMS + module].data,
	                               columns[0].stride, columns[1].stride,
	                               g.stride,          columns[0].rows,
	                               count,             chunk_aligned(columns, 2)};
	if (columns[0].dtype == RH_BF16)
		return RH_LAUNCH(dora_gradient<rh_bf16>, column_blocks(count), COLUMN_THREADS, 0, stream, a);
	return RH_LAUNCH(dora_gradient<float>, column_blocks(count), COLUMN_THREADS, 0, stream, a);
}

extern "C" int cuda_dora_gradient(const struct rh_op *op, CUstream_st *stream)
{
	int rc = 0;
	int64_t first = 0;
	for (int m = 0; !rc && m < RH_LORA_MODULES; m++) {
		if (op->operand[RH_DORA_GRADIENT_DMS + m].data && op->operand[RH_DORA_GRADIENT_DY].rows)
			rc = gradient_of_module(op, m, first, stream);
		first += op->lora.out[m];
	}
	return rc;
}
