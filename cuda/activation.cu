/* Gated activations (SwiGLU, GeGLU, gpt-oss's) and plain ones (SiLU, GELU, tanh), forward and backward. T rows of I results of e bytes:
 *
 * glu                  reads 2 T I e bytes, writes T I e; about 20 FLOPs an element of the result, 40 with erf.
 * glu_backward         reads 3 T I e, writes 2 T I e, and T I e more where it makes the forward's output again; 30 to 60 FLOPs. With
 *                      dot a warp a row, 8 rows a block: a lane's chunks in order, then over the warp.
 * activation           reads T I e, writes T I e.
 * activation_backward  reads 2 T I e, writes T I e, and T I e more with the output.
 *
 * At 3 to 20 FLOPs a byte all are bound by memory: the roofline is bytes / DRAM bandwidth.
 * Tile: 8 results a thread, 32 such by 8 rows a block. gpt-oss's gates and ups alternate: a thread reads 16 for its 8 results. */
#include "cuda/chunk.h"
#include "cuda/kernels.h"

struct activation_args {
	const void *x, *dy;         /* gu and da of GLU */
	void *y, *dx;               /* a and dgu */
	float *dot, *amax, *y_amax; /* amax: of a, or of dgu, and then y_amax of a; a number a warp's chunks; or NULL */
	int64_t amax_stride, y_amax_stride;
	int64_t x_stride, dy_stride, y_stride, dx_stride, dot_stride, rows, cols;
	float cap; /* of tanh: 1 where there is none */
	int aligned;
};

/* f(x), f'(x). */
struct curve {
	float value, slope;
};

template <int ACT> RH_DEVICE struct curve curve_of(float x)
{
	if constexpr (ACT == RH_ACT_GELU) {
		float below = 0.5f * erfcf(x * -0.70710678f);
		return {x * below, below + x * expf(-0.5f * x * x) * 0.39894228f};
	} else if constexpr (ACT == RH_ACT_TANH) {
		float value = tanhf(x);
		return {value, 1 - value * value};
	} else {
		float bend = x, slope = 1;
		if constexpr (ACT == RH_ACT_GPT_OSS) {
			bend = RH_GPT_OSS_ALPHA * x, slope = RH_GPT_OSS_ALPHA;
		} else if constexpr (ACT == RH_ACT_GELU_TANH) { /* sqrt(8 / pi) (x + 0.044715 x^3): beyond 30 the sigmoid is 0 or 1 */
			float near = fminf(fmaxf(x, -30.0f), 30.0f);
			bend = near * (1.59576912f + 0.07135481f * near * near);
			slope = 1.59576912f + 0.21406445f * near * near;
		}
		float sigmoid = 1 / (1 + expf(-bend));
		return {x * sigmoid, sigmoid * (1 + x * (1 - sigmoid) * slope)};
	}
}

/* Gates and ups of 8 results from column i on, at a row of gu. */
struct gated {
	struct chunk gate, up;
};

template <typename T, int ACT> RH_DEVICE struct gated gated_load(const T *gu, int64_t i, int64_t cols, int aligned)
{
	struct gated in;
	if constexpr (ACT == RH_ACT_GPT_OSS) {
		struct chunk low = chunk_load(gu + 2 * i, 2 * (cols - i), aligned);
		struct chunk high = chunk_load(gu + 2 * i + CHUNK, 2 * (cols - i) - CHUNK, aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++) {
			in.gate.v[k] = k < CHUNK / 2 ? low.v[2 * k % CHUNK] : high.v[2 * k % CHUNK];
			in.up.v[k] = k < CHUNK / 2 ? low.v[2 * k % CHUNK + 1] : high.v[2 * k % CHUNK + 1];
		}
	} else {
		in.gate = chunk_load(gu + i, cols - i, aligned);
		in.up = chunk_load(gu + cols + i, cols - i, aligned);
	}
	return in;
}

