/* A product with a function of a gate, with or without an RMSNorm before it. Each row is read twice, once from cache. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

#include <math.h>

/* f(z), and in *slope f'(z). */
SIMD_INLINE vf gated(enum rh_gate f, vf z, vf *slope)
{
	vf s = 1.0f / (1.0f + vf_exp(-z)), rise = s * (1.0f - s);
	*slope = f == RH_GATE_SIGMOID ? rise : s + z * rise;
	return f == RH_GATE_SIGMOID ? s : z * s;
}

SIMD_INLINE vf weight_at(struct rh_view w, int64_t i, const int bf16)
{
	return w.data ? act_load(w.data, i, w.cols - i, bf16) : vf_set(1.0f);
}

/* The gates of elements [i, i + VF) of n; where a row has one gate, that one. */
SIMD_INLINE vf gates_at(struct rh_view z, int64_t t, int64_t i, int64_t n, const int bf16)
{
	if (z.cols > 1)
		return act_load(row_at(z, t), i, n - i, bf16);
	return vf_set(act_load(row_at(z, t), 0, 1, bf16)[0]);
}

SIMD_INLINE void forward(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view w = op->operand[RH_GATE_W];
	int64_t n = op->operand[RH_GATE_X].cols;
	vf slope;
	for (int64_t t = first; t < end; t++) {
		const void *x = row_at(op->operand[RH_GATE_X], t);
		void *y = row_at(op->operand[RH_GATE_Y], t);
		float r = 1;
		if (w.data) {
			vf squares = {0};
			for (int64_t i = 0; i < n; i += VF)
				squares += act_load(x, i, n - i, bf16) * act_load(x, i, n - i, bf16);
			r = 1.0f / sqrtf(vf_sum(squares) / (float)n + op->gate.epsilon);
			*(float *)row_at(op->operand[RH_GATE_RSTD], t) = r;
		}
		for (int64_t i = 0; i < n; i += VF)
			act_store(y, i,
			          act_load(x, i, n - i, bf16) * r * weight_at(w, i, bf16) *
			                  gated(op->gate.f, gates_at(op->operand[RH_GATE_Z], t, i, n, bf16), &slope),
			          n - i, bf16);
	}
}

/* Units are rows. */
static void gate(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_GATE_X].dtype, forward, op, first, end);
}

const struct cpu_op SIMD(cpu_gate) = {{{gate, NULL}}};

SIMD_INLINE void backward_dw(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	const struct rh_view *view = op->operand;
	float total[CPU_COLUMNS] = {0}, *dw = view[RH_GATE_BACKWARD_DW].data;
	int64_t rows = view[RH_GATE_BACKWARD_X].rows;
	vf slope;
	for (int64_t t0 = 0; t0 < rows; t0 += 64) { /* sums of 64 rows first: the rounding of long sums stays small */
		float sum[CPU_COLUMNS] = {0};
		for (int64_t t = t0; t < rows && t < t0 + 64; t++)
			for (int64_t i = first; i < end; i += VF) {
				vf x = act_load(row_at(view[RH_GATE_BACKWARD_X], t), i, end - i, bf16);
				vf z = gates_at(view[RH_GATE_BACKWARD_Z], t, i, end, bf16);
				vf dy = act_load(row_at(view[RH_GATE_BACKWARD_DY], t), i, end - i, bf16);
				x = x * *(const float *)row_at(view[RH_GATE_BACKWARD_RSTD], t) * dy * gated(op->gate.f, z, &slope);
				vf_store(sum + i - first, vf_load(sum + i - first) + x);
			}
		for (int i = 0; i < CPU_COLUMNS; i++)
			total[i] += sum[i];
	}
	for (int64_t i = first; i < end; i++)
		dw[i] += total[i - first];
}

/* Units are columns, at most CPU_COLUMNS at once. Before dx, which may overwrite dy. */
static void gate_backward_dw(const struct rh_op *op, int64_t first, int64_t end)
{
	if (op->operand[RH_GATE_BACKWARD_DW].data && op->operand[RH_GATE_BACKWARD_W].data)
		BY_DTYPE(op->operand[RH_GATE_BACKWARD_X].dtype, backward_dw, op, first, end);
}

SIMD_INLINE void backward_row(const struct rh_op *op, int64_t t, const int bf16)
{
	const struct rh_view *view = op->operand;
	struct rh_view w = view[RH_GATE_BACKWARD_W], z = view[RH_GATE_BACKWARD_Z];
	int64_t n = view[RH_GATE_BACKWARD_X].cols;
	const void *x = row_at(view[RH_GATE_BACKWARD_X], t);
	const void *dy = row_at(view[RH_GATE_BACKWARD_DY], t);
	void *dx = row_at(view[RH_GATE_BACKWARD_DX], t), *dz = row_at(view[RH_GATE_BACKWARD_DZ], t);
	float r = w.data ? *(const float *)row_at(view[RH_GATE_BACKWARD_RSTD], t) : 1, mean = 0;
	vf slope, along = {0}, of_row = {0};
	for (int64_t i = 0; i < n && w.data; i += VF)
		along += act_load(dy, i, n - i, bf16) * weight_at(w, i, bf16) * gated(op->gate.f, gates_at(z, t, i, n, bf16), &slope) *
		         act_load(x, i, n - i, bf16);
	mean = vf_sum(along) * r / (float)n;
	for (int64_t i = 0; i < n; i += VF) {
		vf xhat = act_load(x, i, n - i, bf16) * r, weight = weight_at(w, i, bf16), d = act_load(dy, i, n - i, bf16);
		vf f = gated(op->gate.f, gates_at(z, t, i, n, bf16), &slope);
		vf dgate = d * xhat * weight * slope;
		act_store(dx, i, (d * weight * f - xhat * mean) * r, n - i, bf16);
		of_row += dgate; /* past the end x is 0 */
		if (z.cols > 1)
			act_store(dz, i, dgate, n - i, bf16);
		if (view[RH_GATE_BACKWARD_Y].data)
			act_store(row_at(view[RH_GATE_BACKWARD_Y], t), i, xhat * weight * f, n - i, bf16);
	}
	if (z.cols == 1)
		act_store(dz, 0, vf_set(vf_sum(of_row)), 1, bf16);
}

SIMD_INLINE void backward_dx(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	for (int64_t t = first; t < end; t++)
		backward_row(op, t, bf16);
}

/* Units are rows. */
static void gate_backward_dx(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_GATE_BACKWARD_X].dtype, backward_dx, op, first, end);
}

static struct cpu_span gate_columns(const struct rh_op *op)
{
	return over_columns(op->operand[RH_GATE_BACKWARD_X]);
}

const struct cpu_op SIMD(cpu_gate_backward) = {{{gate_backward_dw, gate_columns}, {gate_backward_dx, NULL}}};
