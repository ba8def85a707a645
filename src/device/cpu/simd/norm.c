/* RMSNorm. Each vector of a row is read twice from cache and once from memory. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

#include <math.h>

SIMD_INLINE float sum_of_squares(const void *x, int64_t n, const int bf16)
{
	vf sum[4] = {{0}};
	int64_t i = 0;
	for (; i + 4 * VF <= n; i += 4 * VF) {
		for (int j = 0; j < 4; j++) {
			vf v = act_load(x, i + j * VF, VF, bf16);
			sum[j] += v * v;
		}
	}
	for (; i < n; i += VF) {
		vf v = act_load(x, i, n - i, bf16);
		sum[0] += v * v;
	}
	return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

SIMD_INLINE void forward(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view w = op->operand[RH_RMSNORM_W], rstd = op->operand[RH_RMSNORM_RSTD];
	float offset = op->rmsnorm.offset;
	int64_t n = w.cols;
	for (int64_t t = first; t < end; t++) {
		for (int64_t g = 0; g < op->rmsnorm.groups; g++) {
			const void *x = act_at(row_at(op->operand[RH_RMSNORM_X], t), g * n, bf16);
			void *y = row_at(op->operand[RH_RMSNORM_Y], t);
			float r = 1.0f / sqrtf(sum_of_squares(x, n, bf16) / (float)n + op->rmsnorm.epsilon);
			((float *)row_at(rstd, t))[g] = r;
			for (int64_t i = 0; i < n; i += VF)
				act_store(y, g * n + i, act_load(x, i, n - i, bf16) * r * (act_load(w.data, i, n - i, bf16) + offset), n - i, bf16);
		}
	}
}

/* Units are rows. */
static void rmsnorm(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_RMSNORM_X].dtype, forward, op, first, end);
}

const struct cpu_op SIMD(cpu_rmsnorm) = {{{rmsnorm, NULL}}};

SIMD_INLINE void backward_dw(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view x = op->operand[RH_RMSNORM_BACKWARD_X], dy = op->operand[RH_RMSNORM_BACKWARD_DY];
	int64_t n = op->operand[RH_RMSNORM_BACKWARD_W].cols;
	float total[CPU_COLUMNS] = {0};
	for (int64_t t0 = 0; t0 < x.rows; t0 += 64) { /* sums of 64 rows first: the rounding of long sums stays small */
		float sum[CPU_COLUMNS] = {0};
		for (int64_t t = t0; t < x.rows && t < t0 + 64; t++) {
			const float *rstd = row_at(op->operand[RH_RMSNORM_BACKWARD_RSTD], t);
			for (int64_t g = 0; g < op->rmsnorm.groups; g++) {
				const void *x_row = act_at(row_at(x, t), g * n, bf16), *dy_row = act_at(row_at(dy, t), g * n, bf16);
				for (int64_t i = first; i < end; i += VF) {
					vf product = act_load(x_row, i, end - i, bf16) * rstd[g] * act_load(dy_row, i, end - i, bf16);
					vf_store(sum + i - first, vf_load(sum + i - first) + product);
				}
			}
		}
		for (int i = 0; i < CPU_COLUMNS; i++)
			total[i] += sum[i];
	}
	float *dw = op->operand[RH_RMSNORM_BACKWARD_DW].data;
	for (int64_t i = first; i < end; i++)
		dw[i] += total[i - first];
}

/* Units are columns of w, at most CPU_COLUMNS at once. Before dx, which may overwrite dy. */
static void rmsnorm_backward_dw(const struct rh_op *op, int64_t first, int64_t end)
{
	if (op->operand[RH_RMSNORM_BACKWARD_DW].data)
		BY_DTYPE(op->operand[RH_RMSNORM_BACKWARD_X].dtype, backward_dw, op, first, end);
}

/* The sum of a (b + offset) c. */
SIMD_INLINE float dot3(const void *a, const void *b, float offset, const void *c, int64_t n, const int bf16)
{
	vf sum[2] = {{0}};
	int64_t i = 0;
	for (; i + 2 * VF <= n; i += 2 * VF)
		for (int j = 0; j < 2; j++)
			sum[j] += act_load(a, i + j * VF, VF, bf16) * (act_load(b, i + j * VF, VF, bf16) + offset) *
			          act_load(c, i + j * VF, VF, bf16);
	for (; i < n; i += VF)
		sum[0] += act_load(a, i, n - i, bf16) * (act_load(b, i, n - i, bf16) + offset) * act_load(c, i, n - i, bf16);
	return vf_sum(sum[0] + sum[1]);
}

/* One vector of a row, w offset within, dx = add + rstd (dy w - xhat mean(dy w xhat)). add and y may be absent. */
SIMD_INLINE void backward_vector(const void *const in[4], void *dx, void *y, float rstd, float offset, int64_t n, const int bf16)
{
	const void *x = in[0], *w = in[1], *dy = in[2], *add = in[3];
	float mean = dot3(dy, w, offset, x, n, bf16) * rstd / (float)n;
	for (int64_t i = 0; i < n; i += VF) {
		vf xhat = act_load(x, i, n - i, bf16) * rstd, weight = act_load(w, i, n - i, bf16) + offset;
		vf gradient = (act_load(dy, i, n - i, bf16) * weight - xhat * mean) * rstd;
		if (add)
			gradient += act_load(add, i, n - i, bf16);
		act_store(dx, i, gradient, n - i, bf16);
		if (y)
			act_store(y, i, xhat * weight, n - i, bf16);
	}
}

SIMD_INLINE void backward_dx(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	const struct rh_view *view = op->operand;
	struct rh_view w = view[RH_RMSNORM_BACKWARD_W], add = view[RH_RMSNORM_BACKWARD_ADD], y = view[RH_RMSNORM_BACKWARD_Y];
	int64_t n = w.cols, size = bf16 ? 2 : 4;
	for (int64_t t = first; t < end; t++) {
		const float *rstd = row_at(view[RH_RMSNORM_BACKWARD_RSTD], t);
		for (int64_t g = 0; g < op->rmsnorm.groups; g++) {
			int64_t at = g * n * size;
			const void *in[4] = {(char *)row_at(view[RH_RMSNORM_BACKWARD_X], t) + at, w.data,
			                     (char *)row_at(view[RH_RMSNORM_BACKWARD_DY], t) + at,
			                     add.data ? (char *)row_at(add, t) + at : NULL};
			void *dx = (char *)row_at(view[RH_RMSNORM_BACKWARD_DX], t) + at;
			backward_vector(in, dx, y.data ? (char *)row_at(y, t) + at : NULL, rstd[g], op->rmsnorm.offset, n, bf16);
		}
	}
}

/* Units are rows. */
static void rmsnorm_backward_dx(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_RMSNORM_BACKWARD_X].dtype, backward_dx, op, first, end);
}

static struct cpu_span rmsnorm_backward_dw_span(const struct rh_op *op)
{
	return over_columns(op->operand[RH_RMSNORM_BACKWARD_W]);
}

const struct cpu_op SIMD(cpu_rmsnorm_backward) = {{{rmsnorm_backward_dw, rmsnorm_backward_dw_span}, {rmsnorm_backward_dx, NULL}}};