template <typename T, int ACT> RH_DEVICE void gated_store(T *gu, int64_t i, int64_t cols, const struct gated &out, int aligned)
{
	if constexpr (ACT != RH_ACT_GPT_OSS) {
		chunk_store(gu + i, out.gate, cols - i, aligned);
		chunk_store(gu + cols + i, out.up, cols - i, aligned);
	} else {
		struct chunk part[2];
		RH_UNROLL
		for (int k = 0; k < 2 * CHUNK; k++)
			part[k / CHUNK].v[k % CHUNK] = k % 2 ? out.up.v[k / 2] : out.gate.v[k / 2];
		chunk_store(gu + 2 * i, part[0], 2 * (cols - i), aligned);
		chunk_store(gu + 2 * i + CHUNK, part[1], 2 * (cols - i) - CHUNK, aligned);
	}
}

/* gpt-oss: a gate is at most the limit, an up within it and then one more. */
template <int ACT> RH_DEVICE float limited_gate(float gate)
{
	return ACT == RH_ACT_GPT_OSS ? fminf(gate, RH_GPT_OSS_LIMIT) : gate;
}

template <int ACT> RH_DEVICE float limited_up(float up)
{
	return ACT == RH_ACT_GPT_OSS ? fminf(fmaxf(up, -RH_GPT_OSS_LIMIT), RH_GPT_OSS_LIMIT) + 1 : up;
}

static_assert(RH_GLU_RUN == CHUNK_BLOCK_WIDTH * CHUNK, "a warp has a run");

/* Of a warp's numbers. */
template <typename T> RH_DEVICE void leave_amax(float *amax, uint32_t most)
{
	most = lanes_largest(most, RH_WARP);
	if (threadIdx.x == 0)
		*amax = stored_magnitude<T>(most);
}

template <typename T, int ACT> CHUNK_KERNEL glu_forward(struct activation_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows; row += chunk_row_step()) {
		struct gated in = {};
		if (left > 0)
			in = gated_load<T, ACT>((const T *)a.x + row * a.x_stride, i, a.cols, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			in.gate.v[k] = curve_of<ACT>(limited_gate<ACT>(in.gate.v[k])).value * limited_up<ACT>(in.up.v[k]);
		if (left > 0)
			chunk_store((T *)a.y + row * a.y_stride + i, in.gate, left, a.aligned);
		if (a.amax)
			leave_amax<T>(a.amax + row * a.amax_stride + blockIdx.x, chunk_largest(0, in.gate));
	}
}

/* The largest magnitudes of a thread's chunks. */
struct glu_largest {
	uint32_t dgu, a;
};

/* 8 results of a row from column i on; the sum of da times a. dgu may be gu, a may be da: a thread has read what it overwrites. */
template <typename T, int ACT>
RH_DEVICE float glu_gradient_chunk(const struct activation_args &a, int64_t row, int64_t i, struct glu_largest *most)
{
	int64_t left = a.cols - i;
	if (left <= 0)
		return 0;
	struct gated in = gated_load<T, ACT>((const T *)a.x + row * a.x_stride, i, a.cols, a.aligned);
	struct chunk d = chunk_load((const T *)a.dy + row * a.dy_stride + i, left, a.aligned);
	float sum = 0;
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++) {
		float gate = in.gate.v[k], up = in.up.v[k], plus = limited_up<ACT>(up), dk = d.v[k];
		struct curve f = curve_of<ACT>(limited_gate<ACT>(gate));
		int limits = ACT == RH_ACT_GPT_OSS;
		in.gate.v[k] = limits && gate > RH_GPT_OSS_LIMIT ? 0 : dk * plus * f.slope;
		in.up.v[k] = limits && fabsf(up) > RH_GPT_OSS_LIMIT ? 0 : dk * f.value;
		d.v[k] = f.value * plus;
		sum += dk * d.v[k];
	}
	gated_store<T, ACT>((T *)a.dx + row * a.dx_stride, i, a.cols, in, a.aligned);
	if (a.y)
		chunk_store((T *)a.y + row * a.y_stride + i, d, left, a.aligned);
	if (a.amax)
		most->dgu = chunk_largest(chunk_largest(0, in.gate), in.up);
	if (a.y_amax)
		most->a = chunk_largest(0, d);
	return sum;
}

/* Of a warp's chunks, which are number `run` of its row's runs. */
template <typename T>
RH_DEVICE void glu_leave_amax(const struct activation_args &a, int64_t row, int64_t run, const struct glu_largest &most)
{
	if (a.amax)
		leave_amax<T>(a.amax + row * a.amax_stride + run, most.dgu);
	if (a.y_amax)
		leave_amax<T>(a.y_amax + row * a.y_amax_stride + run, most.a);
}

template <typename T, int ACT> CHUNK_KERNEL glu_gradient(struct activation_args a)
{
	for (int64_t row = chunk_first_row(); row < a.rows; row += chunk_row_step()) {
		struct glu_largest most = {};
		glu_gradient_chunk<T, ACT>(a, row, chunk_of_row() * CHUNK, &most);
		glu_leave_amax<T>(a, row, blockIdx.x, most);
	}
}

/* With dot. A warp a row. */
template <typename T, int ACT> CHUNK_KERNEL glu_gradient_dot(struct activation_args a)
{
	for (int64_t row = chunk_first_row(); row < a.rows; row += chunk_row_step()) {
		float sum = 0;
		for (int64_t run = 0; run * RH_GLU_RUN < a.cols; run++) {
			struct glu_largest most = {};
			sum += glu_gradient_chunk<T, ACT>(a, row, run * RH_GLU_RUN + threadIdx.x * CHUNK, &most);
			glu_leave_amax<T>(a, row, run, most);
		}
		sum = rh_warp_sum(sum);
		if (threadIdx.x == 0)
			a.dot[row * a.dot_stride] = sum;
	}
}

template <typename T, int ACT> CHUNK_KERNEL activation_forward(struct activation_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		struct chunk c = chunk_load((const T *)a.x + row * a.x_stride + i, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			c.v[k] = ACT == RH_ACT_TANH ? a.cap * curve_of<ACT>(c.v[k] / a.cap).value : curve_of<ACT>(c.v[k]).value;
		chunk_store((T *)a.y + row * a.y_stride + i, c, left, a.aligned);
	}
}

template <typename T, int ACT> CHUNK_KERNEL activation_gradient(struct activation_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		struct chunk c = chunk_load((const T *)a.x + row * a.x_stride + i, left, a.aligned);
		struct chunk d = chunk_load((const T *)a.dy + row * a.dy_stride + i, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++) {
			struct curve f = curve_of<ACT>(c.v[k]);
			d.v[k] *= f.slope;
			c.v[k] = f.value;
		}
		chunk_store((T *)a.dx + row * a.dx_stride + i, d, left, a.aligned);
		if (a.y)
			chunk_store((T *)a.y + row * a.y_stride + i, c, left, a.aligned);
	}
}

enum pass { GLU_FORWARD, GLU_GRADIENT, FORWARD, GRADIENT };

template <typename T, int ACT> static int run_curve(const struct activation_args *a, enum pass pass, CUstream_st *stream)
{
	dim3 grid = chunk_grid(a->rows, chunks_of(a->cols)), block = chunk_block();
	if constexpr (ACT != RH_ACT_TANH) { /* of ACTIVATION only, as rh_op_fault sees to */
		if (pass == GLU_FORWARD)
			return RH_LAUNCH((glu_forward<T, ACT>), grid, block, 0, stream, *a);
		if (pass == GLU_GRADIENT && a->dot)
			return RH_LAUNCH((glu_gradient_dot<T, ACT>), dim3(1, grid.y, 1), block, 0, stream, *a);
		if (pass == GLU_GRADIENT)
			return RH_LAUNCH((glu_gradient<T, ACT>), grid, block, 0, stream, *a);
	}
	if constexpr (ACT == RH_ACT_GPT_OSS) {
		return 0; /* of GLU only */
	} else {
		if (pass == FORWARD)
			return RH_LAUNCH((activation_forward<T, ACT>), grid, block, 0, stream, *a);
		return RH_LAUNCH((activation_gradient<T, ACT>), grid, block, 0, stream, *a);
	}
}

template <typename T> static int run_dtype(const struct activation_args *a, enum rh_activation act, enum pass pass, CUstream_st *stream)
{
	switch (act) {
	case RH_ACT_GELU:
		return run_curve<T, RH_ACT_GELU>(a, pass, stream);
	case RH_ACT_GELU_TANH:
		return run_curve<T, RH_ACT_GELU_TANH>(a, pass, stream);
	case RH_ACT_GPT_OSS:
		return run_curve<T, RH_ACT_GPT_OSS>(a, pass, stream);
	case RH_ACT_TANH:
		return run_curve<T, RH_ACT_TANH>(a, pass, stream);
	default:
		return run_curve<T, RH_ACT_SILU>(a, pass, stream);
	}
}

static int run(const struct rh_op *op, const struct activation_args *a, enum pass pass, CUstream_st *stream)
{
	if (!a->rows || !a->cols)
		return 0;
	if (op->operand[0].dtype == RH_BF16)
		return run_dtype<rh_bf16>(a, op->activation.act, pass, stream);
	return run_dtype<float>(a, op->activation.act, pass, stream);
}

/* Ups begin `cols` elements behind gates: on 16 bytes only if that many are whole vectors. */
static int halves_aligned(const struct rh_view *view, int views, int64_t cols)
{
	return chunk_aligned(view, views) && cols * rh_dtype_bytes(view[0].dtype, 1) % 16 == 0;
}

/* The operands of the forwards and of the backwards have the same numbers. */
static struct activation_args forward_args(const struct rh_op *op)
{
	const struct rh_view *view = op->operand;
	struct activation_args a = {};
	a.x = view[RH_ACTIVATION_X].data, a.x_stride = view[RH_ACTIVATION_X].stride;
	a.y = view[RH_ACTIVATION_Y].data, a.y_stride = view[RH_ACTIVATION_Y].stride;
	a.rows = view[RH_ACTIVATION_Y].rows, a.cols = view[RH_ACTIVATION_Y].cols;
	a.cap = op->activation.cap > 0 ? op->activation.cap : 1;
	a.aligned = chunk_aligned(view, 2);
	return a;
}

static struct activation_args backward_args(const struct rh_op *op)
{
	const struct rh_view *view = op->operand;
	struct activation_args a = {};
	a.x = view[RH_ACTIVATION_BACKWARD_X].data, a.x_stride = view[RH_ACTIVATION_BACKWARD_X].stride;
	a.dy = view[RH_ACTIVATION_BACKWARD_DY].data, a.dy_stride = view[RH_ACTIVATION_BACKWARD_DY].stride;
	a.dx = view[RH_ACTIVATION_BACKWARD_DX].data, a.dx_stride = view[RH_ACTIVATION_BACKWARD_DX].stride;
	a.y = view[RH_ACTIVATION_BACKWARD_Y].data, a.y_stride = view[RH_ACTIVATION_BACKWARD_Y].stride;
	a.rows = view[RH_ACTIVATION_BACKWARD_DY].rows, a.cols = view[RH_ACTIVATION_BACKWARD_DY].cols;
	a.aligned = chunk_aligned(view, 4);
	return a;
}

extern "C" int cuda_glu(const struct rh_op *op, CUstream_st *stream)
{
	struct activation_args a = forward_args(op);
	a.aligned = halves_aligned(op->operand, 2, a.cols);
	a.amax = (float *)op->operand[RH_GLU_AMAX].data, a.amax_stride = op->operand[RH_GLU_AMAX].stride;
	return run(op, &a, GLU_FORWARD, stream);
}

extern "C" int cuda_glu_backward(const struct rh_op *op, CUstream_st *stream)
{
	struct activation_args a = backward_args(op);
	a.aligned = halves_aligned(op->operand, 4, a.cols);
	a.dot = (float *)op->operand[RH_GLU_BACKWARD_DOT].data;
	a.dot_stride = op->operand[RH_GLU_BACKWARD_DOT].stride;
	const struct rh_view dgu = op->operand[RH_GLU_BACKWARD_DGU_AMAX], of_a = op->operand[RH_GLU_BACKWARD_A_AMAX];
	a.amax = (float *)dgu.data, a.amax_stride = dgu.stride;
	a.y_amax = (float *)of_a.data, a.y_amax_stride = of_a.stride;
	return run(op, &a, GLU_GRADIENT, stream);
}

extern "C" int cuda_activation(const struct rh_op *op, CUstream_st *stream)
{
	struct activation_args a = forward_args(op);
	return run(op, &a, FORWARD, stream);
}

extern "C" int cuda_activation_backward(const struct rh_op *op, CUstream_st *stream)
{
	struct activation_args a = backward_args(op);
	return run(op, &a, GRADIENT, stream);
}
